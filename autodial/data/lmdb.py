"""LMDB databases by position, read-only, with the `lmdb` package."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autodial.data.lmdb_pages import check_tree
from autodial.data.text import check_regular
from autodial.errors import InputError

if TYPE_CHECKING:
    import lmdb

_PAGE_HEADER = 16
_PAGE_SIZES = [2**k for k in range(8, 17)]
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<II16x I H42x 4xH2x24xQQ QQ")
"""MDB_meta of mdb.c, on 64-bit little-endian machines: the fields that `_Meta` names."""

_FIXED_MAP = 1
"""The flag of a file that must be mapped at a given address."""

_STRIDE = 64
"""The number of entries between remembered keys; finding an entry again passes at most so many."""


class _Meta(NamedTuple):
    """The content of a meta page, in the order of `_META`."""

    magic: int
    version: int
    page_size: int
    flags: int
    """The flags of the database of free pages, and of the file."""
    main_flags: int
    entries: int
    root: int
    last_page: int
    transaction: int


class Lmdb:
    """A database's entries by position, in the order of the keys.

    The database is open only during reads: a process may open an LMDB once at a time, and must not carry it into a
    fork. There is no lock and no lock file, so that the folder may be read-only; nobody may write to the database
    meanwhile. An LMDB has no positions: continuing behind the last read costs one step per entry, entries passed before
    are found at once, and the first jump ahead passes over all entries in between.

    The file's size is compared with its meta pages before the library maps it, and the pages of its tree are checked
    once (see lmdb_pages), because the library trusts them. Damaged keys and values are read as they are.

    Args:
        folder: the folder that holds data.mdb.

    Attributes:
        path: the path of data.mdb.
        size: the size of data.mdb in bytes.

    Raises:
        InputError: the folder holds no LMDB, or one that is cut short or damaged.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder} is a file; an LMDB is named by the folder that holds its data.mdb")
        # Absolute, so that a later change of the working directory does not move it.
        self.path = (folder / "data.mdb").absolute()
        self._keys: list[bytes] = []  # of entries 0, _STRIDE, 2 * _STRIDE, ..., as far as they were passed
        self._last = (-1, b"")  # position and key of the entry read last
        meta = _check(self.path)
        check_tree(self.path, meta.page_size, meta.last_page, meta.root, meta.entries)
        with self._opened() as transaction:
            self._count: int = transaction.stat()["entries"]
        self.size = self.path.stat().st_size

    def __len__(self) -> int:
        return self._count

    def read(self, positions: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """Keys and values of the entries at `positions`, each in [0, len).

        Raises:
            InputError: the file is damaged, or was cut short in the meantime.
        """
        entries = []
        at = -1
        with self._opened() as transaction, transaction.cursor() as cursor:
            for position in positions:
                if position != at + 1:
                    at, key = self._passed(position)
                    if key and not cursor.set_key(key):
                        raise self._too_few()
                while at < position:
                    if not cursor.next():
                        raise self._too_few()
                    at += 1
                    if at == len(self._keys) * _STRIDE:
                        self._keys.append(bytes(cursor.key()))
                key, value = map(bytes, cursor.item())
                entries.append((key, value))
                self._last = at, key
        return entries

    def _passed(self, position: int) -> tuple[int, bytes]:
        """Position and key of the last known entry up to `position`; -1 and no key if there is none."""
        mark = min(position // _STRIDE, len(self._keys) - 1)
        if mark * _STRIDE <= self._last[0] <= position:
            return self._last
        return mark * _STRIDE, self._keys[mark]

    def _too_few(self) -> InputError:
        return InputError(f"{self.path} is damaged: it has fewer than its {self._count} entries; copy it again")

    @contextmanager
    def _opened(self) -> Iterator[lmdb.Transaction]:
        """The database, open for a moment."""
        import lmdb

        _check(self.path)
        try:
            environment = lmdb.open(str(self.path.parent), readonly=True, lock=False)
        except lmdb.Error as error:
            raise InputError(f"{self.path} can't be opened: {error}") from None
        with environment:
            try:
                with environment.begin() as transaction:
                    yield transaction
            except lmdb.Error as error:
                raise InputError(f"{self.path} is damaged: {error}; copy it again") from None


def _check(path: Path) -> _Meta:
    """The latest meta page of a database; InputError if it is no LMDB, or its size does not fit the page."""
    check_regular(path, "an LMDB")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = _read_meta(path, file.read(_PAGE_HEADER + _META.size), size)
            file.seek(first.page_size)
            second = _read_meta(path, file.read(_PAGE_HEADER + _META.size), size)
    except FileNotFoundError:
        raise InputError(f"{path.parent} is not an LMDB: it holds no data.mdb") from None
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    if second.page_size != first.page_size:
        raise InputError(f"{path} is damaged: its two meta pages state pages of different sizes; copy it again")
    latest = max(first, second, key=lambda meta: meta.transaction)
    wanted = (latest.last_page + 1) * latest.page_size
    if size < wanted:
        raise InputError(f"{path} is cut short: it has {size} of its {wanted} bytes; copy it again")
    return latest


def _read_meta(path: Path, page: bytes, size: int) -> _Meta:
    """The content of a meta page, from its first bytes."""
    if len(page) < _PAGE_HEADER + _META.size:
        raise InputError(f"{path} is empty" if not size else f"{path} is cut short: it has only {size} bytes")
    meta = _Meta(*_META.unpack_from(page, _PAGE_HEADER))
    if meta.magic != _MAGIC:
        raise InputError(f"{path} is no LMDB, or not one of a 64-bit little-endian machine")
    if meta.version != _VERSION:
        raise InputError(f"{path} is an LMDB of data version {meta.version}; only {_VERSION} can be read")
    if meta.page_size not in _PAGE_SIZES:
        raise InputError(f"{path} is damaged: it says that its pages have {meta.page_size} bytes")
    if meta.flags & _FIXED_MAP or meta.main_flags:
        raise InputError(f"{path} is damaged, or an LMDB of another kind than Caffe's: its flags are not 0")
    return meta

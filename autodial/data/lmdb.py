"""LMDB databases by position, read-only.

Not through the `lmdb` package: its cursors touch every value that they pass, so that with images to find batch k is to
read all of the file before it; it won't open a database twice in a process, which a training and a test net do; its
environments must not be used after a fork; and a file that was cut short kills the process. What Caffe's databases need
of the format is little: the trees of https://github.com/LMDB/lmdb, mdb.c, data version 1, as written on 64-bit
little-endian machines.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple

from autodial.errors import InputError

_PAGE = struct.Struct("<QHHHH")
"""MDB_page: its number, padding, flags, and ends of the pointers and the free space, or a number of overflow pages."""
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_KINDS = 0x2F  # these, meta pages, and leaves of another layout (LEAF2)
_PAGE_SIZES = [2**k for k in range(8, 17)]

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<II16x I44x 4xHH24xQQ QQ")
"""MDB_meta, which holds an MDB_db of the free pages (of which only the page size matters) and one of the data."""
_NO_PAGE = 2**64 - 1
_MAX_DEPTH = 32  # CURSOR_STACK

_NODE = struct.Struct("<HHHH")
"""MDB_node: halves of the value's size, flags, and size of the key, which follows with the value. In a branch the first
three make a page number."""
_BIGDATA = 0x01  # instead of the value there is the number of its first overflow page


class _Meta(NamedTuple):
    """What a meta page says, in the order of `_META`."""

    magic: int
    version: int
    page_size: int
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    transaction: int


class Lmdb:
    """A database as a sequence of (key, value), both bytes, in the order of the keys.

    The file is mapped, and every access is checked against its size and the page headers. There is no lock and no lock
    file; nobody may write to the database meanwhile. Finding position k takes a look at the leaf pages before it, once.

    Args:
        folder: the one that holds data.mdb.

    Attributes:
        path: data.mdb.
        size: its bytes.

    Raises:
        InputError: the folder holds no LMDB, or one that is cut short. Reading: the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder} is a file; an LMDB is named by the folder that holds its data.mdb")
        # Absolute, so that a later change of the working directory does not move it.
        self.path = (folder / "data.mdb").absolute()
        self._mapped: mmap.mmap | None = None
        self.size = len(self._map)
        meta = self._read_meta()
        self._page_size, self._last_page, self._count = meta.page_size, meta.last_page, meta.entries
        self._leaves = [] if meta.root == _NO_PAGE else self._find_leaves(meta.root, meta.depth)
        self._ends: list[int] = []  # position behind the last entry of each leaf, for the leaves looked at so far

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: int) -> tuple[bytes, bytes]:
        """Key and value number `position`, from 0."""
        if not 0 <= position < self._count:
            raise IndexError(position)
        while not self._ends or self._ends[-1] <= position:
            if len(self._ends) == len(self._leaves):
                raise InputError(f"{self.path} is damaged: it has fewer than its {self._count} entries; copy it again")
            nodes = self._nodes(self._leaves[len(self._ends)], _LEAF)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(nodes))
        leaf = bisect_right(self._ends, position)
        page = self._leaves[leaf]
        return self._entry(page, self._nodes(page, _LEAF)[position - self._ends[leaf]])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def _map(self) -> mmap.mmap:
        if self._mapped is None:
            try:
                with self.path.open("rb") as file:
                    self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except FileNotFoundError:
                raise InputError(f"{self.path.parent} is not an LMDB: it holds no data.mdb") from None
            except ValueError:
                raise InputError(f"{self.path} is empty") from None
            except OSError as error:
                raise InputError(f"{self.path} can't be read: {error.strerror}") from None
        return self._mapped

    def _read_meta(self) -> _Meta:
        """The later of the two meta pages."""
        first = self._unpack_meta(0)
        if first.page_size not in _PAGE_SIZES:
            raise self._damaged(0)
        meta = max(first, self._unpack_meta(first.page_size), key=lambda meta: meta.transaction)
        if meta.page_size != first.page_size or meta.flags or meta.depth > _MAX_DEPTH:
            raise self._damaged(0)
        wanted = (meta.last_page + 1) * meta.page_size
        if self.size < wanted:
            raise InputError(f"{self.path} is cut short: it has {self.size} of its {wanted} bytes; copy it again")
        return meta

    def _unpack_meta(self, start: int) -> _Meta:
        if self.size < start + _PAGE.size + _META.size:
            raise InputError(f"{self.path} is no LMDB, or it is cut short: it has only {self.size} bytes")
        meta = _Meta(*_META.unpack_from(self._map, start + _PAGE.size))
        if meta.magic != _MAGIC:
            raise InputError(f"{self.path} is no LMDB, or not one of a 64-bit little-endian machine")
        if meta.version != _VERSION:
            raise InputError(f"{self.path} is an LMDB of data version {meta.version}; only {_VERSION} can be read")
        return meta

    def _find_leaves(self, root: int, depth: int) -> list[int]:
        """The numbers of the leaf pages, in order. All are at the same depth."""
        pages = [root]
        for _ in range(depth - 1):
            children: list[int] = []
            for page in pages:
                for node in self._nodes(page, _BRANCH):
                    low, high, higher, _ = _NODE.unpack_from(self._map, node)
                    children.append(low | high << 16 | higher << 32)
                if len(children) > self._last_page:  # a damaged file may lead in circles
                    raise self._damaged(page)
            pages = children
        return pages

    def _nodes(self, page: int, kind: int) -> list[int]:
        """Where the nodes of a page lie in the file, in the order of their keys."""
        start, lower, _ = self._header(page, kind)
        if not _PAGE.size <= lower <= self._page_size:
            raise self._damaged(page)
        offsets = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", self._map, start + _PAGE.size)
        if any(offset + _NODE.size > self._page_size for offset in offsets):
            raise self._damaged(page)
        return [start + offset for offset in offsets]

    def _entry(self, page: int, node: int) -> tuple[bytes, bytes]:
        """Key and value of a node on a leaf page."""
        low, high, flags, key_size = _NODE.unpack_from(self._map, node)
        size = low | high << 16
        start = node + _NODE.size + key_size
        key = self._map[node + _NODE.size : start]
        end = (page + 1) * self._page_size
        if flags == _BIGDATA and start + 8 <= end:
            page = int.from_bytes(self._map[start : start + 8], "little")
            start, low, high = self._header(page, _OVERFLOW)
            end = (min(page + (low | high << 16), self._last_page + 1)) * self._page_size
            start += _PAGE.size
        elif flags:
            raise self._damaged(page)
        if start + size > end:
            raise self._damaged(page)
        return key, self._map[start : start + size]

    def _header(self, page: int, kind: int) -> tuple[int, int, int]:
        """Where a page of this kind starts in the file, and the halves of the last field of its header."""
        if page > self._last_page:
            raise self._damaged(page)
        start = page * self._page_size
        number, _, flags, lower, upper = _PAGE.unpack_from(self._map, start)
        if number != page or flags & _KINDS != kind:
            raise self._damaged(page)
        return start, lower, upper

    def _damaged(self, page: int) -> InputError:
        return InputError(f"{self.path} is damaged: page {page} is not what the pages before it say; copy it again")

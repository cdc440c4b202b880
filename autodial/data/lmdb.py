"""LMDB databases by position, read-only.

Not through the LMDB library, which trusts what it finds in a file: damage crashes the process. It also opens a database
only once in a process, where a training and a test net may read the same one, and can't be carried into a fork. What
Caffe's databases need of the format is little: a tree of pages, as mdb.c of https://github.com/LMDB/lmdb writes it on
64-bit little-endian machines (data version 1).
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from autodial.errors import InputError
from autodial.wording import counted

_PAGE = struct.Struct("<QHHHH")
"""MDB_page: its number, padding, flags, then where the nodes' offsets and the free space end, or the count of overflow
pages."""
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_KINDS = 0x2F  # these, meta pages, and leaves of another layout
_PAGE_SIZES = [2**k for k in range(8, 17)]

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<II16x I44x 4xHH24xQQ QQ")
"""MDB_meta, with an MDB_db of the free pages, of which only the page size matters, and one of the data."""
_NO_PAGE = 2**64 - 1
_DEEPEST = 32  # CURSOR_STACK
_DUPSORT = 0x04

_NODE = struct.Struct("<HHHH")
"""MDB_node: the halves of the value's size, flags, and the key's size; key and value follow. In a branch the first
three make a page number."""
_BIGDATA = 0x01  # in the value's place stands the number of its first overflow page
_SUBDATA = 0x02


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


class _File(Protocol):
    def seek(self, offset: int, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...

    def fileno(self) -> int: ...


class Lmdb:
    """A database's entries by position, in the order of the keys.

    The file is open only while something is read, and never mapped. All that it says of itself is checked before it is
    followed. There is no lock and no lock file, so that the folder may be read-only; nobody may write to the database
    meanwhile. To go far ahead for the first time takes a look at the head of every leaf page that lies between.

    Args:
        folder: the one that holds data.mdb.

    Attributes:
        path: data.mdb.
        size: its bytes.

    Raises:
        InputError: the folder holds no LMDB, or one that is cut short or damaged.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder} is a file; an LMDB is named by the folder that holds its data.mdb")
        # Absolute, so that a later change of the working directory does not move it.
        self.path = (folder / "data.mdb").absolute()
        self._ends = array("Q")  # position behind the last entry of each leaf, for the leaves passed so far
        with self._opened() as file:
            self.size = os.fstat(file.fileno()).st_size
            self._meta = self._read_meta(file)
            self._leaves = self._find_leaves(file)

    def __len__(self) -> int:
        return self._meta.entries

    def read(self, positions: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """Keys and values of the entries at `positions`, each in [0, len).

        Raises:
            InputError: the file is damaged, or it has been cut short or written to since.
        """
        entries = []
        with self._opened() as file:
            if self._read_meta(file) != self._meta:
                raise InputError(f"{self.path} has been written to since it was opened: start again")
            at, number, page = -1, 0, b""
            for position in positions:
                leaf = self._leaf_of(file, position)
                if leaf != at:
                    at, number = leaf, self._leaves[leaf]
                    page = self._page(file, number, _LEAF)
                first = self._ends[leaf - 1] if leaf else 0
                entries.append(self._entry(file, number, page, position - first))
        return entries

    @contextmanager
    def _opened(self) -> Iterator[_File]:
        """data.mdb, for a moment."""
        try:
            with self.path.open("rb", buffering=0) as file:
                yield file
        except FileNotFoundError:
            raise InputError(f"{self.path.parent} is not an LMDB: it holds no data.mdb") from None
        except OSError as error:
            raise InputError(f"{self.path} can't be read: {error.strerror}") from None

    # --- the meta pages

    def _read_meta(self, file: _File) -> _Meta:
        """The later of the two meta pages; InputError if this is no LMDB, or not a whole one."""
        size = os.fstat(file.fileno()).st_size
        first = self._unpack_meta(file, 0, size)
        if first.page_size not in _PAGE_SIZES:
            raise InputError(f"{self.path} is damaged: it says that its pages have {first.page_size} bytes")
        second = self._unpack_meta(file, first.page_size, size)
        meta = max(first, second, key=lambda meta: meta.transaction)
        if meta.flags & _DUPSORT:
            raise InputError(f"{self.path} holds several values for a key, which Caffe's databases don't")
        wanted = (meta.last_page + 1) * meta.page_size
        if size < wanted:
            raise InputError(f"{self.path} is cut short: it has {size} of its {wanted} bytes; copy it again")
        if meta.page_size != first.page_size or meta.depth > _DEEPEST or meta.entries * _NODE.size > size:
            self._damaged(0)
        return meta

    def _unpack_meta(self, file: _File, start: int, size: int) -> _Meta:
        file.seek(start)
        head = file.read(_PAGE.size + _META.size)
        if len(head) < _PAGE.size + _META.size:
            short = f"cut short: it has only {size} bytes" if size else "empty"
            raise InputError(f"{self.path} is {short}")
        meta = _Meta(*_META.unpack_from(head, _PAGE.size))
        if meta.magic != _MAGIC:
            raise InputError(f"{self.path} is no LMDB, or not one of a 64-bit little-endian machine")
        if meta.version != _VERSION:
            raise InputError(f"{self.path} is an LMDB of data version {meta.version}; only {_VERSION} can be read")
        return meta

    # --- the tree

    def _find_leaves(self, file: _File) -> array[int]:
        """The numbers of the leaf pages, in the order of the keys. All lie at the same depth."""
        if self._meta.root == _NO_PAGE:
            return array("Q")
        numbers = array("Q", [self._meta.root])
        for _ in range(self._meta.depth - 1):
            children = array("Q")
            for number in numbers:
                page = self._page(file, number, _BRANCH)
                for i in range(_node_count(page)):
                    low, high, higher, _ = _NODE.unpack_from(page, self._node(number, page, i))
                    children.append(low | high << 16 | higher << 32)
                if len(children) > self._meta.last_page:  # damage can lead in circles
                    self._damaged(number)
            numbers = children
        return numbers

    def _leaf_of(self, file: _File, position: int) -> int:
        """Which leaf holds the entry at a position."""
        while not self._ends or self._ends[-1] <= position:
            if len(self._ends) == len(self._leaves):
                count = counted(len(self), "entry", "entries")
                raise InputError(f"{self.path} is damaged: it has fewer than its {count}; copy it again")
            head = self._head(file, self._leaves[len(self._ends)], _LEAF)
            self._ends.append((self._ends[-1] if self._ends else 0) + _node_count(head))
        return bisect_right(self._ends, position)

    def _entry(self, file: _File, number: int, page: bytes, i: int) -> tuple[bytes, bytes]:
        """Key and value of node `i` of a leaf page."""
        node = self._node(number, page, i)
        low, high, flags, key_size = _NODE.unpack_from(page, node)
        start, size = node + _NODE.size + key_size, low | high << 16
        if flags & _SUBDATA:
            raise InputError(f"{self.path} holds databases inside of it, which Caffe's databases don't")
        if flags & ~_BIGDATA or start + (8 if flags else size) > len(page):
            self._damaged(number)
        key = page[node + _NODE.size : start]
        if not flags:
            return key, page[start : start + size]
        first = int.from_bytes(page[start : start + 8], "little")
        pages = int.from_bytes(self._head(file, first, _OVERFLOW)[12:16], "little")
        if first + pages > self._meta.last_page + 1 or size > pages * self._meta.page_size - _PAGE.size:
            self._damaged(first)
        return key, self._bytes(file, first * self._meta.page_size + _PAGE.size, size)

    def _node(self, number: int, page: bytes, i: int) -> int:
        """Where node `i` of a branch or leaf page begins in it."""
        offset = int.from_bytes(page[_PAGE.size + 2 * i : _PAGE.size + 2 * i + 2], "little")
        if offset + _NODE.size > len(page):
            self._damaged(number)
        return offset

    # --- pages

    def _page(self, file: _File, number: int, kind: int) -> bytes:
        """A whole page of this kind."""
        self._head(file, number, kind)
        return self._bytes(file, number * self._meta.page_size, self._meta.page_size)

    def _head(self, file: _File, number: int, kind: int) -> bytes:
        """The header of a page, which must be of this kind."""
        if number > self._meta.last_page:
            self._damaged(number)
        head = self._bytes(file, number * self._meta.page_size, _PAGE.size)
        own, _, flags, lower, _ = _PAGE.unpack(head)
        fits = kind == _OVERFLOW or _PAGE.size <= lower <= self._meta.page_size
        if own != number or flags & _KINDS != kind or not fits:
            self._damaged(number)
        return head

    def _bytes(self, file: _File, start: int, size: int) -> bytes:
        file.seek(start)
        data = b""
        while len(data) < size:
            more = file.read(size - len(data))
            if not more:
                raise InputError(f"{self.path} is cut short: it ends at byte {start + len(data)}; copy it again")
            data += more
        return data

    def _damaged(self, number: int) -> NoReturn:
        raise InputError(f"{self.path} is damaged: page {number} is not what the pages before it say; copy it again")


def _node_count(page: bytes) -> int:
    """The nodes of a branch or leaf page, from its header."""
    return (int.from_bytes(page[12:14], "little") - _PAGE.size) // 2

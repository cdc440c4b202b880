"""Checks the pages of an LMDB's tree, which the library trusts.

The library follows the file's page numbers and offsets unchecked; a flipped bit in them makes it read beyond the map or
fail an assertion, and either ends the process. The layout is that of mdb.c (MDB_page, MDB_node), data version 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodial.errors import InputError

CHECKED = 2**30
"""The number of bytes of pages to check, in a second or two; the rest of a larger tree is trusted."""

_CHUNK = 2**22
"""The number of bytes of pages to check together."""
_HEADER = 16
_NODE = 8
_NO_PAGE = 2**64 - 1
_DEPTH = 32
"""The largest number of levels of a tree: CURSOR_STACK."""
_BRANCH, _LEAF = 1, 2
_OF_MEMORY = 0xC010
"""Flags of a page that have a meaning in memory only."""
_BIG, _SUB = 1, 2
"""Flags of a leaf's node: the value lies on pages of its own; the value is another database's root."""


def check_tree(path: Path, page_size: int, last_page: int, root: int, entries: int) -> None:
    """Check the pages of a database's tree, except for values on pages of their own, up to `CHECKED` bytes.

    Args:
        path: data.mdb, at least (last_page + 1) * page_size bytes.
        root: the page where the tree begins; 2^64 - 1 for an empty tree.
        entries: the number of keys that the tree should have.

    Raises:
        InputError: a page can't be one of the tree's; it names the file and the page.
    """
    count = last_page + 1
    pages = np.memmap(path, np.uint8, "r", shape=(count, page_size))
    seen = np.zeros(count, bool)
    level = np.array([] if root == _NO_PAGE else [root], np.uint64)
    left, found = CHECKED // page_size, 0
    for _ in range(_DEPTH):
        children = []
        for start in range(0, len(level), max(_CHUNK // page_size, 1)):
            numbers = level[start : start + max(_CHUNK // page_size, 1)]
            if (left := left - len(numbers)) < 0:
                return
            if (numbers >= count).any():
                raise _damaged(path, f"its tree leads to page {numbers.max()}, and it has {count}")
            # A ring of pages would be read without end.
            if seen[numbers].any() or len(np.unique(numbers)) < len(numbers):
                raise _damaged(path, f"its tree leads to a page twice, such as page {numbers[0]}")
            seen[numbers] = True
            below, keys = _nodes(path, numbers, pages[numbers], count)
            children.append(below)
            found += keys
        level = np.concatenate(children) if children else np.array([], np.uint64)
        if not len(level):
            break
    if len(level) or found != entries:
        raise _damaged(path, f"its tree has {found} entries where {entries} should be")


def _nodes(
    path: Path, numbers: NDArray[np.uint64], block: NDArray[np.uint8], count: int
) -> tuple[NDArray[np.uint64], int]:
    """The pages below some pages, all of one kind, and how many entries they hold; InputError if one is damaged.

    Args:
        numbers: the pages' numbers.
        block: the pages' bytes, (pages, page size).
        count: number of pages in the file.
    """
    page_size = block.shape[1]
    words = block.view("<u2")
    flags, lower, upper = (words[:, place].astype(np.int64) for place in (5, 6, 7))
    kind = int(flags[0]) & ~_OF_MEMORY
    # A 64 KiB page states its end, which 16 bits can't hold, as 0.
    upper = np.where((upper == 0) & (page_size == 2**16), page_size, upper)
    nodes = (lower - _HEADER) // 2
    bad = (block[:, :8].copy().view("<u8")[:, 0] != numbers) | ((flags & ~_OF_MEMORY) != kind)
    bad |= (kind not in (_BRANCH, _LEAF)) | (lower % 2 == 1) | (lower > upper) | (upper > page_size)
    bad |= nodes < (2 if kind == _BRANCH else 1)
    if bad.any():
        raise _damaged(path, f"the header of page {numbers[bad.argmax()]} is no page's of its tree")

    rows = np.repeat(np.arange(len(block)), nodes)
    places = np.arange(len(rows)) - np.repeat(nodes.cumsum() - nodes, nodes)
    offsets = words[rows, _HEADER // 2 + places].astype(np.int64)
    bad = (offsets < upper[rows]) | (offsets > page_size - _NODE) | (offsets % 2 == 1)
    if bad.any():
        raise _damaged(path, f"page {numbers[rows[bad.argmax()]]} has an entry outside of itself")
    low, high, node_flags, key_size = (words[rows, offsets // 2 + i].astype(np.int64) for i in range(4))
    end = offsets + _NODE + key_size
    if kind == _BRANCH:
        bad = end > page_size
        below = (low | high << 16 | node_flags << 32).astype(np.uint64)
        entries = 0
    else:
        size = low | high << 16
        big = (node_flags & _BIG) > 0
        end += np.where(big, 8, size)
        bad = (end > page_size) | ((node_flags & ~(_BIG | _SUB)) != 0)
        at = np.minimum(offsets + _NODE + key_size, page_size - 8)
        value = block[rows[:, None], at[:, None] + np.arange(8)][big & ~bad].view("<u8")[:, 0]
        reach = (_HEADER + size[big & ~bad] + page_size - 1) // page_size
        bad[np.flatnonzero(big & ~bad)] = (value >= count) | (reach > count - np.minimum(value, count).astype(np.int64))
        below, entries = np.array([], np.uint64), len(rows)
    if bad.any():
        raise _damaged(path, f"page {numbers[rows[bad.argmax()]]} has an entry that reaches beyond its end")
    return below, entries


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged: {what}; copy it again")

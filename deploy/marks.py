"""What the rows of an unfinished table were made of, so that a run that goes on notices what has changed since."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autodial.deploy.rows import TableRow
from autodial.deploy.sources import NO_FILE, FileState, ImageFile
from autodial.errors import InputError

_MARK = np.dtype([("path", "<u8"), ("size", "<i8"), ("modified", "<i8"), ("label", "<i4")])
_NO_LABEL = -1
_READ = 2**14
"""Marks that are in memory at a time."""


class Done(NamedTuple):
    """An image whose row an earlier run wrote."""

    row: int
    """The row's number, counted from 0."""
    image: ImageFile
    label: int | None
    """Its first class; None if it got none."""


class Marks:
    """A file with a mark per row: a digest of the path, the file's size and time of modification, and the first class.

    Args:
        file: open for reading and writing.
        rows: how many of its marks count; what lies behind them is cut off.
    """

    def __init__(self, file: FileIO, rows: int) -> None:
        self._file = file
        self._rows = rows
        self._added = False
        file.truncate(rows * _MARK.itemsize)
        file.seek(0, os.SEEK_END)

    def add(self, rows: Sequence[TableRow], states: Sequence[FileState]) -> None:
        """Mark rows, which come next, and the state that each one's file was in before it was read."""
        marks = np.zeros(len(rows), _MARK)
        for i, (row, state) in enumerate(zip(rows, states, strict=True)):
            marks[i] = (_digest(row.path), *state, row.classes[0] if row.classes else _NO_LABEL)
        self._added = True
        rest = memoryview(marks.tobytes())
        while rest:  # unbuffered: a full disk may take a part
            rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Make sure that the marks are on disk."""
        if self._added:
            os.fsync(self._file.fileno())
            self._added = False

    def check(self, images: Iterator[ImageFile]) -> Iterator[Done]:
        """Yield the images of the rows that are done, which come first in `images`, after a look at each one's file.

        Raises:
            InputError: it is another image, or its file has changed.
        """
        self._file.seek(0)
        for start in range(0, self._rows, _READ):
            count = min(_READ, self._rows - start)
            marks = np.frombuffer(self._read(count * _MARK.itemsize), _MARK)
            found = 0
            for mark, image in zip(marks, islice(images, count), strict=False):
                if int(mark["path"]) != _digest(image.path):
                    break
                was, now = (int(mark["size"]), int(mark["modified"])), image.look().state
                if was != now:
                    raise InputError(
                        f"{image.path} {_change(was, now)} since its row was written: put it back as it was, or delete "
                        "what the interrupted run left to start afresh"
                    )
                label = int(mark["label"])
                yield Done(start + found, image, None if label == _NO_LABEL else label)
                found += 1
            if found < count:
                raise InputError(
                    "the inputs are no longer those of the interrupted run: images were added, removed or renamed "
                    f"among the first {self._rows}; delete what the run left, or put them back"
                )
        self._file.seek(0, os.SEEK_END)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (part := self._file.read(size - len(data))):
            data += part
        return data


def open_marks(path: Path, rows: int) -> tuple[FileIO, Marks]:
    """The marks in the file `path`, where `rows` count; InputError if it holds fewer. It is made if there is none."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    file = FileIO(os.open(path, flags, 0o666), "rb+")
    if os.fstat(file.fileno()).st_size < rows * _MARK.itemsize:
        file.close()
        raise InputError(f"{path} has lost what was known of the rows that are done: delete the .partial next to it")
    return file, Marks(file, rows)


def _digest(path: str) -> int:
    return int.from_bytes(hashlib.blake2b(os.fsencode(path), digest_size=8).digest(), "little")


def _change(was: FileState, now: FileState) -> str:
    if now == NO_FILE:
        return "was removed"
    return "has come" if was == NO_FILE else "has changed, by its size or its time of modification,"

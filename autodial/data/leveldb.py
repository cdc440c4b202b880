"""LevelDB databases by position, as they are, with the `plyvel` package."""

from __future__ import annotations

import importlib
import logging
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autodial.errors import InputError

_log = logging.getLogger(__name__)

_STRIDE = 16
"""Entries from one key that is kept to the next, at most as many as are passed to find one again."""
_LARGE = 2**30
"""Bytes from which on it is said that counting takes a while."""

_TABLE = re.compile(r"\d+\.(ldb|sst|log)")
_MANIFEST = re.compile(r"MANIFEST-\d+")

_inherited: list[Any] = []
"""Databases of the process that this one was forked from: closing them here would wait for threads that it lacks."""


class LevelDb:
    """A database's entries by position, in the order of the keys.

    LevelDB lets one process at a time open a database, and changes its files when it does. So each process opens a
    folder of its own with links to the tables, and the database stays as it is; its folder may be read-only. Nobody may
    write to the database meanwhile. A LevelDB does not say how many entries it has: they are counted once, which
    reads all of it.

    Args:
        folder: the one that holds CURRENT.

    Attributes:
        path: the folder.
        size: bytes of its tables.

    Raises:
        InputError: the package plyvel is missing, or the folder holds no LevelDB, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        # Absolute, so that a later change of the working directory does not move it.
        self.path = folder.absolute()
        self._files = _files(self.path)
        self.size = sum(file.stat().st_size for file in self._files)
        library = _library(folder)
        self._error: type[Exception] = library.Error
        if self.size > _LARGE:
            _log.info("Counting the entries of %s, %.0f GB: a LevelDB does not say how many", folder, self.size / 1e9)
        self._views = Path(tempfile.mkdtemp(prefix="autodial-leveldb-"))
        weakref.finalize(self, _remove, self._views, os.getpid())
        self._opened: tuple[int, Any, Any] | None = None
        self._at = 0
        self._keys: list[bytes] = []  # of entries 0, _STRIDE, 2 * _STRIDE, ...
        self._count = 0
        with self._cursor() as cursor:
            cursor.seek_to_first()
            while cursor.valid():
                if self._count % _STRIDE == 0:
                    self._keys.append(cursor.key())
                self._count += 1
                cursor.next()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __len__(self) -> int:
        return self._count

    def read(self, positions: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """Keys and values of the entries at `positions`, each in [0, len).

        Raises:
            InputError: a file is damaged, or has changed since.
        """
        entries = []
        with self._cursor() as cursor:
            for position in positions:
                if not (cursor.valid() and position - _STRIDE < self._at <= position):
                    self._at = position // _STRIDE * _STRIDE
                    cursor.seek(self._keys[position // _STRIDE])
                while self._at < position:
                    cursor.next()
                    self._at += 1
                entries.append(cursor.item())
        return entries

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """This process's cursor, which stays where it is left."""
        try:
            if self._opened is not None and self._opened[0] != os.getpid():
                _inherited.append(self._opened)
                self._opened = None
            if self._opened is None:
                self._opened = (os.getpid(), *self._open())
            yield self._opened[2]
        except self._error as error:
            self._opened = None
            raise InputError(f"{self.path} can't be read as a LevelDB, it may be damaged: {_line(error)}") from None

    def _open(self) -> tuple[Any, Any]:
        view = Path(tempfile.mkdtemp(dir=self._views))
        for file in self._files:
            _link(file, view / file.name)
        database = _library(self.path).DB(str(view), paranoid_checks=True)
        return database, database.raw_iterator(verify_checksums=True, fill_cache=False)


def _files(folder: Path) -> list[Path]:
    """The files that make the database."""
    try:
        current = (folder / "CURRENT").read_text("ascii", "replace")[:100].strip()
    except FileNotFoundError:
        raise InputError(f"{folder} is not a LevelDB: it holds no CURRENT") from None
    except OSError as error:
        raise InputError(f"{folder} can't be read: {error.strerror}") from None
    if not _MANIFEST.fullmatch(current) or not (folder / current).is_file():
        raise InputError(f"{folder} is damaged: its CURRENT names no manifest that is there; copy it again")
    tables = [file for file in sorted(folder.iterdir()) if _TABLE.fullmatch(file.name) and file.is_file()]
    return [folder / "CURRENT", folder / current, *tables]


def _link(file: Path, place: Path) -> None:
    """Make a file appear in another place: a table by a link, what the library writes to or replaces by a copy."""
    if file.suffix:
        try:
            place.symlink_to(file)
            return
        except OSError:  # Windows allows links to few
            pass
    shutil.copyfile(file, place)


def _remove(folder: Path, process: int) -> None:
    """Remove the views when the process ends that made them, which its forks outlive as little."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _library(folder: Path) -> Any:
    """The package; InputError where it is missing."""
    for name in ("plyvel", "plyvel_next"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            pass
    raise InputError(
        f"{folder} is a LevelDB, which needs the package plyvel: pip install '.[leveldb]' in AutoDIAL's checkout "
        "brings it"
    )


def _line(error: Exception) -> str:
    """An error of the library, whose messages are bytes at times, in one line."""
    return " ".join(
        (argument.decode(errors="replace") if isinstance(argument, bytes) else str(argument)).replace("\n", " ")
        for argument in error.args
    )

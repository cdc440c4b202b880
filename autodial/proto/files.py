"""Reading whole files, and writing them so that a failure leaves the old file as it was."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from autodial.errors import InputError, WorkError

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def existing_file(path: str | os.PathLike[str], kind: str) -> Path:
    """`path`, or an InputError in one sentence if it is missing or a folder; `kind` says what it should be."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the {kind} file itself")
    if not path.exists():
        raise InputError(f"{path} does not exist: check the name of the {kind} file")
    return path


def read_bytes(path: str | os.PathLike[str], kind: str) -> bytes:
    """The whole file; an InputError says why it can't be read."""
    path = existing_file(path, kind)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error


def is_binary(data: bytes) -> bool:
    """Whether there are control characters in `data` that no text has."""
    return re.search(rb"[\x00-\x08\x0e-\x1f]", data) is not None


def is_hdf5(path: str | os.PathLike[str], kind: str) -> bool:
    """Whether the file's first bytes, or else the end of its name, say HDF5; InputError as in existing_file."""
    path = existing_file(path, kind)
    try:
        with path.open("rb") as file:
            return file.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE or path.suffix == ".h5"
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error


class AppendedFile:
    """A file that grows by whole pieces: one that can't be written, on a full disk say, leaves nothing of itself.

    Use it as a context manager, which closes it.

    Args:
        path: made if it is not there.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> AppendedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def append(self, piece: bytes) -> None:
        """Write a piece at the end.

        Raises:
            OSError: it can't be written, or the file is no longer at its place, where others would find it.
        """
        if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
            raise FileNotFoundError(errno.ENOENT, "another file has taken its place", str(self._path))
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._size)
            raise
        self._size += len(piece)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that takes `path`'s place, complete and on disk, when the block ends without an exception.

    It lies in the same folder, as a rename is atomic only within a file system; where `path` is a link, that is the
    folder of what it leads to. After an exception it is removed and `path` is what it was; an OSError becomes a
    WorkError that names `path`.
    """
    final = Path(os.path.realpath(path))
    aside = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(final)
    except OSError as error:
        raise WorkError(f"{path} can't be written: {error.strerror or error}") from error
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()


@contextmanager
def replacing_files(folder: str | os.PathLike[str], last: str) -> Iterator[Path]:
    """An empty folder for files that take their places in `folder` together, when the block ends without an exception.

    A folder that is not there yet, in one that is, appears complete; one that another process puts there meanwhile
    stays as it is, and is an error. In one that is there, files of other names stay; the old `last` goes before and the
    new one comes after all others, so that it never stands beside files that it does not belong to, whatever
    interrupts. After an exception nothing has changed; an OSError becomes a WorkError that names `folder`.
    """
    folder = Path(folder)
    name = f".{folder.name}.{os.getpid()}.tmp"
    there = folder.is_dir()
    aside = folder / name if there else folder.with_name(name)
    try:
        shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed and had the same number
        aside.mkdir()
        yield aside
        if there:
            (folder / last).unlink(missing_ok=True)
            for path in sorted(aside.iterdir(), key=lambda path: path.name == last):
                path.replace(folder / path.name)
        else:
            aside.rename(folder)
    except OSError as error:
        raise WorkError(f"{folder} can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)

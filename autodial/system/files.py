"""Reads whole files, and writes files so that a failure leaves the old file unchanged."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from autodial.errors import InputError, WorkError
from autodial.system.outputs import is_abandoned, lock

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def existing_file(path: str | os.PathLike[str], kind: str) -> Path:
    """`path`; InputError in one sentence if there is no file or pipe. `kind` is the kind of file it should be."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the {kind} file itself")
    if path.is_char_device() or path.is_block_device():  # /dev/zero never ends
        raise InputError(f"{path} is a device: name a {kind} file")
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


def stand_in(data: bytes) -> str | None:
    """What a download has left in the place of a file, and what to do, after the file's name; None if it is none."""
    head = data[:512].lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return ' is a pointer of Git LFS, not the file itself: run "git lfs pull" in its repository'
    if head.startswith((b"<!doctype html", b"<html", b'{"payload":')):
        return " is a web page, not the file itself: download the file, on GitHub with the button Raw"
    return None


def is_hdf5(path: str | os.PathLike[str], kind: str) -> bool:
    """Whether the file's first bytes, or else the end of its name, say HDF5; InputError as in existing_file."""
    path = existing_file(path, kind)
    try:
        with path.open("rb") as file:
            return file.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE or path.suffix == ".h5"
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error


class AppendedFile:
    """A file that grows by whole pieces: a piece that can't be written, on a full disk say, leaves nothing behind.

    It is a context manager, which closes it.

    Args:
        path: made if it does not exist.

    Raises:
        OSError: the file can't be opened.
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
            OSError: the piece can't be written, or the file was moved or removed, so that nobody would find it.
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
    """A file to write that replaces `path`, complete and on disk, when the block ends without an exception.

    It lies in the same folder, as a rename is atomic only within a file system; if `path` is a link, in the folder that
    the link leads to. After an exception the file is removed and `path` is unchanged; an OSError becomes a WorkError
    that names `path`. Files that killed processes left behind are removed by the next call.
    """
    final = Path(os.path.realpath(path))
    try:
        _remove_leftovers(final)
        with _locked_file(final) as (aside, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":
                aside.replace(final)
        if sys.platform == "win32":  # where a file that is open stays where it is
            aside.replace(final)
    except OSError as error:
        raise WorkError(f"{path} can't be written: {error.strerror or error}") from error


@contextmanager
def replacing_files(folder: str | os.PathLike[str], last: str) -> Iterator[Path]:
    """An empty folder for files that move to `folder` together when the block ends without an exception.

    A `folder` that does not exist yet, in a folder that does, appears complete; if another process makes it meanwhile,
    it stays unchanged, and this is an error. In an existing `folder`, files with other names stay. The old `last` is
    removed first and the new one comes after all others, so that it is never beside files that it does not belong to,
    whatever interrupts. After an exception nothing has changed; an OSError becomes a WorkError that names `folder`.
    Folders that killed processes left behind are removed by the next call.
    """
    folder = Path(folder)
    final = Path(os.path.abspath(folder))  # noqa: PTH100 - the working directory has a name, and a link its own
    there = folder.is_dir()
    place = (final if there else final.parent) / final.name
    try:
        _remove_leftovers(place)
        with _locked_folder(place) as aside:
            try:
                yield aside
            except WorkError as error:  # of `replacing`, say, which can't know the final name
                raise WorkError(str(error).replace(str(aside), str(folder))) from error.__cause__
            if there:
                (folder / last).unlink(missing_ok=True)
                for path in sorted(aside.iterdir(), key=lambda path: path.name == last):
                    path.replace(folder / path.name)
            else:
                try:
                    aside.rename(folder)
                except OSError as error:
                    if not folder.exists():
                        raise
                    raise WorkError(
                        f"{folder} was made by another process while its files were being written: it stays as it is, "
                        "so run this again to replace its files, or name another folder"
                    ) from error
    except OSError as error:
        raise WorkError(f"{folder} can't be written: {error.strerror or error}") from error


# --- what killed processes leave behind


def entries(folder: Path) -> list[Path]:
    """A folder's entries, without what killed processes left there in `replacing` and `replacing_files`."""
    return [path for path in folder.iterdir() if not (_ASIDE.fullmatch(path.name) and is_abandoned(path))]


def was_interrupted(folder: Path) -> bool:
    """Whether a process was killed while it moved files to an existing folder (`replacing_files`)."""
    return folder.is_dir() and any(
        _ASIDE.fullmatch(path.name) and path.is_dir() and is_abandoned(path) for path in folder.iterdir()
    )


_ASIDE = re.compile(r"\.(.+)\.\d+-\d+\.tmp", re.DOTALL)
"""A name from `_asides`; the group is the final name."""
_numbers = itertools.count()


def _asides(final: Path) -> Iterator[Path]:
    """Names in the folder of `final`, for what will be renamed to it, that this process has not used yet."""
    return (final.with_name(f".{final.name}.{os.getpid()}-{number}.tmp") for number in _numbers)


def _remove_leftovers(final: Path) -> None:
    """Remove what killed processes left beside a file or folder; what a running process writes is locked."""
    for path in list(final.parent.iterdir()):
        match = _ASIDE.fullmatch(path.name)
        if match and match[1] == final.name and is_abandoned(path):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _locked_file(final: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new, locked file beside `final`; it is removed in the end if it is still there."""
    for aside in _asides(final):
        try:
            file = aside.open("xb")
        except FileExistsError:  # from a process with the same number in another container
            continue
        try:
            with file:
                if _lock(file.fileno(), aside):
                    yield aside, file
                    return
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextmanager
def _locked_folder(final: Path) -> Iterator[Path]:
    """A new, locked folder beside `final`; it is removed in the end if it is still there."""
    for aside in _asides(final):
        try:
            aside.mkdir()
        except FileExistsError:
            continue
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, aside, ignore_errors=True)
            if sys.platform != "win32":
                descriptor = os.open(aside, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                if not _lock(descriptor, aside):
                    continue
            yield aside
            return


def _lock(descriptor: int, aside: Path) -> bool:
    """Lock a new file or folder; False if another process took it for abandoned and has removed it or is doing so."""
    try:
        return lock(descriptor) and os.path.samestat(aside.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False

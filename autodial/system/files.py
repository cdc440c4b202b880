"""Reading whole files, and writing them so that a failure leaves the old file as it was."""

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
    """`path`, or an InputError in one sentence if there is no file or pipe; `kind` says what it should be."""
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
    WorkError that names `path`. What a process that was killed left of such a file goes with the next one.
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
    """An empty folder for files that take their places in `folder` together, when the block ends without an exception.

    A folder that is not there yet, in one that is, appears complete; one that another process puts there meanwhile
    stays as it is, and is an error. In one that is there, files of other names stay; the old `last` goes before and the
    new one comes after all others, so that it never stands beside files that it does not belong to, whatever
    interrupts. After an exception nothing has changed; an OSError becomes a WorkError that names `folder`. What a
    process that was killed left of such a folder goes with the next one.
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


# --- what killed processes leave


def entries(folder: Path) -> list[Path]:
    """What a folder holds, but for what killed processes left there of what `replacing` and `replacing_files` write."""
    return [path for path in folder.iterdir() if not (_ASIDE.fullmatch(path.name) and is_abandoned(path))]


def was_interrupted(folder: Path) -> bool:
    """Whether a process was killed while it put files into a folder that was there (`replacing_files`)."""
    return folder.is_dir() and any(
        _ASIDE.fullmatch(path.name) and path.is_dir() and is_abandoned(path) for path in folder.iterdir()
    )


_ASIDE = re.compile(r"\.(.+)\.\d+-\d+\.tmp", re.DOTALL)
"""A name from `_asides`, and the name that was to be."""
_numbers = itertools.count()


def _asides(final: Path) -> Iterator[Path]:
    """Names in the same folder, for what is to be `final`, that this process has not used."""
    return (final.with_name(f".{final.name}.{os.getpid()}-{number}.tmp") for number in _numbers)


def _remove_leftovers(final: Path) -> None:
    """Remove what killed processes left aside of a file or folder; what one is writing is locked."""
    for path in list(final.parent.iterdir()):
        match = _ASIDE.fullmatch(path.name)
        if match and match[1] == final.name and is_abandoned(path):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _locked_file(final: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file aside, which is removed in the end, if it is still there, and locked until then."""
    for aside in _asides(final):
        try:
            file = aside.open("xb")
        except FileExistsError:  # that of a process of the same number, in another container
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
    """A new folder aside, which is removed in the end, if it is still there, and locked until then."""
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
    """Lock what was just made; False if another process, which took it for abandoned, has removed it or does so."""
    try:
        return lock(descriptor) and os.path.samestat(aside.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False

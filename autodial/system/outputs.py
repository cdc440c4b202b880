"""Checks, before the work, whether a command can write its result."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from autodial.errors import InputError


def real_path(path: str | Path) -> Path:
    """`path`, absolute and without links; unlike Path.resolve, it accepts links to themselves and NUL characters."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        return Path(path).absolute()


def check_output(output: str | Path, inputs: Iterable[str | Path] = (), *, suffixes: Sequence[str] = ()) -> Path:
    """The file that `output` leads to, links followed.

    Args:
        inputs: files that the same command reads, and so must not overwrite.
        suffixes: allowed ends of the name, so that a slip does not overwrite a file of another kind; empty: any.

    Raises:
        InputError: the name has another suffix, or belongs to something that is no file, the folder does not exist or
            can't be written to, or the file is one of the inputs.
    """
    if str(output) == "-":
        raise InputError("-: this command writes a file, not standard output: name a file")
    final = real_path(output)
    if final.exists() and not final.is_file():
        raise InputError(f"{output} is not a regular file: name a file to write")
    if not final.parent.is_dir():
        raise InputError(f"{output}: there is no folder {final.parent}: make it first")
    check_writable(final.parent, output)
    if final in set(map(real_path, inputs)):
        raise InputError(f"{output}: the same command reads this file: choose another name for the output")
    if suffixes and not str(output).lower().endswith(tuple(suffixes)):
        raise InputError(f"{output}: name a file that ends in {' or '.join(suffixes)}")
    return final


def check_folder(folder: str | Path) -> None:
    """Raise InputError unless a folder of this name can be written to, or can be made."""
    if str(folder) == "-":
        raise InputError("-: this command writes a folder, not standard output: name a folder")
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise InputError(f"{folder}: {place} is not a folder: name another folder to write to")
    check_writable(place, folder)


def check_writable(folder: Path, output: str | Path) -> None:
    """Raise InputError, which names `output`, unless a file can be made in `folder`; rights say nothing for root."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{output}: can't write to the folder {folder} ({error.strerror}): choose another one"
        ) from error


def lock(file: IO[Any] | int) -> bool:
    """Lock an open file, or a descriptor, until it is closed; False if another process has locked it.

    It returns True without a lock if the system or the file system has no such locks.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def locked(folder: Path, command: str) -> Iterator[None]:
    """Keep other runs of a command from working in the same folder.

    Raises:
        InputError: another run is at work there.
    """
    with (folder / "lock").open("w") as file:
        if not lock(file):
            raise InputError(f"another `{command}` is at work in {folder}: wait, or name another folder")
        yield


def is_abandoned(path: Path) -> bool:
    """Whether no process has locked a file or folder, as a process does that still writes it.

    False if this can't be known: on Windows, on file systems without locks, and without permission to open it.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True

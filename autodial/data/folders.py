"""The image files in a folder and below it, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeAlias

from autodial.errors import InputError

_Folders: TypeAlias = frozenset[tuple[int, int]]
"""Folders by their `identity`."""

# fmt: off
IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pam", ".pbm",
    ".pgm", ".png", ".pnm", ".ppm", ".ras", ".sr", ".tif", ".tiff", ".webp",
)
# fmt: on
"""Lower-case suffixes of files that count as images in a folder: the 8-bit formats that OpenCV reads."""


def is_image(path: str) -> bool:
    """Whether a file in a folder counts as an image: it has an image's suffix, in upper or lower case."""
    return path.lower().endswith(IMAGE_SUFFIXES)


def is_hidden(path: str) -> bool:
    """Whether a file or folder is hidden by the rules of Unix."""
    return Path(path).name.startswith(".")


def walk(
    top: str | os.PathLike[str],
    *,
    without: Collection[tuple[int, int]] = (),
    skipped: Callable[[str], None] | None = None,
    unlisted: Callable[[str, str], None] | None = None,
) -> Iterator[str]:
    """Every file in a folder and below it, including hidden files and files that are no images.

    Hidden folders are left out. Links to folders are followed, and each real folder is visited once, but links to a
    folder that holds the link are not followed: one to `/` would bring in the whole machine. Memory holds a bounded
    part of one folder's names per level, however many files there are.

    Args:
        top: the folder.
        without: folders to leave out, by their `identity`.
        skipped: called with every folder that is left out because it was visited before, holds the link to itself, or
            is in `without`.
        unlisted: called with every folder that can't be listed and the reason, before any file that comes after it.

    Yields:
        paths that start with `top`, sorted.

    Raises:
        InputError: a folder can't be listed, and there is no `unlisted`.
    """
    visits = _Visits(without)

    def entries(folder: str, holders: _Folders | None) -> tuple[str, _Folders | None, Iterator[str]]:
        """Names in a folder; those of folders end in a separator, so that their files are sorted correctly."""
        names: Iterator[str] = iter(())
        try:
            holders = visits.enter(folder, holders)
            if holders is not None:
                with os.scandir(folder) as found:
                    names = in_order(entry.name + os.sep if _is_folder(entry) else entry.name for entry in found)
            elif skipped is not None:
                skipped(folder)
        except OSError as error:
            if unlisted is None:
                raise InputError(f"{folder}: can't list this folder: {error.strerror}") from error
            unlisted(folder, error.strerror or str(error))
        return folder, holders, names

    open_folders = [entries(str(Path(top)), None)]
    while open_folders:
        folder, holders, names = open_folders[-1]
        name = next(names, None)
        if name is None:
            open_folders.pop()
            continue
        path = name if folder == os.curdir else os.path.join(folder, name)  # noqa: PTH118 - a str, and often
        if not name.endswith(os.sep):
            yield path
        elif not name.startswith("."):
            path = path[: -len(os.sep)]
            open_folders.append(entries(path, holders))


def folders(top: str) -> Iterator[str]:
    """A folder ("" is the working directory) and the folders below it that `walk` would visit, in a fixed order.

    Folders that can't be listed are left out.
    """
    visits = _Visits()
    left: list[tuple[str, _Folders | None]] = [(top, None)]
    while left:
        folder, holders = left.pop()
        with suppress(OSError):
            holders = visits.enter(folder or os.curdir, holders)
            if holders is None:
                continue
            yield folder
            with os.scandir(folder or os.curdir) as found:
                below = sorted((entry.name for entry in found if _is_folder(entry)), reverse=True)
            left += [(os.path.join(folder, name), holders) for name in below if not is_hidden(name)]  # noqa: PTH118


class _Visits:
    """Lets a walk visit each real folder once, and follow no link to a folder that holds the link.

    Args:
        without: folders to leave out, by their `identity`.
    """

    def __init__(self, without: Iterable[tuple[int, int]] = ()) -> None:
        self._seen = set(without)

    def enter(self, folder: str, holders: _Folders | None) -> _Folders | None:
        """Enter a folder, unless it should be left out.

        Args:
            folder: its path.
            holders: what this method returned for the folder that holds `folder`; None at the start of a walk.

        Returns:
            folders that hold this one, without those that the walk came through; None if it should be left out.

        Raises:
            OSError: there is no such folder.
        """
        here = identity(folder)
        if here in self._seen or here in (holders or ()):
            return None
        self._seen.add(here)
        if holders is not None and not os.path.islink(folder):  # noqa: PTH114 - a str
            return holders
        found = set(holders or ())
        for holder in Path(os.path.realpath(folder)).parents:
            with suppress(OSError):  # no permission to look at it
                found.add(identity(holder))
        return frozenset(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def in_order(texts: Iterable[str], held: int = 2**17) -> Iterator[str]:
    """`texts` (file names, which have no NUL) sorted, with at most `held` of them in memory at a time."""
    texts = iter(texts)
    runs: list[IO[bytes]] = []
    while True:
        part = sorted(islice(texts, held))
        if len(part) < held and not runs:
            return iter(part)
        if not part:
            return merge(*map(_read_run, runs))
        # A file without a name: it is gone when it is closed, or the process killed.
        runs.append(TemporaryFile())  # noqa: SIM115 - read to its end later
        runs[-1].writelines(os.fsencode(text) + b"\0" for text in part)


def _read_run(run: IO[bytes]) -> Iterator[str]:
    with run:
        run.seek(0)
        rest = b""
        while block := run.read(2**16):
            *whole, rest = (rest + block).split(b"\0")
            yield from map(os.fsdecode, whole)


def identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Device and inode, equal for all names of a file or folder, links followed; OSError if there is none."""
    status = os.stat(path)  # noqa: PTH116 - a str
    return status.st_dev, status.st_ino

"""From the INPUT arguments of a command line to the images they name, in an order that never changes."""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autodial.errors import InputError

# fmt: off
IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".dib", ".gif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pam", ".pbm",
    ".pgm", ".png", ".pnm", ".ppm", ".ras", ".sr", ".tif", ".tiff", ".webp",
)
# fmt: on
"""Suffixes (lower case) of the files in a folder that count as images: the 8-bit formats that OpenCV reads."""

LIST_SUFFIX = ".txt"

_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Image:
    """One image to label: a row of the table."""

    path: str
    """As the user wrote it, or as it was found below a folder that the user named."""
    base_dir: Path | None = None
    """Where a relative `path` that isn't in the working directory may be: the folder of the list that names it."""


def expand(inputs: Sequence[str | Path]) -> list[Image]:
    """All images that `inputs` name, in the order of the arguments.

    An argument is, in this order of precedence:

    - a folder: every file below it with an image's suffix (`IMAGE_SUFFIXES`), sorted by path; hidden files and folders
      are skipped, links to folders followed, each real folder once;
    - a `.txt` file: a list in UTF-8, one path a line, in the list's order; blank lines are skipped. What follows the
      line's last space is a label, and dropped, if it is an integer, so that an ImageData list serves as it is (a file
      whose own name ends in a space and digits can't stand in a list without a label behind it). A relative path means
      the working directory, then the list's folder. Whether the file is there is found out when it is read;
    - any other file: an image, whatever its suffix;
    - a glob pattern with `*`, `?`, `[...]`, or `**` for any folders: the matching files with an image's suffix, sorted
      by path, each real folder once; hidden files match where the pattern spells the dot.

    Nothing is dropped for being named twice: a list of n images always makes n rows.

    Raises:
        InputError: an argument names nothing that exists, or no image at all, or can't be read.
    """
    return [image for argument in inputs for image in _expand_one(os.fspath(argument))]


def _expand_one(argument: str) -> list[Image]:
    path = Path(argument)
    if path.is_file() and path.suffix.lower() == LIST_SUFFIX:
        images = [Image(name, path.parent) for name in _read_list(path)]
        if not images:
            raise InputError(f"{argument}: this list names no images.")
        return images
    if path.is_file():
        return [Image(argument)]
    if path.is_dir():
        found = sorted(_walk(argument))
    elif glob.has_magic(argument):
        found = _match(argument)
    else:
        raise InputError(f"{argument}: no such file or folder.")
    images = [Image(name) for name in found if name.lower().endswith(IMAGE_SUFFIXES)]
    if not images:
        where = "in this folder or below it" if path.is_dir() else "matches this pattern"
        raise InputError(f"{argument}: no image {where} (images are {', '.join(IMAGE_SUFFIXES)}).")
    return images


def _walk(top: str) -> Iterator[str]:
    def stop(error: OSError) -> None:
        raise InputError(f"{error.filename}: can't list this folder: {error.strerror}.") from error

    seen = set()
    for folder, folders, files in os.walk(top, onerror=stop, followlinks=True):
        here = Path(folder)
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        # In place, for os.walk to go on with: sorted, so that of two ways to a folder the same one is always taken.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (str(here / name) for name in files if not name.startswith("."))


def _match(pattern: str) -> list[str]:
    # A link to a folder above itself makes `**` return the same files again and again, deeper each time.
    real_folder = functools.cache(os.path.realpath)
    found: dict[tuple[str, str], str] = {}
    for name in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207 - pathlib's has other rules for hidden files
        folder, file = os.path.split(name)
        if Path(name).is_file():
            found.setdefault((real_folder(folder), file), name)
    return list(found.values())


def _read_list(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't read this list: {error.strerror}.") from error
    if b"\0" in data:
        raise InputError(f"{path}: this is not a list: it is binary, or text in UTF-16; save it as text in UTF-8.")
    # surrogateescape carries a name in another encoding through to the file system, byte by byte.
    lines = (line.rstrip(" \t\r") for line in data.decode("utf-8-sig", "surrogateescape").split("\n"))
    return [_without_label(line) for line in lines if line]


def _without_label(line: str) -> str:
    name, _, last = line.rpartition(" ")
    return name if name and _INTEGER.fullmatch(last) else line

"""A folder per label, with links to the images that got it, or copies of them."""

from __future__ import annotations

import errno
import filecmp
import glob
import os
import re
import shutil
import socket
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from autodial.errors import InputError, WorkError
from autodial.system.outputs import check_folder, is_abandoned, lock, real_path

_NO_LINKS = errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL
"""What file systems answer that have no links, and Windows without the privilege to make them."""
_LONGEST_NAME = 255
"""Bytes."""
_RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(10))}
"""Names of devices on Windows, which files can't have there, whatever follows behind a dot."""
_HOST = socket.gethostname()
_ASIDE = ".tmp"


class Sorter:
    """Puts images into `folder`/LABEL/, under their own names.

    A name that another image of the label has taken gets the row's number: a.jpg, a-17.jpg, a-17-2.jpg. Doing a row
    again changes nothing.

    Args:
        folder: made if it isn't there.
        classes: the labels; characters that can't be in a folder's name become _, and one that is too long is cut.
        copy: copy the files; otherwise make symbolic links.
        inputs: what is being labelled.
        resume: take a folder that isn't empty, as an interrupted run leaves it.

    Raises:
        InputError: `folder` is not a folder, can't be made or written to, is not empty, or is inside of one of the
            inputs.
    """

    def __init__(
        self, folder: Path, classes: Sequence[str], *, copy: bool, inputs: Iterable[str | Path], resume: bool
    ) -> None:
        check_folder(folder)
        if not resume and folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder}: there is something in this folder; name an empty one, or one to make")
        real = real_path(folder)
        for used in inputs:
            top = Path(re.split(r"[*?[]", os.fspath(used), maxsplit=1)[0])
            if top.is_dir() and real_path(top) in (real, *real.parents):
                raise InputError(f"{folder}: this folder lies in {used}, whose images are labelled: choose another")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: can't make this folder: {error.strerror}") from error
        self._folder = folder
        self._folders = _folder_names(classes)
        self._copy = copy
        for name in self._folders if copy else ():
            _remove_leftovers(folder / name)

    def place(self, image: Path, index: int, row: int) -> None:
        """Put the file `image` into the folder of class `index`.

        Raises:
            FileNotFoundError: the image is gone.
            WorkError: it can't be put there.
        """
        folder = self._folder / self._folders[index]
        image = image.absolute()
        put = _copy if self._copy else _link
        try:
            folder.mkdir(exist_ok=True)
            for name in _names(image, row):
                if put(image, folder / name):
                    return
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not image.exists():
                raise
            hint = " (`copy` makes copies instead of links)" if not self._copy and error.errno in _NO_LINKS else ""
            raise WorkError(f"{folder}: can't put {image} there: {error.strerror}{hint}") from error


def _names(image: Path, row: int) -> Iterator[str]:
    """The image's own name, then others that hardly another image has, as long as file systems take them."""
    yield image.name
    for more in chain([""], map("-{}".format, count(2))):
        yield _fitting(image.stem, f"-{row}{more}{image.suffix}")


# Both say whether the image is at `place` now; it is not where something else was there before.


def _link(image: Path, place: Path) -> bool:
    with suppress(FileExistsError):
        place.symlink_to(image)
    return place.is_symlink() and place.readlink() == image


def _copy(image: Path, place: Path) -> bool:
    if place.exists():
        return filecmp.cmp(image, place, shallow=False)
    # of a name of its own, as shards on several machines may share the folder, and the place's may be as long as can be
    with tempfile.NamedTemporaryFile(suffix=_ASIDE, prefix=f".{_HOST}-", dir=place.parent, delete=False) as file:
        aside = Path(file.name)
        lock(file)
        try:
            shutil.copy2(image, aside)
            if sys.platform != "win32":
                aside.replace(place)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    if sys.platform == "win32":  # where a file that is open stays where it is
        aside.replace(place)
    return True


def _remove_leftovers(folder: Path) -> None:
    """Remove what a copy left that was killed on this machine; one of another machine may still be under way."""
    for path in folder.glob(f".{glob.escape(_HOST)}-*{_ASIDE}"):
        if is_abandoned(path):
            path.unlink(missing_ok=True)


def _folder_names(classes: Sequence[str]) -> list[str]:
    """For every class the name of a folder of its own, on all systems, also where they ignore case.

    A name that is too long is cut and gets the class's number, so that names that begin alike stay apart.
    """
    names: dict[str, str] = {}
    for index, label in enumerate(classes):
        name = re.sub(r'[\x00-\x1f<>:"/\\|?*]', "_", label).strip(" ") or "_"
        name = re.sub(r"\.+$", lambda dots: "_" * len(dots[0]), name)  # Windows drops dots at the end
        if name.startswith(".") or name.split(".")[0].upper() in _RESERVED:
            name = f"_{name}"
        if len(os.fsencode(name)) > _LONGEST_NAME:
            name = _fitting(name, f"_{index}")
        more = ""
        while _folded(name + more) in names or len(os.fsencode(name + more)) > _LONGEST_NAME:
            more += "_"
            name = _fitting(name, more)[: -len(more)]
        names[_folded(name + more)] = name + more
    return list(names.values())


def _fitting(stem: str, ending: str) -> str:
    """A stem, shortened as far as file systems make it necessary, and an ending."""
    while stem and len(os.fsencode(stem + ending)) > _LONGEST_NAME:
        stem = stem[:-1]
    return stem + ending


def _folded(name: str) -> str:
    """What two names have in common that file systems may not tell apart."""
    return unicodedata.normalize("NFC", name).casefold()

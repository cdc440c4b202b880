"""What is in image files: they are decoded as training decodes them, many at a time."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodial.data.transforms import DataError, read_image


@dataclass(frozen=True)
class Look:
    """An image file.

    Attributes:
        problem: why it can't be used, in words that name it; empty where it can, and then the rest is filled in.
        damage: what shows that it is damaged, although it can be decoded; empty where nothing does.
        size: bytes.
        height, width: pixels, turned as EXIF says.
        grey: whether its colours are all greys.
    """

    problem: str = ""
    size: int = 0
    height: int = 0
    width: int = 0
    grey: bool = False
    damage: str = ""


def look_at(paths: Iterable[str], looked: Callable[[], None] = lambda: None) -> dict[str, Look]:
    """Decode images; those that can't be decoded to their end are told apart from those that can.

    Args:
        paths: of any files.
        looked: is called after each.
    """
    unique = list(dict.fromkeys(paths))
    found = {}
    with ThreadPoolExecutor() as pool:
        for path, look in zip(unique, pool.map(_look, unique), strict=True):
            found[path] = look
            looked()
    return found


def same_bytes(paths: Iterable[str], others: Iterable[str], looks: Mapping[str, Look]) -> list[tuple[str, str]]:
    """Images of which others are copies, byte by byte, each with the first such copy.

    Only files of equal size are read.
    """
    own, foreign = list(dict.fromkeys(paths)), list(dict.fromkeys(others))
    sizes = {looks[path].size for path in own} & {looks[path].size for path in foreign}
    own, foreign = ([path for path in group if looks[path].size in sizes] for group in (own, foreign))
    with ThreadPoolExecutor() as pool:
        first = dict(zip(pool.map(_digest, reversed(foreign)), reversed(foreign), strict=True))
        digests = zip(own, pool.map(_digest, own), strict=True)
        return [(path, first[digest]) for path, digest in digests if digest in first]


def _look(path: str) -> Look:
    try:
        status = os.stat(path)  # noqa: PTH116 - a str
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            return Look(f"{path} is not a regular file")
        image, damage = read_image(path, color=True)
    except DataError as error:
        return Look(str(error))
    except OSError as error:
        return Look(f"{path} can't be read: {error.strerror}")
    return Look("", status.st_size, image.shape[0], image.shape[1], _is_grey(image), damage)


def _is_grey(image: NDArray[np.uint8]) -> bool:
    few = image[::16, ::16]  # enough for most photographs, and all pixels take as long as decoding
    return all(np.array_equal(part[..., 0], part[..., k]) for part in (few, image) for k in (1, 2))


def _digest(path: str) -> bytes:
    return hashlib.blake2b(Path(path).read_bytes()).digest()

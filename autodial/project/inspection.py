"""Inspection of image files: they are decoded as in training, in parallel."""

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
class Inspection:
    """What decoding found in an image file.

    Attributes:
        problem: why the file can't be used, with its path; empty if it can. The other attributes hold only then.
        size: of the file, in bytes.
        height, width: in pixels, after the rotation that EXIF asks for.
        grey: whether all pixels are grey.
        damage: the decoder's complaint about a file that it could decode; empty if there is none.
    """

    problem: str = ""
    size: int = 0
    height: int = 0
    width: int = 0
    grey: bool = False
    damage: str = ""


def inspect_images(paths: Iterable[str], inspected: Callable[[], None] = lambda: None) -> dict[str, Inspection]:
    """Decode images to find out which can be used, and their properties.

    Args:
        paths: paths of any files.
        inspected: called after each file.
    """
    unique = list(dict.fromkeys(paths))
    found = {}
    with ThreadPoolExecutor() as pool:
        for path, inspection in zip(unique, pool.map(_inspect, unique), strict=True):
            found[path] = inspection
            inspected()
    return found


def same_bytes(
    paths: Iterable[str], others: Iterable[str], inspections: Mapping[str, Inspection]
) -> list[tuple[str, str]]:
    """Find files of one set with the same bytes as files of another.

    Only files of equal size are read.

    Args:
        paths, others: the two sets.
        inspections: of all files in them.

    Returns:
        Pairs of a path and the first of `others` with the same bytes.
    """
    own, foreign = list(dict.fromkeys(paths)), list(dict.fromkeys(others))
    sizes = {inspections[path].size for path in own} & {inspections[path].size for path in foreign}
    own, foreign = ([path for path in group if inspections[path].size in sizes] for group in (own, foreign))
    with ThreadPoolExecutor() as pool:
        first = dict(zip(pool.map(_digest, reversed(foreign)), reversed(foreign), strict=True))
        digests = zip(own, pool.map(_digest, own), strict=True)
        return [(path, first[digest]) for path, digest in digests if digest in first]


def _inspect(path: str) -> Inspection:
    try:
        status = os.stat(path)  # noqa: PTH116 - a str
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            return Inspection(f"{path} is not a regular file")
        image, damage = read_image(path, color=True)
    except DataError as error:
        return Inspection(str(error))
    except OSError as error:
        return Inspection(f"{path} can't be read: {error.strerror}")
    return Inspection("", status.st_size, image.shape[0], image.shape[1], _is_grey(image), damage)


def _is_grey(image: NDArray[np.uint8]) -> bool:
    few = image[::16, ::16]  # decides for most photographs; comparing all pixels takes as long as decoding
    return all(np.array_equal(part[..., 0], part[..., k]) for part in (few, image) for k in (1, 2))


def _digest(path: str) -> bytes:
    return hashlib.blake2b(Path(path).read_bytes()).digest()

"""Reads image files in batches, as an exported file takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodial.converters.image_input import ImageInput
from autodial.data.transforms import decode, resize
from autodial.errors import InputError
from autodial.system.cpus import available_cpus

BATCH = 32


class FileBatches:
    """Batches of images, read from files again in each iteration; files that can't be read are left out.

    Args:
        paths: the image files.
        images: size and channels of the images that the exported file takes.

    Attributes:
        unreadable: reasons by left-out file, as far as batches were read.
    """

    def __init__(self, paths: Sequence[Path], images: ImageInput) -> None:
        self._paths = paths
        self._images = images
        self.unreadable: dict[Path, str] = {}

    @property
    def images(self) -> int:
        """Number of readable images, as far as batches were read."""
        return len(self._paths) - len(self.unreadable)

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        """Yields uint8 (n, height, width, channels), 1 <= n <= BATCH."""
        with ThreadPoolExecutor(available_cpus()) as pool:
            for start in range(0, len(self._paths), BATCH):
                part = self._paths[start : start + BATCH]
                read = list(pool.map(self._read, part))
                failed = ((path, why) for path, why in zip(part, read, strict=True) if isinstance(why, str))
                self.unreadable.update(failed)
                batch = [image for image in read if not isinstance(image, str)]
                if batch:
                    yield np.stack(batch)

    def _read(self, path: Path) -> NDArray[np.uint8] | str:
        try:
            return resize(decode(path, self._images.channels == 3), self._images.height, self._images.width)
        except InputError as error:
            return str(error)

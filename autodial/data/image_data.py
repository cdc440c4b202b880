"""Caffe's ImageData layer as a function from the index of a batch to its images and labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from autodial.data.decoder_messages import note_damage, watch_worker
from autodial.data.epochs import Epochs, Purpose, Streams
from autodial.data.image_list import Entry, ImageList
from autodial.data.paths import find
from autodial.data.source import ALL
from autodial.data.transforms import DRAWS, DataError, Transform, decode, read_image, resize
from autodial.errors import InputError
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.proto import messages as pb

_CHECK_CHUNK = 256
"""Images per task of `check`: enough that handing out tasks costs nothing."""
_CHECK_THREADS = 32
"""Threads of `check`: many, because they mostly wait on a network drive."""
_MOST_PIXELS = 2**30
"""The largest images that OpenCV decodes."""
_NAMED = 3
"""The number of bad images that an error of `check` names."""


class ImageData:
    """The batches of an ImageData layer.

    Attributes:
        name: the layer's name.
        list_path: the list file.
        entries: the list's images, in its order.
        batch_size: images per batch.
        image_shape: (height, width, channels) of decoded and resized images; without new_height and new_width, height
            and width are those of the first batch's first image.
        transform: applied after decoding and resizing.
        top_shapes: shapes of the data top, (N, C, H, W), and of the label top, (N,).
    """

    def __init__(self, param: pb.LayerParameter, *, phase: pb.Phase, seed: int, base_dir: Path | None = None) -> None:
        """Read the options and the list, and the first image if the prototxt states no size.

        Args:
            param: the layer.
            phase: caffe.Phase, which decides where crops are taken.
            seed: key of everything random, any integer.
            base_dir: folder of the prototxt, tried second for the relative paths in it.

        Raises:
            InputError: an option that can't be honoured, a list that can't be read, or a first image that can't be
                used; it names the layer, and the list's line where there is one.
        """
        self.name: str = param.name
        options = param.image_data_param
        try:
            _refuse(options)
            self.list_path = find(options.source, base_dir)
            self.entries = ImageList.read(self.list_path).entries
            if options.rand_skip > len(self.entries):
                raise DataError(
                    f"rand_skip {options.rand_skip} is beyond the {counted(len(self.entries), 'image')} of the list"
                )
            self.batch_size: int = options.batch_size
            self._new_size: tuple[int, int] = (options.new_height, options.new_width)
            self._color: bool = options.is_color
            self._root: str = options.root_folder
            # Absolute, so that a later change of the working directory does not move it.
            self._image_dir = (base_dir if base_dir and self._root else self.list_path.parent).absolute()

            self._streams = Streams(seed, self.name)
            self._epochs = Epochs(
                [len(self.entries)], self._streams, shuffle=options.shuffle, rand_skip=options.rand_skip
            )

            channels = 3 if self._color else 1
            self.transform = Transform.from_caffe(
                param.transform_param, phase=phase, channels=channels, base_dir=base_dir
            )
            height, width = (
                self._new_size
                if any(self._new_size)
                else self.image(self.entries[self._epochs.rows(0, 1)[0]]).shape[:2]
            )
            self.image_shape = (height, width, channels)
            self.top_shapes = (
                (self.batch_size, channels, *self.transform.size(height, width)),
                (self.batch_size,),
            )
        except InputError as error:
            raise InputError(f'layer "{self.name}" (ImageData): {error}') from None

    def __len__(self) -> int:
        return len(self.entries)

    def rows(self, index: int) -> list[Entry]:
        """The images of batch `index` (from 0), in the order of its rows."""
        return [self.entries[row] for row in self._epochs.rows(index, self.batch_size)]

    def names(self, index: int) -> list[str]:
        """The paths of the images in batch `index`, as the list states them."""
        return [entry.path for entry in self.rows(index)]

    def labels(self, top: int) -> Iterator[tuple[str, int]]:
        """Line and label of every image, for top 1; nothing for top 0."""
        return ((f"{self.list_path}:{entry.line}", entry.label) for entry in self.entries if top == 1)

    def batch(self, index: int, rows: slice = ALL) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Images and labels of batch `index` (from 0); they depend only on the seed, the layer's name and `index`.

        Args:
            rows: the rows of the batch to read.

        Returns:
            float32 (N, C, H, W) and float32 (N,) as in `top_shapes`, but only the rows asked for.

        Raises:
            InputError: an image is missing, damaged or of a size that doesn't fit; it names the list and the line.
        """
        entries = self.rows(index)[rows]
        draws = self._streams.rng(Purpose.TRANSFORM, index).random((self.batch_size, DRAWS))[rows]
        images = np.empty((len(entries), *self.top_shapes[0][1:]), dtype=np.float32)
        for entry, drawn, out in zip(entries, draws, images, strict=True):
            image = self.image(entry)
            try:
                if self.transform.size(*image.shape[:2]) != out.shape[1:]:
                    raise DataError(
                        "{} x {} pixels, where the first image has {} x {}: images of different sizes need new_height "
                        "and new_width".format(*image.shape[:2], *self.image_shape[:2])
                    )
                self.transform(image, drawn, out)
            except DataError as error:
                raise InputError(f'layer "{self.name}" (ImageData): {self._at(entry, error)}') from None
        return images, np.array([entry.label for entry in entries], dtype=np.float32)

    def image(self, entry: Entry) -> NDArray[np.uint8]:
        """An image of the list, decoded and resized: uint8 (height, width, channels), BGR or grey.

        A warning names a damaged image that can be decoded, once.

        Raises:
            InputError: the image is missing or damaged; it names the list and the line.
        """
        try:
            path = self.path(entry)
            image, damage = read_image(path, self._color)
        except InputError as error:
            raise self._at(entry, error) from None
        if damage:
            where = self._at(entry, f"{path} is damaged and used as far as it could be decoded: {damage}")
            note_damage(f'layer "{self.name}" (ImageData): {where}')
        return resize(image, *self._new_size) if any(self._new_size) else image

    def check(self) -> None:
        """Check every file of the list without decoding it: it must exist, and begin like an image.

        What only decoding shows - a file cut short, a size that doesn't fit - is found by `batch`.

        Raises:
            InputError: some images can't be used; it states their number, and names the first with line and reason.
        """
        once = list({entry.path: entry for entry in self.entries}.values())
        chunks = [once[i : i + _CHECK_CHUNK] for i in range(0, len(once), _CHECK_CHUNK)]
        with ThreadPoolExecutor(_CHECK_THREADS) as pool:
            problems = dict(chain.from_iterable(pool.map(self._problems, chunks)))
        if problems:
            bad = [entry for entry in self.entries if entry.path in problems]
            named = "; ".join(str(self._at(entry, problems[entry.path])) for entry in bad[:_NAMED])
            more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            raise InputError(
                f'layer "{self.name}" (ImageData): {len(bad)} of {counted(len(self.entries), "image")} '
                f"can't be used: {named}{more}"
            )

    def _problems(self, entries: Sequence[Entry]) -> list[tuple[str, InputError]]:
        """The bad images that `check` finds, with path and reason."""
        problems = []
        for entry in entries:
            # If OpenCV sees no image, decoding says why - or succeeds after all, on Windows, where haveImageReader
            # opens no path outside the system's code page.
            path = self._root + entry.path
            path = path if os.path.exists(path) else os.path.join(self._image_dir, path)  # noqa: PTH110, PTH118
            if not cv2.haveImageReader(path):
                try:
                    decode(self.path(entry), self._color)
                except InputError as error:
                    problems.append((entry.path, error))
        return problems

    def path(self, entry: Entry) -> Path:
        """The file of an image of the list; InputError, without the line, if it is not there."""
        # Caffe puts root_folder in front of the path without a separator.
        return find(self._root + entry.path, self._image_dir)

    def _at(self, entry: Entry, error: InputError | str) -> InputError:
        return InputError(f"{self.list_path}:{entry.line}: {error}")


def init_worker(worker_id: int = 0) -> None:
    """Set up a process that computes batches as one of several (a DataLoader's worker_init_fn): one OpenCV thread."""
    cv2.setNumThreads(0)
    watch_worker()


def _refuse(options: pb.ImageDataParameter) -> None:
    """Raise DataError for an ImageDataParameter that can't be honoured."""
    for field in ("scale", "mean_file", "crop_size", "mirror"):
        if options.HasField(field):
            raise DataError(f"image_data_param.{field} is out of date: move it to transform_param {{ {field} }}")
    if not options.source:
        raise DataError("image_data_param.source, the list of images, is missing")
    if not options.batch_size:
        raise DataError("image_data_param.batch_size is 0; it must be at least 1")
    if bool(options.new_height) != bool(options.new_width):
        raise DataError("image_data_param states new_height or new_width alone; state both or neither")
    if options.new_height * options.new_width > _MOST_PIXELS:
        raise DataError(
            f"new_height {options.new_height} and new_width {options.new_width} make more than 2^30 pixels an image"
        )

"""The images that an exported net takes, all of one size, and how they become the net's input blob."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodial.data.image_data import ImageData
from autodial.data.transforms import DRAWS, DataError, Transform, resize
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.wording import counted


@dataclass(frozen=True, eq=False)
class ImageInput:
    """Images of a TEST-phase ImageData layer, a deploy net or a torch module, and their transform.

    Attributes:
        height, width, channels: of the images before the transform.
        transform: of the TEST phase, without the random mirror.
        listed: the layer's list, None where it can't be read.
        reason: why `listed` is None; empty where no list belongs to the net.
        channel_scale: float32 (C, 1, 1), factors after the transform; None if the transform's scale is all.
        rgb: whether the blob's channels are in the order RGB; images are BGR.
    """

    height: int
    width: int
    channels: int
    transform: Transform
    listed: ImageData | None = None
    reason: str = ""
    channel_scale: NDArray[np.float32] | None = None
    rgb: bool = False

    @classmethod
    def from_caffe(
        cls, layer: pb.LayerParameter, others: Iterable[pb.LayerParameter] = (), base_dir: Path | None = None
    ) -> ImageInput:
        """Read an ImageData layer's options.

        The size is new_height and new_width, else that of the list's first image, else that of the mean image (which
        must have it), else what the net's other ImageData layers (`others`: LayerParameters) say.

        Raises:
            InputError: names the layer; its options can't be honoured, or the images' size is not known.
        """
        options = layer.image_data_param
        channels = 3 if options.is_color else 1
        try:
            transform = Transform.from_caffe(layer.transform_param, phase=pb.TEST, channels=channels, base_dir=base_dir)
            listed, reason = _read(layer, base_dir)
            size = _size(layer, listed, transform)
            for other in others:
                size = size or _size(other, _read(other, base_dir)[0])
            if size is None:
                raise DataError(
                    "the size of its images is not known: put its list and images in place, or state new_height and "
                    f"new_width in image_data_param; {reason}"
                )
            transform.size(*size)
        except InputError as error:
            raise InputError(f'layer "{layer.name}" (ImageData): {error}') from None
        return cls(*size, channels, replace(transform, mirror=False), listed, reason)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the blob for one image, (1, C, h, w)."""
        return (1, self.channels, *self.transform.size(self.height, self.width))

    def sample(self, count: int, seed: int = 0) -> tuple[NDArray[np.uint8], str]:
        """Images to try a net on: the list's first images, repeated if there are fewer, or else random images.

        Returns:
            uint8 (count, height, width, channels), and their origin in words.
        """
        images = []
        reason = self.reason
        if self.listed is not None:
            for entry in self.listed.entries[:count]:
                try:
                    images.append(resize(self.listed.image(entry), self.height, self.width))
                except InputError as error:
                    reason = str(error)
        if self.listed is not None and images:
            return np.stack([images[i % len(images)] for i in range(count)]), (
                f"{counted(len(images), 'image')} of {self.listed.list_path}"
            )
        shape = (count, self.height, self.width, self.channels)
        noise = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        return noise, f"random images, as the list's can't be read: {reason}" if reason else "random images"

    def blob(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The net's input blob, float32 (N, C, h, w), for images, uint8 (N, height, width, channels)."""
        draws = np.zeros(DRAWS)  # which decide nothing without mirror and random crop
        blob = np.stack([self.transform(image, draws) for image in images])
        if self.channel_scale is not None:
            blob *= self.channel_scale
        return np.ascontiguousarray(blob[:, ::-1]) if self.rgb else blob


def _read(layer: pb.LayerParameter, base_dir: Path | None) -> tuple[ImageData | None, str]:
    """A layer's list in its own order, or the reason why it can't be read."""
    in_order = pb.LayerParameter()
    in_order.CopyFrom(layer)
    in_order.image_data_param.shuffle = False
    in_order.image_data_param.rand_skip = 0
    try:
        return ImageData(in_order, phase=pb.TEST, seed=0, base_dir=base_dir), ""
    except InputError as error:
        return None, str(error)


def _size(
    layer: pb.LayerParameter, listed: ImageData | None, transform: Transform | None = None
) -> tuple[int, int] | None:
    """Height and width of a layer's images before the transform; None if they can't be known."""
    options = layer.image_data_param
    if options.new_height and options.new_width:
        return options.new_height, options.new_width
    if listed is not None:
        return listed.image_shape[0], listed.image_shape[1]
    if transform is not None and transform.mean is not None and transform.mean.shape[1:] != (1, 1):
        return transform.mean.shape[1], transform.mean.shape[2]
    return None

"""The images that an exported net takes, all of one size, and how they become the net's input blob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodial.data.image_data import ImageData
from autodial.data.transforms import DRAWS, DataError, Transform, resize, size_before_crop
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

    @classmethod
    def for_blob(
        cls,
        shape: Sequence[int],
        transform: pb.TransformationParameter | None,
        size: tuple[int, int] | None,
        base_dir: Path | None = None,
    ) -> ImageInput:
        """The images of a net whose Input layer states only its blob.

        Images are resized to `size`; without it, to the size of the mean image, to the next multiple of 32 above
        crop_size (256 for 224 and 227), or to the blob's. Larger images are cropped to a square blob.

        Args:
            shape: of the blob, (N, C, H, W).
            transform: what the net was trained with; a mirror is left out.
            size: height and width that images are resized to.

        Raises:
            InputError: the blob holds no images, or the transform doesn't give its size.
        """
        if len(shape) != 4 or shape[1] not in (1, 3):
            raise InputError(f"the net's input blob of shape {tuple(shape)} holds no images: use `raw_input`")
        options = pb.TransformationParameter()
        if transform is not None:
            options.CopyFrom(transform)
        options.ClearField("mirror")
        height, width = shape[2:]
        if size is not None and not options.crop_size and size != (height, width) and height == width <= min(size):
            options.crop_size = height
        made = Transform.from_caffe(options, phase=pb.TEST, channels=shape[1], base_dir=base_dir)
        if size is None:
            whole_mean = made.mean is not None and made.mean.shape[1:] != (1, 1)
            if whole_mean and made.mean is not None:
                size = made.mean.shape[1], made.mean.shape[2]
            else:
                size = size_before_crop(options.crop_size) if options.crop_size else (height, width)
        if made.size(*size) != (height, width):
            got = " x ".join(map(str, made.size(*size)))
            raise InputError(
                f"images of {size[0]} x {size[1]} become {got}, and the net's input blob takes {height} x {width}: "
                "change `size`, or crop_size in `transform`"
            )
        return cls(*size, shape[1], made)

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

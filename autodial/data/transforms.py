"""Decoding and Caffe's image transforms, on numpy and OpenCV alone: training and prediction share them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from autodial.data.alpha import may_have_alpha, over_white
from autodial.data.avif import is_avif, turned
from autodial.data.decoder_messages import listen, note_damage
from autodial.data.jpeg_end import with_end
from autodial.data.paths import find
from autodial.data.png_chunks import can_be_whole
from autodial.errors import InputError
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.proto import messages as pb

# Opening a pipe that nobody writes to must not block.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
LARGEST = 2**31 - 1
"""The largest size in bytes of a file that OpenCV decodes from memory."""
_LIMIT = re.compile("IO_MAX_IMAGE_(PIXELS|WIDTH|HEIGHT)")
"""OpenCV's name, without its prefix, for a limit that an image exceeds; also an environment variable."""
_NO_IMAGE = "is not an image that OpenCV can read, or it is damaged or cut short"
_LIMITED = {"PIXELS": "pixels", "WIDTH": "columns", "HEIGHT": "rows"}


DRAWS = 3
"""The number of random numbers that a Transform takes."""


class DataError(InputError, ValueError):
    """An image or a transform that can't be used; the caller adds the layer or the list's line."""


class Decoded(NamedTuple):
    """An image that could be decoded.

    Attributes:
        pixels: uint8 (height, width, 3) in the order BGR, or (height, width, 1).
        damage: what shows that the file is damaged, so that some pixels may be wrong; empty if nothing does.
    """

    pixels: NDArray[np.uint8]
    damage: str = ""


def read_image(path: str | PathLike[str], color: bool) -> Decoded:
    """Read an image file as cv2.imread does: turned by its EXIF orientation, 16 bits cut to 8, only the first frame.

    The pixels are those of cv2.imread, with four differences. An AVIF is turned by its own properties, as its format
    demands (`autodial.data.avif`). Transparent pixels are laid over white; imread drops the alpha channel and shows
    whatever colour lies below. A file that is cut short is an error; imread paints the missing part of a JPEG grey. And
    a path in any alphabet opens on Windows too.

    The result reports damage past which the decoder went on, as far as the decoder notices it, while the process is
    watched (`autodial.data.decoder_messages`). A JPEG that lacks only its end marker is always reported.

    Args:
        path: an image file of any format that OpenCV reads.
        color: three channels in the order BGR if true, one grey channel if false, whatever the file holds.

    Raises:
        DataError: the file can't be read, is empty, or is not a whole image; it names the path.
    """
    try:
        data = _read(path)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from None
    try:
        return read_encoded(data, color)
    except DataError as error:
        raise DataError(f"{path} {error}") from None


def read_encoded(file: bytes | bytearray | memoryview, color: bool) -> Decoded:
    """Read an image file that lies in memory: the same pixels, to the bit, as `read_image` gives for its path.

    Args:
        file: the whole file.
        color: as for `read_image`.

    Raises:
        DataError: it is empty, larger than 2 GiB, or not a whole image; the subject is left out.
    """
    data = np.frombuffer(file, dtype=np.uint8)
    if not data.size:
        raise DataError("is empty")
    if data.size > LARGEST:
        raise DataError("is larger than 2 GiB, OpenCV's limit")
    return _listening(lambda: _decoded(data, color))


def decode(path: str | PathLike[str], color: bool) -> NDArray[np.uint8]:
    """The pixels that `read_image` returns; a warning names a damaged image, once.

    Raises:
        DataError: as there.
    """
    pixels, damage = read_image(path, color)
    if damage:
        note_damage(f"{path} is damaged: {damage}")
    return pixels


def _decoded(data: NDArray[np.uint8], color: bool) -> Decoded:
    image = over_white(data, color) if may_have_alpha(data) and can_be_whole(data) else None
    return _from_bytes(data, color) if image is None else Decoded(image)


def _listening(decoding: Callable[[], Decoded]) -> Decoded:
    """The result of `decoding`, with what the decoder reports about damage; raises the DataError that it raises."""

    def outcome() -> Decoded | DataError:
        try:
            return decoding()
        except DataError as error:
            return error

    result, words = listen(outcome)
    if isinstance(result, DataError):
        raise result
    return result if result.damage or not words else Decoded(result.pixels, words)


def _read(path: str | PathLike[str]) -> bytes:
    """The whole file, with as few system calls as possible: they dominate the time for small images.

    Raises:
        DataError: not a regular file, or one that is too large; it names the path.
        OSError: the file can't be read.
    """
    file = os.open(path, _FLAGS)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path} is {'a folder' if stat.S_ISDIR(status.st_mode) else 'not a regular file'}")
        if status.st_size > LARGEST:
            raise DataError(f"{path} is larger than 2 GiB, OpenCV's limit")
        data = os.read(file, status.st_size)
        while len(data) < status.st_size and (rest := os.read(file, status.st_size - len(data))):
            data += rest
        return data
    finally:
        os.close(file)


def read_bytes(data: NDArray[np.uint8], color: bool | None) -> Decoded:
    """Decode an image file in memory, like cv2.imdecode, and like Caffe for an encoded datum.

    A damaged file is treated as in `read_image`; an alpha channel is dropped, not laid over white.

    Args:
        data: uint8 (bytes,), at least one.
        color: three channels if true, one if false. None keeps the file's channels, alpha included, and ignores its
            orientation (cv2.IMREAD_UNCHANGED).

    Raises:
        DataError: the bytes are no whole image, or with `color` None no image of 8 bits; the message has no subject.
    """
    return _listening(lambda: _from_bytes(data, color))


def _from_bytes(data: NDArray[np.uint8], color: bool | None) -> Decoded:
    if not can_be_whole(data):
        raise DataError(_NO_IMAGE)
    flags = cv2.IMREAD_UNCHANGED if color is None else cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE
    turns = color is not None and is_avif(data)
    if turns:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION  # EXIF's, which OpenCV would go by
    damage = ""
    try:
        # From OpenCV 4.11 on, decoding from memory refuses a JPEG that ends early; before, it left rows unset.
        image: Any = cv2.imdecode(data, flags)
        if image is None and (ended := with_end(data)):
            image = _same_from_all(ended, flags)
            damage = "the end marker of the JPEG is missing"
    except cv2.error as error:
        if limit := _LIMIT.search(error.err):
            raise DataError(f"has more {_LIMITED[limit[1]]} than OpenCV allows (OPENCV_{limit[0]})") from None
        raise DataError(f"can't be decoded: {error.err}") from None
    if image is None:
        raise DataError(_NO_IMAGE)
    if image.dtype != np.uint8:
        raise DataError(f"has pixels of {image.dtype}; write it with 8 bits per channel")
    image = image if image.ndim == 3 else image[:, :, np.newaxis]
    return Decoded(turned(image, data) if turns else image, damage)


def _same_from_all(files: Sequence[NDArray[np.uint8]], flags: int) -> Any:
    """The image that OpenCV decodes from all of these files; None if the images differ."""
    image = cv2.imdecode(files[0], flags)
    same = image is not None and all(np.array_equal(image, np.asarray(cv2.imdecode(f, flags))) for f in files[1:])
    return image if same else None


def size_before_crop(crop: int) -> tuple[int, int]:
    """Height and width that images usually have before a crop to `crop` pixels: the next multiple of 32 beyond it.

    256 for ImageNet's 224 and 227, 32 for 28.
    """
    side = crop // 32 * 32 + 32
    return side, side


def resize(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize uint8 (H, W, C) to (height, width, C) with OpenCV's bilinear interpolation, as Caffe does.

    There is no antialiasing: other libraries' resize differs by tens of grey levels.
    """
    if image.shape[:2] == (height, width):
        return image
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    # OpenCV drops the axis of a single channel.
    return resized.reshape(height, width, image.shape[2])  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Transform:
    """Caffe's DataTransformer: crop, mirror, subtract the mean, scale.

    Attributes:
        crop_size: side of the square crop in pixels; 0 keeps the whole image.
        random_crop: crop at a random place (Caffe's TRAIN) instead of the centre, rounded down (TEST).
        mirror: flip left to right with probability 1/2; Caffe does so in both phases.
        mean: subtracted before scaling; None, float32 (C, 1, 1) for a value per channel, or (C, H, W) for a mean
            image, which must have the size of the images before the crop and is cropped and flipped along with them.
        scale: factor.
    """

    crop_size: int = 0
    random_crop: bool = False
    mirror: bool = False
    mean: NDArray[np.float32] | None = None
    scale: float = 1.0

    @classmethod
    def from_caffe(
        cls, param: pb.TransformationParameter, *, phase: pb.Phase, channels: int, base_dir: Path | None = None
    ) -> Transform:
        """The transform that a TransformationParameter states, for images of `channels` channels.

        Args:
            phase: caffe.Phase, which decides where crops are taken.
            base_dir: folder of the prototxt; a relative mean_file is tried there second.

        Raises:
            InputError: a mean that is stated twice, has another number of channels or can't be read, or a force_color
                or force_gray that contradicts `channels`.
        """
        from autodial.proto import messages as pb

        if (param.force_gray and channels != 1) or (param.force_color and channels != 3):
            stated = "force_gray" if channels != 1 else "force_color"
            raise DataError(f"transform_param.{stated} contradicts the images' number of channels, {channels}")
        return cls(
            crop_size=param.crop_size,
            random_crop=phase == pb.TRAIN,
            mirror=param.mirror,
            mean=_mean(param, channels, base_dir),
            scale=param.scale,
        )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the result for an image of this height and width; DataError if the image doesn't fit."""
        if self.mean is not None and self.mean.shape[1:] not in ((1, 1), (height, width)):
            mean_height, mean_width = self.mean.shape[1:]
            raise DataError(
                f"an image of {height} x {width} does not fit the mean_file, which has {mean_height} x {mean_width}"
            )
        if not self.crop_size:
            return height, width
        if self.crop_size > min(height, width):
            raise DataError(f"an image of {height} x {width} is smaller than crop_size {self.crop_size}")
        return self.crop_size, self.crop_size

    def __call__(
        self,
        image: NDArray[np.uint8] | NDArray[np.float32],
        draws: NDArray[np.float64],
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """(image - mean) * scale of the crop.

        Args:
            image: uint8 or float32 (H, W, C), in any memory layout.
            draws: DRAWS numbers in [0, 1), drawn uniformly where a random choice is wanted: for the mirror, and for the
                top and the left of a random crop. All images take equally many, so that a batch's can be drawn ahead.
            out: float32 (C, h, w) for the result, with (h, w) = self.size(H, W); a new array if None.

        Returns:
            float32 (C, h, w).

        Raises:
            DataError: the image is smaller than the crop, or not of the mean image's size.
        """
        height, width = image.shape[:2]
        crop_height, crop_width = self.size(height, width)
        flip = self.mirror and draws[0] >= 0.5
        spare = height - crop_height, width - crop_width
        if self.random_crop:
            top, left = (int(draw * (pixels + 1)) for draw, pixels in zip(draws[1:], spare, strict=True))
        else:
            top, left = (pixels // 2 for pixels in spare)
        window = (..., slice(top, top + crop_height), slice(left, left + crop_width))
        step = -1 if flip else 1

        planes = image.transpose(2, 0, 1)[window][..., ::step]
        if out is None:
            out = np.empty(planes.shape, dtype=np.float32)
        if self.mean is None:
            out[...] = planes
        else:
            mean = self.mean if self.mean.shape[1:] == (1, 1) else self.mean[window][..., ::step]
            # numpy subtracts twice as fast from contiguous planes, including the copy.
            np.subtract(np.ascontiguousarray(planes), mean, out=out)
        if self.scale != 1:
            out *= np.float32(self.scale)
        return out


def _mean(param: pb.TransformationParameter, channels: int, base_dir: Path | None) -> NDArray[np.float32] | None:
    """The mean of a TransformationParameter as Transform holds it; raises InputError."""
    if param.HasField("mean_file"):
        if param.mean_value:
            raise DataError("transform_param states both mean_file and mean_value; keep one of them")
        from autodial.proto import read_blob

        path = find(param.mean_file, base_dir)
        mean: NDArray[np.float32] = read_blob(path)
        if mean.ndim < 3 or mean.shape[:-3] not in ((), (1,)):
            raise DataError(f"{path} holds a blob of shape {mean.shape}, not one mean image")
        mean = mean.reshape(mean.shape[-3:])
        if len(mean) != channels:
            raise DataError(f"{path} has {counted(len(mean), 'channel')}, the images have {channels}")
        return mean
    if not param.mean_value:
        return None
    if len(param.mean_value) not in (1, channels):
        raise DataError(
            f"transform_param states {len(param.mean_value)} mean_values; state one, or {channels}, as the images "
            f"have {counted(channels, 'channel')}"
        )
    return np.broadcast_to(np.array(param.mean_value, dtype=np.float32), channels).reshape(channels, 1, 1)

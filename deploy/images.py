"""What counts as one image for a predictor: a file's name, a file's bytes, an open file, or an array of pixels."""

from __future__ import annotations

import os
from typing import BinaryIO, TypeAlias

import numpy as np

from autodial.data.transforms import Decoded, read_encoded, read_image
from autodial.deploy.binding import Pixels
from autodial.errors import InputError

EncodedImage: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO
"""An image file, whichever way it comes: its path, its whole bytes, or a file object open for reading bytes."""
AnyImage: TypeAlias = EncodedImage | Pixels
"""An image file, or its pixels, uint8 (height, width, channels)."""


class ImageError(InputError, ValueError):
    """An image that can't be used; the message names the file, where it has a name."""


def read(image: AnyImage, channels: int) -> Decoded:
    """The pixels of an image: those of `autodial.data.transforms.read_image`, to the bit, whichever way it comes.

    Args:
        image: a path; the bytes of a whole file; a file object, which is read from where it stands to its end; or an
            array as `cv2.imread` returns it: uint8, (height, width, 3) in BGR order for a colour model,
            (height, width[, 1]) for a grey one.
        channels: 3 for colour, 1 for grey.

    Raises:
        ImageError: the file can't be read or decoded, or the array has another dtype or shape.
        TypeError: it is something else.
    """
    try:
        if isinstance(image, (str, os.PathLike)):
            return read_image(image, channels == 3)
        if isinstance(image, np.ndarray):
            return Decoded(_checked(image, channels))
        return read_encoded(_contents(image), channels == 3)
    except ImageError:
        raise
    except InputError as error:
        text = str(error) if isinstance(image, (str, os.PathLike)) else f"{name_of(image)} {error}"
        raise ImageError(text) from error


def name_of(image: AnyImage) -> str:
    """How a message names an image."""
    if isinstance(image, (str, os.PathLike)):
        return os.fspath(image)
    if isinstance(image, np.ndarray):
        return f"an array of {image.shape}"
    if isinstance(image, (bytes, bytearray, memoryview)):
        return f"a file of {len(image)} bytes"
    return str(getattr(image, "name", "an open file"))


def _contents(image: EncodedImage) -> bytes | bytearray | memoryview:
    if isinstance(image, (bytes, bytearray, memoryview)):
        return image
    read_all = getattr(image, "read", None)
    if read_all is None:
        raise TypeError(
            "an image is a file's name, its bytes, an open file or an array of uint8, "
            f"and this one is a {type(image).__name__}"
        )
    try:
        data = read_all()
    except OSError as error:
        raise ImageError(f"{name_of(image)} can't be read: {error.strerror}") from error
    if not isinstance(data, bytes):
        raise TypeError(f"{name_of(image)} is open for reading text: open it with mode 'rb'")
    return data


def _checked(image: Pixels, channels: int) -> Pixels:
    if image.dtype != np.uint8:
        raise ImageError(f"an image is an array of uint8, and this one is of {image.dtype}")
    if image.ndim == 2:
        image = image[:, :, np.newaxis]
    if image.ndim != 3 or image.shape[2] != channels or 0 in image.shape:
        raise ImageError(f"the model takes images of (height, width, {channels}), not {image.shape}")
    return image

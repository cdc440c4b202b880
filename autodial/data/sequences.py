"""Checks of arguments that must be sequences: one image, or one name, must not count as a sequence of its parts."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def is_one_name(value: Any) -> bool:
    """Whether this is one name, of a file for example, or the bytes of one file, and not a sequence of them."""
    return isinstance(value, (str, bytes, bytearray, memoryview, os.PathLike))


def check_images(images: Any, function: str) -> None:
    """Raise TypeError for one image instead of several; an array of four axes is a batch, with the images along the
    first.

    Args:
        images: the argument of `function`.
        function: the function's name, for the message.
    """
    if is_one_name(images):
        what = repr(os.fspath(images)) if isinstance(images, (str, os.PathLike)) else "the image"
        decoded = "" if isinstance(images, (str, os.PathLike)) else ", with the image decoded"
        raise TypeError(f"{function} takes a sequence of images: write {function}([{what}]){decoded}")
    if isinstance(images, np.ndarray) and images.ndim in (2, 3):
        raise TypeError(
            f"{function} takes a sequence of images, and an array of {images.shape} is one of them: write "
            f"{function}([image]); a batch is an array of four axes, the images along the first"
        )

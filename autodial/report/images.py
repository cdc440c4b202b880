"""Images as the net gets them, small enough for a page."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from autodial.data.datum_data import DatumData
from autodial.data.image_data import ImageData
from autodial.data.source import Source
from autodial.errors import InputError
from autodial.evaluation.scoring import ScoredImage
from autodial.wording import counted

_LONGER_SIDE = 160
"""Pixels of a shown image's longer side."""


class Thumbnail(NamedTuple):
    """An image as the net gets it, resized and cropped, encoded.

    Attributes:
        path: its file, or its key in a database.
        data: a PNG or a JPEG file.
        media_type: which of them.
        size: height and width in pixels.
    """

    path: str
    data: bytes
    media_type: str
    size: tuple[int, int]


class PredictedImage(NamedTuple):
    """A target image and what was predicted for it."""

    row: ScoredImage
    image: Thumbnail


class ImagePair(NamedTuple):
    """Images of a class from both domains.

    Attributes:
        label: the class.
        source: an image with this label.
        target: the image that got this class with the largest probability; None if no image got it.
    """

    label: int
    source: Thumbnail
    target: PredictedImage | None


def thumbnail(source: Source, row: int) -> Thumbnail:
    """A row of a source that reads one row per batch.

    Raises:
        InputError: the source's data are not images.
    """
    image = _pixels(source, row)
    scale = _LONGER_SIDE / max(image.shape[:2])
    if scale >= 1:
        data, media_type = cv2.imencode(".png", image)[1], "image/png"
    else:
        image = np.asarray(cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)
        data, media_type = cv2.imencode(".jpg", image)[1], "image/jpeg"
    return Thumbnail(source.names(row)[0], data.tobytes(), media_type, (image.shape[0], image.shape[1]))


def _pixels(source: Source, row: int) -> NDArray[np.uint8]:
    """A row as the net gets it, scale and mean undone: uint8 (H, W, 1 or 3); the source reads one row per batch."""
    if not isinstance(source, ImageData | DatumData):
        raise InputError("the net reads numbers that are not images")
    transform = source.transform
    (image,) = source.batch(row)[0]
    if transform.scale:
        image = image / transform.scale
    if transform.mean is not None:
        height, width = image.shape[1:]
        mean = np.broadcast_to(transform.mean, (len(image), *source.image_shape[:2]))
        top, left = (mean.shape[1] - height) // 2, (mean.shape[2] - width) // 2
        image = image + mean[:, top : top + height, left : left + width]
    if len(image) not in (1, 3):
        raise InputError(f"images of {counted(len(image), 'channel')} can't be shown")
    pixels: NDArray[np.uint8] = np.clip(np.rint(image), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return pixels

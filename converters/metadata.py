"""Writes the metadata of an exported file: see `autodial.model_file`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial import __version__
from autodial.converters.image_input import ImageInput
from autodial.model_file import ALPHA, CHANNELS, EXIF, MEAN_FILE, RESIZE, SCHEMA
from autodial.proto import Weights

_ORDERS = {channels: order for order, channels in CHANNELS.items()}


def make_metadata(
    classes: Sequence[str],
    images: ImageInput | None,
    window: Sequence[int],
    statistics: str | None,
    weights_sha256: str,
) -> dict[str, Any]:
    """The JSON object of the metadata key `autodial`: see `autodial.model_file`.

    Args:
        classes: names, in the order of the logits.
        images: what the file takes; None for a blob.
        window: shape (N, C, h, w) of the part of an image that reaches the net.
        statistics: domain of the folded statistics, "mixed" or None, as in `Folded`.
        weights_sha256: from `digest`.
    """
    return {
        "schema": SCHEMA,
        "classes": list(classes),
        **_describe_input(images, window),
        "statistics": statistics,
        "weights_sha256": weights_sha256,
        "version": __version__,
    }


def _describe_input(images: ImageInput | None, window: Sequence[int]) -> dict[str, Any]:
    """The metadata about the input: `images`, which the file crops to `window` (N, C, h, w), or a blob if None."""
    if images is None:
        order = _ORDERS.get(window[1]) if len(window) == 4 else None
        rest = dict.fromkeys(("size", "resize", "crop", "exif", "alpha"))
        return {**rest, "mean": [], "scale": 1.0, "channel_order": order, "raw_input": True}
    size, mean = [images.height, images.width], images.transform.mean
    factors = images.channel_scale
    crop = list(window[2:])
    return {
        "size": size,
        "resize": RESIZE,
        "crop": crop if crop != size else None,
        "exif": EXIF,
        "alpha": ALPHA,
        "mean": [] if mean is None else mean.ravel().tolist() if mean.shape[1:] == (1, 1) else MEAN_FILE,
        "scale": images.transform.scale if factors is None else (images.transform.scale * factors).ravel().tolist(),
        "channel_order": _ORDERS[images.channels],
        "raw_input": False,
    }


def digest(weights: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """The SHA-256, in hexadecimal digits, of weights: their names, shapes and float32 values, in order."""
    sha = hashlib.sha256()
    for name, values in weights:
        sha.update(f"{name}\0{values.shape}\0".encode())
        sha.update(np.ascontiguousarray(values, "<f4").data)
    return sha.hexdigest()


def weights_digest(*weights: Weights) -> str:
    """The SHA-256 of caffemodels' blobs: their layers' names, indices, shapes and float32 values, in order."""
    return digest(
        (f"{layer.name}\0{i}", blob)
        for one in weights
        for layer in one.layers
        for i, blob in enumerate(layer.blobs)
        if blob is not None  # shared, and held by the layer that owns it
    )

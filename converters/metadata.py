"""What an exported file says about itself: see `autodial.model_file`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial import __version__
from autodial.converters.image_input import ImageInput
from autodial.data.labels import tell_apart
from autodial.model_file import ALPHA, CHANNELS, EXIF, MEAN_FILE, RESIZE, SCHEMA

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
        images: what the file takes; None for a raw blob.
        window: shape (N, C, h, w) of what the net itself sees of them.
        statistics: domain of the statistics that are folded in, "mixed" or None, as in `Folded`.
        weights_sha256: by `digest`.
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
    """The metadata about the input: `images`, cut to `window` (N, C, h, w) in the file, or None for a raw blob."""
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
    """SHA-256, in hexadecimal digits, of named weights: names, shapes and float32 values, in their order."""
    sha = hashlib.sha256()
    for name, values in weights:
        sha.update(f"{name}\0{values.shape}\0".encode())
        sha.update(np.ascontiguousarray(values, "<f4").data)
    return sha.hexdigest()


def note_repeated(classes: Sequence[str], where: str) -> list[str]:
    """A note on classes that have one name, and so get their numbers behind it, where there are any."""
    of_name: dict[str, list[str]] = {}
    for name, told in zip(classes, tell_apart(classes), strict=True):
        of_name.setdefault(name, []).append(told)
    repeated = [f'"{name}" ({", ".join(told)})' for name, told in of_name.items() if len(told) > 1]
    return [f"{where} names several classes alike, which get their numbers: {', '.join(repeated)}"] if repeated else []

"""The contract of `target_predictor.onnx`: what `autodial.converters` writes into it and `autodial.deploy` relies on.

The graph takes images, decoded and resized, as its input `image`, uint8 (batch, height, width, channels), and gives
`logits` and `probabilities`, float32 (batch, classes). A JSON object under the metadata key `autodial` says the rest.
A file that takes the net's input blob instead, float32 under the blob's own name, says `raw_input`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from autodial.errors import InputError
from autodial.system.json_files import WrongValueError, check
from autodial.wording import counted

KEY = "autodial"
"""The metadata property that holds the JSON object."""
SCHEMA = 1
"""Version of the object's form. A reader refuses a file of a later one."""

INPUT = "image"
LOGITS = "logits"
PROBABILITIES = "probabilities"
OUTPUTS = (LOGITS, PROBABILITIES)
CHANNELS = {"BGR": 3, "GRAY": 1}
"""What `channel_order` may say, and how many channels an image then has."""

# What is done to an image before the graph, in training as in prediction: it is stretched to the graph's size, turned
# as its EXIF orientation says, and laid over white where it is transparent.
RESIZE = "bilinear"
EXIF = "apply"
ALPHA = "white"
MEAN_FILE = "mean_file"
"""What `mean` says of a whole mean image, which stands in the graph alone."""

MOST_PIXELS = 2**26
"""Of an image that a graph takes: batches of more fill any memory."""


def _height_and_width(value: list[int]) -> None:
    if len(value) != 2:
        raise WrongValueError("height and width, two whole numbers", value)
    if value[0] * value[1] > MOST_PIXELS:
        raise WrongValueError(f"height and width of at most {MOST_PIXELS:,} pixels", value)


def _not_empty(value: list[Any]) -> None:
    if not value:
        raise WrongValueError("a list of one or more", value)


_Size = Annotated[list[Annotated[int, range(1, 2**31)]], _height_and_width]


class _Schema(TypedDict):
    schema: Annotated[int, range(1, 2**31)]


class Head(_Schema, total=False):
    """What is read first, of a file of any schema."""

    version: str
    raw_input: bool


class _Stated(_Schema):
    classes: Annotated[list[str | int], _not_empty]
    size: _Size
    resize: str
    crop: _Size | None
    exif: str
    mean: list[float] | str
    scale: float | list[float]
    channel_order: str
    statistics: str | None
    weights_sha256: str
    version: str


class ImageMetadata(_Stated, total=False):
    """The JSON object of a file that takes images; the first files said nothing about `alpha` and `precision`.

    Crop, mean and scale are part of the graph, and stand here for the reader's information.
    """

    alpha: str
    precision: str
    reference: Mapping[str, Any] | None


class BlobMetadata(_Schema):
    """What counts in the JSON object of a file with `raw_input`; what it says of images is null."""

    classes: Annotated[list[str | int], _not_empty]
    channel_order: str | None
    raw_input: bool
    statistics: str | None
    weights_sha256: str
    version: str


def check_shapes(metadata: ImageMetadata) -> None:
    """Raise InputError where the entries of a file that takes images don't go together."""
    (height, width), crop, mean, scale = metadata["size"], metadata["crop"], metadata["mean"], metadata["scale"]
    channels = CHANNELS[metadata["channel_order"]]
    if crop is not None and (crop[0] > height or crop[1] > width):
        raise InputError(f"the crop {crop} is larger than the size {metadata['size']}")
    if mean != MEAN_FILE and (isinstance(mean, str) or len(mean) not in (0, 1, channels)):
        raise InputError(f'the mean must be "{MEAN_FILE}" or {counted(channels, "number")}, not {mean!r}')
    if isinstance(scale, list) and len(scale) != channels:
        raise InputError(f"the scale must be one number or {channels}, not {scale}")


def check_written(metadata: Mapping[str, Any]) -> None:
    """Raise InputError for metadata that a file is about to get and that its readers would refuse."""
    try:
        if metadata["raw_input"]:
            check(dict(metadata), BlobMetadata)
        else:
            check_shapes(check(dict(metadata), ImageMetadata))
    except InputError as error:
        raise InputError(f"no file of the net could be read: {error}") from error


def to_text(metadata: Mapping[str, Any]) -> str:
    """The value of the metadata property KEY."""
    return json.dumps(metadata)

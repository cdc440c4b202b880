"""The contract of `target_predictor.onnx`: what `autodial.converters` writes and `autodial.deploy` relies on.

The graph takes images, decoded and resized, as its input `image`, uint8 (batch, height, width, channels), and gives
`logits` and `probabilities`, float32 (batch, classes). A JSON object under the metadata key `autodial` has the rest.
A file whose input is the net's input blob, float32 under the blob's name, has `raw_input: true` there.

For programs that don't know AutoDIAL, `image` is marked as ONNX marks images (its documents TypeDenotation,
DimensionDenotation and MetadataProps), and the license is under the key that ONNX has for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from autodial.errors import InputError
from autodial.system.json_files import WrongValueError, check
from autodial.wording import counted

Domain: TypeAlias = Literal["source", "target"]
"""Whose statistics an alignment layer normalizes with: the entry `statistics`, null for a net without such layers."""

KEY = "autodial"
"""The metadata property that holds the JSON object."""
SCHEMA = 1
"""Version of the object's schema. A reader refuses files of later versions."""

LICENSE = "model_license"
"""ONNX's own metadata property for the license; files without one lack it."""

INPUT = "image"
LOGITS = "logits"
PROBABILITIES = "probabilities"
OUTPUTS = (LOGITS, PROBABILITIES)
CHANNELS = {"BGR": 3, "GRAY": 1}
"""Values of `channel_order`, with an image's number of channels."""

IMAGE = "IMAGE"
"""ONNX's denotation of the input's type."""
IMAGE_AXES = ("DATA_BATCH", "DATA_FEATURE", "DATA_FEATURE", "DATA_CHANNEL")
"""ONNX's denotations of the input's dimensions."""
_PIXEL_FORMATS = {"BGR": "Bgr8", "GRAY": "Gray8"}

# How an image is prepared for the graph, in training and in prediction: it is stretched to the graph's size, rotated as
# its EXIF orientation says, and transparent pixels are laid over white.
RESIZE = "bilinear"
EXIF = "apply"
ALPHA = "white"
MEAN_FILE = "mean_file"
"""The value of `mean` for a mean image, whose pixels are only in the graph."""

MOST_PIXELS = 2**26
"""Most pixels of an image that a graph takes: batches of larger images fill any memory."""


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


class Preamble(_Schema, total=False):
    """The entries that are read first, whatever the schema."""

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
    """The JSON object of a file that takes images; the first files lack `alpha` and `precision`.

    Crop, mean and scale are part of the graph, and repeated here for information.
    """

    alpha: str
    precision: str
    reference: Mapping[str, Any] | None


class BlobMetadata(_Schema):
    """The JSON object of a file with `raw_input`; entries about images are null."""

    classes: Annotated[list[str | int], _not_empty]
    channel_order: str | None
    raw_input: bool
    statistics: str | None
    weights_sha256: str
    version: str


def image_properties(channel_order: str) -> dict[str, str]:
    """ONNX's standard metadata of the images that a file takes: their bytes as an image file holds them.

    The gamma is that of sRGB, as decoders leave pixels as they are stored and colour profiles are not applied.
    """
    return {
        "Image.BitmapPixelFormat": _PIXEL_FORMATS[channel_order],
        "Image.ColorSpaceGamma": "SRGB",
        "Image.NominalPixelRange": "NominalRange_0_255",
    }


def check_shapes(metadata: ImageMetadata) -> None:
    """Raise InputError if the entries of a file that takes images contradict each other."""
    (height, width), crop, mean, scale = metadata["size"], metadata["crop"], metadata["mean"], metadata["scale"]
    channels = CHANNELS[metadata["channel_order"]]
    if crop is not None and (crop[0] > height or crop[1] > width):
        raise InputError(f"the crop {crop} is larger than the size {metadata['size']}")
    if mean != MEAN_FILE and (isinstance(mean, str) or len(mean) not in (0, 1, channels)):
        raise InputError(f'the mean must be "{MEAN_FILE}" or {counted(channels, "number")}, not {mean!r}')
    if isinstance(scale, list) and len(scale) != channels:
        raise InputError(f"the scale must be one number or {channels}, not {scale}")


def check_written(metadata: Mapping[str, Any]) -> None:
    """Raise InputError for metadata that readers would refuse, before it is written."""
    try:
        if metadata["raw_input"]:
            check(dict(metadata), BlobMetadata)
        else:
            check_shapes(check(dict(metadata), ImageMetadata))
    except InputError as error:
        raise InputError(f"readers would refuse the file: {error}") from error


def to_text(metadata: Mapping[str, Any]) -> str:
    """The value of the metadata property KEY."""
    return json.dumps(metadata)

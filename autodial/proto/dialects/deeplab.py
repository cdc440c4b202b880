"""The first DeepLab, whose nets are of the V1 format."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "deeplab",
    {},
    v1_types={
        "IMAGE_SEG_DATA": "ImageSegData",
        "HOLE_CONVOLUTION": "Convolution",
        "INTERP": "Interp",
        "SEG_ACCURACY": "SegAccuracy",
    },
)

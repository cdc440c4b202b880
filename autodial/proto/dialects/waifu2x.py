"""waifu2x (lltcggie/caffe); the number of the message is not the fork's."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "waifu2x",
    {
        "crop_center_param": ("CropCenter",),
    },
)

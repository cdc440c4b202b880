"""OpenPose and convolutional pose machines (CMU-Perceptual-Computing-Lab)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "openpose",
    {
        "cpm_transform_param": ("CPMData",),
        "op_transform_param": ("OPData", "OPVideo"),
    },
)

"""BVLC's Caffe after AutoDIAL's fork left it in 2017."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "bvlc_master",
    {
        "swish_param": ("Swish",),
        "clip_param": ("Clip",),
    },
)

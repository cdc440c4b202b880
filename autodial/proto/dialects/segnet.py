"""SegNet (alexgkendall/caffe-segnet)."""

from __future__ import annotations

from .dialect import Dialect

DIALECT = Dialect(
    "segnet",
    {
        "upsample_param": ("Upsample",),
    },
)

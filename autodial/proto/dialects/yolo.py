"""Ports of YOLO, such as eric612/MobileNet-YOLO."""

from __future__ import annotations

from .dialect import Dialect

DIALECT = Dialect(
    "yolo",
    {
        "upsample_param": ("Upsample",),
        "relu6_param": ("ReLU6",),
    },
)

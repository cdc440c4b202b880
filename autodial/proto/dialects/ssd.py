"""SSD: Single Shot MultiBox Detector (weiliu89/caffe, branch ssd)."""

from __future__ import annotations

from .dialect import Dialect

DIALECT = Dialect(
    "ssd",
    {
        "permute_param": ("Permute",),
        "prior_box_param": ("PriorBox",),
        "detection_output_param": ("DetectionOutput",),
        "norm_param": ("Normalize",),
    },
)

"""Temporal segment networks and other nets of yjxiong/caffe."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "tsn",
    {
        "bn_param": ("BN",),
        "video_data_param": ("VideoData",),
        "seg_data_param": ("SegData",),
        "roi_pooling_param": ("ROIPooling",),
        "scale_param": ("Scale",),
        "bias_param": ("Bias",),
        "batch_reduction_param": ("BatchReduction",),
        "interp_param": ("Interp",),
    },
    without_effect=frozenset({"engine", "richness", "mem_param"}),
)

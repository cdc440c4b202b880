"""Intel's Caffe (intel/caffe)."""

from __future__ import annotations

from .dialect import Dialect

DIALECT = Dialect(
    "intel",
    {
        "annotated_data_param": ("AnnotatedData",),
        "multibox_loss_param": ("MultiBoxLoss",),
        "permute_param": ("Permute",),
        "prior_box_param": ("PriorBox",),
        "detection_output_param": ("DetectionOutput",),
        "detection_evaluate_param": ("DetectionEvaluate",),
        "norm_param": ("Normalize",),
        "video_data_param": ("VideoData",),
        "split_param": ("Split",),
        "roi_pooling_param": ("ROIPooling",),
    },
    without_effect=frozenset({"engine", "multinode"}),
)

"""SSD: Single Shot MultiBox Detector (weiliu89/caffe, branch ssd)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "ssd",
    {
        "annotated_data_param": ("AnnotatedData",),
        "multibox_loss_param": ("MultiBoxLoss",),
        "permute_param": ("Permute",),
        "prior_box_param": ("PriorBox",),
        "detection_output_param": ("DetectionOutput",),
        "detection_evaluate_param": ("DetectionEvaluate",),
        "norm_param": ("Normalize",),
        "video_data_param": ("VideoData",),
    },
    without_effect=frozenset({"show_per_class_result"}),
)

"""NVIDIA's Caffe (NVIDIA/caffe, from 0.15 on), with DetectNet."""

from __future__ import annotations

from .dialect import Dialect

DIALECT = Dialect(
    "nvcaffe",
    {
        "annotated_data_param": ("AnnotatedData",),
        "multibox_loss_param": ("MultiBoxLoss",),
        "permute_param": ("Permute",),
        "prior_box_param": ("PriorBox",),
        "detection_output_param": ("DetectionOutput",),
        "detection_evaluate_param": ("DetectionEvaluate",),
        "norm_param": ("Normalize",),
        "video_data_param": ("VideoData",),
        "detectnet_groundtruth_param": ("DetectNetTransformation",),
        "detectnet_augmentation_param": ("DetectNetTransformation",),
    },
)

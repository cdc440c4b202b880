"""Ports of YOLO, such as eric612/MobileNet-YOLO."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "yolo",
    {
        "reorg_param": ("Reorg",),
        "upsample_param": ("Upsample",),
        "relu6_param": ("ReLU6",),
        "eval_detection_param": ("EvalDetection",),
        "region_loss_param": ("RegionLoss",),
        "yolo_detection_output_param": ("YoloDetectionOutput",),
        "yolov3_detection_output_param": ("Yolov3DetectionOutput",),
        "yolov3_param": ("Yolov3",),
        "yolo_seg_param": ("YoloSeg",),
    },
)

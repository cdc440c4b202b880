"""Fast and Faster R-CNN (rbgirshick/caffe-fast-rcnn)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "rcnn",
    {
        "roi_pooling_param": ("ROIPooling",),
        "smooth_l1_loss_param": ("SmoothL1Loss",),
    },
)

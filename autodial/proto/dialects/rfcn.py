"""R-FCN, with online hard example mining (daijifeng001/caffe-rfcn)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "rfcn",
    {
        "roi_pooling_param": ("ROIPooling",),
        "smooth_l1_loss_param": ("SmoothL1Loss", "SmoothL1LossOHEM"),
        "box_annotator_ohem_param": ("BoxAnnotatorOHEM",),
        "psroi_pooling_param": ("PSROIPooling",),
    },
)

"""Losses of face recognition (ydwen/caffe-face, wy1iu/sphereface)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "face",
    {
        "center_loss_param": ("CenterLoss",),
        "margin_inner_product_param": ("MarginInnerProduct",),
    },
)

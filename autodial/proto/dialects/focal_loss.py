"""Focal loss (liaomingg/Focal-Loss and others, whose numbers differ)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "focal_loss",
    {
        "focal_loss_param": ("FocalLoss", "SoftmaxFocalLoss"),
    },
)

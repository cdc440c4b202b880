"""Batch normalization before Caffe had it (ChenglongChen/batch_normalization)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "batch_normalization",
    {
        "bn_param": ("BN",),
    },
)

"""Ristretto (pmgysel/caffe): nets with short words."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "ristretto",
    {
        "quantization_param": ("ConvolutionRistretto", "DeconvolutionRistretto", "FcRistretto", "LRNRistretto"),
    },
)

"""Deformable convolution (unsky/Deformable-ConvNets-caffe)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "deformable",
    {
        "deformable_convolution_param": ("DeformableConvolution",),
    },
)

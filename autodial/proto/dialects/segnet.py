"""SegNet (alexgkendall/caffe-segnet)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "segnet",
    {
        "bn_param": ("BN",),
        "dense_image_data_param": ("DenseImageData",),
        "upsample_param": ("Upsample",),
    },
)

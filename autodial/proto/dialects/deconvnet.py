"""DeconvNet (HyeonwooNoh/caffe)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "deconvnet",
    {
        "unpooling_param": ("Unpooling", "UnPooling"),
    },
    v1_types={
        "UNPOOLING": "Unpooling",
        "BN": "BN",
    },
)

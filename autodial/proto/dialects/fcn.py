"""ParseNet (weiliu89/caffe, branch fcn)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "fcn",
    {
        "norm_param": ("Normalize",),
    },
)

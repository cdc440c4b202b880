"""ParseNet (weiliu89/caffe, branch fcn)."""

from __future__ import annotations

from .dialect import Dialect

DIALECT = Dialect(
    "fcn",
    {
        "norm_param": ("Normalize",),
    },
)

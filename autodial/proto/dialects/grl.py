"""The gradient reversal layer (ddtm/caffe, branch grl)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "grl",
    {
        "gradient_scaler_param": ("GradientScaler",),
    },
)

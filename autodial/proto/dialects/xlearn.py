"""DAN, RTN and JAN (thuml/Xlearn)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "xlearn",
    {
        "mmd_param": ("MMDLoss",),
        "entropy_param": ("EntropyLoss",),
        "gradient_scaler_param": ("GradientScaler",),
        "jmmd_param": ("JMMDLoss",),
    },
)

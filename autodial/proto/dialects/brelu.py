"""BReLU of nets for parking lots and hazy images; the number of the message is not the forks'."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "brelu",
    {
        "brelu_param": ("BReLU",),
    },
)

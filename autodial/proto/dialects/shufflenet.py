"""ShuffleNet (farmingyard/ShuffleNet)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "shufflenet",
    {
        "shuffle_channel_param": ("ShuffleChannel",),
    },
)

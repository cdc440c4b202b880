"""HRSOD (yi94code/HRSOD), salient objects in large images, and later nets with its layer."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "hrsod",
    {
        "output_decay_param": ("OutputDecay",),
    },
)

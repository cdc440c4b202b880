"""Caffe's protobuf messages and enums: `messages.NetParameter`, `messages.TRAIN`, `messages.PoolingParameter.MAX`.

caffe.proto and dialects/*.proto say what each message and field means.
"""

from __future__ import annotations

from typing import Any

from autodial.proto.schema import load, schema

_names = load(schema().file)
globals().update(_names)


def __getattr__(name: str) -> Any:
    # Reached only for what is not there; that it exists tells type checkers that any name may be.
    raise AttributeError(f"Caffe has no message or enum value {name!r}")


def __dir__() -> list[str]:
    return sorted(_names)

"""Caffe's protobuf messages and enums under the name of the module that protoc would write."""

from __future__ import annotations

from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from autodial.proto import messages

DESCRIPTOR: Any = messages.NetParameter.DESCRIPTOR.file

globals().update((name, getattr(messages, name)) for name in dir(messages))
globals().update((name, EnumTypeWrapper(enum)) for name, enum in DESCRIPTOR.enum_types_by_name.items())


def __getattr__(name: str) -> Any:
    # Reached only for what is not there; that it exists tells type checkers that any name may be.
    raise AttributeError(f"Caffe has no message or enum {name!r}")

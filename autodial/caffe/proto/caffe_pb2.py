"""Caffe's protobuf messages and enums under the name of the module that protoc would write.

Scripts that parse or serialize a NetParameter mean a caffemodel, of whatever fork. So the methods do what reading and
writing files does: they translate between the numbers of the fork and those of the schema (autodial.proto.wire).
"""

from __future__ import annotations

from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from autodial.proto import messages
from autodial.proto.wire import from_file_numbers, to_file_numbers

DESCRIPTOR: Any = messages.NetParameter.DESCRIPTOR.file

globals().update((name, getattr(messages, name)) for name in dir(messages))
globals().update((name, EnumTypeWrapper(enum)) for name, enum in DESCRIPTOR.enum_types_by_name.items())

_net: Any = messages.NetParameter
_merge, _serialize, _serialize_partial = _net.MergeFromString, _net.SerializeToString, _net.SerializePartialToString


def _merge_file(self: Any, serialized: bytes) -> int:
    data = bytes(serialized)
    _merge(self, from_file_numbers(data))
    return len(data)


def _parse_file(self: Any, serialized: bytes) -> int:
    self.Clear()
    return _merge_file(self, serialized)


def _from_file(serialized: bytes) -> Any:
    net = _net()
    _merge_file(net, serialized)
    return net


_net.MergeFromString, _net.ParseFromString, _net.FromString = _merge_file, _parse_file, staticmethod(_from_file)
_net.SerializeToString = lambda self, **options: to_file_numbers(_serialize(self, **options))
_net.SerializePartialToString = lambda self, **options: to_file_numbers(_serialize_partial(self, **options))


def __getattr__(name: str) -> Any:
    # Reached only for what is not there; that it exists tells type checkers that any name may be.
    raise AttributeError(f"Caffe has no message or enum {name!r}")

"""Message classes made from caffe.desc, the compiled form of caffe.proto.

Generated code would load on few protobuf runtimes and would collide with another package's caffe.proto, as the default
descriptor pool holds only one. Type checkers read messages.pyi. After a change of caffe.proto, from the root of the
repository:

    python -m grpc_tools.protoc -I autodial/proto --descriptor_set_out=autodial/proto/caffe.desc --pyi_out=. caffe.proto
    mv caffe_pb2.pyi autodial/proto/messages.pyi
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)


def load(*, packed_as_bytes: bool = False) -> dict[str, Any]:
    """Each message's class and each top-level enum value's number by name, in a descriptor pool of their own.

    With `packed_as_bytes` the packed floats and doubles are declared as repeated bytes: the same on the wire, and each
    packed run comes and goes as one bytes object of little-endian values.
    """
    descriptor_set = descriptor_pb2.FileDescriptorSet.FromString(files(__package__).joinpath("caffe.desc").read_bytes())
    (file,) = descriptor_set.file
    if packed_as_bytes:
        for field in (field for message in file.message_type for field in message.field):
            if field.options.packed and field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
                field.type = field.TYPE_BYTES
                field.ClearField("options")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindFileByName(file.name)
    names: dict[str, Any] = {
        name: message_factory.GetMessageClass(message) for name, message in descriptor.message_types_by_name.items()
    }
    for enum in descriptor.enum_types_by_name.values():
        names.update((value.name, value.number) for value in enum.values)
    return names

"""Caffe's messages and those of its forks as one schema, and the message classes made from it.

Generated code would load on few protobuf runtimes and would collide with another package's caffe.proto, as the default
descriptor pool holds only one. Type checkers read messages.pyi. After a change of caffe.proto or of a dialect, from the
root of the repository:

    (cd autodial/proto && python -m grpc_tools.protoc -I. --descriptor_set_out=caffe.desc caffe.proto dialects/*.proto)
    python -m autodial.proto.stub
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import Message

from autodial.proto.dialects import DIALECTS, FORKS

PACKAGE = "caffe"
_DIALECT = re.compile(rf"^\.{PACKAGE}\.(?:{'|'.join(fork.name for fork in FORKS)})\.")
STRIDE = 10_000_000
"""Beyond every number that a fork uses: field n of dialect i may become i * STRIDE + n."""
_WITHOUT_EFFECT = frozenset[str]().union(*(fork.without_effect for fork in FORKS))
UNREAD = 52 * STRIDE
"""What binary files hold under n and no dialect explains is kept as the unknown field UNREAD + n."""


@dataclass
class Schema:
    """The messages of all dialects in one file, and the numbers that each dialect has for them."""

    file: FileDescriptorProto
    fields: dict[tuple[str, str], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """By message and field: the field's number in each dialect that has it, by the dialect's index in DIALECTS."""
    enums: dict[str, dict[int, dict[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    """By enum, such as "LossParameter.NormalizationMode", and dialect: the schema's number for each number there."""


@cache
def schema() -> Schema:
    """The dialects' messages merged by name."""
    data = files(__package__).joinpath("caffe.desc").read_bytes()
    sources = {file.package: file for file in FileDescriptorSet.FromString(data).file}
    packages = [f"{PACKAGE}.{dialect.name}" if dialect.name else PACKAGE for dialect in DIALECTS]
    merged = Schema(FileDescriptorProto.FromString(sources[PACKAGE].SerializeToString()))
    owners: dict[tuple[str, int], set[str]] = defaultdict(set)  # the names of each message's each number
    for package in packages:
        for message in sources[package].message_type:
            for each in message.field:
                owners[message.name, each.number].add(each.name)
    messages = {message.name: message for message in merged.file.message_type}
    for index, package in enumerate(packages):
        if index:
            merged.file.enum_type.extend(sources[package].enum_type)
        for message in sources[package].message_type:
            target = messages.get(message.name)
            if target is None:
                target = messages[message.name] = merged.file.message_type.add(name=message.name)
            _add_enums(merged, index, message, target)
            known = {each.name: each for each in target.field}
            for each in message.field:
                numbers = merged.fields[message.name, each.name]
                if each.name in known:
                    if 0 not in numbers:
                        _reconcile(known[each.name], each)
                else:
                    new = target.field.add()
                    new.CopyFrom(each)
                    if len(owners[message.name, each.number]) > 1:
                        new.number += index * STRIDE
                    if each.HasField("type_name"):
                        new.type_name = _DIALECT.sub(f".{PACKAGE}.", each.type_name)
                numbers[index] = each.number
    return merged


def _reconcile(known: FieldDescriptorProto, other: FieldDescriptorProto) -> None:
    """Let a field of a fork stand for the field of the same name in another fork, too."""
    if other.label == other.LABEL_REPEATED:
        known.label = known.LABEL_REPEATED
        known.ClearField("default_value")
    elif other.default_value != known.default_value:
        # No one default is right: layers ask whether the field is given.
        known.ClearField("default_value")


def _add_enums(merged: Schema, index: int, message: DescriptorProto, target: DescriptorProto) -> None:
    """Put the enums of the dialect's `message` into `target`, each name once."""
    known = {enum.name: enum for enum in target.enum_type}
    for enum in message.enum_type:
        if enum.name not in known:
            known[enum.name] = target.enum_type.add(name=enum.name)
        values = {value.name: value.number for value in known[enum.name].value}
        for value in enum.value:
            if value.name not in values:
                number = value.number + (index * STRIDE if value.number in values.values() else 0)
                known[enum.name].value.add(name=value.name, number=number)
                values[value.name] = number
        merged.enums[f"{message.name}.{enum.name}"][index] = {value.number: values[value.name] for value in enum.value}


def fork_fields(message: Message) -> list[str]:
    """What a message says that only forks of Caffe know, as paths such as "pooling_param.ceil_mode".

    Left out are fields that change nothing in what a net computes, those that state their default, and in layers the
    messages of a fork's own layer types, but for those that no fork here has.
    """
    paths = list(_fork_fields(message))
    if message.DESCRIPTOR.name != "LayerParameter":
        return paths
    foreign: Iterable[str] = getattr(message, "foreign_text")  # noqa: B009
    return [*(path for path in paths if "." in path), *(re.split(r"\W", text, maxsplit=1)[0] for text in foreign)]


@cache
def types_with_options() -> frozenset[str]:
    """The layer types that have a message of options here, in small letters."""
    names = (name for message, name in schema().fields if message == "LayerParameter" and name.endswith("_param"))
    claimed = (layer_type for dialect in DIALECTS for types in dialect.types.values() for layer_type in types)
    return frozenset(
        {name.removesuffix("_param").replace("_", "") for name in names} | {each.lower() for each in claimed}
    )


def _fork_fields(message: Message) -> Iterator[str]:
    for each, value in message.ListFields():
        if each.name in _WITHOUT_EFFECT:
            continue
        if 0 not in schema().fields[message.DESCRIPTOR.name, each.name]:
            if not (each.has_default_value and value == each.default_value):
                yield each.name
            continue
        for item in [value] if each.has_presence else value:
            if each.message_type is not None:
                yield from (f"{each.name}.{path}" for path in _fork_fields(item))
            elif each.enum_type is not None and item not in _caffe_values(each.enum_type):
                yield f"{each.name}: {each.enum_type.values_by_number[item].name}"


def _caffe_values(enum: Any) -> Collection[int]:
    """The numbers of an enum's values that Caffe has, in the schema."""
    if enum.containing_type is None:
        return frozenset(enum.values_by_number)
    return schema().enums[f"{enum.containing_type.name}.{enum.name}"][0].values()


# What reading and writing weights needs to see; whatever else a file holds passes through as unknown fields.
_FRAME = {
    "BlobShape": None,
    "BlobProto": None,
    "SolverState": None,
    "ParamSpec": None,
    "NetParameter": ("name", "layer", "layers"),
    # Those in front of the blobs too, so that what is written is in the order of the numbers.
    "LayerParameter": ("name", "type", "bottom", "top", "loss_weight", "param", "blobs"),
    "V1LayerParameter": ("name", "blobs", "layer"),
    "V0LayerParameter": ("name", "blobs"),
}


def load_frame(*, packed_as_bytes: bool) -> dict[str, Any]:
    """The messages around blobs, in a descriptor pool of their own, without the parameters of layers.

    With `packed_as_bytes` the packed floats and doubles are declared as repeated bytes: the same on the wire, and each
    packed run comes and goes as one bytes object of little-endian values.
    """
    merged = schema().file
    file = FileDescriptorProto(name=merged.name, package=merged.package, enum_type=merged.enum_type)
    for message in merged.message_type:
        if message.name not in _FRAME:
            continue
        wanted = _FRAME[message.name]
        reduced = file.message_type.add(name=message.name)
        reduced.field.extend(each for each in message.field if wanted is None or each.name in wanted)
        reduced.enum_type.extend(message.enum_type if wanted is None else ())
        for each in reduced.field:
            if packed_as_bytes and each.options.packed and each.type in (each.TYPE_FLOAT, each.TYPE_DOUBLE):
                each.type = each.TYPE_BYTES
                each.ClearField("options")
    return load(file)


def load(file: FileDescriptorProto) -> dict[str, Any]:
    """Each message's class and each top-level enum value's number by name, in a descriptor pool of their own."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindFileByName(file.name)
    names: dict[str, Any] = {
        name: message_factory.GetMessageClass(message) for name, message in descriptor.message_types_by_name.items()
    }
    for enum in descriptor.enum_types_by_name.values():
        names.update((value.name, value.number) for value in enum.values)
    return names

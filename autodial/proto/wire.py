"""Layers between binary files, whose numbers each dialect uses for itself, and the schema, where they mean one thing.

The layer's type decides whose number a parameter's is. In messages that Caffe and its forks share, a number is Caffe's,
unless the net's other layers, or other fields of the message, tell the fork. What no dialect explains, or what is not
the message that it should be, is kept as an unknown field and written as it was read. protobuf offers nothing to
renumber fields with, so the wire format is taken apart here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from autodial.proto import messages as pb
from autodial.proto.dialects import DIALECTS
from autodial.proto.schema import STRIDE, UNREAD, schema

_NAME, _V1_LAYERS, _LAYERS = 1, 2, 100  # of NetParameter
_TYPE, _BLOBS = 2, 7  # of LayerParameter
_parsed = pb.NetParameter.FromString  # before caffe_pb2 gives scripts another one
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
}

_SHARED = {"Split", "EntropyLoss"}
"""Layer types that Caffe has too, and to which forks have given a message."""

Forks = frozenset[int]
"""The forks, by index in DIALECTS, that may have written a message."""
_ANY: Forks = frozenset(range(1, len(DIALECTS)))


class _Field(NamedTuple):
    number: int
    wire_type: int
    value: bytes  # a varint's bytes, or what the length counts


class _Meaning(NamedTuple):
    """What a number can stand for."""

    dialect: int
    field: Any  # of the schema


def net_from_file(data: bytes) -> pb.NetParameter:
    """The name and the layers of a net in a file; DecodeError if it is none."""
    return _parsed(_net_from_file([f for f in _split(data) if f.number in (_NAME, _V1_LAYERS, _LAYERS)]))


def from_file_numbers(net: bytes) -> bytes:
    """A serialized NetParameter of any dialect in the numbers of the schema; DecodeError if it is none."""
    return _net_from_file(list(_split(net)))


def to_file_numbers(net: bytes) -> bytes:
    """A serialized NetParameter of the schema in the numbers of a dialect, as `layers_to_file` chooses it."""
    fields = list(_split(net))
    layers = [list(_split(field.value)) for field in fields if field.number == _LAYERS]
    # Blobs mean the same everywhere; trying the dialects would copy them again and again.
    bare = [b"".join(_joined(*field) for field in layer if field.number != _BLOBS) for layer in layers]
    blobs = [b"".join(_joined(*field) for field in layer if field.number == _BLOBS) for layer in layers]
    written = iter(_layers_to_file([(_layer_type(layer), part) for layer, part in zip(layers, bare, strict=True)]))
    following = iter(blobs)
    return b"".join(
        _joined(_LAYERS, _LENGTH, next(written) + next(following))
        if field.number == _LAYERS
        else _field_to_file(pb.NetParameter.DESCRIPTOR, field, 0)
        for field in fields
    )


def layers_to_file(layers: Sequence[pb.LayerParameter]) -> list[bytes]:
    """The layers of a net as the first dialect that has all their fields writes them.

    Where no dialect has all of them, each layer is written in a dialect of its own.
    """
    return _layers_to_file([(layer.type, layer.SerializeToString()) for layer in layers])


def _layers_to_file(parts: Sequence[tuple[str, bytes]]) -> list[bytes]:
    for dialect in range(len(DIALECTS)):
        if all(_covers_layer(dialect, *part) for part in parts):
            return [_layer_to_file(*part, dialect) for part in parts]
    return [
        _layer_to_file(*part, next((i for i in range(len(DIALECTS)) if _covers_layer(i, *part)), 0)) for part in parts
    ]


@cache
def _meanings(message: str) -> dict[int, list[_Meaning]]:
    """What each number in a message of the dialects can stand for."""
    meanings = defaultdict(list)
    for field in getattr(pb, message).DESCRIPTOR.fields:
        for dialect, number in schema().fields[message, field.name].items():
            meanings[number].append(_Meaning(dialect, field))
    return meanings


def _claims(field: _Field, message: str) -> list[_Meaning]:
    """The meanings that the field's wire type allows."""
    return [meaning for meaning in _meanings(message).get(field.number, ()) if _fits(field, meaning.field)]


def _layer_claims(field: _Field, layer_type: str) -> list[_Meaning]:
    return [
        meaning for meaning in _claims(field, "LayerParameter")
        if _belongs(meaning.dialect, meaning.field.name, layer_type)
    ]  # fmt: skip


def _belongs(dialect: int, name: str, layer_type: str) -> bool:
    """Whether layers of a type have a parameter in a dialect."""
    types = DIALECTS[dialect].types.get(name)
    return types is None or layer_type in types


def _layer_type(layer: Iterable[_Field]) -> str:
    return next((field.value.decode(errors="replace") for field in layer if field.number == _TYPE), "")


# --- reading


def _net_from_file(fields: Sequence[_Field]) -> bytes:
    layers = [list(_split(field.value)) for field in fields if field.number == _LAYERS]
    forks = _forks(layers)
    converted = iter([_layer_from_file(layer, forks) for layer in layers])
    parts = []
    for field in fields:
        if field.number == _LAYERS:
            parts.append(_joined(_LAYERS, _LENGTH, next(converted)))
        elif field.number == _V1_LAYERS:
            parts.append(_joined(_V1_LAYERS, _LENGTH, _from_file(pb.V1LayerParameter.DESCRIPTOR, field.value, _ANY)))
        else:
            parts.append(_from_file(pb.NetParameter.DESCRIPTOR, _joined(*field), forks))
    return b"".join(parts)


def _forks(layers: Iterable[Sequence[_Field]]) -> Forks:
    """The forks that have all those parameters of layers which Caffe has not."""
    forks = _ANY
    for layer in layers:
        layer_type = _layer_type(layer)
        forks = forks & _forks_with().get(layer_type, _ANY) or forks
        for field in layer:
            forks = _narrowed(forks, _layer_claims(field, layer_type))
    return forks


@cache
def _forks_with() -> dict[str, Forks]:
    """The forks that have each layer type that is not Caffe's."""
    forks: dict[str, set[int]] = defaultdict(set)
    for i, dialect in enumerate(DIALECTS):
        for name, types in dialect.types.items():
            if 0 not in schema().fields["LayerParameter", name]:
                for layer_type in set(types) - _SHARED:
                    forks[layer_type].add(i)
    return {layer_type: frozenset(having) for layer_type, having in forks.items()}


def _narrowed(forks: Forks, claims: Sequence[_Meaning]) -> Forks:
    """The forks that a field tells, out of `forks`; all of these if the field is Caffe's as well, or none has it."""
    having = forks & {meaning.dialect for meaning in claims}
    return having if having and all(meaning.dialect for meaning in claims) else forks


def _layer_from_file(layer: Sequence[_Field], forks: Forks) -> bytes:
    layer_type = _layer_type(layer)
    forks = forks & _forks_with().get(layer_type, _ANY) or forks
    return b"".join(_parameter_from_file(field, layer_type, forks) for field in layer)


def _parameter_from_file(field: _Field, layer_type: str, forks: Forks) -> bytes:
    claims = sorted(_layer_claims(field, layer_type), key=lambda claim: claim.dialect and claim.dialect not in forks)
    for meaning in claims:
        message = meaning.field.message_type
        if message is None:
            return _joined(meaning.field.number, field.wire_type, field.value)
        same = frozenset(claim.dialect for claim in claims if claim.field.name == meaning.field.name)
        try:
            value = _from_file(message, field.value, forks if 0 in same else forks & same or same)
            getattr(pb, message.name).FromString(value)
        except DecodeError:
            continue
        return _joined(meaning.field.number, _LENGTH, value)
    return _unread(field)


def _from_file(message: Any, data: bytes, forks: Forks) -> bytes:
    """A message's bytes in the numbers of the schema.

    Args:
        message: descriptor of the schema's message.
        data: in the numbers of a file.
        forks: those that may have written it.
    """
    fields = [(field, _claims(field, message.name)) for field in _split(data)]
    for _, claims in fields:
        forks = _narrowed(forks, claims)
    parts = []
    for field, claims in fields:
        known = _chosen(claims, forks)
        if known is None:
            parts.append(_unread(field))
            continue
        value = field.value
        if known.message_type is not None:
            value = _from_file(known.message_type, value, forks)
        elif known.enum_type is not None and field.wire_type == _VARINT:
            value = _enum_from_file(known.enum_type, value, forks)
        parts.append(_joined(known.number, field.wire_type, value))
    return b"".join(parts)


def _chosen(claims: Sequence[_Meaning], forks: Forks) -> Any:
    """The field that is meant, in the schema; None where that can't be told."""
    by_dialect = {meaning.dialect: meaning.field for meaning in claims}
    if forks != _ANY:
        theirs = {field.name: field for fork in forks if (field := by_dialect.get(fork, by_dialect.get(0))) is not None}
        if len(theirs) == 1:
            return next(iter(theirs.values()))
    names = {field.name for field in by_dialect.values()}
    return by_dialect.get(0, claims[0].field if len(names) == 1 else None)


def _enum_from_file(enum: Any, value: bytes, forks: Forks) -> bytes:
    tables = _enum_tables(enum)
    number = _varint(value, 0)[0]
    if forks != _ANY:
        theirs = {tables.get(fork, tables.get(0, {})).get(number) for fork in forks} - {None}
        if len(theirs) == 1:
            return _encoded(theirs.pop() or 0)
    return _encoded(next((table[number] for table in tables.values() if number in table), number))


def _enum_tables(enum: Any) -> dict[int, dict[int, int]]:
    """For each dialect with the enum, its numbers and the schema's; Caffe comes first. Enums of their own have none."""
    return schema().enums[f"{enum.containing_type.name}.{enum.name}"] if enum.containing_type else {}


def _unread(field: _Field) -> bytes:
    number = field.number + UNREAD if field.number < STRIDE else field.number
    return _joined(number, field.wire_type, field.value)


# --- writing


def _covers_layer(dialect: int, layer_type: str, data: bytes) -> bool:
    """Whether a dialect has every field of a layer of the schema, and layers of the type have it there."""
    descriptor = pb.LayerParameter.DESCRIPTOR
    known = (descriptor.fields_by_number.get(field.number) for field in _split(data))
    names = [field.name for field in known if field is not None]
    return _covers(dialect, descriptor, data) and all(
        _belongs(dialect, name, layer_type) for name in names if 0 not in schema().fields["LayerParameter", name]
    )


def _covers(dialect: int, message: Any, data: bytes) -> bool:
    """Whether a dialect, with what it has from Caffe, has every field and enum value in a message of the schema."""
    for field in _split(data):
        known = message.fields_by_number.get(field.number)
        if known is None:
            continue
        numbers = schema().fields[message.name, known.name]
        if dialect not in numbers and 0 not in numbers:
            return False
        if known.message_type is not None and not _covers(dialect, known.message_type, field.value):
            return False
        if known.enum_type is not None and field.wire_type == _VARINT:
            table = _enum_table(known.enum_type, dialect)
            if table and _varint(field.value, 0)[0] not in table.values():
                return False
    return True


def _layer_to_file(layer_type: str, data: bytes, dialect: int) -> bytes:
    """A layer's bytes in the numbers of a dialect, and what it lacks in those of a fork that has it."""
    parts = []
    for field in _split(data):
        known = pb.LayerParameter.DESCRIPTOR.fields_by_number.get(field.number)
        owner = dialect
        if known is not None:
            numbers = schema().fields["LayerParameter", known.name]
            if 0 not in numbers and dialect not in numbers:
                owner = min(numbers, key=lambda fork: not _belongs(fork, known.name, layer_type))
        parts.append(_field_to_file(pb.LayerParameter.DESCRIPTOR, field, owner))
    return b"".join(parts)


def _to_file(message: Any, data: bytes, dialect: int) -> bytes:
    return b"".join(_field_to_file(message, field, dialect) for field in _split(data))


def _field_to_file(message: Any, field: _Field, dialect: int) -> bytes:
    known = message.fields_by_number.get(field.number)
    if known is None:
        return _joined(field.number - UNREAD if field.number >= UNREAD else field.number, field.wire_type, field.value)
    numbers = schema().fields[message.name, known.name]
    value = field.value
    if known.message_type is not None:
        value = _to_file(known.message_type, value, dialect)
    elif known.enum_type is not None and field.wire_type == _VARINT:
        number = _varint(value, 0)[0]
        table = _enum_table(known.enum_type, dialect)
        value = next((_encoded(theirs) for theirs, ours in table.items() if ours == number), _encoded(number % STRIDE))
    number = numbers.get(dialect, numbers.get(0, next(iter(numbers.values()))))
    return _joined(number, field.wire_type, value)


def _enum_table(enum: Any, dialect: int) -> dict[int, int]:
    tables = _enum_tables(enum)
    return tables.get(dialect, tables.get(0, {}))


# --- the wire format


def _fits(field: _Field, known: Any) -> bool:
    """Whether the field's wire type can be that of the schema's field."""
    packable = not known.has_presence and known.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)
    return field.wire_type == _WIRE_TYPES.get(known.type, _VARINT) or (packable and field.wire_type == _LENGTH)


def _split(data: bytes) -> Iterator[_Field]:
    """The fields of a message; DecodeError if it is none."""
    index = 0
    while index < len(data):
        tag, index = _varint(data, index)
        number, wire_type = tag >> 3, tag & 7
        start = index
        if wire_type == _VARINT:
            _, index = _varint(data, index)
        elif wire_type in (_FIXED64, _FIXED32):
            index += 8 if wire_type == _FIXED64 else 4
        elif wire_type == _LENGTH:
            length, start = _varint(data, index)
            index = start + length
        else:
            raise DecodeError(f"wire type {wire_type}")
        if index > len(data) or not 0 < number < UNREAD + STRIDE:
            raise DecodeError("a field that ends beyond its message")
        yield _Field(number, wire_type, data[start:index])


def _varint(data: bytes, index: int) -> tuple[int, int]:
    """The number that begins at `index`, and the index behind it."""
    result = shift = 0
    while index < len(data) and shift < 70:
        byte = data[index]
        index += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, index
        shift += 7
    raise DecodeError("a number that does not end")


def _encoded(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _joined(number: int, wire_type: int, value: bytes) -> bytes:
    length = _encoded(len(value)) if wire_type == _LENGTH else b""
    return _encoded(number << 3 | wire_type) + length + value

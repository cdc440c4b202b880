"""Layers between binary files, whose numbers each dialect uses for itself, and the schema, where they mean one thing.

The layer's type decides whose number a parameter's is. What no dialect explains, or what is not the message that it
should be, is kept as an unknown field and written as it was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from . import messages as pb
from .dialects import DIALECTS
from .schema import STRIDE, UNREAD, schema

_LAYER = 100  # NetParameter.layer
_TYPE = 2  # LayerParameter.type
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
}


class _Field(NamedTuple):
    number: int
    wire_type: int
    value: bytes  # a varint's bytes, or what the length counts


class _Meaning(NamedTuple):
    """What a number can stand for."""

    dialect: int
    field: Any  # of the schema


def net_from_file(data: bytes) -> pb.NetParameter:
    """The NetParameter that a file holds; DecodeError if it is none."""
    parts = []
    for field in _split(data):
        value = _layer_from_file(field.value) if field.number == _LAYER else field.value
        parts.append(_joined(field.number, field.wire_type, value))
    return pb.NetParameter.FromString(b"".join(parts))


def to_file(layer: pb.LayerParameter) -> bytes:
    """The layer as its dialect's Caffe writes it."""
    return _to_file(layer.DESCRIPTOR, layer.SerializeToString(), None, layer.type)


@cache
def _meanings(message: str) -> dict[int, list[_Meaning]]:
    """What each number in a dialect's message can stand for."""
    meanings = defaultdict(list)
    descriptor = getattr(pb, message).DESCRIPTOR
    for field in descriptor.fields:
        for dialect, number in schema().fields[message, field.name].items():
            meanings[number].append(_Meaning(dialect, field))
    return meanings


def _layer_from_file(data: bytes) -> bytes:
    fields = list(_split(data))
    layer_type = next((field.value for field in reversed(fields) if field.number == _TYPE), b"").decode(
        errors="replace"
    )
    return b"".join(_parameter_from_file(field, layer_type) for field in fields)


def _parameter_from_file(field: _Field, layer_type: str) -> bytes:
    for meaning in _meanings("LayerParameter").get(field.number, ()):
        types = DIALECTS[meaning.dialect].types.get(meaning.field.name)
        if (types is not None and layer_type not in types) or not _fits(field, meaning.field):
            continue
        if meaning.field.message_type is None:
            return _joined(*field)
        try:
            value = _from_file(meaning.field.message_type, field.value, {meaning.dialect} - {0})
            getattr(pb, meaning.field.message_type.name).FromString(value)
        except DecodeError:
            continue
        return _joined(meaning.field.number, _LENGTH, value)
    return _unread(field)


def _from_file(descriptor: Any, data: bytes, dialects: set[int]) -> bytes:
    """A message's bytes in the numbers of the schema.

    Args:
        descriptor: of the schema's message.
        data: in the numbers of a file.
        dialects: whose numbers they are; empty where the parts of the message must tell.
    """
    if descriptor.containing_type is not None:
        return data
    fields = list(_split(data))
    meanings = _meanings(descriptor.name)
    if not dialects:
        dialects = _evidence(fields, meanings)
    parts = []
    for field in fields:
        fitting = [meaning for meaning in meanings.get(field.number, ()) if _fits(field, meaning.field)]
        meaning = _chosen(fitting, dialects)
        if meaning is None:
            parts.append(_unread(field))
            continue
        value = field.value
        if meaning.field.message_type is not None:
            value = _from_file(meaning.field.message_type, value, dialects)
        elif meaning.field.enum_type is not None and field.wire_type == _VARINT:
            value = _enum_from_file(meaning.field.enum_type, value, dialects)
        parts.append(_joined(meaning.field.number, field.wire_type, value))
    return b"".join(parts)


def _unread(field: _Field) -> bytes:
    number = field.number + UNREAD if field.number < STRIDE else field.number
    return _joined(number, field.wire_type, field.value)


def _evidence(fields: Iterable[_Field], meanings: dict[int, list[_Meaning]]) -> set[int]:
    """The dialects that alone have one of these fields."""
    found: set[int] = set()
    for field in fields:
        fitting = [meaning for meaning in meanings.get(field.number, ()) if _fits(field, meaning.field)]
        if fitting and len({meaning.field.name for meaning in fitting}) == 1 and all(m.dialect for m in fitting):
            found.update(meaning.dialect for meaning in fitting)
    return found


def _chosen(fitting: list[_Meaning], dialects: set[int]) -> _Meaning | None:
    """The one meaning that the message's dialects, or Caffe, or all forks have; None if forks disagree."""
    for preferred in (dialects, {0}):
        for meaning in fitting:
            if meaning.dialect in preferred:
                return meaning
    return fitting[0] if len({meaning.field.name for meaning in fitting}) == 1 else None


def _enum_from_file(enum: Any, value: bytes, dialects: set[int]) -> bytes:
    numbers = schema().enums.get(f"{enum.containing_type.name}.{enum.name}", {}) if enum.containing_type else {}
    number, _ = _varint(value, 0)
    own = [numbers[dialect] for dialect in (*sorted(dialects), 0) if dialect in numbers]
    for table in (*own, *numbers.values()):
        if number in table:
            return _encoded(table[number])
    return value


def _to_file(descriptor: Any, data: bytes, dialect: int | None, layer_type: str = "") -> bytes:
    """A message's bytes in the numbers of `dialect`, or of the first that has all its fields."""
    if descriptor.containing_type is not None:
        return data
    fields = list(_split(data))
    is_layer = descriptor.name == "LayerParameter"
    if dialect is None and not is_layer:
        dialect = next((i for i in range(len(DIALECTS)) if _covers(i, descriptor, data)), None)
    parts = []
    for field in fields:
        known = descriptor.fields_by_number.get(field.number)
        if known is None:
            number = field.number - UNREAD if field.number >= UNREAD else field.number
            parts.append(_joined(number, field.wire_type, field.value))
            continue
        numbers = schema().fields[descriptor.name, known.name]
        owner = _owner(known, field.value, numbers, layer_type) if is_layer else dialect
        value = field.value
        if known.message_type is not None:
            value = _to_file(known.message_type, value, owner or None if is_layer else dialect)
        elif known.enum_type is not None and field.wire_type == _VARINT:
            value = _enum_to_file(known.enum_type, value, dialect)
        number = numbers.get(owner or 0, next(iter(numbers.values())))
        parts.append(_joined(number, field.wire_type, value))
    return b"".join(parts)


def _owner(field: Any, data: bytes, numbers: dict[int, int], layer_type: str) -> int:
    """The dialect in whose numbers a layer's parameter is written."""
    if 0 in numbers:
        return 0
    able = [i for i in numbers if field.message_type is None or _covers(i, field.message_type, data)]
    typed = [i for i in able if layer_type in DIALECTS[i].types.get(field.name, ())]
    return next(iter((*typed, *able, *numbers)))


def _covers(dialect: int, descriptor: Any, data: bytes) -> bool:
    """Whether the dialect, with what it has from Caffe, knows every field and enum value in a message of the schema."""
    for field in _split(data):
        known = descriptor.fields_by_number.get(field.number)
        if known is None or descriptor.containing_type is not None:
            continue
        numbers = schema().fields[descriptor.name, known.name]
        if dialect not in numbers and 0 not in numbers:
            return False
        if known.message_type is not None and not _covers(dialect, known.message_type, field.value):
            return False
        if known.enum_type is not None and known.enum_type.containing_type is not None and field.wire_type == _VARINT:
            tables = schema().enums[f"{known.enum_type.containing_type.name}.{known.enum_type.name}"]
            table = tables.get(dialect, tables.get(0, {}))
            if table and _varint(field.value, 0)[0] not in table.values():
                return False
    return True


def _enum_to_file(enum: Any, value: bytes, dialect: int | None) -> bytes:
    numbers = schema().enums.get(f"{enum.containing_type.name}.{enum.name}", {}) if enum.containing_type else {}
    table = numbers.get(dialect or 0, numbers.get(0, {}))
    number, _ = _varint(value, 0)
    return next((_encoded(theirs) for theirs, ours in table.items() if ours == number), value)


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

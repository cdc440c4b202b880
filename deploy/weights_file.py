"""The second file of a model, where `autodial export` puts weights above 2 GiB.

What the model says about it is read without the package onnx, which a serving machine does not need.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from autodial.system.hashing import sha1

_GRAPH, _INITIALIZER, _EXTERNAL_DATA, _KEY, _VALUE = 7, 5, 13, 1, 2
"""Numbers of the fields in onnx.proto from a model down to what it says about a tensor in another file."""
_LENGTHS = {1: 8, 5: 4}
"""Bytes of protobuf's fields of fixed length, by their wire type."""
_LONGEST = 4096
"""Bytes that are read of a text."""
_MOST = 10**5
"""Fields that are looked at until a second file is named: no model that `autodial export` writes has as many."""


def weights_file(model: Path) -> Path | None:
    """The file that has a model's weights, which need not exist; None if they are in the model's own file."""
    name = _said_of_weights(model).get(b"location")
    return None if name is None else model.parent / name.decode(errors="replace")


def names_checksum(model: Path) -> bool:
    """Whether a model says what its second file holds, as `autodial export` writes it."""
    return b"checksum" in _said_of_weights(model)


def belong_together(model: Path, second: Path) -> bool:
    """Whether a second file is the one that was written with a model; True where the model does not say.

    Raises:
        OSError: the second file can't be read.
    """
    checksum = _said_of_weights(model).get(b"checksum")
    return checksum is None or sha1(second).encode() == checksum


def _said_of_weights(model: Path) -> dict[bytes, bytes]:
    """ONNX's entries about the first initializer that lies in another file; none if all lie in the model."""
    try:
        with model.open("rb") as file:  # not mapped into memory: to read from a map that is cut short ends the process
            left = iter(range(_MOST))
            for graph in _fields(file, _GRAPH, range(model.stat().st_size), left):
                for tensor in _fields(file, _INITIALIZER, graph, left):
                    entries = {
                        _text(file, _KEY, entry, left): _text(file, _VALUE, entry, left)
                        for entry in _fields(file, _EXTERNAL_DATA, tensor, left)
                    }
                    if entries:
                        return entries
    except (OSError, ValueError, IndexError):  # it can't be read, or is no ONNX file
        pass
    return {}


def _text(file: BinaryIO, number: int, message: range, left: Iterator[int]) -> bytes:
    for field in _fields(file, number, message, left):
        file.seek(field.start)
        return file.read(min(len(field), _LONGEST))
    return b""


def _fields(file: BinaryIO, number: int, message: range, left: Iterator[int]) -> Iterator[range]:
    """Where a message's fields with a number lie, of those that hold messages, texts or bytes.

    Args:
        left: gives a number for each field that may still be looked at.

    Raises:
        ValueError: there are no more.
        IndexError: the file ends within a field.
    """
    place = message.start
    while place < message.stop:
        if next(left, None) is None:
            raise ValueError("the file has too many fields")
        file.seek(place)
        head = file.read(20)
        key, size = _varint(head, 0)
        wire_type = key & 7
        if not key >> 3:  # zeros, as no field has this number
            return
        if wire_type == 2:
            length, size = _varint(head, size)
            if key >> 3 == number:
                yield range(place + size, place + size + length)
            size += length
        elif wire_type == 0:
            _, size = _varint(head, size)
        elif wire_type in _LENGTHS:
            size += _LENGTHS[wire_type]
        else:
            return
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The whole number of at most ten bytes at a place, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
    raise ValueError("no number has more than ten bytes")

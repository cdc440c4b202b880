"""The binary tensor extension: BYTES elements, each behind its length."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from autodial.deploy.serve.refusal import invalid

_LENGTH = struct.Struct("<I")


def split_elements(block: memoryview, count: int) -> list[memoryview]:
    """The elements of a BYTES tensor; raises a RefusalError unless there are `count` of them and nothing else."""
    elements = []
    place = 0
    for number in range(count):
        if place + _LENGTH.size > len(block):
            raise invalid(f"the BYTES tensor ends before element {number} of {count}")
        (length,) = _LENGTH.unpack_from(block, place)
        place += _LENGTH.size
        if length > len(block) - place:
            raise invalid(f"element {number} of the BYTES tensor says it has {length} bytes, more than there are")
        elements.append(block[place : place + length])
        place += length
    if place != len(block):
        raise invalid(f"the BYTES tensor holds more than the {count} elements of its shape")
    return elements


def join_elements(elements: Iterable[bytes]) -> bytes:
    """The elements of a BYTES tensor, each behind its length."""
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)

"""The orientation of an AVIF image, from properties of its file.

OpenCV ignores them, and the plain install has no library that reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BRANDS = (b"avif", b"avis")


class _Box(NamedTuple):
    """A box of ISO/IEC 14496-12, 4.2."""

    kind: bytes
    body: bytes


def is_avif(data: NDArray[np.uint8]) -> bool:
    """Whether the image file `data`, uint8 (bytes,), says that it is an AVIF."""
    head = data[:128].tobytes()
    if head[4:8] != b"ftyp":
        return False
    brands = head[8 : int.from_bytes(head[:4], "big")]
    return any(brands[i : i + 4] in _BRANDS for i in range(0, len(brands), 4) if i != 4)  # 4: the minor version


def turned(image: NDArray[np.uint8], data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An AVIF's pixels as they should be seen.

    The primary item's properties irot and imir turn and mirror it, in this order (ISO/IEC 23000-22, 7.3.6.7). Its EXIF
    orientation never counts.

    Args:
        image: uint8 (height, width, channels), as coded in the file.
        data: the file, uint8 (bytes,).

    Returns:
        uint8 (height or width, width or height, channels), contiguous.
    """
    properties = _properties(data.tobytes())
    if (irot := properties.get(b"irot")) is not None:
        image = np.rot90(image, irot & 3)  # quarters anticlockwise, as rot90 has it (ISO/IEC 23008-12, 6.5.10)
    if (imir := properties.get(b"imir")) is not None:
        # 0 exchanges top and bottom, 1 left and right (6.5.12)
        image = image[:, ::-1] if imir & 1 else image[::-1]
    return np.ascontiguousarray(image)


def _properties(file: bytes) -> dict[bytes, int]:
    """The first byte of each of the primary item's properties; empty if the file is damaged."""
    try:
        meta = _first(file, b"meta")[4:]
        version, *_ = _first(meta, b"pitm")
        (primary,) = struct.unpack_from(">I" if version else ">H", _first(meta, b"pitm"), 4)
        iprp = _first(meta, b"iprp")
        boxes = list(_boxes(_first(iprp, b"ipco")))
        indices = [
            index
            for box in _boxes(iprp)
            if box.kind == b"ipma"
            for item, index in _associations(box.body)
            if item == primary
        ]
        chosen = [boxes[index - 1] for index in indices if 1 <= index <= len(boxes)]
        return {box.kind: box.body[0] for box in chosen if box.body}
    except (StopIteration, struct.error, IndexError, ValueError):
        return {}


def _first(data: bytes, kind: bytes) -> bytes:
    """The body of the first box of a kind; raises StopIteration."""
    return next(box.body for box in _boxes(data) if box.kind == kind)


def _boxes(data: bytes) -> Iterator[_Box]:
    place = 0
    while place + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        header = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, place + 8)
            header = 16
        end = place + size if size else len(data)
        if end < place + header:
            return
        yield _Box(kind, data[place + header : end])
        place = end


def _associations(ipma: bytes) -> Iterator[tuple[int, int]]:
    """Items and the numbers, from 1, of their properties (ISO/IEC 23008-12, 9.3.2)."""
    version, flags = ipma[0], ipma[3]
    (count,) = struct.unpack_from(">I", ipma, 4)
    place = 8
    for _ in range(count):
        item, number = struct.unpack_from(">IB" if version else ">HB", ipma, place)
        place += 5 if version else 3
        for _ in range(number):
            if flags & 1:
                yield item, struct.unpack_from(">H", ipma, place)[0] & 0x7FFF
                place += 2
            else:
                yield item, ipma[place] & 0x7F
                place += 1

"""JPEGs that lack their end marker.

No library in the plain install tells a missing end marker from missing pixels.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_START, _END = b"\xff\xd8\xff", b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a frame header (SOF): all of C0 to CF but for DHT, JPG and DAC (ITU T.81, table B.1)."""
_SCAN = 0xDA
_COEFFICIENTS = frozenset(range(64))
_NOISE = np.random.default_rng(0).integers(1, 255, (3, 9, 128), np.uint8)


def _filling(number: int) -> bytes:
    """Bytes of a scan, and eight more behind restart markers (RST), one of which a decoder may wait for.

    The first marker differs between fillings: libjpeg takes a marker that is one or two ahead as a sign that others
    were lost, and stops waiting (`jpeg_resync_to_restart`).
    """
    parts: list[bytes] = [part.tobytes() for part in _NOISE[number]]
    markers = [bytes([0xFF, 0xD0 + (3 * number + i) % 8]) for i in range(8)]
    return b"".join(part + marker for part, marker in zip(parts, [*markers, b""], strict=True))


def with_end(data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """Several completions of a JPEG that may lack only its end marker.

    If a decoder makes the same image of all, every pixel is in the file: all completions but the first have bytes
    before the end marker, different ones each, which a decoder that misses pixels would take for pixels.

    Args:
        data: an image file, uint8 (bytes,).

    Returns:
        uint8 (bytes,) each; an empty list if the file is no JPEG, has an end marker, or lacks a whole scan.
    """
    file = data.tobytes()
    if not file.startswith(_START) or file.endswith(_END) or not _has_every_scan(file):
        return []
    file = file.rstrip(b"\xff")  # half of the end marker, or bytes allowed in front of it
    return [np.frombuffer(file + filling + _END, np.uint8) for filling in (b"", *map(_filling, range(len(_NOISE))))]


def _has_every_scan(file: bytes) -> bool:
    """Whether all scans that a JPEG's coefficients need have begun, down to the last bit (ITU T.81, G.1.1.1)."""
    missing: dict[int, frozenset[int]] = {}
    place = 2
    try:
        while place + 4 <= len(file):
            if file[place] != 0xFF:
                place = file.index(b"\xff", place)
            marker = file[place + 1]
            if marker in (0x00, 0xFF) or 0xD0 <= marker <= 0xD7:  # part of a scan, filling, RST
                place += 1 if marker == 0xFF else 2
                continue
            (length,) = struct.unpack_from(">H", file, place + 2)
            body = file[place + 4 : place + 2 + length]
            if marker in _FRAMES:
                missing = {body[6 + 3 * i]: _COEFFICIENTS for i in range(body[5])}
            elif marker == _SCAN:
                components = body[1 : 1 + 2 * body[0] : 2]
                first, last, approximation = body[-3:]
                if approximation & 15 == 0:
                    for component in components:
                        missing[component] = missing[component] - set(range(first, last + 1))
            place += 2 + length
    except (ValueError, IndexError, KeyError, struct.error):  # no more markers, or damage
        pass
    return bool(missing) and not any(missing.values())

"""PNGs that can't be whole, by the lengths in them: OpenCV's decoder takes seconds to find out, or never does."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_START = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""By colour type (PNG, 11.2.2)."""
_MOST_SMALLER = 1032
"""Times that deflate makes data smaller at most: a length of 258 in two bits."""
_MOST_CHUNKS = 2**17
"""More than a file of 1 GB has in chunks of 8 KB, as libpng writes them."""


def can_be_whole(data: NDArray[np.uint8]) -> bool:
    """Whether an image file, uint8 (bytes,), can be a whole PNG, or is none.

    In a whole one every chunk ends within the file, the last one is IEND, and the file holds as many bytes as its
    pixels take when they are packed as well as can be. OpenCV 5.0 never comes back from a chunk that claims 2 GiB or
    more, and makes room for all pixels before it reads the first.
    """
    if data[:8].tobytes() != _START:
        return True
    head = data[:26].tobytes()
    if head[12:16] == b"IHDR" and len(head) == 26:
        width, height, depth, kind = struct.unpack_from(">IIBB", head, 16)
        row = width * depth * _CHANNELS.get(kind, 0) // 8
        if height * row > _MOST_SMALLER * len(data):
            return False
    file = data.data
    place = len(_START)
    for _ in range(_MOST_CHUNKS):
        if place + 12 > len(file):
            return False
        size, name = struct.unpack_from(">I4s", file, place)
        place += size + 12
        if place > len(file):
            return False
        if name == b"IEND":
            return True
    return False

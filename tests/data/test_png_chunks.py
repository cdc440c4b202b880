from __future__ import annotations

import struct
import time
import zlib

import cv2
import numpy as np
import pytest

from autodial.data.transforms import DataError, read_bytes, read_encoded


def png(width: int, height: int, packed: bytes) -> bytes:
    """A grey PNG of 8 bits, with a right header."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_a_few_bytes_that_claim_to_be_enormous_cost_no_time() -> None:
    started = time.process_time()
    with pytest.raises(DataError, match="damaged or cut short"):
        read_encoded(png(8000, 8000, zlib.compress(bytes(100))), color=True)
    assert time.process_time() - started < 0.1


@pytest.mark.parametrize("side", [1, 100, 2000])
def test_what_packs_best_is_read(side: int) -> None:
    """Zeros, packed as far as deflate goes."""
    data = png(side, side, zlib.compress(bytes(side * (side + 1)), 9))
    np.testing.assert_array_equal(read_encoded(data, color=False).pixels, np.zeros((side, side, 1), np.uint8))
    assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE).shape == (side, side)


@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 12, 2**32 - 1, 0xFFFF00B3])
def test_a_chunk_that_claims_gigabytes_is_no_endless_loop(length: int) -> None:
    data = png(9, 6, zlib.compress(bytes(60)))
    place = data.index(b"IDAT") - 4
    started = time.process_time()
    endless = data[:place] + struct.pack(">I", length) + data[place + 4 :]
    with pytest.raises(DataError, match="damaged or cut short"):
        read_encoded(endless, color=True)
    for color in (True, False, None):  # as for an encoded datum
        with pytest.raises(DataError, match="damaged or cut short"):
            read_bytes(np.frombuffer(endless, np.uint8), color)
    assert time.process_time() - started < 0.1


def test_what_is_refused_opencv_does_not_read_either() -> None:
    data = png(9, 6, zlib.compress(bytes(60)))
    place = data.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", data, place)
    for changed in (
        data[:-12],
        data[:-2],
        data[:place] + struct.pack(">I", length + 1) + data[place + 4 :],
        data[:place] + struct.pack(">I", 10**6) + data[place + 4 :],
    ):
        with pytest.raises(DataError):
            read_encoded(changed, color=True)
        assert cv2.imdecode(np.frombuffer(changed, np.uint8), cv2.IMREAD_COLOR) is None
    assert read_encoded(data + b"behind it", color=True).pixels.shape == (6, 9, 3)

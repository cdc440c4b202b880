"""Image files that are damaged, and what OpenCV makes of them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

JPEG: list[int] = [cv2.IMWRITE_JPEG_QUALITY, 90]
PROGRESSIVE = [*JPEG, cv2.IMWRITE_JPEG_PROGRESSIVE, 1]
LZW, DEFLATE = ([cv2.IMWRITE_TIFF_COMPRESSION, kind] for kind in (5, 8))


def photo(seed: int = 0, side: int = 64) -> np.ndarray:
    """Something like a photograph: uint8 (side, side, 3)."""
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return cv2.resize(noise, (side, side), interpolation=cv2.INTER_CUBIC)


def encoded(suffix: str, parameters: list[int] = [], seed: int = 0, side: int = 64) -> bytes:  # noqa: B006
    return cv2.imencode(suffix, photo(seed, side), parameters)[1].tobytes()


def flipped(file: bytes, place: int, bit: int = 0) -> bytes:
    """A file with one flipped bit."""
    return file[:place] + bytes([file[place] ^ 1 << bit]) + file[place + 1 :]


def damaged_jpeg(seed: int = 0, side: int = 64) -> bytes:
    """A JPEG whose last scan holds bytes too many, of which libjpeg warns; all pixels are right."""
    file = encoded(".jpg", JPEG, seed, side)
    return file[:-2] + bytes(7 + seed) + file[-2:]


def said_of(path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What libjpeg writes to standard error about a file, as OpenCV alone decodes it."""
    capfd.readouterr()
    cv2.imread(str(path))
    words = capfd.readouterr().err.strip()
    assert words.startswith("Corrupt JPEG data: ")
    return words

"""Transparent images against Pillow's compositing, and their orientation against what OpenCV does to opaque ones."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from autodial.data.transforms import decode

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 4), dtype=np.uint8)
"""RGBA."""
LOSSLESS = {
    "PNG": {},
    "WEBP": {"lossless": True, "exact": True},
    "TIFF": {},
    "JPEG2000": {},
}


def file(image: Any, form: str, **options: Any) -> np.ndarray:
    stream = io.BytesIO()
    image.save(stream, form, **LOSSLESS.get(form, {}), **options)
    return np.frombuffer(stream.getvalue(), np.uint8)


def decoded(data: np.ndarray, color: bool = True) -> np.ndarray:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(data.tobytes())
        return decode(path, color)


def over_white(image: Any) -> Any:
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def bgr(image: Any) -> np.ndarray:
    return np.asarray(image)[:, :, ::-1]


@pytest.mark.parametrize("form", LOSSLESS)
def test_transparent_pixels_show_white(form: str) -> None:
    image = Image.fromarray(PIXELS)
    pixels = decoded(file(image, form))
    assert pixels.flags.c_contiguous
    np.testing.assert_array_equal(pixels, bgr(over_white(image)))
    grey = decoded(file(image, form), color=False)
    np.testing.assert_array_equal(grey[:, :, 0], cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY))


def test_a_palette_a_single_transparent_colour_and_a_gif() -> None:
    palette = Image.fromarray(PIXELS[:, :, 0] // 64).convert("P")
    palette.putpalette([10, 20, 30, 200, 100, 50, 0, 0, 0, 90, 90, 90])
    for form in ("PNG", "GIF"):
        expected = over_white(palette.copy())
        expected = bgr(expected).copy()
        expected[np.asarray(palette) == 1] = 255
        np.testing.assert_array_equal(decoded(file(palette, form, transparency=1)), expected)
    rgb = palette.convert("RGB")
    np.testing.assert_array_equal(decoded(file(rgb, "PNG", transparency=(200, 100, 50))), expected)


def test_what_stands_before_the_transparent_colour_does_not_hide_it() -> None:
    palette = Image.fromarray(PIXELS[:, :, 0] // 64).convert("P")
    expected = decoded(file(palette, "PNG", transparency=1))
    assert not np.array_equal(expected, decoded(file(palette, "PNG")))
    profile = np.random.default_rng(0).bytes(20_000)
    np.testing.assert_array_equal(decoded(file(palette, "PNG", transparency=1, icc_profile=profile)), expected)


def png(depth: int, levels: NDArray[np.uint16], transparent: int) -> NDArray[np.uint8]:
    """A grey PNG file with a transparent level, as its specification has it."""
    height, width = levels.shape
    bits = np.unpackbits(levels.astype(">u2").view(np.uint8).reshape(height, width, 2), axis=2)[:, :, 16 - depth :]
    rows = np.packbits(bits.reshape(height, -1), axis=1)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0),
        b"tRNS": struct.pack(">H", transparent),
        b"IDAT": zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)),
        b"IEND": b"",
    }
    framed = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks.items())
    return np.frombuffer(b"\x89PNG\r\n\x1a\n" + b"".join(framed), np.uint8)


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_grey_level_that_is_transparent(depth: int) -> None:
    top = 2**depth - 1
    levels = (np.arange(35).reshape(5, 7) * (257 if depth == 16 else 1) % (top + 1)).astype(np.uint16)
    transparent = int(levels[1, 3])
    shown = np.where(levels == transparent, 255, levels >> 8 if depth == 16 else levels * (255 // min(top, 255)))
    expected = np.repeat(shown[:, :, np.newaxis], 3, axis=2)
    np.testing.assert_array_equal(decoded(png(depth, levels, transparent)), expected)


def test_sixteen_bits_with_alpha() -> None:
    pixels = PIXELS.astype(np.uint16) << 8 | 77
    data = cv2.imencode(".png", pixels)[1]
    rgba = Image.fromarray(PIXELS)
    # what was written as BGRA reads as RGBA here
    np.testing.assert_array_equal(decoded(data), np.asarray(over_white(rgba)))


def test_opaque_images_are_as_without_alpha() -> None:
    opaque = PIXELS.copy()
    opaque[:, :, 3] = 255
    for form in LOSSLESS:
        np.testing.assert_array_equal(decoded(file(Image.fromarray(opaque), form)), opaque[:, :, 2::-1])


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_turns_transparent_images_as_it_does_opaque_ones(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(PIXELS)
    opaque = cv2.imdecode(file(over_white(image), form, exif=exif), cv2.IMREAD_COLOR)
    assert opaque.shape == ((24, 40, 3) if orientation < 5 else (40, 24, 3))
    np.testing.assert_array_equal(decoded(file(image, form, exif=exif)), opaque)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF", "GIF"])
def test_a_transparent_image_cut_short_is_refused(form: str) -> None:
    data = file(Image.fromarray(PIXELS), form)
    for kept in (0.1, 0.5, 0.9):
        with pytest.raises(ValueError, match="cut short"):
            decoded(data[: int(len(data) * kept)])

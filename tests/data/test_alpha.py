"""Transparent images against Pillow's compositing, and their orientation against what OpenCV does to opaque ones."""

from __future__ import annotations

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import pytest

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

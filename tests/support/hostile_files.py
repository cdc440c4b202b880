"""Folders of image files, ordinary and hostile, and what each of them shows."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

Picture = np.ndarray
Expected = dict[str, Picture | None]
"""By path: the picture, uint8 (height, width, 3) in the order BGR, or None for a file that can't be read."""


def ordinary(folder: Path, count: int, seed: int = 0) -> Expected:
    """Write `count` images in common formats, in folders of a hundred."""
    rng = np.random.default_rng(seed)
    expected: Expected = {}
    for i in range(count):
        suffix = (".jpg", ".png", ".webp", ".bmp", ".tiff", ".jpeg")[i % 6]
        height, width = rng.integers(5, 40, 2)
        coarse = rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)
        pixels = cv2.resize(coarse, (int(width), int(height)), interpolation=cv2.INTER_CUBIC)
        path = folder / f"{i // 100:03}" / f"{i:06}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cv2.imencode(suffix, pixels)[1].tobytes())
        expected[str(path)] = _as_opencv(path)
    return expected


def hostile(folder: Path, count: int, seed: int = 1) -> Expected:
    """Write `count` files, one of each kind after the other."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    expected: Expected = {}
    kinds = list(_kinds())
    for i in range(count):
        kind = kinds[i % len(kinds)]
        picture = Image.fromarray(rng.integers(0, 256, (12, 17, 4), dtype=np.uint8), "RGBA")
        expected |= kind(folder, f"{i:04}", picture)
    return expected


def _kinds() -> Iterator[Callable[[Path, str, Any], Expected]]:
    opaque = lambda form, **options: _good(form, lambda image: image.convert("RGB"), **options)  # noqa: E731
    yield opaque("JPEG", progressive=True)
    yield _good("JPEG", lambda image: image.convert("L"))
    yield _good("JPEG", lambda image: image.convert("RGB").convert("CMYK"))
    yield opaque("JPEG", exif=_orientation(6))
    yield opaque("PNG", exif=_orientation(3))
    yield _good("PNG", lambda image: image.convert("L"))
    yield _good("PNG", lambda image: image.convert("1"))
    yield _good("PNG", lambda image: image.convert("RGB").quantize(16))
    yield _good("PNG", lambda image: Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 250))
    yield _transparent("PNG")
    yield _transparent("WEBP", lossless=True, exact=True)
    yield _transparent("TIFF")
    yield opaque("TIFF", compression="tiff_lzw")
    yield _good("TIFF", lambda image: image.convert("RGB").convert("CMYK"))
    yield opaque("GIF")
    yield opaque("PNG", name="{}.gif")  # the content decides
    yield _animation("GIF")
    yield _animation("WEBP")
    for name in ("{}, a.png", '{}"q".png', "{}\nline.png", "{}\r.png", " {} .png", "{}\udce9.png", "{}猫.PNG"):
        yield opaque("PNG", name=name)
    for form in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"):
        yield _cut_short(form)
    yield _bytes(b"")
    yield _bytes(b"\0" * 5000)
    yield _bytes(b"not an image\n" * 100)
    yield _bytes(_bomb(100_000, 100_000))
    yield _bytes(cv2.imencode(".tiff", np.ones((9, 9), np.float32))[1].tobytes(), ".tiff")
    yield _link("nowhere.png")
    yield _link(None)
    yield _folder_link
    yield _pipe
    yield _sparse
    yield _folder_named_as_an_image


def _as_opencv(path: Path) -> Picture:
    picture = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return np.asarray(picture)


def _good(
    form: str, convert: Callable[[Any], Any], name: str = "{}", **options: Any
) -> Callable[[Path, str, Any], Expected]:
    def write(folder: Path, stem: str, image: Any) -> Expected:
        path = folder / name.format(stem)
        path = path if path.suffix else path.with_suffix(f".{form.lower()}")
        path.write_bytes(_encoded(convert(image), form, **options))
        return {str(path): _as_opencv(path)}

    return write


def _transparent(form: str, **options: Any) -> Callable[[Path, str, Any], Expected]:
    def write(folder: Path, stem: str, image: Any) -> Expected:
        path = folder / f"{stem}.{form.lower()}"
        path.write_bytes(_encoded(image, form, **options))
        white = Image.new("RGBA", image.size, "white")
        return {str(path): np.asarray(Image.alpha_composite(white, image).convert("RGB"))[:, :, ::-1]}

    return write


def _animation(form: str) -> Callable[[Path, str, Any], Expected]:
    def write(folder: Path, stem: str, image: Any) -> Expected:
        path = folder / f"{stem}.{form.lower()}"
        first = Image.new("RGB", image.size, image.convert("RGB").getpixel((0, 0)))
        path.write_bytes(_encoded(first, form, save_all=True, append_images=[image.convert("RGB")] * 2))
        return {str(path): _as_opencv(path)}

    return write


def _cut_short(form: str) -> Callable[[Path, str, Any], Expected]:
    return lambda folder, stem, image: _written(
        folder / f"{stem}.{form.lower()}", _encoded(image.convert("RGB"), form)[:-20]
    )


def _bytes(content: bytes, suffix: str = ".png") -> Callable[[Path, str, Any], Expected]:
    return lambda folder, stem, _: _written(folder / f"{stem}{suffix}", content)


def _written(path: Path, content: bytes) -> Expected:
    path.write_bytes(content)
    return {str(path): None}


def _link(target: str | None) -> Callable[[Path, str, Any], Expected]:
    def write(folder: Path, stem: str, _: Any) -> Expected:
        path = folder / f"{stem}.png"
        path.symlink_to(target or path.name)
        return {str(path): None}

    return write


def _folder_link(folder: Path, stem: str, _: Any) -> Expected:
    (folder / f"{stem}.png").symlink_to("..", target_is_directory=True)  # followed, it would never end
    return {}


def _pipe(folder: Path, stem: str, _: Any) -> Expected:
    os.mkfifo(folder / f"{stem}.png")
    return {str(folder / f"{stem}.png"): None}


def _sparse(folder: Path, stem: str, _: Any) -> Expected:
    path = folder / f"{stem}.jpg"
    with path.open("wb") as file:
        file.truncate(2**40)
    return {str(path): None}


def _folder_named_as_an_image(folder: Path, stem: str, image: Any) -> Expected:
    inside = folder / f"{stem}.jpg"
    inside.mkdir()
    (inside / "empty.png").mkdir()
    return _good("PNG", lambda image: image.convert("RGB"), name="{}.png")(inside, stem, image)


def _encoded(image: Any, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def _orientation(value: int) -> Any:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def _bomb(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that claims to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")

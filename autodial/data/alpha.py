"""Images with an alpha channel, laid over white.

The parsing of tRNS chunks and EXIF orientations is our own: OpenCV, the only image library of the plain install,
applies neither to images that it decodes with their alpha channel.
"""

from __future__ import annotations

import struct
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from autodial.data.avif import is_avif, turned

_TIFF = (b"II", b"MM")
_ORIENTATION = 0x0112
# What EXIF's orientations 2 to 8 ask for: a transposition or not, and then cv2.flip's code, if any.
_TURNS = {2: (False, 1), 3: (False, -1), 4: (False, 0), 5: (True, None), 6: (True, 1), 7: (True, -1), 8: (True, 0)}


def may_have_alpha(data: NDArray[np.uint8]) -> bool:
    """Whether the image file `data`, uint8 (bytes,), may hold transparent pixels, judging by its first bytes."""
    head = data[:32].tobytes()
    if head.startswith((b"\xff\xd8", b"BM")) or (head[:1] == b"P" and head[1:2].isdigit()):
        return False  # JPEG, BMP, Netpbm
    if head.startswith(b"\x89PNG"):
        # Bit 2 of the colour type is alpha; a palette's, or a single transparent colour, stands before the pixels.
        return len(head) > 25 and bool(head[25] & 4 or _png_key(data))
    if head.startswith(b"RIFF"):
        return len(head) > 24 and {b"VP8 ": False, b"VP8L": bool(head[24] & 0x10)}.get(head[12:16], head[20] & 0x10 > 0)
    return True


def over_white(data: NDArray[np.uint8], color: bool) -> NDArray[np.uint8] | None:
    """The image file `data`, uint8 (bytes,), laid over white, and turned as `autodial.data.transforms.read_image` says.

    Returns:
        uint8 (height, width, 3) in the order BGR or, if not `color`, (height, width, 1); None if the file can be
        decoded like one without alpha, or not at all.
    """
    try:
        image: NDArray[Any] | None = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    if image is not None and image.ndim == 2 and data[1:4].tobytes() == b"PNG":
        image = _with_grey_key(image, data)
    if image is None or image.ndim != 3 or image.shape[2] != 4 or image.dtype not in (np.uint8, np.uint16):
        return None
    # libtiff has multiplied the colours of 8-bit images with alpha already.
    multiplied = image.dtype == np.uint8 and data[:2].tobytes() in _TIFF
    if image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    result, alpha = image[:, :, :3], image[:, :, 3]
    if alpha.min() < 255:
        alpha = cv2.merge([alpha, alpha, alpha])
        result = result if multiplied else cv2.multiply(result, alpha, scale=1 / 255)
        result = cv2.add(result, 255 - alpha)
    elif not color:
        return None  # some decoders convert to grey in their own way, one level off
    if is_avif(data):
        result = turned(np.asarray(result, np.uint8), data)
    else:
        transpose, flip = _TURNS.get(_orientation(data.tobytes()), (False, None))
        result = cv2.transpose(result) if transpose else result
        result = result if flip is None else cv2.flip(result, flip)
    # Contiguous, as cv2.imdecode's own results are.
    return np.ascontiguousarray(
        result if color else cv2.cvtColor(result, cv2.COLOR_BGR2GRAY)[:, :, np.newaxis], np.uint8
    )


def _png_key(data: NDArray[np.uint8]) -> bytes:
    """The content of a PNG file's tRNS chunk, which comes before the pixels; empty if there is none."""
    start = 8
    while start + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data.data, start)
        if kind == b"tRNS":
            return data[start + 8 : start + 8 + size].tobytes()
        if kind == b"IDAT":
            break
        start += size + 12
    return b""


def _with_grey_key(image: NDArray[Any], data: NDArray[np.uint8]) -> NDArray[Any]:
    """A grey PNG, (height, width), as (height, width, 4) if it has a transparent level, which OpenCV ignores."""
    key = _png_key(data)
    if len(key) != 2:
        return image
    depth = int(data[24])
    level = int.from_bytes(key, "big") * (255 // (2**depth - 1) if depth < 8 else 1)
    alpha = np.where(image == level, 0, np.iinfo(image.dtype).max).astype(image.dtype)
    return cv2.merge([image, image, image, alpha])


def _orientation(file: bytes) -> int:
    """The EXIF orientation of a PNG or WebP file; 1, upright, if it states none."""
    chunk = max(file.find(b"eXIf"), file.find(b"EXIF"))
    if chunk < 0:
        return 1
    exif = file[chunk : chunk + 2**16]
    starts = [start for start in (exif.find(b"II*\0"), exif.find(b"MM\0*")) if 0 <= start <= 16]
    if not starts:
        return 1
    exif = exif[min(starts) :]
    order = "<" if exif.startswith(b"II") else ">"
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", exif, entry)
            if tag == _ORIENTATION:
                return int(value)
    except struct.error:  # cut short
        pass
    return 1

"""AVIFs are turned as Pillow 13 turns them (`ImageOps.exif_transpose`); the files are avifenc 0.11's."""

from __future__ import annotations

import contextlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from autodial.data.transforms import read_bytes, read_image

RECORDS = Path(__file__).parents[1] / "records" / "avif"
EXPECTED = np.load(RECORDS / "pillow.npz")

pytestmark = pytest.mark.skipif(
    not cv2.haveImageReader(str(RECORDS / "irot1_imirn.avif")), reason="OpenCV without AVIF"
)


@pytest.mark.parametrize("name", EXPECTED.files)
def test_is_turned_as_its_properties_say(name: str) -> None:
    """irot0 to irot3, with imirn for none: turned and mirrored; exif6: with an EXIF orientation beside; alpha."""
    expected = EXPECTED[name].astype(float)
    if expected.shape[2] == 4:
        alpha = expected[:, :, 3:] / 255
        expected = expected[:, :, :3] * alpha + 255 * (1 - alpha)
    image = read_image(RECORDS / name, color=True).pixels
    assert image.flags.c_contiguous and image.shape == expected.shape
    assert np.abs(image[:, :, ::-1] - expected).max() <= 2
    grey = read_image(RECORDS / name, color=False).pixels
    assert grey.shape == (*expected.shape[:2], 1)
    assert np.abs(grey[:, :, 0] - expected @ [0.299, 0.587, 0.114]).max() <= 2


def test_corners_are_where_the_angle_puts_them() -> None:
    """The picture is red top left, green bottom left, blue top right; irot 1 is a quarter anticlockwise."""
    image = read_image(RECORDS / "irot1_imirn.avif", color=True).pixels.astype(int)
    height, width, _ = image.shape
    corners = [(height - 3, 2), (height - 3, width - 3), (2, 2)]
    assert [int(image[y, x].argmax()) for y, x in corners] == [2, 1, 0]


def test_exif_does_not_turn_it() -> None:
    """The format forbids readers to go by it; OpenCV does."""
    file = (RECORDS / "exif6.avif").read_bytes()
    angle = file.index(b"irot") + 4
    without = np.frombuffer(file[:angle] + b"\0" + file[angle + 1 :], np.uint8)
    expected = cv2.imread(str(RECORDS / "irot0_imirn.avif"))
    assert cv2.imdecode(without, cv2.IMREAD_COLOR).shape[:2] == expected.shape[1::-1]
    assert np.abs(read_bytes(without, True).pixels.astype(int) - expected).max() <= 2


def test_unchanged_means_as_coded() -> None:
    data = np.fromfile(RECORDS / "irot1_imirn.avif", np.uint8)
    assert np.array_equal(read_bytes(data, None).pixels, cv2.imdecode(data, cv2.IMREAD_UNCHANGED))


def test_damaged_properties_are_no_traceback() -> None:
    whole = np.fromfile(RECORDS / "irot1_imir1.avif", np.uint8)
    for place in range(12, len(whole)):
        damaged = whole.copy()
        damaged[place] ^= 0x81
        with contextlib.suppress(ValueError):
            read_bytes(damaged, True)

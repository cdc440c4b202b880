"""Decoding against cv2.imread, and Caffe's crop, mirror, mean and scale against arithmetic by hand."""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from autodial.data.transforms import DRAWS, DataError, Transform, decode, resize
from autodial.errors import InputError
from autodial.proto import messages as pb

RNG = np.random.default_rng(0)
PHOTO = np.asarray(
    cv2.resize(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8), (40, 24), interpolation=cv2.INTER_CUBIC), dtype=np.uint8
)
"""24 x 40 pixels."""


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """The JPEG file with an EXIF segment that holds one tag, 0x0112."""
    tags = struct.pack(">HHHIHH", 1, 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0" + b"MM\0*\0\0\0\x08" + tags + b"\0\0\0\0"
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


def encode(suffix: str, image: np.ndarray[Any, Any] = PHOTO, *flags: int) -> bytes:
    return cv2.imencode(suffix, image, flags)[1].tobytes()


def assert_decodes_as_imread(path: Path) -> None:
    for color, flag in ((True, cv2.IMREAD_COLOR), (False, cv2.IMREAD_GRAYSCALE)):
        expected = cv2.imread(str(path), flag)
        assert expected is not None
        image = decode(path, color)
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, expected if color else expected[:, :, np.newaxis])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_as_imread_does(tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(with_orientation(encode(".jpg"), orientation))
    assert_decodes_as_imread(path)
    # From 5 on, the picture is stored lying down.
    assert decode(path, color=True).shape == ((24, 40, 3) if orientation < 5 else (40, 24, 3))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".webp", ".tiff"])
@pytest.mark.parametrize(
    "image",
    [PHOTO, PHOTO[:, :, 0], np.dstack([PHOTO, np.full_like(PHOTO[:, :, 0], 255)]), PHOTO.astype(np.uint16) * 256 + 77],
    ids=["color", "grey", "opaque", "16 bits"],
)
def test_every_kind_of_file_decodes_as_imread_does(tmp_path: Path, suffix: str, image: np.ndarray[Any, Any]) -> None:
    path = tmp_path / f"a{suffix}"
    if not cv2.imwrite(str(path), image):
        pytest.skip("OpenCV does not write this combination")
    assert_decodes_as_imread(path)


def test_pixels_are_bgr_and_16_bits_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), np.array([[[0x12FF, 0x3400, 0x5680]]], dtype=np.uint16))
    np.testing.assert_array_equal(decode(path, color=True), [[[0x12, 0x34, 0x56]]])


def test_the_content_decides_and_any_alphabet_opens(tmp_path: Path) -> None:
    path = tmp_path / "写真 é.jpg"
    path.write_bytes(encode(".png"))
    np.testing.assert_array_equal(decode(path, color=True), PHOTO)
    np.testing.assert_array_equal(decode(str(path), color=True), PHOTO)


@pytest.mark.parametrize(
    "content",
    [encode(".jpg"), encode(".jpg", PHOTO, cv2.IMWRITE_JPEG_PROGRESSIVE, 1), encode(".png"), encode(".webp")],
    ids=["jpeg", "progressive jpeg", "png", "webp"],
)
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_file_cut_short_is_refused(tmp_path: Path, content: bytes, kept: float) -> None:
    path = tmp_path / "a.img"
    path.write_bytes(content)
    decode(path, color=True)
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(DataError, match=r"a.img .* cut short"):
        decode(path, color=True)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not an image\n" * 100)
    for name, reason in (("empty.png", "is empty"), ("text.png", "not an image"), ("none.png", "No such file")):
        with pytest.raises(DataError, match=f"{name} .*{reason}"):
            decode(tmp_path / name, color=True)
    with pytest.raises(DataError, match="is a folder"):
        decode(tmp_path, color=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(DataError, match="not a regular file"):
        decode(tmp_path / "a.png", color=True)


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(2**31)  # takes no room on the disk
    with pytest.raises(DataError, match="larger than 2 GiB"):
        decode(tmp_path / "a.png", color=True)


def test_an_image_too_large_for_opencv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.bmp"
    for size, what in (((2**20, 2**20), "pixels"), ((2**21, 1), "columns"), ((1, 2**21), "rows")):
        header = bytearray(encode(".bmp"))
        header[18:26] = struct.pack("<ii", *size)
        path.write_bytes(header)
        with pytest.raises(
            DataError, match=rf"huge.bmp has more {what} than OpenCV allows \(OPENCV_IO_MAX_IMAGE_\w+\)"
        ):
            decode(path, color=True)


def test_resize_keeps_the_channel_axis() -> None:
    for image in (PHOTO, PHOTO[:, :, :1]):
        assert resize(image, 12, 10).shape == (12, 10, image.shape[2])
        np.testing.assert_array_equal(resize(image, 24, 40), image)


def test_resize_is_bilinear_at_pixel_centres() -> None:
    # Twice as wide: the new centres lie at -1/4, 1/4, 3/4, 5/4 of the old pixels; outside, the border repeats.
    image = np.array([[[0], [200]]], dtype=np.uint8)
    np.testing.assert_array_equal(resize(image, 1, 4)[0, :, 0], [0, 50, 150, 200])


def caffe_transform(
    image: np.ndarray[Any, Any],
    top: int,
    left: int,
    size: tuple[int, int],
    flip: bool,
    mean: np.ndarray[Any, Any],
    scale: float,
) -> np.ndarray[Any, Any]:
    """The inner loop of Caffe's DataTransformer, pixel by pixel; `mean` is (C, H, W)."""
    height, width = size
    result = np.empty((image.shape[2], height, width), dtype=np.float32)
    for c, h, w in np.ndindex(result.shape):
        value = np.float32(image[top + h, left + w, c]) - mean[c, top + h, left + w]
        result[c, h, width - 1 - w if flip else w] = value * np.float32(scale)
    return result


IMAGE = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
MEAN_IMAGE = np.random.default_rng(1).uniform(0, 255, (3, 5, 6)).astype(np.float32)
MEAN_VALUES = np.array([104, 117, 123], dtype=np.float32).reshape(3, 1, 1)


@pytest.mark.parametrize("mean", [None, MEAN_VALUES, MEAN_IMAGE], ids=["no mean", "mean values", "mean image"])
@pytest.mark.parametrize("scale", [1.0, 0.00390625, 0.3])
def test_every_crop_and_flip_is_caffes_and_equally_likely(mean: np.ndarray[Any, Any] | None, scale: float) -> None:
    transform = Transform(crop_size=4, random_crop=True, mirror=True, mean=mean, scale=scale)
    full_mean = np.broadcast_to(np.float32(0) if mean is None else mean, (3, 5, 6))
    expected = {
        caffe_transform(IMAGE, top, left, (4, 4), flip, full_mean, scale).tobytes(): (top, left, flip)
        for top in range(2)
        for left in range(3)
        for flip in (False, True)
    }
    assert len(expected) == 12
    rng = np.random.default_rng(2)
    # A result that differs from all twelve in one bit is a KeyError.
    counts = Counter(expected[transform(IMAGE, rng.random(DRAWS)).tobytes()] for _ in range(1200))
    assert len(counts) == 12
    assert all(60 < count < 140 for count in counts.values())  # 100 expected; 4 standard deviations are 38


@pytest.mark.parametrize(("crop_size", "top", "left"), [(5, 0, 0), (4, 0, 1), (3, 1, 1), (2, 1, 2), (1, 2, 2)])
def test_the_centre_is_rounded_down(crop_size: int, top: int, left: int) -> None:
    result = Transform(crop_size=crop_size, mean=MEAN_IMAGE, scale=0.5)(IMAGE, np.zeros(DRAWS))
    np.testing.assert_array_equal(
        result, caffe_transform(IMAGE, top, left, (crop_size, crop_size), False, MEAN_IMAGE, 0.5)
    )


def test_without_a_crop_the_whole_image_is_flipped() -> None:
    results = {Transform(mirror=True)(IMAGE, np.random.default_rng(seed).random(DRAWS)).tobytes() for seed in range(20)}
    planes = IMAGE.transpose(2, 0, 1).astype(np.float32)
    assert results == {planes.tobytes(), planes[:, :, ::-1].tobytes()}


def test_the_result_goes_into_the_array_that_is_given() -> None:
    out = np.full((3, 5, 6), np.nan, dtype=np.float32)
    assert Transform()(IMAGE, np.zeros(DRAWS), out) is out
    np.testing.assert_array_equal(out, IMAGE.transpose(2, 0, 1))


def test_chance_decides_nothing_of_a_centre_crop_without_mirror() -> None:
    rng = np.random.default_rng(0)
    assert len({Transform(crop_size=3)(IMAGE, rng.random(DRAWS)).tobytes() for _ in range(20)}) == 1


def test_an_image_that_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(DataError, match="5 x 6 is smaller than crop_size 6"):
        Transform(crop_size=6)(IMAGE, np.zeros(DRAWS))
    with pytest.raises(DataError, match="4 x 6 does not fit the mean_file, which has 5 x 6"):
        Transform(crop_size=3, mean=MEAN_IMAGE)(IMAGE[:4], np.zeros(DRAWS))


def write_mean(path: Path, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32)
    path.write_bytes(pb.BlobProto(shape=pb.BlobShape(dim=shape), data=values).SerializeToString())


def test_every_field_of_transform_param_arrives(tmp_path: Path) -> None:
    write_mean(tmp_path / "mean.binaryproto", (1, 3, 5, 6))
    param = pb.TransformationParameter(crop_size=4, mirror=True, scale=0.25, mean_file="mean.binaryproto")
    train = Transform.from_caffe(param, phase=pb.TRAIN, channels=3, base_dir=tmp_path)
    test = Transform.from_caffe(param, phase=pb.TEST, channels=3, base_dir=tmp_path)
    assert (train.crop_size, train.mirror, train.scale, train.random_crop) == (4, True, 0.25, True)
    assert (test.crop_size, test.mirror, test.scale, test.random_crop) == (4, True, 0.25, False)
    np.testing.assert_array_equal(train.mean, np.arange(90, dtype=np.float32).reshape(3, 5, 6))


@pytest.mark.parametrize(("values", "expected"), [([7], [7, 7, 7]), ([1, 2, 3], [1, 2, 3])])
def test_one_mean_value_serves_all_channels(values: list[float], expected: list[float]) -> None:
    param = pb.TransformationParameter(mean_value=values)
    transform = Transform.from_caffe(param, phase=pb.TEST, channels=3)
    assert transform.mean is not None
    np.testing.assert_array_equal(transform.mean.ravel(), expected)


@pytest.mark.parametrize(
    ("fields", "channels", "reason"),
    [
        ({"mean_value": [1, 2]}, 3, "2 mean_values; state one, or 3"),
        ({"mean_value": [1, 2, 3]}, 1, "3 mean_values; state one, or 1"),
        ({"mean_value": [1], "mean_file": "color"}, 3, "both mean_file and mean_value"),
        ({"mean_file": "color"}, 1, "color has 3 channels, the images have 1"),
        ({"mean_file": "flat"}, 3, "not one mean image"),
        ({"mean_file": "two"}, 3, "not one mean image"),
        ({"mean_file": "none"}, 3, '"none" does not exist'),
        ({"force_gray": True}, 3, "force_gray contradicts the images' number of channels, 3"),
        ({"force_color": True}, 1, "force_color contradicts the images' number of channels, 1"),
        ({"force_color": True, "force_gray": True}, 3, "force_gray contradicts"),
    ],
)
def test_what_cannot_be_honoured_is_refused(tmp_path: Path, fields: dict[str, Any], channels: int, reason: str) -> None:
    write_mean(tmp_path / "color", (1, 3, 5, 6))
    write_mean(tmp_path / "flat", (5, 6))
    write_mean(tmp_path / "two", (2, 3, 5, 6))
    param = pb.TransformationParameter(**fields)
    with pytest.raises(InputError) as error:
        Transform.from_caffe(param, phase=pb.TEST, channels=channels, base_dir=tmp_path)
    assert reason in str(error.value)


def test_planes_of_floats_are_transformed_as_they_are() -> None:
    planes = np.random.default_rng(3).normal(size=(7, 5, 6)).astype(np.float32)
    result = Transform(crop_size=3, scale=0.5)(planes.transpose(1, 2, 0), np.zeros(DRAWS))
    np.testing.assert_array_equal(result, planes[:, 1:4, 1:4] * np.float32(0.5))


def test_force_color_and_force_gray_may_say_what_is_read_anyway() -> None:
    Transform.from_caffe(pb.TransformationParameter(force_gray=True), phase=pb.TEST, channels=1)
    Transform.from_caffe(pb.TransformationParameter(force_color=True), phase=pb.TEST, channels=3)

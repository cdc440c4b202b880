"""io and Classifier, held against Pillow, torch and examples worked by hand."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from google.protobuf.message import DecodeError
from PIL import Image

import autodial.caffe as caffe
from autodial.caffe import io
from autodial.caffe.proto import caffe_pb2
from autodial.errors import InputError


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


# --- messages

SWISH = b"\x0a\x01s\x12\x05Swish:\x06*\x04\x00\x00\x80\x3f\x9a\x09\x05\x0d\x00\x00\x00@"
"""A layer as BVLC's last Caffe writes it: name 1, type 2, blobs 7 (data 5), swish_param 147, where Dial's is here."""


def test_a_script_parses_and_serializes_files_of_other_versions_of_caffe() -> None:
    file = b"\x0a\x03net\x28\x01\xa2\x06" + bytes([len(SWISH)]) + SWISH  # name 1, force_backward 5, layer 100
    net = caffe_pb2.NetParameter()
    assert net.ParseFromString(file) == len(file)
    (layer,) = net.layer
    assert net.name == "net" and net.force_backward and not layer.HasField("dial_param")
    assert layer.swish_param.beta == 2 and list(layer.blobs[0].data) == [1]
    for again in (caffe_pb2.NetParameter.FromString(file), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert again == net
    assert len(net.layer) == 1 and net.MergeFromString(file) and len(net.layer) == 2
    written = again.SerializeToString()
    assert sorted(written) == sorted(file)  # blobs may stand elsewhere in the layer
    assert b"\x9a\x09\x05\x0d\x00\x00\x00@" in written and again.SerializePartialToString() == written
    with pytest.raises(DecodeError):
        caffe_pb2.NetParameter.FromString(file[:-1])


def test_blobs_of_any_shape() -> None:
    array = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    blob = io.array_to_blobproto(array, diff=2 * array)
    assert list(blob.shape.dim) == [2, 3, 4]
    np.testing.assert_array_equal(io.blobproto_to_array(blob), array)
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), 2 * array)


def test_blobs_of_old_files() -> None:
    blob = caffe_pb2.BlobProto(num=1, channels=1, height=4, width=3, data=range(12))
    np.testing.assert_array_equal(io.blobproto_to_array(blob), np.arange(12).reshape(1, 1, 4, 3))


def test_blobs_of_one_value_and_of_no_shape() -> None:
    assert io.blobproto_to_array(caffe_pb2.BlobProto(data=[123], shape={"dim": [1]})) == 123
    assert io.blobproto_to_array(io.array_to_blobproto(np.float32(5))).shape == ()
    with pytest.raises(ValueError, match="reshape"):
        io.blobproto_to_array(caffe_pb2.BlobProto(data=range(9)))


def test_vectors_of_blobs() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.array([7.0])]
    data = io.arraylist_to_blobprotovecor_str(arrays)
    for ours, theirs in zip(io.blobprotovector_str_to_arraylist(data), arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_datums(dtype: Any) -> None:
    array = pixels(3, 4, 5).astype(dtype)
    datum = caffe_pb2.Datum.FromString(io.array_to_datum(array, 7).SerializeToString())
    assert (datum.channels, datum.height, datum.width, datum.label) == (3, 4, 5, 7)
    assert bool(datum.data) == (dtype is np.uint8)
    back = io.datum_to_array(datum)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, array)
    assert not io.array_to_datum(array).HasField("label")


def test_messages_by_the_name_that_scripts_use() -> None:
    datum = caffe.io.caffe_pb2.Datum(channels=1, height=1, width=2, data=b"\x07\xff", label=3)
    np.testing.assert_array_equal(caffe.io.datum_to_array(datum), [[[7, 255]]])
    assert caffe.io.caffe_pb2 is caffe_pb2


def test_datums_that_can_not_be() -> None:
    with pytest.raises(ValueError, match=r"\(4, 5\)"):
        io.array_to_datum(pixels(4, 5))
    with pytest.raises(ValueError, match="encoded"):
        io.datum_to_array(caffe_pb2.Datum(encoded=True, data=b"PNG"))


# --- images


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_load_image(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(pixels(5, 6, 4), "RGBA").convert(mode)
    image.save(tmp_path / "ä.png")
    stored = np.asarray(image, np.float32) / 255
    rgb = stored[..., :3] if mode != "L" else np.stack([stored] * 3, -1)  # alpha is left out
    loaded = io.load_image(tmp_path / "ä.png")
    assert loaded.dtype == np.float32
    np.testing.assert_allclose(loaded, rgb, atol=1e-7)
    grey = io.load_image(str(tmp_path / "ä.png"), color=False)
    assert grey.shape == (5, 6, 1)
    r, g, b = np.moveaxis(rgb, 2, 0)
    np.testing.assert_allclose(grey[..., 0], 0.2125 * r + 0.7154 * g + 0.0721 * b, atol=1e-6)


def test_load_image_of_16_bits_and_with_an_orientation(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 65535], [13107, 1]], np.uint16)).save(tmp_path / "deep.png")
    np.testing.assert_allclose(io.load_image(tmp_path / "deep.png")[..., 1], [[0, 1], [0.2, 1 / 65535]], atol=1e-7)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a viewer
    Image.fromarray(pixels(8, 16, 3)).save(tmp_path / "turned.jpg", exif=exif)
    assert io.load_image(tmp_path / "turned.jpg").shape == (8, 16, 3)


def test_load_image_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    for name in ("text.png", "empty.png", "missing.png"):
        with pytest.raises(InputError, match=name):
            io.load_image(tmp_path / name)


RESIZED = np.load(Path(__file__).parent / "records" / "resize_image.npz")
"""What the calls of pycaffe's resize_image give of `resized_image`, by dtype, interp_order, channels, height and width.

scikit-image 0.26 and SciPy 1.17 made them, and 0.18.3 with 1.13 gives the same.
"""


def resized_image(dtype: str, channels: int) -> np.ndarray:
    image = (np.arange(9 * 7 * channels) * 7919 % 251).reshape(9, 7, channels)
    return image.astype(np.uint8) if dtype == "uint8" else (image / np.float32(83) - 1).astype(np.float32)


@pytest.mark.parametrize("case", RESIZED.files)
def test_resize_image_is_pycaffes(case: str) -> None:
    dtype, order, channels, height, width = case.split("_")
    image = resized_image(dtype, int(channels))
    before = image.copy()
    resized = io.resize_image(image, (int(height), int(width)), interp_order=int(order))
    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized, RESIZED[case], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("channels", [1, 3])
def test_resize_image_to_less(channels: int) -> None:
    image = np.random.default_rng(0).normal(size=(10, 12, channels)).astype(np.float32)
    torch_image = torch.from_numpy(image).permute(2, 0, 1)[None]
    expected = F.interpolate(torch_image, (5, 7), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
    np.testing.assert_allclose(io.resize_image(image, (5, 7)), expected, atol=1e-5)
    np.testing.assert_array_equal(io.resize_image(np.full_like(image, 3), (20, 40)), np.full((20, 40, channels), 3))


def test_resize_image_refuses_what_depends_on_a_version() -> None:
    """Orders of 2 and more are off by up to 2.9 of 3 between scikit-image 0.18.3 and 0.26."""
    for channels, order in ((3, 2), (1, 3), (3, 6), (2, -1)):
        with pytest.raises(ValueError, match=f"interp_order .*{order}"):
            io.resize_image(pixels(9, 7, channels), (4, 10), interp_order=order)


def test_oversample() -> None:
    image = np.arange(5 * 8.0).reshape(5, 8, 1)
    crops = io.oversample([image, -image], (2, 4))
    assert crops.shape == (20, 2, 4, 1) and crops.dtype == np.float32
    # top left, top right, bottom left, bottom right, centre
    assert crops[:5, 0, 0, 0].tolist() == [0, 4, 24, 28, 10]
    np.testing.assert_array_equal(crops[5:10], crops[:5, :, ::-1])
    np.testing.assert_array_equal(crops[10:], -crops[:10])


def transformer() -> io.Transformer:
    result = io.Transformer({"data": (10, 3, 4, 5)})
    result.set_transpose("data", (2, 0, 1))
    result.set_channel_swap("data", (2, 1, 0))
    result.set_raw_scale("data", 255)
    result.set_mean("data", np.array([1, 2, 3]))
    result.set_input_scale("data", 0.5)
    return result


def test_transformer_by_hand_and_back() -> None:
    image = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    before = image.copy()
    made = transformer().preprocess("data", image)
    for channel, mean in ((0, 1), (1, 2), (2, 3)):
        np.testing.assert_allclose(made[channel], (image[:, :, 2 - channel] * 255 - mean) * 0.5, rtol=1e-5, atol=1e-4)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(image, before)
    np.testing.assert_allclose(transformer().deprocess("data", made), image, atol=1e-6)


def test_transformer_resizes_first() -> None:
    plain = io.Transformer({"data": (1, 3, 4, 5)})
    image = pixels(8, 9, 3)
    np.testing.assert_array_equal(plain.preprocess("data", image), io.resize_image(image, (4, 5)))


def test_mean_images() -> None:
    plain = io.Transformer({"data": (1, 3, 4, 5)})
    plain.set_transpose("data", (2, 0, 1))
    mean = pixels(3, 4, 5)
    plain.set_mean("data", mean)
    image = pixels(4, 5, 3)
    np.testing.assert_array_equal(plain.preprocess("data", image), np.moveaxis(image.astype(float), 2, 0) - mean)
    plain.set_mean("data", np.full((3, 8, 8), 9))
    np.testing.assert_allclose(plain.preprocess("data", image), np.moveaxis(image.astype(float), 2, 0) - 9)


def test_transformer_refuses_what_does_not_fit() -> None:
    made = transformer()
    for wrong, message in (
        (lambda: made.set_transpose("data", (1, 0)), "2 axes"),
        (lambda: made.set_channel_swap("data", (1, 0)), "2 channels"),
        (lambda: made.set_mean("data", np.zeros(2)), r"\(2, 1, 1\)"),
        (lambda: made.set_mean("data", np.zeros((2, 4, 5))), r"\(2, 4, 5\)"),
        (lambda: made.set_raw_scale("label", 1), '"label" is not an input'),
        (lambda: made.preprocess("label", np.zeros((4, 5, 3))), '"label" is not an input'),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


# --- Classifier


def test_classifier(write: Callable[..., str], tmp_path: Path) -> None:
    path = write(
        'input: "data" input_shape { dim: 4 dim: 3 dim: 4 dim: 4 }'
        'layer { name: "mean" type: "Pooling" bottom: "data" top: "mean"'
        " pooling_param { pool: AVE global_pooling: true } }"
        'layer { name: "flat" type: "Flatten" bottom: "mean" top: "scores" }'
    )
    caffe.Net(path, caffe.TEST).save(tmp_path / "w.caffemodel")
    classifier = caffe.Classifier(
        path, str(tmp_path / "w.caffemodel"), image_dims=(6, 8), mean=np.array([1, 2, 3]), raw_scale=255,
        channel_swap=(2, 1, 0), input_scale=0.5,
    )  # fmt: skip
    images = [np.random.default_rng(i).random((6, 8, 3)).astype(np.float32) for i in range(3)]

    def expected(crop: np.ndarray) -> np.ndarray:
        return (crop.mean((0, 1))[::-1] * 255 - [1, 2, 3]) / 2

    with pytest.raises(TypeError, match=r"predict takes a sequence of images, .* write predict\(\[image\]\)"):
        classifier.predict(images[0])
    centre = classifier.predict(images, oversample=False)
    np.testing.assert_allclose(centre, [expected(image[1:5, 2:6]) for image in images], rtol=1e-4, atol=1e-3)
    averaged = classifier.predict(images)
    corners = [(slice(y, y + 4), slice(x, x + 4)) for y in (0, 2) for x in (0, 4)] + [(slice(1, 5), slice(2, 6))]
    np.testing.assert_allclose(
        averaged, [np.mean([expected(image[crop]) for crop in corners], 0) for image in images], rtol=1e-4, atol=1e-3
    )


def test_there_is_no_detector() -> None:
    with pytest.raises(InputError, match="Classifier"):
        caffe.Detector("net.prototxt", "weights.caffemodel")


def test_one_image_is_no_sequence_of_its_rows() -> None:
    with pytest.raises(TypeError, match=r"oversample takes a sequence of images, .* write oversample\(\[image\]\)"):
        caffe.io.oversample(np.zeros((8, 8, 3)), (4, 4))
    assert caffe.io.oversample(np.zeros((1, 8, 8, 3)), (4, 4)).shape == (10, 4, 4, 3)

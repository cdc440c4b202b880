from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from image_nets import with_inputs
from onnx.external_data_helper import ExternalDataInfo
from originals import RECORDS, shared

from autodial.commands.export import describe
from autodial.converters import net_export, onnx_file, prepared
from autodial.converters.card import write_card
from autodial.converters.class_names import read_class_names
from autodial.converters.destinations import Destination
from autodial.converters.destinations.caffe import CaffeFolder
from autodial.converters.destinations.onnx import OnnxFile
from autodial.converters.destinations.triton import TritonModel
from autodial.converters.metadata import weights_digest
from autodial.converters.net_export import export
from autodial.converters.onnx_weights import write_weights
from autodial.converters.verification import ExportReport
from autodial.deploy import Predictor
from autodial.deploy.metadata import ModelInfo
from autodial.errors import InputError, WorkError
from autodial.model_file import LICENSE
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net, read_net
from autodial.proto import messages as pb

REPOSITORY = Path(__file__).parents[2]

# The TEST path of the released AlexNet in small: images as they are on disk, a Crop behind them, in-place layers.
ALEX = """
name: "alex"
layer { name: "train" type: "ImageData" top: "data" top: "labels" include { phase: TRAIN }
  image_data_param { source: "train.txt" batch_size: 4 } }
layer { name: "data-test" type: "ImageData" top: "data-test" top: "labels" include { phase: TEST }
  transform_param { mirror: true mean_value: 104 mean_value: 117 mean_value: 123 }
  image_data_param { source: "test.txt" batch_size: 4 shuffle: true } }
layer { name: "reference" type: "DummyData" top: "reference" include { phase: TEST }
  dummy_data_param { shape { dim: 1 dim: 1 dim: 21 dim: 19 } } }
layer { name: "crop" type: "Crop" bottom: "data-test" bottom: "reference" top: "data" include { phase: TEST }
  crop_param { offset: 2 offset: 3 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 0 }
  convolution_param { num_output: 6 kernel_size: 5 stride: 2 bias_term: false } }
layer { name: "dial" type: "Dial" bottom: "conv" top: "conv" dial_param { slice_point: 2 } }
layer { name: "sc" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 4 } }
layer { name: "fc-dial" type: "Dial" bottom: "fc" top: "fc" dial_param { slice_point: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "labels" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "labels" top: "accuracy" include { phase: TEST } }
"""
HEIGHT, WIDTH = 26, 24

IMAGES = """
layer { name: "images" type: "ImageData" top: "data" top: "labels"
  transform_param { OPTIONS } image_data_param { source: "list.txt" batch_size: 2 MORE } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "labels" top: "loss" }
"""

DEPLOY = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 5 dim: 3 dim: 8 dim: 8 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def random_weights(net: Any, height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> Weights:
    """Weights of every layer, with statistics that 3 passes might have stored."""
    rng = np.random.default_rng(seed)
    param = with_inputs(net, height, width)
    built = Net(param, pb.TEST)
    layers = []
    for layer in param.layer:
        blobs = []
        for i, blob in enumerate(built.layer(layer.name).blobs):
            shape = tuple(blob.shape)
            value = rng.standard_normal(shape).astype(np.float32)
            if layer.type == "Dial":
                value = [np.float32([0.8]), 3 * value, 3 * np.abs(value) + 1, np.float32([3])][i]
            elif len(shape) > 1:
                value *= np.float32(np.sqrt(2 / np.prod(shape[1:])))
            blobs.append(value.astype(np.float32))
        layers.append(LayerWeights(layer, blobs))
    return Weights("random", layers)


def blobs_of(weights: Weights, layer: str) -> list[Any]:
    return next(saved.blobs for saved in weights.layers if saved.name == layer)


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def random_images(count: int, height: int, width: int, channels: int = 3) -> Any:
    return np.random.default_rng(5).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def write_list(folder: Path, name: str, images: Any) -> None:
    lines = []
    for i, image in enumerate(images):
        cv2.imwrite(str(folder / f"image {i}.png"), image)
        lines.append(f"image {i}.png {i % 3}\n")
    (folder / name).write_text("".join(lines))


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def alex_by_torch(weights: Weights, images: Any) -> Any:
    """The small AlexNet's logits for uint8 images by torch's functions, in float64."""

    def dial(x: Any, layer: str) -> Any:
        _, mean, variance, total = (torch.tensor(blob).double() for blob in blobs_of(weights, layer))
        return F.batch_norm(x, mean[1] / total, variance[1] / total, eps=1e-5)

    x = torch.tensor(images.astype(np.float64) - [104, 117, 123]).permute(0, 3, 1, 2)[:, :, 2:23, 3:22]
    x = dial(F.conv2d(x, torch.tensor(blobs_of(weights, "conv")[0]).double(), stride=2), "dial")
    factor, shift = (torch.tensor(blob).double().view(1, -1, 1, 1) for blob in blobs_of(weights, "sc"))
    x = (x * factor + shift).relu()
    squares = F.pad(x.square(), (0, 0, 0, 0, 1, 1))
    x = x / (1 + 0.5 / 3 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** 0.75
    x = F.max_pool2d(x, 3, 2, ceil_mode=True).flatten(1)
    return dial(F.linear(x, *(torch.tensor(blob).double() for blob in blobs_of(weights, "fc"))), "fc-dial").numpy()


@pytest.fixture(scope="module")
def alex(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportReport, Weights, Any]:
    """The small AlexNet, exported with a list of five images: report, weights, images."""
    folder = tmp_path_factory.mktemp("alex")
    images = random_images(5, HEIGHT, WIDTH)
    write_list(folder, "test.txt", images)
    (folder / "names.txt").write_text("cat\ndog\nowl\nfish\n")
    net = parse_net(ALEX)
    weights = random_weights(net)
    report = export(net, weights, folder / "model.onnx", labels=folder / "names.txt", base_dir=folder)
    return report, weights, images


def test_a_net_like_the_released_one_agrees_with_torch(alex: Any) -> None:
    report, weights, images = alex
    expected = alex_by_torch(weights, images)
    logits, probabilities = session(report.output).run(["logits", "probabilities"], {"image": images})
    assert logits.dtype == probabilities.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.ptp(expected))
    np.testing.assert_allclose(probabilities, torch.tensor(logits).softmax(1).numpy(), atol=1e-6)


def test_report(alex: Any) -> None:
    report, _, _ = alex
    assert report.logits == "fc"
    assert report.merged == {"dial": "conv", "sc": "conv", "fc-dial": "fc"}
    assert report.kept == ()
    assert f"5 images of {report.output.parent / 'test.txt'}" == report.compared_on
    assert 0 < report.relative_difference < 1e-5
    assert report.relative_difference == report.max_difference / report.logits_range
    assert any("data-test" in note and "mirrors" in note for note in report.notes)


def test_weights_of_a_net_with_more_alignment_are_warned_of(
    alex: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report, weights, _ = alex
    net = parse_net(ALEX)
    export(net, weights, tmp_path / "all.onnx", base_dir=report.output.parent)
    assert not any("lacks" in message for message in caplog.messages)
    (dial,) = (layer for layer in net.layer if layer.name == "fc-dial")
    net.layer.remove(dial)
    export(net, weights, tmp_path / "m.onnx", base_dir=report.output.parent)
    (message,) = (message for message in caplog.messages if "lacks" in message)
    assert message.startswith("The weights were trained with 1 Dial layer that the net lacks, fc-dial first")


def test_interface_and_metadata(alex: Any) -> None:
    report, _, _ = alex
    loaded = session(report.output)
    assert [(put.name, put.type, put.shape) for put in loaded.get_inputs()] == [
        ("image", "tensor(uint8)", ["batch", HEIGHT, WIDTH, 3])
    ]
    assert [(put.name, put.type, put.shape) for put in loaded.get_outputs()] == [
        ("logits", "tensor(float)", ["batch", 4]),
        ("probabilities", "tensor(float)", ["batch", 4]),
    ]
    metadata = loaded.get_modelmeta().custom_metadata_map
    image = {f"Image.{name}" for name in ("BitmapPixelFormat", "ColorSpaceGamma", "NominalPixelRange")}
    assert set(metadata) == {"autodial", *image}
    record = json.loads(metadata["autodial"])
    assert record == report.metadata
    assert len(record.pop("weights_sha256")) == 64
    assert record.pop("version") and record.pop("precision") == "float32"
    assert record == {
        "schema": 1,
        "classes": ["cat", "dog", "owl", "fish"],
        "size": [HEIGHT, WIDTH],
        "resize": "bilinear",
        "crop": [21, 19],
        "exif": "apply",
        "alpha": "white",
        "mean": [104, 117, 123],
        "scale": 1,
        "channel_order": "BGR",
        "raw_input": False,
        "statistics": "target",
    }
    assert ModelInfo.of_session(loaded, report.output).classes == ("cat", "dog", "owl", "fish")


def test_format_and_graph(alex: Any) -> None:
    report, _, _ = alex
    model = onnx.load(report.output, load_external_data=False)
    assert model.ir_version <= 8
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    types = {node.op_type for node in model.graph.node}
    assert {"Conv", "Gemm", "MaxPool", "Softmax"} <= types
    assert not types & {"Dropout", "BatchNormalization"}


def test_shared_parameters_are_stored_once(tmp_path: Path) -> None:
    shared = 'param { name: "w" } param { name: "b" } inner_product_param { num_output: 60 }'
    net = parse_net(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 5 dim: 60 } } }'
        f'layer {{ name: "one" type: "InnerProduct" bottom: "x" top: "y" {shared} }}'
        f'layer {{ name: "two" type: "InnerProduct" bottom: "y" top: "z" {shared} }}'
        'layer { name: "dial" type: "Dial" bottom: "z" top: "z" }'
    )
    weights = random_weights(net)
    for blob, other in zip(blobs_of(weights, "one"), blobs_of(weights, "two"), strict=True):
        other[...] = blob
    report = export(net, weights, tmp_path / "model.onnx", logits="z", raw_input=True)
    dims = [tuple(tensor.dims) for tensor in onnx.load(report.output).graph.initializer]
    assert dims.count((60, 60)) == 1
    assert report.kept == ("dial",)


def test_no_path_of_this_machine_in_the_file(alex: Any) -> None:
    report, _, _ = alex
    data = report.output.read_bytes()
    for path in (REPOSITORY, Path(torch.__file__).parent, report.output.parent, Path.home()):
        assert str(path).encode() not in data
    assert b".py" not in data
    assert b"stack_trace" not in data


def test_the_file_is_all_that_is_written(alex: Any) -> None:
    report, _, _ = alex
    assert {path.suffix for path in report.output.parent.iterdir()} == {".png", ".txt", ".onnx"}


def test_keep_affine_leaves_mul_and_add(alex: Any, tmp_path: Path) -> None:
    report, weights, images = alex
    net = parse_net(ALEX)
    for layer in net.layer:
        if layer.type == "ImageData":
            layer.image_data_param.new_height, layer.image_data_param.new_width = HEIGHT, WIDTH
    kept = export(net, weights, tmp_path / "kept.onnx", keep_affine=True, base_dir=tmp_path)
    assert kept.kept == ("dial", "fc-dial")
    assert kept.merged == {"sc": "dial"}
    for op in ("Mul", "Add"):
        assert ops(kept.output).count(op) == ops(report.output).count(op) + 2
    ours, theirs = (session(path).run(["logits"], {"image": images})[0] for path in (kept.output, report.output))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.ptp(theirs))
    assert "random images" in kept.compared_on and "test.txt" in kept.compared_on
    assert kept.metadata["classes"] == ["0", "1", "2", "3"]


def test_raw_input_takes_the_blob_behind_the_crop(alex: Any, tmp_path: Path) -> None:
    report, weights, images = alex
    raw = export(parse_net(ALEX), weights, tmp_path / "raw.onnx", raw_input=True, base_dir=report.output.parent)
    loaded = session(raw.output)
    (put,) = loaded.get_inputs()
    assert (put.name, put.type, put.shape) == ("data", "tensor(float)", ["batch", 3, 21, 19])
    blob = (images.astype(np.float32) - np.float32([104, 117, 123])).transpose(0, 3, 1, 2)[:, :, 2:23, 3:22]
    expected = alex_by_torch(weights, images)
    np.testing.assert_allclose(
        loaded.run(["logits"], {"data": blob})[0], expected, rtol=0, atol=1e-5 * np.ptp(expected)
    )
    assert raw.metadata["raw_input"] is True
    assert raw.metadata["size"] is None
    assert raw.input == "data"


def test_grey_images_crop_mean_file_and_scale(tmp_path: Path) -> None:
    mean = np.random.default_rng(1).uniform(0, 255, (1, 1, 11, 14)).astype(np.float32)
    blob = pb.BlobProto(data=mean.ravel())
    blob.shape.dim.extend(mean.shape)
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    options = 'crop_size: 8 scale: 0.00390625 mean_file: "mean.binaryproto"'
    net = parse_net(IMAGES.replace("OPTIONS", options).replace("MORE", "is_color: false"))
    weights = random_weights(net)
    report = export(net, weights, tmp_path / "grey.onnx", base_dir=tmp_path)

    images = random_images(3, 11, 14, 1)
    cropped = (images[:, 1:9, 3:11, 0].astype(np.float64) - mean[0, 0, 1:9, 3:11]) / 256
    weight, bias = blobs_of(weights, "fc")
    expected = cropped.reshape(3, 64) @ weight.T.astype(np.float64) + bias
    got = session(report.output).run(["logits"], {"image": images})[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.ptp(expected))
    expected_metadata = {
        "mean": "mean_file",
        "scale": 1 / 256,
        "crop": [8, 8],
        "size": [11, 14],
        "channel_order": "GRAY",
    }
    assert {key: report.metadata[key] for key in expected_metadata} == expected_metadata
    assert report.metadata["statistics"] is None


def test_size_of_a_net_without_new_height_is_that_of_its_training_images(tmp_path: Path) -> None:
    write_list(tmp_path, "train.txt", random_images(1, HEIGHT, WIDTH))
    net = parse_net(ALEX)
    report = export(net, random_weights(net), tmp_path / "model.onnx", base_dir=tmp_path)
    assert report.metadata["size"] == [HEIGHT, WIDTH]


@pytest.mark.parametrize(
    "name",
    [
        "pool_max_3s2_even",
        "pool_max_pad_clip",
        "pool_max_k2s3",
        "pool_ave_3s2_even",
        "pool_ave_pad_clip",
        "pool_ave_rect",
    ],
)
def test_pooling_of_the_original_survives_onnx(name: str, tmp_path: Path) -> None:
    record = np.load(RECORDS / "layers" / f"{name}.npz")
    net = parse_net(f"{record['prototxt']}\nlayer {{ name: 'flat' type: 'Flatten' bottom: 'y' top: 'flat' }}")
    report = export(net, Weights("none"), tmp_path / "pool.onnx", logits="flat", raw_input=True)
    got = session(report.output).run(["logits"], {"x": record["in/x"]})[0]
    np.testing.assert_allclose(got, record["out/y"].reshape(got.shape), rtol=1e-6, atol=1e-6)


def test_logits_of_one_by_one_pixel_are_flattened(tmp_path: Path) -> None:
    net = parse_net(
        DEPLOY.replace('"InnerProduct"', '"Convolution"').replace(
            "inner_product_param {", "convolution_param { kernel_size: 8"
        )
    )
    weights = random_weights(net)
    report = export(net, weights, tmp_path / "model.onnx", raw_input=True)
    x = np.random.default_rng(2).standard_normal((4, 3, 8, 8)).astype(np.float32)
    weight, bias = blobs_of(weights, "fc")
    expected = x.reshape(4, -1).astype(np.float64) @ weight.reshape(3, -1).T + bias
    np.testing.assert_allclose(session(report.output).run(["logits"], {"x": x})[0], expected, atol=1e-5)


@pytest.fixture
def deploy() -> tuple[Any, Weights]:
    net = parse_net(DEPLOY)
    return net, random_weights(net)


def test_weights_hash_depends_on_names_and_values(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    assert export(net, weights, tmp_path / "a.onnx", raw_input=True).metadata["weights_sha256"] == weights_digest(
        weights
    )
    assert weights_digest(random_weights(net)) == weights_digest(weights)
    assert weights_digest(random_weights(net, seed=1)) != weights_digest(weights)
    renamed = random_weights(net)
    renamed.layers[1].param.name = "other"
    assert weights_digest(renamed) != weights_digest(weights)


def test_a_wrong_file_is_not_written(
    deploy: tuple[Any, Weights], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, weights = deploy
    output = tmp_path / "model.onnx"
    output.write_text("what was there")
    right = net_export.fold

    def wrong(*args: Any, **kwargs: Any) -> Any:
        folded = right(*args, **kwargs)
        weight, bias = folded.blobs["fc"]
        return replace(folded, blobs={"fc": [weight * np.float32(1.001), bias]})

    monkeypatch.setattr(net_export, "fold", wrong)
    with pytest.raises(WorkError, match=r"nothing was written: ONNX Runtime's logits differ .* more than 0\.0001"):
        export(net, weights, output, raw_input=True)
    assert output.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [output]


def test_weights_that_are_not_finite_are_refused(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    blobs_of(weights, "fc")[0][0, 0] = np.nan
    with pytest.raises(WorkError, match="not finite"):
        export(net, weights, tmp_path / "model.onnx", raw_input=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("names", "beside", "classes", "note"),
    [
        (None, "a\nb\nc\n", ["a", "b", "c"], "the classes' names are those of .*labels.txt"),
        (None, "a\nb\na\n", ["a_0", "b", "a_2"], r'labels.txt gives several classes one name, .*: "a" \(a_0, a_2\)'),
        (None, "a\nb\n", ["0", "1", "2"], "labels.txt has 2 names for 3 classes"),
        (None, None, ["0", "1", "2"], "`labels` gives them names"),
        ("x y\n\u00e9\nz\n\n", "a\nb\nc\n", ["x y", "\u00e9", "z"], None),
    ],
)
def test_class_names(
    tmp_path: Path, names: str | None, beside: str | None, classes: list[str], note: str | None
) -> None:
    labels = None
    if names is not None:
        labels = tmp_path / "names.txt"
        labels.write_text(names, encoding="utf-8")
    if beside is not None:
        (tmp_path / "labels.txt").write_text(beside)
    got, notes = read_class_names(labels, 3, tmp_path)
    assert got == classes
    if note is None:
        assert not notes
    else:
        assert re.search(note, "; ".join(notes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\n", "names 2 classes and the logits have 3"),
        ("a\n\nb\n", r"names.txt:2: the line is blank"),
        ("", "no classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, text: str, message: str) -> None:
    labels = tmp_path / "names.txt"
    labels.write_text(text)
    with pytest.raises(InputError, match=message):
        read_class_names(labels, 3, None)


def images_net(options: str = "", more: str = "new_height: 9 new_width: 9") -> Any:
    return parse_net(IMAGES.replace("OPTIONS", options).replace("MORE", more))


def statistics_never_stored() -> tuple[Any, Weights]:
    net = parse_net(ALEX.replace('"test.txt"', f'"test.txt" new_height: {HEIGHT} new_width: {WIDTH}'))
    weights = random_weights(net)
    blobs_of(weights, "fc-dial")[3][:] = 0
    return net, weights


def weights_without_a_layer() -> tuple[Any, Weights]:
    net = images_net()
    weights = random_weights(net, 9, 9)
    return net, Weights("", [layer for layer in weights.layers if layer.name != "fc"])


def weights_of_another_shape() -> tuple[Any, Weights]:
    return images_net(), random_weights(images_net(), 5, 5)


def batch_statistics() -> tuple[Any, Weights]:
    text = ALEX.replace('top: "fc" dial_param {', 'top: "fc" dial_param { use_global_stats: false')
    return parse_net(text), Weights("")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(statistics_never_stored, r'layer "fc-dial" \(Dial\): no statistics', id="never stored"),
        pytest.param(batch_statistics, r'layer "fc-dial" \(Dial\) has use_global_stats: false', id="batch statistics"),
        pytest.param(weights_without_a_layer, "nothing for layer fc", id="a layer without weights"),
        pytest.param(weights_of_another_shape, 'layer "fc", blob 0', id="weights of another shape"),
        pytest.param(
            lambda: (images_net(more=""), Weights("")),
            r'layer "images" .*size of its images is not known.*new_width in image_.*list.txt" does not exist',
            id="no size",
        ),
        pytest.param(
            lambda: (images_net("crop_size: 10"), Weights("")), r'layer "images" .*smaller than crop_size 10', id="crop"
        ),
        pytest.param(lambda: (parse_net(DEPLOY), Weights("")), r'layer "x" \(Input\).*`raw_input`', id="Input layer"),
        pytest.param(
            lambda: (
                parse_net(
                    IMAGES.replace("ImageData", "Data")
                    .replace("image_data_param { source", "data_param { source")
                    .replace("OPTIONS", "")
                    .replace("MORE", "")
                ),
                Weights(""),
            ),
            r'layer "images" \(Data\): export takes images',
            id="another data layer",
        ),
    ],
)
def test_refused(make: Callable[[], tuple[Any, Weights]], message: str, tmp_path: Path) -> None:
    net, weights = make()
    with pytest.raises(InputError, match=message):
        export(net, weights, tmp_path / "model.onnx", base_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            'name: "mine" type: "Python" bottom: "x" top: "y" python_param { module: "not_there" layer: "Mine" }',
            r'layer "mine" \(Python\) can.t be exported',
        ),
        ('name: "best" type: "ArgMax" bottom: "x" top: "y"', r'layer "best" \(ArgMax\) can.t be exported'),
        (
            'name: "noise" type: "DummyData" top: "y" dummy_data_param { shape {} data_filler { type: "uniform" } }',
            r'layer "noise" \(DummyData\) can.t be exported.*data_filler',
        ),
        (
            'name: "drop" type: "Dropout" bottom: "x" top: "y" phase: TRAIN',
            r'layer "drop" \(Dropout\) has phase: TRAIN',
        ),
    ],
)
def test_layer_that_no_file_can_hold_is_refused_before_the_net_is_built(
    layer: str, message: str, tmp_path: Path
) -> None:
    net = parse_net(DEPLOY.replace('bottom: "x" top: "fc"', 'bottom: "y" top: "fc"'))
    net.layer.insert(1, parse_net(f"layer {{ {layer} }}").layer[0])
    with pytest.raises(InputError, match=message):
        export(net, Weights(""), tmp_path / "model.onnx", raw_input=True)


HUGE = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 420 dim: 420 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: %d } }
layer { name: "scores" type: "InnerProduct" bottom: "fc" top: "scores" inner_product_param { num_output: 2 } }
layer { name: "other" type: "InnerProduct" bottom: "data" top: "other" inner_product_param { num_output: 2000 } }
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" }
"""


@pytest.mark.parametrize(
    ("place", "precision", "limit"),
    [
        (OnnxFile, "fp16", "fp16 is made of one float32 ONNX file, which holds at most 2 GiB"),
        (OnnxFile, "int8", "int8 is made of one float32 ONNX file, which holds at most 2 GiB"),
        (lambda path: TritonModel(path, "huge"), "float32", "one ONNX file holds at most 2 GiB"),
        (CaffeFolder, "float32", "a caffemodel holds at most 2 GiB"),
    ],
)
def test_weights_that_no_file_can_hold_are_refused_before_the_net_is_built(
    place: Callable[[Path], Destination], precision: Any, limit: str, tmp_path: Path
) -> None:
    def rows(count: int) -> Any:
        return np.broadcast_to(np.float32(0), (count, 3 * 420 * 420))  # of no memory

    net = parse_net(HUGE % 1015)
    fc, scores, other = (pb.LayerParameter(name=name) for name in ("fc", "scores", "other"))
    blobs = [LayerWeights(fc, [rows(1015)]), LayerWeights(scores, []), LayerWeights(other, [rows(2000)])]
    raw = place is not CaffeFolder
    with pytest.raises(InputError, match=rf'the weights take 2\.00 GiB, 2\.00 of them for layer "fc", and {limit}'):
        export(net, Weights("huge", blobs), place(tmp_path / "model.onnx"), raw_input=raw, precision=precision)
    assert not list(tmp_path.iterdir())
    # what the logits don't need does not count
    with pytest.raises(InputError, match="nothing for layer scores in the weights; these are another net's weights"):
        small = parse_net(HUGE % 1)
        blobs = [LayerWeights(fc, [rows(1), np.zeros(1, np.float32)]), LayerWeights(other, [rows(2000)])]
        export(small, Weights("small", blobs), tmp_path / "model.onnx", raw_input=True)


def write_alex(folder: Path) -> tuple[pb.NetParameter, Any]:
    """The small AlexNet, whose TEST list has five images in a folder; the images."""
    images = random_images(5, HEIGHT, WIDTH)
    write_list(folder, "test.txt", images)
    return parse_net(ALEX), images


def test_weights_beyond_two_gigabytes_get_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, images = write_alex(tmp_path)
    weights, out = random_weights(net), tmp_path / "out"
    out.mkdir()
    whole = export(net, weights, tmp_path / "whole.onnx", base_dir=tmp_path)
    monkeypatch.setattr(prepared, "LARGEST", 2000)
    report = export(net, weights, out / "model.onnx", base_dir=tmp_path, license="MIT")
    assert report.files == {path.name: path.stat().st_size for path in out.iterdir()}
    assert list(report.files) == ["model.onnx", "model.onnx.data"]
    assert report.max_difference == whole.max_difference
    assert report.metadata == whole.metadata
    assert any("model.onnx.data" in note and "keep both files" in note for note in report.notes)
    assert report.record()["files"] == report.files
    assert "model.onnx, model.onnx.data: " in describe(report)
    write_card(report, tmp_path / "README.md", [None])
    assert "| Weights | model.onnx.data, " in (tmp_path / "README.md").read_text()

    moved = tmp_path / "elsewhere"
    out.rename(moved)
    model = onnx.load(moved / "model.onnx", load_external_data=False)
    apart = [tensor for tensor in model.graph.initializer if tensor.external_data]
    assert [tuple(tensor.dims) for tensor in apart] == [(6, 3, 5, 5), (4, 96)]  # those above a kilobyte
    digest = hashlib.sha1((moved / "model.onnx.data").read_bytes()).hexdigest()
    assert [ExternalDataInfo(tensor).checksum for tensor in apart] == [digest, digest]
    assert {entry.key: entry.value for entry in model.metadata_props}[LICENSE] == "MIT"
    predictor = Predictor(moved / "model.onnx", device="cpu")
    assert predictor.info == replace(Predictor(whole.output, device="cpu").info, license="MIT")
    expected = alex_by_torch(weights, images)
    np.testing.assert_allclose(predictor.run(images)[0], expected, rtol=0, atol=1e-5 * np.ptp(expected))


def test_an_ensemble_may_be_larger_than_any_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, images = write_alex(tmp_path)
    members = [random_weights(net, seed=seed) for seed in (0, 1)]
    monkeypatch.setattr(prepared, "LARGEST", 4000)  # each has 3,388 bytes of weights
    assert len(export(net, members[0], tmp_path / "one.onnx", base_dir=tmp_path).files) == 1
    report = export(net, members, tmp_path / "both.onnx", base_dir=tmp_path)
    assert list(report.files) == ["both.onnx", "both.onnx.data"]
    probabilities = [torch.tensor(alex_by_torch(one, images)).softmax(1).numpy() for one in members]
    (got,) = session(report.output).run(["probabilities"], {"image": images})
    np.testing.assert_allclose(got, np.mean(probabilities, axis=0), atol=1e-5)


@pytest.mark.parametrize("other", [False, True])
def test_a_smaller_model_leaves_no_weights_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool) -> None:
    """But a file that was not written with the model stays."""
    net, _ = write_alex(tmp_path)
    weights, path, second = random_weights(net), tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "LARGEST", 2000)
        export(net, weights, path, base_dir=tmp_path)
    assert second.exists()
    if other:
        second.write_bytes(second.read_bytes()[::-1])
    export(net, weights, path, base_dir=tmp_path)
    assert second.exists() == other
    assert not onnx.load(path, load_external_data=False).graph.initializer[0].external_data


def test_a_large_file_that_differs_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = write_alex(tmp_path)
    weights = random_weights(net)
    monkeypatch.setattr(prepared, "LARGEST", 2000)
    export(net, weights, tmp_path / "model.onnx", base_dir=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def damaged(constants: Any, path: Path) -> Any:
        made = write_weights(constants, path)
        path.write_bytes(bytes(path.stat().st_size))
        return made

    monkeypatch.setattr(onnx_file, "write_weights", damaged)
    with pytest.raises(WorkError, match="nothing was written: ONNX Runtime's logits differ from the unfolded net's"):
        export(net, weights, tmp_path / "model.onnx", base_dir=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_layer_that_no_file_can_hold_does_no_harm_where_the_logits_need_it_not(tmp_path: Path) -> None:
    net = parse_net(DEPLOY + 'layer { name: "best" type: "ArgMax" bottom: "prob" top: "best" }')
    weights = random_weights(net)
    assert export(net, weights, tmp_path / "model.onnx", raw_input=True).relative_difference < 1e-5


def test_learned_blob_of_a_parameter_layer_is_exported(tmp_path: Path) -> None:
    net = parse_net(DEPLOY.replace('bottom: "x" top: "fc"', 'bottom: "y" top: "fc"'))
    more = parse_net(
        'layer { name: "weight" type: "Parameter" top: "w" parameter_param { shape { dim: 3 } } }'
        'layer { name: "weighted" type: "Scale" bottom: "x" bottom: "w" top: "y" }'
    )
    for i, layer in enumerate(more.layer):
        net.layer.insert(1 + i, layer)
    weights = random_weights(net)
    path = tmp_path / "model.onnx"
    export(net, weights, path, raw_input=True)
    (factors,), (matrix, bias) = blobs_of(weights, "weight"), blobs_of(weights, "fc")
    x = np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32)
    (logits,) = session(path).run(["logits"], {"x": x})
    expected = (x * factors[:, None, None]).reshape(4, -1) @ matrix.T + bias
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_blob_that_is_no_row_of_scores_is_refused(tmp_path: Path) -> None:
    net = parse_net(ALEX.replace('"test.txt"', f'"test.txt" new_height: {HEIGHT} new_width: {WIDTH}'))
    with pytest.raises(InputError, match=r'"pool" of shape \(1, 6, 4, 4\) can.t be logits'):
        export(net, random_weights(net), tmp_path / "model.onnx", logits="pool", base_dir=tmp_path)


def test_an_output_without_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        export(parse_net(DEPLOY), Weights(""), tmp_path / "missing" / "model.onnx", raw_input=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dials", "crop"), [("alexnet", 3, 227), ("inception", 69, 224)])
def test_released_nets(name: str, dials: int, crop: int, tmp_path: Path) -> None:
    net = read_net(shared(f"reference/autodial/{name}_train_val.prototxt"))
    for layer in net.layer:
        if layer.type == "ImageData":
            layer.image_data_param.new_height = layer.image_data_param.new_width = 256
    report = export(net, random_weights(net, 256, 256), tmp_path / "model.onnx", base_dir=tmp_path)
    assert report.relative_difference < 1e-5
    assert report.metadata["size"] == [256, 256]
    assert report.metadata["crop"] == [crop, crop]
    assert report.metadata["statistics"] == "target"
    assert report.kept == ()
    assert sum(layer.type == "Dial" for layer in net.layer) == dials
    assert len(report.merged) == 2 * dials

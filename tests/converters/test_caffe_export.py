"""What `autodial export --caffe` writes, against torch's own functions and against foreign readers of Caffe files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from environments import environment
from image_nets import with_inputs

from autodial.converters import net_export
from autodial.converters.destinations.caffe import CaffeFolder
from autodial.converters.net_export import export
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.netparam.overrides import apply_to_nets
from autodial.netparam.shipped import shipped_net
from autodial.netparam.variants import read_variant
from autodial.proto import LayerWeights, Weights, parse_net, read_blob, read_net, read_weights, write_weights
from autodial.proto import messages as pb

Autodial = Callable[..., tuple[int, str, str]]

# fmt: off
BVLC = {
    "AbsVal", "ArgMax", "BNLL", "Bias", "Concat", "Convolution", "Crop", "Deconvolution", "DummyData", "ELU", "Eltwise",
    "Embed", "Exp", "Flatten", "InnerProduct", "Input", "LRN", "Log", "MVN", "PReLU", "Parameter", "Pooling", "Power",
    "ReLU", "Reduction", "Reshape", "Scale", "Sigmoid", "Slice", "Softmax", "Split", "TanH", "Threshold", "Tile",
}
"""Layers of BVLC Caffe that an exported net may hold."""
# fmt: on

# The images are cut twice, and not in the middle. One Dial layer can't go into the layer before it.
NET = """
name: "small"
force_backward: true
layer { name: "train" type: "ImageData" top: "data" top: "labels" include { phase: TRAIN }
  image_data_param { source: "train.txt" batch_size: 4 } }
layer { name: "data-test" type: "ImageData" top: "data-test" top: "labels" include { phase: TEST }
  transform_param { mirror: true crop_size: 22 scale: 0.0125 mean_value: 104 mean_value: 117.5 mean_value: 123 }
  image_data_param { source: "test.txt" batch_size: 4 new_height: 26 new_width: 31 } }
layer { name: "reference" type: "DummyData" top: "reference" include { phase: TEST }
  dummy_data_param { shape { dim: 1 dim: 1 dim: 18 dim: 17 } } }
layer { name: "crop" type: "Crop" bottom: "data-test" bottom: "reference" top: "data" include { phase: TEST }
  crop_param { offset: 3 offset: 0 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 0 } phase: TEST
  dial_param { slice_point: 3 }
  convolution_param { num_output: 6 group: 3 kernel_size: 5 stride: 2 bias_term: false engine: CUDNN
    weight_filler { type: "xavier" } } }
layer { name: "dial" type: "Dial" bottom: "conv" top: "conv" dial_param { slice_point: 2 } }
layer { name: "sc" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "late" type: "Dial" bottom: "pool" top: "late" dial_param { slice_point: 2 } }
layer { name: "drop" type: "Dropout" bottom: "late" top: "late" }
layer { name: "fc" type: "InnerProduct" bottom: "late" top: "scores" inner_product_param { num_output: 4 } }
layer { name: "fc-dial" type: "Dial" bottom: "scores" top: "scores" dial_param { slice_point: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "labels" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "scores" bottom: "labels" top: "accuracy" include { phase: TEST } }
"""
HEADER = [
    "# The net of target_predictor.caffemodel, in plain Caffe layers, as `autodial export --caffe` writes it.",
    "# data: float32 (N, 3, 18, 17), an image",
    "# - turned as EXIF says, with transparent pixels laid over white",
    "# - in 8 bits, its channels in the order blue, green, red",
    "# - resized to height 26 and width 31, bilinear without antialiasing (cv2.resize)",
    "# - cut to rows 5 to 22 and columns 4 to 20, from 0 on",
    "# - minus 104 117.5 123",
    "# - times 0.0125",
    "# scores: the logits",
    "# prob: the probabilities of the classes, which labels.txt lists in their order",
]

DEPLOY = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 5 dim: 3 dim: 8 dim: 8 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def random_weights(net: Any, height: int, width: int) -> Weights:
    """Weights of every layer, with statistics of the two domains that 3 passes might have stored."""
    rng = np.random.default_rng(0)
    param = with_inputs(net, height, width)
    layers = []
    for layer, built in zip(param.layer, map(Net(param, pb.TEST).layer, [x.name for x in param.layer]), strict=True):
        blobs = [rng.standard_normal(tuple(blob.shape)).astype(np.float32) for blob in built.blobs]
        if layer.type == "Dial":
            alpha, mean, variance, normalizer = blobs
            blobs = [0 * alpha + 0.8, mean, 1 + 6 * variance**2, 0 * normalizer + 3]
        elif layer.type == "Scale":
            blobs = [1 + 0.1 * blobs[0], *(0.3 * blob for blob in blobs[1:])]
        elif blobs:
            blobs = [blobs[0] * np.float32(np.sqrt(2 / np.prod(blobs[0].shape[1:]))), *blobs[1:]]
        layers.append(LayerWeights(layer, [np.float32(blob) for blob in blobs]))
    return Weights("random", layers)


def blobs_of(weights: Weights, layer: str) -> list[Any]:
    return next(saved.blobs for saved in weights.layers if saved.name == layer)


def random_images(count: int, height: int, width: int, channels: int = 3) -> Any:
    return np.random.default_rng(5).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def by_torch(weights: Weights, images: Any, row: int) -> tuple[Any, Any]:
    """The small net's input blob and its logits for uint8 images, in float64, with one row of the statistics."""

    def dial(x: Any, layer: str) -> Any:
        _, mean, variance, total = (torch.tensor(blob).double() for blob in blobs_of(weights, layer))
        return F.batch_norm(x, mean[row] / total, variance[row] / total, eps=1e-5)

    blob = torch.tensor((images.astype(np.float64) - [104, 117.5, 123]) * 0.0125).permute(0, 3, 1, 2)
    blob = blob[:, :, 2:24, 4:26][:, :, 3:21, 0:17]
    x = dial(F.conv2d(blob, torch.tensor(blobs_of(weights, "conv")[0]).double(), stride=2, groups=3), "dial")
    factor, shift = (torch.tensor(values).double().view(1, -1, 1, 1) for values in blobs_of(weights, "sc"))
    x = dial(F.max_pool2d((x * factor + shift).relu(), 2, 2, ceil_mode=True), "late").flatten(1)
    scores = dial(F.linear(x, *(torch.tensor(values).double() for values in blobs_of(weights, "fc"))), "fc-dial")
    return blob.float().numpy(), scores.numpy()


def read_pair(folder: Path, blob: Any, logits: str) -> list[Any]:
    """Logits and probabilities of a written pair, as our own Net reads it."""
    (file,) = folder.glob("*.caffemodel")
    net = Net(read_net(folder / "deploy.prototxt"), pb.TEST)
    assert net.load_weights(read_weights(file)) == []
    with torch.no_grad():
        tops = net.blobs({net.inputs[0]: torch.from_numpy(blob)}, [logits, "prob"])
    return [tops[name].flatten(1).numpy() for name in (logits, "prob")]


def assert_same(ours: Any, theirs: Any) -> None:
    """(logits, probabilities) equal to logits, and probabilities computed from them."""
    logits, probabilities = ours
    np.testing.assert_allclose(logits, theirs, rtol=0, atol=1e-5 * np.ptp(theirs))
    np.testing.assert_allclose(probabilities, torch.tensor(theirs).softmax(1).numpy(), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def small() -> tuple[Weights, Any]:
    """Weights of the small net, and images."""
    return random_weights(parse_net(NET), 26, 31), random_images(5, 26, 31)


@pytest.mark.parametrize(("domain", "row"), [(None, 1), ("target", 1), ("source", 0)])
def test_the_pair_agrees_with_torch(small: Any, domain: Any, row: int, tmp_path: Path) -> None:
    weights, images = small
    report = export(parse_net(NET), weights, CaffeFolder(tmp_path / "out"), domain=domain, base_dir=tmp_path)
    blob, expected = by_torch(weights, images, row)
    assert_same(read_pair(tmp_path / "out", blob, "scores"), expected)
    name = ("source", "target")[row]
    assert report.metadata["statistics"] == name
    assert (tmp_path / "out" / f"{name}_predictor.caffemodel").is_file()
    assert f"{name} statistics folded in" in (tmp_path / "out" / "deploy.prototxt").read_text()


@pytest.mark.parametrize(
    ("domain", "stated", "row"), [("source", "TARGET", 0), ("target", "SOURCE", 1), (None, "SOURCE", 0)]
)
def test_domain_of_an_onnx_file(small: Any, domain: Any, stated: str, row: int, tmp_path: Path) -> None:
    """What is asked for goes before what the Dial layers say."""
    weights, images = small
    net = parse_net(NET)
    for layer in ("dial", "late", "fc-dial"):
        apply_to_nets([f"{layer}.dial_param.test_stats={stated}"], [net])
    report = export(net, weights, tmp_path / "model.onnx", domain=domain, base_dir=tmp_path)
    assert report.metadata["statistics"] == ("source", "target")[row]
    session = onnxruntime.InferenceSession(str(report.output), providers=["CPUExecutionProvider"])
    assert_same(session.run(["logits", "probabilities"], {"image": images}), by_torch(weights, images, row)[1])


def test_a_net_without_dial_layers_has_no_domain(tmp_path: Path) -> None:
    net = parse_net(DEPLOY)
    with pytest.raises(InputError, match="no Dial layer leads to the logits, so there are no source statistics"):
        export(net, random_weights(net, 0, 0), CaffeFolder(tmp_path / "out"), domain="source")


def test_the_deploy_file_is_plain_caffe_and_says_how_images_are_prepared(small: Any, tmp_path: Path) -> None:
    report = export(parse_net(NET), small[0], CaffeFolder(tmp_path / "out"), base_dir=tmp_path)
    text = (tmp_path / "out" / "deploy.prototxt").read_text()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [comments[0], *comments[2:]] == HEADER
    for word in ("dial_param", "filler", "lr_mult", "phase", "CUDNN", "force_backward", "DummyData", "Dropout"):
        assert word not in text
    net = read_net(tmp_path / "out" / "deploy.prototxt")
    assert [layer.type for layer in net.layer] == [
        "Input", "Convolution", "ReLU", "Pooling", "Scale", "InnerProduct", "Softmax"
    ]  # fmt: skip
    assert (net.name, net.layer[0].name, list(net.layer[0].top)) == ("small", "data", ["data"])
    assert list(net.layer[0].input_param.shape[0].dim) == [1, 3, 18, 17]
    assert (net.layer[-1].name, list(net.layer[-1].bottom), list(net.layer[-1].top)) == ("prob", ["scores"], ["prob"])
    assert report.kept == ("late",)
    saved = read_weights(tmp_path / "out" / "target_predictor.caffemodel")
    assert [layer.type for layer in saved.layers] == [layer.type for layer in net.layer]
    assert all(blob.dtype == np.float32 for layer in saved.layers for blob in layer.blobs)


def test_keep_affine(small: Any, tmp_path: Path) -> None:
    weights, images = small
    report = export(parse_net(NET), weights, CaffeFolder(tmp_path / "out"), keep_affine=True, base_dir=tmp_path)
    assert report.kept == ("dial", "late", "fc-dial") and report.merged == {"sc": "dial"}
    blob, expected = by_torch(weights, images, 1)
    assert_same(read_pair(tmp_path / "out", blob, "scores"), expected)


def test_report(small: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (tmp_path / "labels.txt").write_text("cat\ndog\nowl\nfish\n")
    report = export(parse_net(NET), small[0], CaffeFolder(folder), base_dir=tmp_path)
    assert report.files == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert list(report.files) == ["deploy.prototxt", "labels.txt", "target_predictor.caffemodel"]
    assert report.file_size == sum(report.files.values())
    assert (folder / "labels.txt").read_text() == "cat\ndog\nowl\nfish\n"
    assert (report.opset, report.ir_version, report.input, report.logits) == (None, None, "data", "scores")
    assert 0 < report.relative_difference < 1e-5
    prepared = {"size": [26, 31], "crop": [18, 17], "mean": [104, 117.5, 123], "channel_order": "BGR"}
    assert {key: report.metadata[key] for key in prepared} == prepared
    assert report.metadata["raw_input"] is True
    assert any("rows 5 to 22 and columns 4 to 20" in note for note in report.notes)
    assert json.loads(json.dumps(report.record()))["files"] == report.files


def test_a_mean_image_comes_along(tmp_path: Path) -> None:
    mean = np.random.default_rng(1).uniform(0, 255, (1, 1, 11, 14)).astype(np.float32)
    message = pb.BlobProto(data=mean.ravel())
    message.shape.dim.extend(mean.shape)
    (tmp_path / "grey.binaryproto").write_bytes(message.SerializeToString())
    net = parse_net("""
        layer { name: "images" type: "ImageData" top: "data" top: "labels"
          transform_param { crop_size: 8 scale: 0.00390625 mean_file: "grey.binaryproto" }
          image_data_param { source: "list.txt" is_color: false } }
        layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "labels" top: "loss" }
    """)
    weights = random_weights(net, 11, 14)
    export(net, weights, CaffeFolder(tmp_path / "out"), base_dir=tmp_path)
    comments = (tmp_path / "out" / "deploy.prototxt").read_text()
    for phrase in ("in 8 bits, grey", "rows 1 to 8 and columns 3 to 10", "minus mean.binaryproto there", "0.00390625"):
        assert phrase in comments
    images = random_images(3, 11, 14, 1)
    given = read_blob(tmp_path / "out" / "mean.binaryproto")
    blob = (images.transpose(0, 3, 1, 2) - given)[:, :, 1:9, 3:11] * np.float32(1 / 256)
    weight, bias = blobs_of(weights, "fc")
    pixels = (images[..., 0].astype(np.float64) - mean[0, 0])[:, 1:9, 3:11] / 256
    assert_same(read_pair(tmp_path / "out", blob, "fc"), pixels.reshape(3, 64) @ weight.T.astype(np.float64) + bias)


def test_a_deploy_net_says_nothing_about_images(tmp_path: Path) -> None:
    net = parse_net(DEPLOY)
    weights = random_weights(net, 0, 0)
    report = export(net, weights, CaffeFolder(tmp_path / "out"))
    x = np.random.default_rng(2).standard_normal((3, 3, 8, 8)).astype(np.float32)
    weight, bias = blobs_of(weights, "fc")
    assert_same(read_pair(tmp_path / "out", x, "fc"), x.reshape(3, -1) @ weight.T + bias)
    assert "# x: float32 (N, 3, 8, 8); the net, having an Input layer" in (tmp_path / "out/deploy.prototxt").read_text()
    assert report.metadata["size"] is None and "image" not in "".join(report.notes)


def test_a_transposed_inner_product_is_written_as_others_are(tmp_path: Path) -> None:
    net = parse_net(DEPLOY.replace("num_output: 3", "num_output: 3 transpose: true"))
    weights = random_weights(net, 0, 0)
    export(net, weights, CaffeFolder(tmp_path / "out"))
    assert "transpose: true" not in (tmp_path / "out" / "deploy.prototxt").read_text()
    x = np.random.default_rng(2).standard_normal((3, 3, 8, 8)).astype(np.float32)
    weight, bias = blobs_of(weights, "fc")
    assert weight.shape == (192, 3)
    assert_same(read_pair(tmp_path / "out", x, "fc"), x.reshape(3, -1) @ weight + bias)


def test_a_layer_called_prob_keeps_its_name(tmp_path: Path) -> None:
    net = parse_net(
        DEPLOY.replace('"fc"', '"prob"').replace(
            'name: "prob" type: "Softmax" bottom: "prob" top: "prob"',
            'name: "end" type: "Softmax" bottom: "prob" top: "end"',
        )
    )
    export(net, random_weights(net, 0, 0), CaffeFolder(tmp_path / "out"))
    end = read_net(tmp_path / "out" / "deploy.prototxt").layer[-1]
    assert (end.name, list(end.bottom), list(end.top)) == ("prob_", ["prob"], ["prob_"])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            'bottom: "fc" type: "Python" python_param { module: "m" layer: "L" }',
            r'layer "odd" \(Python\) can.t be exported',
        ),
        (
            'type: "DummyData" dummy_data_param { shape { dim: 1 dim: 3 } data_filler { type: "uniform" } }',
            r'layer "odd" \(DummyData\) can.t be exported.*draws new numbers',
        ),
    ],
)
def test_what_no_plain_caffe_file_can_hold(layer: str, message: str, tmp_path: Path) -> None:
    text = f"""
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 5 dim: 3 dim: 8 dim: 8 }} }} }}
        layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param {{ num_output: 3 }} }}
        layer {{ name: "odd" top: "odd" {layer} }}
        layer {{ name: "sum" type: "Eltwise" bottom: "fc" bottom: "odd" top: "sum" }}
        layer {{ name: "prob" type: "Softmax" bottom: "sum" top: "prob" }}
    """
    with pytest.raises(InputError, match=message):
        export(parse_net(text), Weights(""), CaffeFolder(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_layers_that_bvlc_caffe_has_stay(tmp_path: Path) -> None:
    """A Crop that does not belong to the images, and constants for it."""
    net = parse_net("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
        layer { name: "conv" type: "Convolution" bottom: "x" top: "y"
          convolution_param { num_output: 2 kernel_size: 3 } }
        layer { name: "like" type: "DummyData" top: "like" dummy_data_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
        layer { name: "crop" type: "Crop" bottom: "y" bottom: "like" top: "z" crop_param { offset: 1 } }
        layer { name: "fc" type: "InnerProduct" bottom: "z" top: "fc" inner_product_param { num_output: 3 } }
        layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
    """)
    weights = random_weights(net, 0, 0)
    export(net, weights, CaffeFolder(tmp_path / "out"))
    x = np.random.default_rng(2).standard_normal((3, 3, 8, 8)).astype(np.float32)
    y = F.conv2d(torch.tensor(x), *map(torch.tensor, blobs_of(weights, "conv")))[:, :, 1:5, 1:5].flatten(1)
    expected = F.linear(y, *map(torch.tensor, blobs_of(weights, "fc"))).numpy()
    assert_same(read_pair(tmp_path / "out", x, "fc"), expected)


# Where the files go


@pytest.fixture
def project(tmp_path: Path, small: Any) -> Path:
    """A folder with the small net, its weights and its labels."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "net.prototxt").write_text(NET)
    (folder / "labels.txt").write_text("cat\ndog\nowl\nfish\n")
    write_weights(small[0], folder / "w.caffemodel")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def given(project: Path) -> list[str | Path]:
    return ["export", "--net", project / "net.prototxt", "--weights", project / "w.caffemodel"]


def test_command(project: Path, tmp_path: Path, autodial: Autodial) -> None:
    status, out, err = autodial(*given(project), "--caffe", tmp_path / "out")
    assert (status, err) == (0, "")
    size = (tmp_path / "out" / "target_predictor.caffemodel").stat().st_size
    for part in (
        'takes blob "data" and scores 4 classes, with the target\'s statistics',
        f"target_predictor.caffemodel ({size / 1024:.1f} KiB)",
    ):
        assert part in out
    status, out, _ = autodial(*given(project), "--caffe", tmp_path / "out", "--json")  # once more, over the first
    report = json.loads(out)
    assert status == 0 and report["output"] == str(tmp_path / "out")
    assert report["files"] == {name: len(data) for name, data in files(tmp_path / "out").items()}
    assert report["opset"] is report["ir_version"] is None
    assert 0 < report["relative_difference"] < report["tolerance"]


def test_an_older_export_is_replaced_and_other_files_stay(project: Path, tmp_path: Path, autodial: Autodial) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert autodial(*given(project), "--caffe", folder)[0] == 0
    before = files(folder)
    assert autodial(*given(project), "--caffe", folder, "--keep-affine")[0] == 0
    after = files(folder)
    assert after.keys() == before.keys() and after["notes.txt"] == b"mine"
    assert all(after[name] != before[name] for name in ("deploy.prototxt", "target_predictor.caffemodel"))


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_killed_anywhere_it_runs_again(
    project: Path, tmp_path: Path, autodial: Autodial, killed: Callable[..., bool]
) -> None:
    folder = tmp_path / "out"
    assert autodial(*given(project), "--caffe", folder, "--keep-affine")[0] == 0
    earlier = files(folder)
    whole = tmp_path / "whole"
    assert autodial(*given(project), "--caffe", whole)[0] == 0
    moves = 0
    while killed(moves, *given(project), "--caffe", folder):
        left = files(folder)
        assert "deploy.prototxt" not in left or {name: left[name] for name in earlier} == earlier
        status, _, err = autodial(*given(project), "--caffe", folder)
        assert (status, err) == (0, "")
        assert files(folder) == files(whole)
        for name, data in earlier.items():
            (folder / name).write_bytes(data)
        moves += 1
    assert moves == 6 and files(folder) == files(whole)


@pytest.mark.parametrize("name", ["deploy.prototxt", "target_predictor.caffemodel", "labels.txt"])
def test_files_of_others_are_not_written_over(project: Path, tmp_path: Path, autodial: Autodial, name: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("# something else")
    status, _, err = autodial(*given(project), "--caffe", folder)
    assert status == 2 and f"{folder / name} exists, and is not of an earlier export" in err
    assert files(folder) == {name: b"# something else"}


def test_the_other_domain_goes_to_another_folder(project: Path, tmp_path: Path, autodial: Autodial) -> None:
    folder = tmp_path / "out"
    assert autodial(*given(project), "--caffe", folder)[0] == 0
    before = files(folder)
    status, _, err = autodial(*given(project), "--caffe", folder, "--domain", "source")
    assert status == 2 and "not of an earlier export of source_predictor.caffemodel: name another folder" in err
    assert files(folder) == before


def test_places_that_can_not_be(project: Path, tmp_path: Path, autodial: Autodial) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = files(tmp_path)
    for folder, message in (
        (project / "net.prototxt", "net.prototxt is not a folder"),
        (tmp_path / "link", "link is not a folder"),
        (tmp_path / "no" / "out", f"there is no folder {tmp_path / 'no'}"),
        (project, "labels.txt: the same command reads this file"),
    ):
        status, out, err = autodial(*given(project), "--caffe", folder)
        assert (status, out) == (2, "") and message in err
    assert files(tmp_path) == before


@pytest.mark.parametrize("more", [["-o", "model.onnx"], ["--raw-input"]])
def test_what_does_not_go_together(project: Path, tmp_path: Path, autodial: Autodial, more: list[str]) -> None:
    status, _, err = autodial(*given(project), "--caffe", tmp_path / "out", *more)
    assert status == 2 and more[0] in err and "leave" in err
    assert not (tmp_path / "out").exists()


def test_a_wrong_pair_is_not_written(
    project: Path, tmp_path: Path, autodial: Autodial, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    assert autodial(*given(project), "--caffe", folder)[0] == 0
    before = files(tmp_path)
    right = net_export.prepare

    def wrong(*arguments: Any, **options: Any) -> Any:
        net = right(*arguments, **options)
        folded = net.caffe.folded
        blobs = {name: [blob * np.float32(1.001) for blob in blobs] for name, blobs in folded.blobs.items()}
        return replace(net, caffe=replace(net.caffe, folded=replace(folded, blobs=blobs)))

    monkeypatch.setattr(net_export, "prepare", wrong)
    for place in (folder, tmp_path / "new"):
        status, _, err = autodial(*given(project), "--caffe", place)
        assert status == 1 and "nothing was written: the written net's logits differ from the unfolded net's" in err
    assert files(tmp_path) == before and not (tmp_path / "new").exists()


# The shipped nets

SIZES = {"digits": (20, 1), "svhn_mnist": (32, 3), "alexnet": (256, 3), "inception_bn": (256, 3)}
"""Of the images, with their channels."""
LOGITS = {"digits": "fc4", "svhn_mnist": "fc6", "alexnet": "fc8", "inception_bn": "fc1"}
NARROW = {
    "alexnet": ["fc6.inner_product_param.num_output=64", "fc7.inner_product_param.num_output=64"],
    "svhn_mnist": ["fc4.inner_product_param.num_output=64", "fc5.inner_product_param.num_output=64"],
}
"""Settings for fewer weights: these layers hold nearly all, and caffe2onnx's old protobuf takes minutes over them."""


def prepared(name: str, images: Any) -> Any:
    """What the heads of the prototxts say of images: uint8 (N, H, W, C) to float32 (N, C, h, w)."""
    x = images.transpose(0, 3, 1, 2).astype(np.float32)
    means = np.float32([104, 117, 123]).reshape(1, 3, 1, 1)
    if name == "digits":
        return x * np.float32(1 / 256)
    if name == "svhn_mnist":
        return (x - np.float32(127.5)) * np.float32(0.0078431373)
    side = {"alexnet": slice(14, 241), "inception_bn": slice(16, 240)}[name]
    return np.ascontiguousarray(x[:, :, side, side] - means)


@pytest.fixture(scope="module", params=["digits", "svhn_mnist", "alexnet", "inception_bn", "inception_bn released"])
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Any, Any]:
    """A shipped net's pair in a folder, its logits' name, an input blob, and the logits that the unfolded net gives."""
    name, *variants = request.param.split()
    net = read_variant(shipped_net(name), variants)
    apply_to_nets(NARROW.get(name, ()), [net])
    size, channels = SIZES[name]
    weights = random_weights(net, size, size)
    unfolded = Net(with_inputs(net, size, size), pb.TEST)
    unfolded.load_weights(weights)
    blob = prepared(name, random_images(3, size, size, channels))
    logits = LOGITS[name]
    fed = {"data": torch.from_numpy(blob), "label": torch.zeros(len(blob))}
    last = [layer for layer in weights.layers if layer.top[:1] == [logits] and layer.type != "Dial"][-1]
    with torch.no_grad():
        spread = np.ptp(unfolded.blobs(fed, [logits])[logits].numpy())
        last.blobs = [values * np.float32(8 / spread) for values in last.blobs]  # probabilities that are not 0 and 1
        unfolded.load_weights(weights)
        expected = unfolded.blobs(fed, [logits])[logits].numpy()
    folder = tmp_path_factory.mktemp(name) / "out"
    report = export(net, weights, CaffeFolder(folder))
    assert report.kept == () and report.metadata["statistics"] == "target"
    return folder, logits, blob, expected


def test_our_own_net_reads_the_shipped_nets(shipped: Any) -> None:
    folder, logits, blob, expected = shipped
    assert {layer.type for layer in read_net(folder / "deploy.prototxt").layer} <= BVLC
    assert_same(read_pair(folder, blob, logits), expected)


@pytest.fixture(scope="module")
def opencv4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("environments") / "opencv4", "opencv-python-headless<5")


@pytest.fixture(scope="module")
def caffe2onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.version_info >= (3, 13):
        pytest.skip("the newest onnx that goes with caffe2onnx's protobuf has no wheel for this Python")
    # its own requirement, onnx 1.6.0, has no wheels any more; its generated code needs the protobuf of then
    requirements = ("onnx==1.16.2 protobuf==3.20.3 numpy<2", "--no-deps caffe2onnx==2.0.1")
    return environment(tmp_path_factory.mktemp("environments") / "caffe2onnx", *requirements)


READ_BY_OPENCV = """
import sys
import cv2, numpy as np
deploy, weights, blob, output, *layers = sys.argv[1:]
net = cv2.dnn.readNetFromCaffe(deploy, weights)
net.setInput(np.load(blob), "data")
np.savez(output, *net.forward(layers))
"""


@pytest.mark.network
def test_opencv_reads_the_shipped_nets(shipped: Any, opencv4: Path, tmp_path: Path) -> None:
    folder, logits, blob, expected = shipped
    np.save(tmp_path / "blob.npy", blob)
    # OpenCV calls a blob by the layer that makes it
    layer = [layer.name for layer in read_net(folder / "deploy.prototxt").layer if logits in layer.top][-1]
    paths = [folder / "deploy.prototxt", folder / "target_predictor.caffemodel", tmp_path / "blob.npy"]
    command = [opencv4, "-c", READ_BY_OPENCV, *paths, tmp_path / "out.npz", layer, "prob"]
    subprocess.run(list(map(str, command)), check=True, timeout=300)
    read = np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(read["arr_0"].reshape(expected.shape), expected, rtol=0, atol=1e-4)
    softmax = torch.tensor(expected).softmax(1).numpy()
    np.testing.assert_allclose(read["arr_1"].reshape(expected.shape), softmax, rtol=0, atol=1e-4)


@pytest.mark.network
def test_caffe2onnx_reads_the_shipped_nets(shipped: Any, caffe2onnx: Path, tmp_path: Path) -> None:
    folder, _, blob, expected = shipped
    pair = ["--prototxt", folder / "deploy.prototxt", "--caffemodel", folder / "target_predictor.caffemodel"]
    command = [caffe2onnx, "-m", "caffe2onnx.convert", *pair, "--onnx", tmp_path / "model.onnx"]
    subprocess.run(list(map(str, command)), check=True, timeout=900)
    model = onnx.load(tmp_path / "model.onnx")
    (softmax,) = (node for node in model.graph.node if node.op_type == "Softmax")
    model.graph.output.append(onnx.helper.make_tensor_value_info(softmax.input[0], onnx.TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for row, scores in zip(blob, expected, strict=True):  # its graphs hold the batch size of deploy.prototxt
        logits, probabilities = session.run([softmax.input[0], softmax.output[0]], {"data_input": row[None]})
        np.testing.assert_allclose(logits.ravel(), scores.ravel(), rtol=0, atol=1e-4)
        softmax_ = torch.tensor(scores.ravel()).softmax(0).numpy()
        np.testing.assert_allclose(probabilities.ravel(), softmax_, rtol=0, atol=1e-4)

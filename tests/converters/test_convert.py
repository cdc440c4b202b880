"""`convert`: names, shapes, outputs, what is compared and what is said about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import sklearn.preprocessing
import torch
import torch.nn.functional as F
from caffe_loops import pool, same_size
from detection_loops import detections, proposals, region_anchors, text_proposals
from random_weights import random_weights

from autodial.converters import net_convert, onnx_model
from autodial.converters.crop_offsets import aligned_offsets
from autodial.converters.net_comparison import Empty, NetRunner, compare, describe_difference
from autodial.converters.net_convert import convert
from autodial.converters.onnx_layers import written_types
from autodial.errors import InputError, WorkError
from autodial.layers import registry
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net, write_text, write_weights
from autodial.proto import messages as pb

DEPLOY = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 12 dim: 10 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 bias_term: false } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "dropped" }
layer { name: "up" type: "Deconvolution" bottom: "dropped" top: "up"
  convolution_param { num_output: 2 kernel_size: 4 stride: 2 } }
layer { name: "crop" type: "Crop" bottom: "up" bottom: "data" top: "map" crop_param { axis: 2 offset: 1 } }
layer { name: "prob" type: "Softmax" bottom: "map" top: "prob" }
"""
TRAIN_VAL = """
layer { name: "train" type: "ImageData" top: "data" top: "label" include { phase: TRAIN }
  image_data_param { source: "missing.txt" batch_size: 8 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { crop_size: 8 } image_data_param { source: "missing.txt" batch_size: 8 } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "other" type: "InnerProduct" bottom: "data" top: "other" include { stage: "wide" }
  inner_product_param { num_output: 7 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
NARROW = 'convolution_param { num_output: 20 kernel_size: 8 stride: 8 weight_filler { type: "gaussian" std: 0.0002 } }'
"""Twenty numbers for each square of 8 pixels a side."""
SENSITIVE = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 8 } } }
layer { name: "a" type: "Power" bottom: "x" top: "a" power_param { scale: 1000000 } }
layer { name: "b" type: "Reduction" bottom: "a" top: "y" reduction_param { axis: 1 } }
"""


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def expected(net: Any, weights: Weights, name: str, x: Any) -> Any:
    """What torch gives for DEPLOY."""
    blobs = {layer.name: [torch.from_numpy(blob) for blob in layer.blobs] for layer in weights.layers}
    mean, variance, _ = blobs["bn"]
    y = F.conv2d(torch.from_numpy(x), blobs["conv"][0], padding=1)
    y = F.relu(F.batch_norm(y, mean, variance, *blobs["scale"]))
    pooled = F.max_pool2d(y, 3, 2, ceil_mode=True)
    up = F.conv_transpose2d(pooled, *blobs["up"], stride=2)[:, :, 1 : 1 + x.shape[2], 1 : 1 + x.shape[3]]
    return {"conv": y, "dropped": pooled, "map": up, "prob": up.softmax(1)}[name].numpy()


@pytest.fixture
def deploy() -> tuple[Any, Weights]:
    net = parse_net(DEPLOY)
    return net, random_weights(net)


def test_the_file_computes_what_torch_does_at_any_batch(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.inputs == {"data": (None, 3, 12, 10)} and report.outputs == {"prob": (None, 2, 12, 10)}
    assert report.verified and report.compared["prob"].relative_difference < 1e-5
    assert report.merged == {"bn": "conv", "scale": "conv"}
    for batch in (1, 5):
        x = np.random.default_rng(batch).normal(0, 50, (batch, 3, 12, 10)).astype(np.float32)
        (got,) = session(report.output).run(["prob"], {"data": x})
        np.testing.assert_allclose(got, expected(net, weights, "prob", x), atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "eps"),
    [
        ("slope_filler {} frozen: true eps: 0.01", 0.01),
        ("var_eps: 0.02 moving_average: true", 0.02),
        ("bn_mode: INFERENCE", None),
    ],
    ids=["pspnet", "pull request", "segnet"],
)
def test_bn_of_other_versions_of_caffe_is_folded(fields: str, eps: float | None, tmp_path: Path) -> None:
    bn = f'layer {{ name: "bn" type: "BN" bottom: "conv" top: "n" bn_param {{ {fields} }} }}'
    start = DEPLOY.index('layer { name: "bn"')
    net = parse_net(DEPLOY[:start] + bn + 'layer { name: "abs" type: "AbsVal" bottom: "n" top: "y" }')
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx", outputs=["y"])
    assert report.verified and [node.op_type for node in onnx.load(report.output).graph.node] == ["Conv", "Abs"]
    x = np.random.default_rng(1).normal(0, 50, (2, 3, 12, 10)).astype(np.float32)
    (got,) = session(report.output).run(["y"], {"data": x})
    blobs = {layer.name: [torch.from_numpy(blob) for blob in layer.blobs] for layer in weights.layers}
    slope, bias, *stored = (blob.view(-1) for blob in blobs["bn"])
    mean, variance, eps = (*stored, eps) if eps is not None else (torch.zeros(6), torch.ones(6), 0)
    y = F.batch_norm(F.conv2d(torch.from_numpy(x), blobs["conv"][0], padding=1), mean, variance, slope, bias, eps=eps)
    np.testing.assert_allclose(got, y.abs(), rtol=1e-4, atol=1e-4)


def test_a_scale_layer_behind_bn_may_have_the_name_of_bn_s_own(tmp_path: Path) -> None:
    net = parse_net(DEPLOY.replace('"BatchNorm"', '"BN"').replace('name: "scale"', 'name: "bn-scale"'))
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx", outputs=["conv"])
    assert report.verified
    x = np.random.default_rng(1).normal(0, 50, (2, 3, 12, 10)).astype(np.float32)
    (got,) = session(report.output).run(["conv"], {"data": x})
    blobs = {layer.name: [torch.from_numpy(blob).view(-1) for blob in layer.blobs] for layer in weights.layers}
    slope, bias, mean, variance = blobs["bn"]
    kernel = torch.from_numpy(next(layer.blobs[0] for layer in weights.layers if layer.name == "conv"))
    y = F.batch_norm(F.conv2d(torch.from_numpy(x), kernel, padding=1), mean, variance, slope, bias)
    scale, summand = (row.view(-1, 1, 1) for row in blobs["bn-scale"])
    np.testing.assert_allclose(got, F.relu(y * scale + summand), rtol=1e-4, atol=1e-4)


def test_missing_statistics_of_bn_keep_values_in_bounds(tmp_path: Path) -> None:
    block = """
      layer {{ name: "conv{0}" type: "Convolution" bottom: "{1}" top: "y{0}"
        convolution_param {{ num_output: 3 kernel_size: 1 weight_filler {{ type: "msra" }} }} }}
      layer {{ name: "bn{0}" type: "BN" bottom: "y{0}" top: "y{0}" bn_param {{ slope_filler {{ value: 1 }} }} }}
    """
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }'
    text += "".join(block.format(i, f"y{i - 1}" if i else "x") for i in range(20))
    report = convert(parse_net(text), None, tmp_path / "net.onnx", samples={"x": np.ones((2, 3, 4, 4), np.float32)})
    assert report.unverified == ("no weights were given, so the file holds what the layers' fillers give",)
    (got,) = session(report.output).run(None, {"x": np.ones((2, 3, 4, 4), np.float32)})
    assert 0 < np.abs(got).max() < 1e6


@pytest.mark.parametrize(
    ("fields", "scaled"),
    [
        ('"BN" bn_param { scale_filler { value: 1 } }', True),
        ('"BN" bn_param { bn_mode: LEARN }', True),
        ('"BatchNorm" batch_norm_param { use_global_stats: false eps: 0.01 }', False),
    ],
    ids=["segnet", "segnet, stated", "batch norm"],
)
def test_the_statistics_of_the_batch(fields: str, scaled: bool, tmp_path: Path) -> None:
    bn = f'layer {{ name: "bn" type: {fields} bottom: "conv" top: "n" }}'
    net = parse_net(DEPLOY[: DEPLOY.index('layer { name: "bn"')] + bn)
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.verified and "1 layer (bn) will normalize with the statistics of the batch" in report.notes[0]
    blobs = {layer.name: [torch.from_numpy(blob) for blob in layer.blobs] for layer in weights.layers}
    slope, bias = (blob.view(-1) for blob in blobs["bn"][:2]) if scaled else (None, None)
    for rows in (1, 5):
        x = np.random.default_rng(rows).normal(0, 50, (rows, 3, 12, 10)).astype(np.float32)
        (got,) = session(report.output).run(["n"], {"data": x})
        maps = F.conv2d(torch.from_numpy(x), blobs["conv"][0], padding=1)
        want = F.batch_norm(maps, None, None, slope, bias, training=True, eps=1e-5 if scaled else 0.01)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_layers_of_nets_that_read_text(tmp_path: Path) -> None:
    """The end of CTPN, against torch's LSTM."""
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 dim: 3 dim: 6 } } }
      layer { name: "t" type: "Transpose" bottom: "x" top: "t" transpose_param { dim: [3, 2, 0, 1] } }
      layer { name: "r" type: "Reshape" bottom: "t" top: "r" reshape_param { shape { dim: -1 } axis: 1 num_axes: 2 } }
      layer { name: "back" type: "Reverse" bottom: "r" top: "back" reverse_param { axis: 0 } }
      layer { name: "lstm" type: "Lstm" bottom: "back" top: "lstm" lstm_param { num_output: 5 } }
      layer { name: "y" type: "Reverse" bottom: "lstm" top: "y" }
    """
    net = parse_net(text)
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.verified and report.outputs == {"y": (6, None, 5)}
    module = torch.nn.LSTM(4, 5)
    gates = [0, 1, 3, 2]
    with torch.no_grad():
        mine = (module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0)
        for parameter, blob in zip(mine, weights.layers[0].blobs, strict=True):
            parameter.copy_(torch.cat([torch.from_numpy(blob).chunk(4)[i] for i in gates]))
        module.bias_hh_l0.zero_()
    x = np.random.default_rng(1).normal(size=(2, 4, 3, 6)).astype(np.float32)
    (got,) = session(report.output).run(["y"], {"x": x})
    steps = torch.from_numpy(x).permute(3, 2, 0, 1).flatten(1, 2).flip(0)
    np.testing.assert_allclose(got, module(steps)[0].flip(0).detach(), rtol=1e-4, atol=1e-5)


def test_layers_of_nets_that_read_videos(tmp_path: Path) -> None:
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 7 dim: 9 dim: 8 } } }
      layer { name: "c" type: "Convolution3D" bottom: "x" top: "c"
        convolution3d_param { num_output: 4 kernel_size: 3 kernel_depth: 2 pad: 1 temporal_stride: 2 } }
      layer { name: "max" type: "Pooling3D" bottom: "c" top: "max"
        pooling3d_param { kernel_size: 2 kernel_depth: 2 stride: 2 temporal_stride: 2 } }
      layer { name: "mean" type: "Pooling3D" bottom: "c" top: "mean"
        pooling3d_param { pool: AVE kernel_size: 2 kernel_depth: 2 stride: 2 temporal_stride: 2 } }
    """
    net = parse_net(text)
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.verified and report.outputs == dict.fromkeys(("max", "mean"), (None, 4, 2, 5, 4))
    x = np.random.default_rng(1).normal(size=(2, 3, 7, 9, 8)).astype(np.float32)
    got = session(report.output).run(["max", "mean"], {"x": x})
    maps = F.conv3d(torch.from_numpy(x), *map(torch.from_numpy, weights.layers[0].blobs), (2, 1, 1), (0, 1, 1))
    np.testing.assert_allclose(got[0], F.max_pool3d(maps, 2, 2, ceil_mode=True), rtol=1e-4, atol=1e-5)
    want = F.avg_pool3d(maps, 2, 2, ceil_mode=True, count_include_pad=False)
    np.testing.assert_allclose(got[1], want, rtol=1e-4, atol=1e-5)


def test_poolings_of_volumes(tmp_path: Path) -> None:
    size = (9, 8, 7)
    poolings = {
        "a": ("MAX", (3,) * 3, (2,) * 3, (1,) * 3),
        "b": ("AVE", (3,) * 3, (2,) * 3, (0,) * 3),
        "c": ("AVE", size, (1,) * 3, (0,) * 3),
        "d": ("MAX", (1,) * 3, (4,) * 3, (0,) * 3),  # the last windows hold nothing
        "e": ("AVE", (3, 2, 2), (2, 3, 1), (1, 0, 1)),
    }
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 9 dim: 8 dim: 7 } } }
      layer { name: "a" type: "Pooling" bottom: "x" top: "a" pooling_param { kernel_size: 3 stride: 2 pad: 1 } }
      layer { name: "b" type: "Pooling" bottom: "x" top: "b" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
      layer { name: "c" type: "Pooling" bottom: "x" top: "c" pooling_param { pool: AVE global_pooling: true } }
      layer { name: "d" type: "Pooling" bottom: "x" top: "d" pooling_param { kernel_size: 1 stride: 4 } }
      layer { name: "e" type: "PoolingND" bottom: "x" top: "e"
        pooling_nd_param { pool: AVE kernel_size: [3, 2, 2] stride: [2, 3, 1] pad: [1, 0, 1] } }
    """
    report = convert(parse_net(text), None, tmp_path / "net.onnx")
    assert report.verified
    x = np.random.default_rng(1).normal(size=(2, 2, *size)).astype(np.float32)
    for name, got in zip(poolings, session(report.output).run(list(poolings), {"x": x}), strict=True):
        np.testing.assert_allclose(got, pool(x, *poolings[name]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", ["batch", "spatial"])
def test_denser_prior_boxes(tmp_path: Path, dynamic: Any) -> None:
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 6 dim: 8 } } }
      layer { name: "m" type: "Pooling" bottom: "x" top: "m" pooling_param { kernel_size: 2 stride: 2 } }
      layer { name: "p" type: "PriorBox" bottom: "m" bottom: "x" top: "p"
        prior_box_param { min_size: 2 aspect_ratio: 4 flip: false offset: 0.4 denser_prior_boxes: true } }
    """
    report = convert(parse_net(text), None, tmp_path / "net.onnx", outputs=["p"], dynamic=dynamic)
    (got,) = session(report.output).run(["p"], {"x": np.zeros((1, 1, 6, 8), np.float32)})
    boxes = [
        ((x - width / 2) / 8, (y - height / 2) / 6, (x + width / 2) / 8, (y + height / 2) / 6)
        for row in range(3)
        for x in (0.8, 2.8, 4.8, 6.8)
        for width, height in ((2, 2), (4, 1))
        for y in (2 * row + 0.8, 2 * row + 2)
    ]
    np.testing.assert_allclose(got[0, 0], np.ravel(boxes), rtol=1e-5, atol=1e-6)


def test_layers_of_nets_that_segment_and_enlarge(tmp_path: Path) -> None:
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 6 dim: 6 } } }
      layer { name: "a" type: "Pooling" bottom: "x" top: "a" top: "places" pooling_param { kernel_size: 2 stride: 2 } }
      layer { name: "b" type: "Unpooling" bottom: "a" bottom: "places" top: "b" unpooling_param { unpool_size: 6 } }
      layer { name: "mean" type: "Pooling" bottom: "x" top: "mean" pooling_param { pool: AVE global_pooling: true } }
      layer { name: "c" type: "AxpyFast" bottom: "mean" bottom: "b" bottom: "x" top: "c" }
      layer { name: "y" type: "CropCenter" bottom: "c" top: "y" crop_center_param { crop_size: [0, 0, 1, 2] } }
    """
    report = convert(parse_net(text), None, tmp_path / "net.onnx")
    assert report.outputs == {"y": (None, 2, 4, 2)}
    x = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    (got,) = session(report.output).run(["y"], {"x": x.numpy()})
    back = F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)
    np.testing.assert_allclose(got, (x.mean((2, 3), keepdim=True) * back + x)[:, :, 1:-1, 2:-2], rtol=1e-4, atol=1e-6)


def test_what_a_data_layer_does_to_images_is_said(tmp_path: Path) -> None:
    text = """
      layer { name: "data" type: "ImageData" top: "data" transform_param { crop_size: 4 %s }
        image_data_param { source: "missing.txt" } }
      layer { name: "y" type: "Sigmoid" bottom: "data" top: "y" }
    """
    for fields, said in (
        ("mean_value: [1, 2.5, 3] scale: 0.5", "subtracts mean_value 1, 2.5, 3 and multiplies by 0.5"),
        ('mean_file: "m.binaryproto"', "subtracts the mean in m.binaryproto"),
    ):
        (note,) = convert(parse_net(text % fields), None, tmp_path / "net.onnx").notes
        assert note == f'layer "data" {said}, and the file leaves that to you'
    assert not convert(parse_net(text % ""), None, tmp_path / "net.onnx").notes


def test_preparation_of_an_unknown_fork_is_said(tmp_path: Path) -> None:
    net = """
      layer { name: "data" type: "OwnData" top: "data" own_data_param { batch_size: 7 }
        transform_param { crop_size: 4 mean_value: [1, 2, 3] deviation: 0.5 } }
      layer { name: "y" type: "Sigmoid" bottom: "data" top: "y" }
    """
    report = convert(parse_net(net, keep_unknown=True), None, tmp_path / "net.onnx")
    assert report.notes == (
        'layer "data" subtracts mean_value 1, 2, 3, and the file leaves that to you',
        'layer "data": TransformationParameter has no field "deviation" here; what such fields do to images is left to '
        "you, too",
    )


def test_the_rows_that_the_prototxt_s_data_has(tmp_path: Path) -> None:
    """A net that takes no other number of rows gets its own; otherwise any batch is taken."""
    text = """
      layer { name: "data" type: "ImageData" top: "data" transform_param { crop_size: 4 }
        image_data_param { source: "missing.txt" batch_size: 6 } }
      layer { name: "y" type: "Reshape" bottom: "data" top: "y" reshape_param { shape { dim: %s dim: 3 dim: 16 } } }
    """
    clips = convert(parse_net(text % "3 dim: 2"), None, tmp_path / "net.onnx")
    assert clips.inputs == {"data": (6, 3, 4, 4)} and clips.outputs == {"y": (3, 2, 3, 16)}
    assert clips.notes[0].startswith("the file takes the net's own number of rows alone. ")
    images = convert(parse_net(text % "0"), None, tmp_path / "net.onnx")
    assert images.inputs == {"data": (None, 3, 4, 4)} and images.compared_shapes[0] == {"data": (1, 3, 4, 4)}
    fixed = convert(parse_net(text % "0"), None, tmp_path / "net.onnx", dynamic="none")
    assert fixed.inputs == {"data": (6, 3, 4, 4)}


def test_a_memory_data_layer_states_its_shape(tmp_path: Path) -> None:
    net = parse_net("""
      layer { name: "data" type: "MemoryData" top: "data" top: "label" transform_param { scale: 0.5 }
        memory_data_param { batch_size: 2 channels: 1 height: 3 width: 4 } }
      layer { name: "y" type: "Sigmoid" bottom: "data" top: "y" }
    """)
    report = convert(net, None, tmp_path / "net.onnx", dynamic="none")
    assert report.inputs == {"data": (2, 1, 3, 4)}
    assert report.notes == ('layer "data" multiplies by 0.5, and the file leaves that to you',)


def test_outputs_that_need_no_missing_blob(tmp_path: Path) -> None:
    net = parse_net("""
      input: "x" input_shape { dim: [1, 3] }
      layer { name: "a" type: "Sigmoid" bottom: "x" top: "a" }
      layer { name: "b" type: "Sigmoid" bottom: "gone" top: "b" }
      layer { name: "c" type: "Eltwise" bottom: "a" bottom: "b" top: "a" }
      layer { name: "d" type: "Sigmoid" bottom: "a" top: "d" }
    """)
    missing = 'layer "b" reads blob "gone", which no layer before it makes'
    with pytest.raises(InputError, match=f"^{missing}; to convert layers that don't need it, name their blobs in"):
        convert(net, None, tmp_path / "net.onnx")
    for name in ("b", "d", "a"):  # "a" is not what the net means by it, once "c" has changed it
        with pytest.raises(InputError, match=f"^{missing}$"):
            convert(net, None, tmp_path / "net.onnx", outputs=[name])
    del net.layer[3]
    assert list(convert(net, None, tmp_path / "net.onnx", outputs=["a", "d"]).outputs) == ["a", "d"]


def boxes(count: int) -> Any:
    """Rows image, label, score, corners."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.integers(0, 3, (count, 2)), rng.uniform(0, 1, (count, 5))], 1)
    return rows[None, None].astype(np.float32)


def rows_compared(expected: Any, given: Any) -> Any:
    """The comparison of these rows of boxes, from a net that gives the first."""
    net: Any = lambda inputs: {"y": expected}  # noqa: E731
    return compare(lambda inputs: {"y": given}, net, [{"x": np.zeros(1, np.float32)}], "it", unordered={"y"})["y"]


def test_rows_of_boxes_in_another_order() -> None:
    """In any number; a change of one number is found."""
    expected = boxes(4000)
    given = expected[:, :, np.random.default_rng(1).permutation(4000)] + np.float32(1e-5)
    found = rows_compared(expected, given)
    assert found.agrees and found.max_difference < 2e-5 and (found.unmatched, found.rows) == (0, 4000)
    given[0, 0, :50, 3] += 0.1
    with pytest.raises(WorkError, match=r'"y" differs from the net\'s by'):
        rows_compared(expected, given)


def test_a_few_rows_of_boxes_may_be_others() -> None:
    expected = boxes(1000)
    given = expected[:, :, 8:].copy()  # eight boxes are missing, and two are others
    given[0, 0, [3, 7], 4] += 0.2
    found = rows_compared(expected, given)
    assert found.agrees and (found.unmatched, found.rows) == (10, 1000)
    with pytest.raises(WorkError):
        rows_compared(expected, given[:, :, 1:])
    with pytest.raises(WorkError):  # one of 20 is more than a few
        rows_compared(expected[:, :, :20], expected[:, :, :19])


def test_fields_that_nobody_knows(tmp_path: Path, autodial: Any) -> None:
    """They matter only where their layer is written: not in a layer that reads data, nor behind the outputs."""
    path = tmp_path / "net.prototxt"
    path.write_text("""
      layer { name: "data" type: "ImageData" top: "data"
        image_data_param { source: "x" new_height: 8 new_width: 8 label: false } }
      layer { name: "a" type: "Sigmoid" bottom: "data" top: "a" }
      layer { name: "b" type: "Pooling" bottom: "a" top: "b"
        pooling_param { kernel_size: 2 sharp: [-1, 2.5e3, "a" "b"] more { c < d: 2 > } word: x; } }
      layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "b" loss_weight: 0 loss_param { own: 1 } }
    """)
    status, _, err = autodial("convert", path, "-o", tmp_path / "net.onnx")
    said = (
        'layer "b": PoolingParameter has no field "sharp"; correct its name, or remove it if it changes '
        "nothing; to convert what comes before such layers, name in --outputs: a\n"
    )
    assert status == 2 and err.endswith(said)
    status, out, _ = autodial("convert", path, "-o", tmp_path / "net.onnx", "--outputs", "a")
    assert status == 0 and '"data" any x 3 x 8 x 8 to "a" any x 3 x 8 x 8' in out
    for wrong in ("sharp }", "sharp: }", "sharp: [1", "sharp: -", "sharp {", 'sharp: "x'):
        path.write_text(f'layer {{ name: "b" type: "ReLU" bottom: "a" top: "b" relu_param {{ {wrong} }} }}')
        status, _, err = autodial("convert", path, "-o", tmp_path / "net.onnx")
        assert status == 2 and f"{path}:1:" in err
    status, _, err = autodial("time", "--net", path)
    assert status == 2


def test_places_for_more_channels(tmp_path: Path) -> None:
    """ENet as some port it: the places are those of a pooling of more channels. The file takes one image."""
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 6 dim: 6 } } }
      layer { name: "a" type: "Pooling" bottom: "x" top: "a" top: "places" pooling_param { kernel_size: 2 stride: 2 } }
      layer { name: "some" type: "Slice" bottom: "a" top: "b" top: "c" slice_param { slice_point: 2 } }
      layer { name: "y" type: "UnPooling" bottom: "b" bottom: "places" top: "y"
        unpooling_param { unpool: MAX kernel_size: 2 stride: 2 unpool_h: 6 unpool_w: 6 } }
    """
    report = convert(parse_net(text), None, tmp_path / "net.onnx", outputs=["y"])
    assert report.verified and report.outputs == {"y": (1, 2, 6, 6)}
    x = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    (got,) = session(report.output).run(["y"], {"x": x.numpy()})
    back = F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)
    np.testing.assert_allclose(got, back[:, :2])


def test_layers_at_the_end_that_no_file_can_hold_are_cut_off(tmp_path: Path) -> None:
    end = 'python_param { module: "layers.own" layer: "Own" }'
    net = parse_net(f"""{DEPLOY}
      layer {{ name: "end" type: "Python" bottom: "prob" bottom: "data" top: "rois" {end} }}
      layer {{ name: "pool" type: "ROIPooling" bottom: "map" bottom: "rois" top: "regions" }}
      layer {{ name: "other" type: "Softmax" bottom: "up" top: "other" }}""")
    problem = 'layer "end": an ONNX file can\'t hold a Python class; to convert .*, name in `outputs`: map,prob,other$'
    with pytest.raises(InputError, match=problem):
        convert(net, None, tmp_path / "net.onnx")
    assert list(convert(net, None, tmp_path / "net.onnx", outputs=["prob", "other"]).outputs) == ["prob", "other"]


RPN = """
name: "detector"
layer { name: "image" type: "Input" top: "image" input_param { shape { dim: [1, 3, 32, 48] } } }
layer { name: "im_info" type: "Input" top: "im_info" input_param { shape { dim: [1, 3] } } }
layer { name: "map" type: "Convolution" bottom: "image" top: "map"
  convolution_param { num_output: 4 kernel_size: 8 stride: 8 weight_filler { type: "xavier" } } }
layer { name: "score" type: "Convolution" bottom: "map" top: "score"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "change" type: "Convolution" bottom: "map" top: "change"
  convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "gaussian" std: 0.002 } } }
layer { name: "proposal" type: "Python" bottom: "score" bottom: "change" bottom: "im_info" top: "rois" python_param {
  module: "rpn.proposal_layer" layer: "ProposalLayer"
  param_str: "{feat_stride: 8, base_size: 12, ratios: [2.44], scales: [1, 2.5]}" } }
layer { name: "pool" type: "ROIPooling" bottom: "map" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.125 } }
layer { name: "cls_prob" type: "InnerProduct" bottom: "pool" top: "cls_prob"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "bbox_pred" type: "InnerProduct" bottom: "pool" top: "bbox_pred"
  inner_product_param { num_output: 8 weight_filler { type: "xavier" } } }
"""


def test_proposals_of_the_python_layer(tmp_path: Path) -> None:
    report = convert(parse_net(RPN), None, tmp_path / "net.onnx", outputs=["score", "change", "rois"])
    rng = np.random.default_rng(5)
    feed = {"image": rng.uniform(0, 255, (1, 3, 32, 48)), "im_info": [[32, 48, 0.5]]}
    feed = {name: np.float32(array) for name, array in feed.items()}
    score, change, rois = session(report.output).run(["score", "change", "rois"], feed)
    want, _ = proposals(
        score,
        change,
        feed["im_info"][0],
        region_anchors(12, [2.44], [1, 2.5]),
        8,
        min_size=16,
        before=6000,
        after=300,
        threshold=0.7,
    )
    assert len(want) > 3
    np.testing.assert_allclose(rois, want, rtol=1e-4, atol=1e-3)


def test_what_is_said_of_regions(tmp_path: Path) -> None:
    """A Python layer's settings lie outside of the prototxt; changes of regions say little without the regions."""
    own_rows = "the file takes the net's own number of rows alone"
    settings = (
        "layer \"proposal\" has py-faster-rcnn's settings, as the prototxt can't state them: 6000 boxes, 300 after "
        "suppression, overlap 0.7, minimum size 16; a net that was trained with others gives other regions"
    )
    regions = (
        "rows of the outputs belong to regions, which the file does not give; to have these, too, name in `outputs`: "
        "rois,cls_prob,bbox_pred"
    )
    report = convert(parse_net(RPN), None, tmp_path / "net.onnx", dynamic="none")
    assert list(report.outputs) == ["cls_prob", "bbox_pred"] and report.notes == (settings, regions)
    named = regions.rpartition(" ")[2].split(",")
    report = convert(parse_net(RPN), None, tmp_path / "net.onnx", outputs=named)
    assert list(report.outputs) == named
    assert report.notes[0].startswith(own_rows) and report.notes[1:] == (settings,)
    report = convert(parse_net(RPN), None, tmp_path / "net.onnx", outputs=["map"])
    assert report.notes == ("the input im_info is not in the file: no layer there reads it",)
    text, _, rest = RPN.partition('type: "Python"')
    stated = f"""{text}type: "Proposal" {rest.partition("python_param")[0]} proposal_param {{
        feat_stride: 8 base_size: 12 ratio: 2.44 scale: 1 scale: 2.5 }} }} {rest.partition("} }")[2]}"""
    assert convert(parse_net(stated), None, tmp_path / "net.onnx", dynamic="none").notes == (regions,)


def test_an_unknown_option_of_a_python_layer_leads_on(tmp_path: Path) -> None:
    net = parse_net(RPN.replace("ratios: [2.44]", "shifts: [0]"))
    problem = (
        'layer "proposal": .* has no option .shifts., only feat_stride, scales, ratios, base_size, phase; to convert '
        "what comes before such layers, name in `outputs`: map,score,change$"
    )
    with pytest.raises(InputError, match=problem):
        convert(net, None, tmp_path / "net.onnx")
    named = ["map", "score", "change"]
    assert list(convert(net, None, tmp_path / "net.onnx", outputs=named).outputs) == named


@pytest.mark.parametrize("dynamic", ["none", "spatial"])
def test_text_proposals(tmp_path: Path, dynamic: str) -> None:
    """CTPN's last layer, against loops."""
    net = parse_net(f"""
      layer {{ name: "image" type: "Input" top: "image" input_param {{ shape {{ dim: [1, 3, 40, 56] }} }} }}
      layer {{ name: "info" type: "Input" top: "info" input_param {{ shape {{ dim: [1, 3] }} }} }}
      layer {{ name: "p" type: "Convolution" bottom: "image" top: "p" {NARROW} }}
      layer {{ name: "d" type: "Convolution" bottom: "image" top: "d" {NARROW} }}
      layer {{ name: "y" type: "Python" bottom: "p" bottom: "d" bottom: "info" top: "rois" top: "scores" python_param {{
        module: "layers.text_proposal_layer" layer: "ProposalLayer" param_str: "'feat_stride': 8" }} }}""")
    report = convert(net, None, tmp_path / "net.onnx", outputs=["rois", "scores", "p", "d"], dynamic=dynamic)
    assert report.outputs["rois"] == ((350, 4) if dynamic == "none" else (None, 4))
    rng = np.random.default_rng(3)
    sizes = [(40, 56)] if dynamic == "none" else [(40, 56), (72, 24)]
    for height, width in sizes:
        feed = {"image": rng.uniform(0, 255, (1, 3, height, width)), "info": [[height, width, 1.5]]}
        feed = {name: np.float32(array) for name, array in feed.items()}
        rois, scores, p, d = session(report.output).run(["rois", "scores", "p", "d"], feed)
        want = text_proposals(p, d, (height, width), 8)
        np.testing.assert_allclose(rois, want[0], rtol=1e-5, atol=1e-3)
        np.testing.assert_array_equal(scores, want[1])


@pytest.mark.parametrize("fields", ["group_num: 3", "group: 2 eps: 0.1"])
def test_group_norm(tmp_path: Path, fields: str) -> None:
    net = parse_net(f"""
      layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: [2, 6, 4, 5] }} }} }}
      layer {{ name: "y" type: "GroupNorm" bottom: "x" top: "y" group_norm_param {{ {fields} }} }}""")
    rng = np.random.default_rng(1)
    blobs = [rng.standard_normal((1, 6, 1, 1)).astype(np.float32) for _ in range(2)] if "group:" in fields else []
    weights = Weights("", [LayerWeights(net.layer[1], blobs)])
    report = convert(net, weights if blobs else None, tmp_path / "net.onnx", dynamic="spatial")
    assert report.verified and report.outputs == {"y": (None, 6, None, None)}
    x = rng.standard_normal((3, 6, 5, 7)).astype(np.float32)
    (got,) = session(report.output).run(["y"], {"x": x})
    scale, shift = [torch.from_numpy(blob).flatten() for blob in blobs] or (None, None)
    groups, eps = (2, 0.1) if blobs else (3, 1e-5)
    np.testing.assert_allclose(got, F.group_norm(torch.from_numpy(x), groups, scale, shift, eps), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("module", ["triplet.l2norm_layer", "l2norm_layer", "copies.triplet.l2norm_layer"])
def test_unit_rows(module: str, tmp_path: Path) -> None:
    """The layer that hizhangp/triplet writes with scikit-learn's normalize; copies of it have other paths."""
    net = parse_net(f"""
      layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: [2, 5] }} }} }}
      layer {{ name: "y" type: "Python" bottom: "x" top: "y"
        python_param {{ module: "{module}" layer: "L2NormLayer" }} }}""")
    report = convert(net, None, tmp_path / "net.onnx")
    said = "L2NormLayer of .*l2norm_layer is taken for that of triplet.l2norm_layer, which AutoDIAL computes; if it is"
    assert [re.search(said, note) is not None for note in report.notes] == [True] * (module != "triplet.l2norm_layer")
    assert report.verified and report.outputs == {"y": (None, 5)}
    x = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    x[2] = 0
    (got,) = session(report.output).run(["y"], {"x": x})
    np.testing.assert_allclose(got, sklearn.preprocessing.normalize(x), rtol=1e-6)


@pytest.mark.parametrize("dynamic", ["batch", "spatial"])
@pytest.mark.parametrize("module", ["resize", "layers.resize"])
def test_maps_at_the_size_of_the_first(module: str, dynamic: str, tmp_path: Path) -> None:
    """MEnet's Python layer, whose maps may end before the first one does."""
    pools = "".join(
        f"""layer {{ name: "{name}" type: "Pooling" bottom: "x" top: "{name}"
          pooling_param {{ pool: AVE kernel_size: {size} stride: {size} }} }}"""
        for name, size in (("halves", 2), ("thirds", 3), ("whole", 1))
    )
    net = parse_net(f"""
      layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: [1, 2, 13, 17] }} }} }} {pools}
      layer {{ name: "y" type: "Python" bottom: "x" bottom: "halves" bottom: "thirds" bottom: "whole" top: "y"
        python_param {{ module: "{module}" layer: "resize_to_same_size" param_str: "{{}}" }} }}""")
    report = convert(net, None, tmp_path / "net.onnx", outputs=["y", "halves", "thirds"], dynamic=dynamic)
    assert report.verified and report.outputs["y"] == (None, 8, *((None, None) if dynamic == "spatial" else (13, 17)))
    assert [note.startswith('layer "y" (Python): ') for note in report.notes] == [True] * (module != "resize")
    for size in [(13, 17), (28, 30)][: 1 + (dynamic == "spatial")]:
        x = np.random.default_rng(1).standard_normal((3, 2, *size)).astype(np.float32)
        y, halves, thirds = session(report.output).run(["y", "halves", "thirds"], {"x": x})
        np.testing.assert_allclose(y, same_size([x, halves, thirds, x]), rtol=1e-6)


def test_a_map_that_is_larger_than_the_first_is_zero(tmp_path: Path) -> None:
    net = parse_net("""
      input: "x" input_shape { dim: [1, 2, 4, 5] } input: "wide" input_shape { dim: [1, 1, 4, 6] }
      layer { name: "y" type: "Python" bottom: "x" bottom: "wide" top: "y"
        python_param { module: "resize" layer: "resize_to_same_size" } }""")
    report = convert(net, None, tmp_path / "net.onnx")
    x, wide = np.ones((3, 2, 4, 5), np.float32), np.ones((3, 1, 4, 6), np.float32)
    (got,) = session(report.output).run(["y"], {"x": x, "wide": wide})
    np.testing.assert_array_equal(got, same_size([x, wide]))


def test_detections_in_two_steps(tmp_path: Path) -> None:
    """RefineDet's last layer; `tests/layers/test_detection.py` holds the layer against loops."""
    shapes = {"loc": (1, 240), "conf": (1, 180), "priors": (1, 2, 240), "objects": (1, 120), "first": (1, 240)}
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: {list(shape)} }} }} }}'
        for name, shape in shapes.items()
    )
    fields = "num_classes: 3 code_type: CENTER_SIZE objectness_score: 0.4 confidence_threshold: 0.3 keep_top_k: 20"
    net = parse_net(f"""{inputs} layer {{ name: "y" type: "DetectionOutput" {" ".join(f'bottom: "{n}"' for n in shapes)}
      top: "y" detection_output_param {{ {fields} nms_param {{ nms_threshold: 0.45 top_k: 30 }} }} }}""")
    rng = np.random.default_rng(1)
    low = rng.uniform(0, 0.7, (60, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.3, (60, 2))], 1)
    samples = {
        "loc": rng.normal(0, 0.5, (2, 240)),
        "conf": rng.dirichlet([0.5] * 3, (2, 60)).reshape(2, -1),
        "priors": np.stack([boxes.ravel(), np.tile([0.1, 0.1, 0.2, 0.2], 60)])[None],
        "objects": rng.uniform(0, 1, (2, 120)),
        "first": rng.normal(0, 0.5, (2, 240)),
    }
    given = {name: array.astype(np.float32) for name, array in samples.items()}
    report = convert(net, None, tmp_path / "net.onnx", samples=given, dynamic="batch")
    assert report.verified, report.unverified
    (got,) = session(report.output).run(["y"], given)
    want = Net(net, pb.TEST)({name: torch.from_numpy(array) for name, array in given.items()})["y"]
    assert got.shape == want.shape and got.shape[2] > 20
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("option", ["use_polygon", "clip"])
def test_detections_of_other_forks(tmp_path: Path, option: str, share: bool) -> None:
    """The last layers of TextBoxes++ and of OpenCV's face detector, against loops."""
    polygons = option == "use_polygon"
    shapes = {"loc": (1, (720 if polygons else 240) * (1 if share else 3)), "conf": (1, 180), "priors": (1, 2, 240)}
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: {list(shape)} }} }} }}'
        for name, shape in shapes.items()
    )
    fields = f"""num_classes: 3 code_type: CENTER_SIZE share_location: {str(share).lower()} {option}: true
      confidence_threshold: 0.3 keep_top_k: 20 nms_param {{ nms_threshold: 0.45 top_k: 30 }}"""
    net = parse_net(f"""{inputs} layer {{ name: "y" type: "DetectionOutput" {" ".join(f'bottom: "{n}"' for n in shapes)}
      top: "y" detection_output_param {{ {fields} }} }}""")
    rng = np.random.default_rng(1)
    low = rng.uniform(-0.2, 0.8, (60, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.3, (60, 2))], 1)
    samples = {
        "loc": rng.normal(0, 0.5, (2, shapes["loc"][1])),
        "conf": rng.dirichlet([0.5] * 3, (2, 60)).reshape(2, -1),
        "priors": np.stack([boxes.ravel(), np.tile([0.1, 0.1, 0.2, 0.2], 60)])[None],
    }
    given = {name: array.astype(np.float32) for name, array in samples.items()}
    report = convert(net, None, tmp_path / "net.onnx", samples=given, dynamic="batch")
    assert report.verified, report.unverified
    want = detections(
        *given.values(), 3, share=share, background=0, code="CENTER_SIZE", in_target=False, confidence=0.3,
        nms=0.45, top_k=30, eta=1.0, keep=20, polygons=polygons, clip=not polygons,
    )  # fmt: skip
    (got,) = session(report.output).run(["y"], given)
    assert got.shape == (1, 1, len(want), 15 if polygons else 7) and len(want) > 20
    np.testing.assert_allclose(got[0, 0], want, rtol=1e-4, atol=1e-5)
    (none,) = session(report.output).run(["y"], {**given, "conf": np.zeros((2, 180), np.float32)})
    np.testing.assert_array_equal(none[0, 0], [[i, *[-1] * (got.shape[3] - 1)] for i in range(2)])


def test_an_indicator_is_a_constant(tmp_path: Path) -> None:
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 2 dim: 3 } } }
      layer { name: "cont" type: "ContinuationIndicator" top: "cont"
        continuation_indicator_param { time_step: 4 batch_size: 2 } }
      layer { name: "y" type: "LSTM" bottom: "x" bottom: "cont" top: "y" recurrent_param { num_output: 5 } }
    """
    net = parse_net(text)
    report = convert(net, random_weights(net), tmp_path / "net.onnx")
    assert report.verified and list(report.inputs) == ["x"]


def test_a_layer_of_a_type_that_nobody_knows_is_cut_off(tmp_path: Path) -> None:
    foreign = 'layer { name: "boxes" type: "BoxOutput" bottom: "prob" top: "boxes" box_output_param { fg_thr: -5 } }'
    net = parse_net(DEPLOY + foreign)
    with pytest.raises(
        InputError, match=r'layer "boxes": AutoDIAL does not compute layers of the type BoxOutput.*: prob$'
    ):
        convert(net, None, tmp_path / "net.onnx")
    assert list(convert(net, None, tmp_path / "net.onnx", outputs=["prob"]).outputs) == ["prob"]


def test_the_phase_may_be_written_in_small_letters(autodial: Any, tmp_path: Path) -> None:
    write_text(parse_net(DEPLOY), tmp_path / "net.prototxt")
    status, _, errors = autodial("convert", tmp_path / "net.prototxt", "-o", tmp_path / "net.onnx", "--phase", "test")
    assert status == 0, errors


def test_data_and_ratings_of_other_versions_of_caffe(tmp_path: Path) -> None:
    """SSD's and DeepLab's TEST phases: their data layers become inputs, and what rates or stores is left out."""
    text = """
      layer {{ name: "data" type: "{data}" top: "data" top: "label" transform_param {{ {transform} }} }}
      layer {{ name: "conv" type: "Convolution" bottom: "data" top: "map"
        convolution_param {{ num_output: 4 kernel_size: 3 }} }}
      layer {{ name: "end" type: "{end}" bottom: "map" bottom: "label" }}
      layer {{ name: "silence" type: "Silence" bottom: "label" }}
    """
    mean = "mean_value: 1 mean_value: 2 mean_value: 3 "
    for data, transform, end, size in (
        ("AnnotatedData", mean + "resize_param { height: 20 width: 10 }", "DetectionEvaluate", (20, 10)),
        ("ImageSegData", mean + "crop_size: 9", "MatWrite", (9, 9)),
        ("WindowData", mean + "crop_size: 9", "SegAccuracy", (9, 9)),
    ):
        net = parse_net(text.format(data=data, transform=transform, end=end))
        report = convert(net, None, tmp_path / "net.onnx")
        assert report.inputs == {"data": (None, 3, *size)} and list(report.outputs) == ["map"]
    net = parse_net(text.format(data="AnnotatedData", transform="", end="MatWrite"))
    with pytest.raises(InputError, match=r'layer "data" \(AnnotatedData\) .* in `shapes`, such as data=1,3,'):
        convert(net, None, tmp_path / "net.onnx")
    rows = text.replace(
        '"label" }}\n      layer {{ name: "silence"', '"label" top: "rows" }}\n      layer {{ name: "silence"'
    )
    net = parse_net(rows.format(data="ImageSegData", transform=mean + "crop_size: 9", end="YoloSeg"))
    said = r'^layer "end": AutoDIAL does not compute layers of the type YoloSeg; .*`outputs`: map$'
    with pytest.raises(InputError, match=said):
        convert(net, None, tmp_path / "net.onnx")
    assert list(convert(net, None, tmp_path / "net.onnx", outputs=["map"]).outputs) == ["map"]


@pytest.mark.parametrize("source", ['type: "Data"', 'type: "Python" python_param { module: "rows" layer: "Rows" }'])
def test_a_shape_makes_an_input_of_a_layer_that_reads_data(source: str, tmp_path: Path) -> None:
    text = """
      layer { name: "rows" %s top: "data" top: "label" }
      layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 2 } }
      layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" }
    """
    net = parse_net(text % source)
    with pytest.raises(InputError, match=r'layer "rows" .* its shape in `shapes`, such as data=1,3,224,224$'):
        convert(net, None, tmp_path / "net.onnx")
    fc = np.arange(12, dtype=np.float32).reshape(2, 6)
    weights = Weights("", [LayerWeights(net.layer[1], [fc, np.ones(2, np.float32)])])
    report = convert(net, weights, tmp_path / "net.onnx", shapes={"data": (4, 1, 2, 3)})
    assert report.verified and report.inputs == {"data": (None, 1, 2, 3)} and report.outputs == {"fc": (None, 2)}
    x = np.random.default_rng(0).normal(0, 1, (5, 1, 2, 3)).astype(np.float32)
    np.testing.assert_allclose(
        session(report.output).run(None, {"data": x})[0], x.reshape(5, 6) @ fc.T + 1, rtol=1e-5, atol=1e-5
    )


def test_a_shape_replaces_that_of_the_prototxt(tmp_path: Path) -> None:
    net = parse_net("""
      input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
      layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
    """)
    report = convert(net, None, tmp_path / "net.onnx", shapes={"data": (1, 3, 12, 6)})
    assert report.inputs == {"data": (None, 3, 12, 6)} and report.outputs == {"pool": (None, 3, 6, 3)}
    with pytest.raises(InputError, match=r'^`shapes`: the net reads no input "dta"; did you mean "data"\?'):
        convert(net, None, tmp_path / "net.onnx", shapes={"dta": (1, 3, 12, 6)})


@pytest.mark.parametrize(
    "shape",
    ["data", "data=", "=1,2", "data=1,x", "data=1,0", "data=1,-2", "data=1,,2", "data=²", "data=1" + "0" * 9999],
)
def test_a_shape_that_is_none(shape: str, tmp_path: Path, autodial: Any) -> None:
    (tmp_path / "net.prototxt").write_text('input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8')
    net, model = tmp_path / "net.prototxt", tmp_path / "net.onnx"
    status, _, err = autodial("convert", net, "-o", model, "--shape", shape)
    assert status == 2
    assert err.strip().endswith("write an input and its lengths, each at least 1, as in data=1,3,224,224")


def test_an_input_layer_of_a_stage(tmp_path: Path, autodial: Any) -> None:
    """As DIGITS writes them."""
    path = tmp_path / "net.prototxt"
    path.write_text("""
      layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [1, 3] } } include { stage: "deploy" } }
      layer { name: "y" type: "Sigmoid" bottom: "x" top: "y" }
    """)
    status, out, _ = autodial("convert", path, "-o", tmp_path / "net.onnx", "--stage", "deploy")
    assert status == 0 and '"x" any x 3 to "y" any x 3' in out
    status, _, err = autodial("convert", path, "-o", tmp_path / "net.onnx")
    said = ': layer "in" does, and its include or exclude leaves it out; choose its phase, level or stage'
    assert status == 2 and f'layer "y" reads blob "x", which no layer before it makes{said}\n' in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the net has no layers in this phase and state"),
        ('layer { name: "a" top: "a" }', 'layer "a", number 1 of the net, states no type'),
        ('layer { name: "a" type: "DummyData" top: "" }', 'layer "a" (DummyData) has a top without a name'),
    ],
)
def test_nets_that_say_too_little(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
        convert(parse_net(text), None, tmp_path / "net.onnx")


def test_weights_that_a_shape_makes_those_of_another_net(tmp_path: Path) -> None:
    net = parse_net("""
      input: "x" input_shape { dim: [1, 3] }
      layer { name: "y" type: "InnerProduct" bottom: "x" top: "y"
        inner_product_param { num_output: 1 bias_term: false } }
    """)
    weights = Weights("", [LayerWeights(net.layer[-1], [np.ones((1, 3), np.float32)])])
    assert convert(net, weights, tmp_path / "net.onnx").verified
    with pytest.raises(InputError, match=r"or else `shapes` are not those of its inputs$"):
        convert(net, weights, tmp_path / "net.onnx", shapes={"x": (1, 4)})


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (["a.npy", "b.npy"], "are 2 files: give one .npy file, or images alone"),
        (["a.npy", "c.npy"], "c.npy does not exist: check the name of the sample file"),
        (["complex.npy"], 'the sample for "x" holds complex128, and the net takes numbers'),
    ],
)
def test_samples_that_are_refused(samples: list[str], said: str, tmp_path: Path, autodial: Any) -> None:
    (tmp_path / "net.prototxt").write_text("""
      input: "x" input_shape { dim: [1, 3] } layer { name: "y" type: "Sigmoid" bottom: "x" top: "y" }
    """)
    for name, array in (("a", np.zeros((1, 3))), ("b", np.zeros((1, 3))), ("complex", np.zeros((1, 3), complex))):
        np.save(tmp_path / f"{name}.npy", array)
    words = [word for name in samples for word in ("--sample", tmp_path / name)]
    status, _, err = autodial("convert", tmp_path / "net.prototxt", "-o", tmp_path / "net.onnx", *words)
    assert status == 2 and said in err


def test_an_output_with_the_name_of_an_input(tmp_path: Path) -> None:
    net = parse_net("""
      input: "x" input_shape { dim: [1, 3] } layer { name: "y" type: "Sigmoid" bottom: "x" top: "x" }
    """)
    report = convert(net, None, tmp_path / "net.onnx")
    (name,) = report.outputs
    assert name != "x" and report.notes == (f'the output "x" is called "{name}" in the file, where "x" is an input',)


def test_another_net_s_weights_are_called_so(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    weights.layers[0].blobs = [np.zeros((9, 3, 3, 3), np.float32)]
    with pytest.raises(InputError, match=r"shape is \(6, 3, 3, 3\) .* \(9, 3, 3, 3\); these are another net's weights"):
        convert(net, weights, tmp_path / "net.onnx")
    other = Weights("", [LayerWeights(pb.LayerParameter(name="conv9"), [np.zeros(3, np.float32)])])
    with pytest.raises(InputError, match="no layer in the weights has the name of a layer of the net; these are"):
        convert(net, other, tmp_path / "net.onnx")


def test_names_are_those_of_the_net_and_nothing_else_is_in_the_file(
    deploy: tuple[Any, Weights], tmp_path: Path
) -> None:
    report = convert(*deploy, tmp_path / "net.onnx")
    model = onnx.load(report.output)
    assert [node.op_type for node in model.graph.node] == [
        "Conv",
        "Relu",
        "MaxPool",
        "ConvTranspose",
        "Slice",
        "Softmax",
    ]
    assert {"conv.weight", "conv.bias", "up.weight", "up.bias"} <= {tensor.name for tensor in model.graph.initializer}
    assert {name for node in model.graph.node for name in node.output} >= {"conv", "pool", "up", "map", "prob"}
    read = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= read
    assert (report.opset, report.ir_version, model.ir_version) == (18, 8, 8)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    assert str(tmp_path) not in str(model)


def test_outputs_that_are_named(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    """One before a folded layer in place, one of a gone Dropout, and one that another output is made of."""
    net, weights = deploy
    report = convert(net, weights, tmp_path / "net.onnx", outputs=["dropped", "conv", "map", "prob"])
    x = np.random.default_rng(0).normal(0, 50, (2, 3, 12, 10)).astype(np.float32)
    for name, got in zip(report.outputs, session(report.output).run(list(report.outputs), {"data": x}), strict=True):
        np.testing.assert_allclose(got, expected(net, weights, name, x), rtol=1e-5, atol=1e-4)
    with pytest.raises(InputError, match=r'the net has no blob "porb" .*prob'):
        convert(net, weights, tmp_path / "net.onnx", outputs=["porb"])
    with pytest.raises(InputError, match='blob "data" is an input'):
        convert(net, weights, tmp_path / "net.onnx", outputs=["data"])


def test_an_output_keeps_the_layers_behind_it_from_changing_it(tmp_path: Path) -> None:
    """A BatchNorm that is not in place can't be merged into a convolution whose result is asked for."""
    net = parse_net(
        DEPLOY.replace('bottom: "conv" top: "conv"', 'bottom: "n" top: "n"').replace(
            '"bn" type: "BatchNorm" bottom: "n"', '"bn" type: "BatchNorm" bottom: "conv"'
        )
    )
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx", outputs=["conv", "n"])
    x = np.random.default_rng(0).normal(0, 50, (1, 3, 12, 10)).astype(np.float32)
    blobs = Net(net, pb.TEST)
    blobs.load_weights(weights)
    with torch.no_grad():
        wanted = blobs.blobs({"data": torch.from_numpy(x)}, ["conv", "n"])
    for name, got in zip(("conv", "n"), session(report.output).run(["conv", "n"], {"data": x}), strict=True):
        np.testing.assert_allclose(got, wanted[name].numpy(), rtol=1e-4, atol=1e-3)


def test_any_height_and_width(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    report = convert(net, weights, tmp_path / "net.onnx", dynamic="spatial")
    assert report.inputs == {"data": (None, 3, None, None)}
    assert [shapes["data"][2:] for shapes in report.compared_shapes] == [(12, 10), (12, 10), (44, 74)]
    for size in ((12, 10), (31, 57)):
        x = np.random.default_rng(0).normal(0, 50, (2, 3, *size)).astype(np.float32)
        (got,) = session(report.output).run(["prob"], {"data": x})
        np.testing.assert_allclose(got, expected(net, weights, "prob", x), atol=1e-5)
    fixed = convert(net, weights, tmp_path / "net.onnx", dynamic="none")
    assert fixed.inputs == {"data": (4, 3, 12, 10)} and len(fixed.compared_shapes) == 2


def test_a_net_of_one_size_can_not_take_others(tmp_path: Path) -> None:
    net = parse_net(
        DEPLOY.replace("prob", "fc")
        .replace("Softmax", "InnerProduct")
        .replace('top: "fc" }', 'top: "fc" inner_product_param { num_output: 2 } }')
    )
    with pytest.raises(InputError, match=r'images of no other size: layer "fc" \(InnerProduct\)'):
        convert(net, random_weights(net), tmp_path / "net.onnx", dynamic="spatial")
    assert not list(tmp_path.iterdir())


def test_a_train_val_net_without_its_images(tmp_path: Path) -> None:
    """Losses and Accuracy are left out, and what they score is given."""
    net = parse_net(TRAIN_VAL)
    fc = np.random.default_rng(0).normal(0, 0.1, (5, 192)).astype(np.float32)
    weights = Weights("", [LayerWeights(net.layer[2], [fc, np.zeros(5, np.float32)])])
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.inputs == {"data": (None, 3, 8, 8)} and list(report.outputs) == ["fc"]
    x = np.random.default_rng(1).normal(0, 50, (3, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(
        session(report.output).run(None, {"data": x})[0], x.reshape(3, -1) @ fc.T, rtol=1e-4, atol=1e-3
    )
    with pytest.raises(InputError, match=r'layer "train" \(ImageData\).*its shape in `shapes`, such as data=8,3,'):
        convert(net, weights, tmp_path / "net.onnx", phase=pb.TRAIN)
    with pytest.raises(InputError, match=r'layer "loss" \(SoftmaxWithLoss\) can\'t be written to ONNX: it is a loss'):
        convert(net, weights, tmp_path / "net.onnx", outputs=["loss"])


def test_missing_weights_and_zeros_are_no_success(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    report = convert(net, None, tmp_path / "net.onnx")
    assert not report.verified and report.compared["prob"].empty  # the fillers give zeros
    assert any("no weights were given" in reason for reason in report.unverified)
    assert any("the comparison proves nothing" in reason for reason in report.unverified)
    some = Weights("", [layer for layer in weights.layers if layer.name != "bn"])
    report = convert(net, some, tmp_path / "net.onnx")
    assert not report.verified and not report.compared["prob"].empty
    assert report.unverified == ("the weights lack 1 layer (bn), which keep what their fillers give",)


def test_a_wrong_file_is_not_written(
    deploy: tuple[Any, Weights], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, weights = deploy
    right = net_convert.write_graph

    def wrong(*arguments: Any) -> Any:
        graph = right(*arguments)
        graph.writer.constants["up.weight"] = graph.writer.constants["up.weight"] * np.float32(1.01)
        return graph

    monkeypatch.setattr(net_convert, "write_graph", wrong)
    (tmp_path / "net.onnx").write_text("what was there")
    with pytest.raises(WorkError, match=r'nothing was written: ONNX Runtime\'s "prob" differs from the net\'s by'):
        convert(net, weights, tmp_path / "net.onnx")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


def test_a_net_that_is_as_sensitive_itself_is_written_and_said() -> None:
    """Sums of large numbers that cancel move by about 0.1 when each number's last digit does."""
    net = Net(parse_net(SENSITIVE), pb.TEST)
    half = np.random.default_rng(0).uniform(1, 2, (2, 4)).astype(np.float32)
    x = np.concatenate([half, -half[:, ::-1]], 1)
    runner = NetRunner(net, {"y": "y"})
    found = compare(lambda inputs: {"y": runner(inputs)["y"] + np.float32(0.05)}, runner, [{"x": x}], "the file")["y"]
    assert found.own_change is not None and 0.05 <= found.max_difference <= found.own_change < 2
    assert "the net's own result moves by" in describe_difference("y", found)
    change = found.own_change
    compare(lambda inputs: {"y": runner(inputs)["y"] + 3 * np.float32(change)}, runner, [{"x": x}], "the file")
    with pytest.raises(WorkError, match=r"the net's own moves by \S+ when its input moves by 1e-7"):
        compare(lambda inputs: {"y": runner(inputs)["y"] + 4 * np.float32(change) + 1}, runner, [{"x": x}], "the file")
    with pytest.raises(WorkError):  # an input that holds whole numbers is not moved
        compare(lambda inputs: {"y": runner(inputs)["y"] + np.float32(0.05)}, runner, [{"x": x}], "it", exact=["x"])


def test_samples(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    array = np.random.default_rng(0).normal(0, 50, (3, 3, 12, 10)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    cv2.imwrite(str(tmp_path / "a.png"), np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8))
    for given, rows in (({"data": array}, 3), ({"": [tmp_path / "x.npy"]}, 3), ({"": [tmp_path / "a.png"]}, 1)):
        report = convert(net, weights, tmp_path / "net.onnx", samples=given)
        assert report.compared_on == "the samples" and report.compared_shapes[0]["data"][0] == rows
    with pytest.raises(InputError, match=r"has the shape \(3, 3, 12, 9\), and the file takes \(any, 3, 12, 10\)"):
        convert(net, weights, tmp_path / "net.onnx", samples={"data": array[..., :9]})
    with pytest.raises(InputError, match='the net has no input "dat"'):
        convert(net, weights, tmp_path / "net.onnx", samples={"dat": array})


def test_weights_beyond_two_gigabytes_get_a_file_of_their_own(
    deploy: tuple[Any, Weights], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, weights = deploy
    with monkeypatch.context() as patch:
        patch.setattr(onnx_model, "LARGEST", 100)
        patch.setattr(onnx_model, "SMALL", 64)
        report = convert(net, weights, tmp_path / "net.onnx")
    assert set(report.files) == {"net.onnx", "net.onnx.data"} == {path.name for path in tmp_path.iterdir()}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in report.files:
        (tmp_path / name).rename(moved / name)
    x = np.random.default_rng(0).normal(0, 50, (1, 3, 12, 10)).astype(np.float32)
    (got,) = session(moved / "net.onnx").run(["prob"], {"data": x})
    np.testing.assert_allclose(got, expected(net, weights, "prob", x), atol=1e-5)

    convert(net, weights, moved / "net.onnx")  # as one file
    assert [path.name for path in moved.iterdir()] == ["net.onnx"]


def test_the_command(deploy: tuple[Any, Weights], tmp_path: Path, autodial: Any) -> None:
    net, weights = deploy
    write_text(net, tmp_path / "deploy.prototxt")
    write_weights(weights, tmp_path / "net.caffemodel")
    status, out, _ = autodial(
        "convert", tmp_path / "deploy.prototxt", tmp_path / "net.caffemodel", "-o", tmp_path / "a.onnx"
    )
    assert status == 0 and '"data" any x 3 x 12 x 10 to "prob" any x 2 x 12 x 10' in out
    assert "proves little" not in out
    assert "Compared with the net on random pixels" in out and re.search(
        r'"prob" differs by at most \S+, \S+ of its range', out
    )
    words = ["convert", tmp_path / "deploy.prototxt", "-o", tmp_path / "b.onnx"]
    status, out, _ = autodial(*words)
    assert status == 0 and " KiB, opset" in out and "verified" not in out
    assert re.search(
        r"^Compared with the net .*, which proves little:\n- no weights were given, so the file holds what the layers' "
        r"fillers give$",
        out,
        re.MULTILINE,
    )
    renamed = pb.NetParameter.FromString(net.SerializeToString())
    (last,) = (layer for layer in renamed.layer if layer.name == "up")
    last.name = "pu"
    write_text(renamed, tmp_path / "renamed.prototxt")
    status, out, _ = autodial(
        "convert", tmp_path / "renamed.prototxt", tmp_path / "net.caffemodel", "-o", tmp_path / "c.onnx"
    )
    assert status == 0
    assert "- the weights lack 1 layer (pu), which keep what their fillers give; they have 1 layer that the net " in out
    assert "that the net lacks (up)\n" in out
    status, out, _ = autodial(*words, "--json", "--outputs", "map,prob", "--dynamic", "spatial")
    assert status == 0 and list(json.loads(out)["outputs"]) == ["map", "prob"]
    status, _, err = autodial(*words, "--sample", "dat=x.npy")
    assert status == 2 and 'no input "dat"' in err
    status, _, err = autodial("convert", tmp_path / "deploy.prototxt", "-o", tmp_path / "deploy.prototxt")
    assert status == 2


def test_every_layer_type_for_prediction_can_be_written() -> None:
    """All but losses, what reads data, and three that no file can hold."""
    lacking = {
        name
        for name, cls in registry.items()
        if not (
            cls.is_loss or cls.is_data or any(base.__dict__.get("type_name") in written_types() for base in cls.__mro__)
        )
    }
    assert lacking == {"Accuracy", "HDF5Output", "Python"}


ENDS = """
input: "data" input_shape { dim: [1, 3, 8, 8] } input: "truth" input_shape { dim: [1, 4] }
layer { name: "c" type: "Convolution" bottom: "data" top: "c"
  convolution_param { num_output: 4 kernel_size: 8 weight_filler { type: "xavier" } } }
layer { name: "own" type: "Own" bottom: "c" top: "c" }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "other" type: "EuclideanLoss" bottom: "fc" bottom: "truth" top: "other" }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def test_what_comes_before_a_layer_that_works_in_place(tmp_path: Path) -> None:
    """The message names what can be converted: a blob as it was before, and what losses score, not the losses."""
    net = parse_net(ENDS)
    with pytest.raises(InputError, match=r"of the type Own; .*, name in `outputs`: c,fc,prob$"):
        convert(net, None, tmp_path / "net.onnx")
    report = convert(net, None, tmp_path / "net.onnx", outputs=["c", "fc", "prob"])
    assert list(report.outputs) == ["c", "fc", "prob"]
    before = 'is given as it is before layer "own" makes it anew: no file can hold that layer, or what it reads'
    assert report.notes == (f'"c" {before}', "the input truth is not in the file: no layer there reads it")


def test_what_comes_before_a_layer_that_reads_what_no_file_can_hold(tmp_path: Path) -> None:
    net = parse_net("""
      input: "x" input_shape { dim: [1, 3] }
      layer { name: "a" type: "Sigmoid" bottom: "x" top: "a" }
      layer { name: "own" type: "Own" bottom: "x" top: "b" }
      layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "a" }
    """)
    report = convert(net, None, tmp_path / "net.onnx", outputs=["a"])
    assert report.notes[0].startswith('"a" is given as it is before layer "sum" makes it anew: ')
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(session(report.output).run(["a"], {"x": x})[0], 1 / (1 + np.exp(-x)), rtol=1e-6)


@pytest.mark.parametrize(
    "loss", ['type: "Python" loss_weight: 1 python_param { module: "a" layer: "B" }', 'type: "OwnLoss"']
)
def test_losses_of_one_s_own_are_left_out(loss: str, tmp_path: Path) -> None:
    own = 'layer { name: "own" type: "Own" bottom: "c" top: "c" }'
    net = parse_net(ENDS.replace(own, f'layer {{ name: "own" {loss} bottom: "c" bottom: "truth" top: "own" }}'))
    assert list(convert(net, None, tmp_path / "net.onnx").outputs) == ["c", "prob", "fc"]


@pytest.mark.parametrize("kind", ['"Python" python_param { module: "rpn.stat" layer: "stat" }', '"OwnStatistics"'])
def test_layers_without_a_top_are_left_out(kind: str, tmp_path: Path) -> None:
    own = 'layer { name: "own" type: "Own" bottom: "c" top: "c" }'
    net = parse_net(ENDS.replace(own, f'layer {{ name: "own" type: {kind} bottom: "data" bottom: "c" }}'))
    report = convert(net, None, tmp_path / "net.onnx")
    assert list(report.outputs) == ["c", "prob", "fc"]
    kind = kind.split('"')[1]
    unread = "the input truth is not in the file: no layer there reads it"
    assert report.notes == (f'layer "own" ({kind}) is left out: it has no top, so no output depends on it', unread)
    assert convert(net, None, tmp_path / "net.onnx", outputs=["prob"]).notes == (unread,)


def test_the_message_names_the_input_whose_shape_is_missing(tmp_path: Path) -> None:
    net = parse_net("""
      layer { name: "rows" type: "Rows" top: "a" top: "b" }
      layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
      layer { name: "images" type: "Data" top: "c" transform_param { crop_size: 7 }
        data_param { source: "gone" batch_size: 6 } }
      layer { name: "y" type: "Eltwise" bottom: "sum" bottom: "c" top: "y" }
    """)
    with pytest.raises(InputError, match=r"becomes an input; give its shape .* a=1,3,224,224, and those of b, c$"):
        convert(net, None, tmp_path / "net.onnx")
    with pytest.raises(InputError, match=r"so you can also give its shape in `shapes`, such as c=6,3,7,7$"):
        convert(net, None, tmp_path / "net.onnx", shapes={"a": (2, 3), "b": (2, 3)})
    with pytest.raises(InputError, match=r"such as b=1,3,224,224, and that of c$"):
        convert(net, None, tmp_path / "net.onnx", shapes={"a": (2, 3)})
    shapes = dict.fromkeys("abc", (2, 3))
    assert convert(net, None, tmp_path / "net.onnx", shapes=shapes).outputs == {"y": (None, 3)}


def test_numbers_at_the_end_of_float32_prove_nothing() -> None:
    """Where one runtime's exponential overflows and the other's just does not; but what is finite must agree."""
    net = NetRunner(Net(parse_net(SENSITIVE.replace("1000000", "3e38")), pb.TEST), {"y": "y"})
    x = np.zeros((2, 8), np.float32)
    x[0, 0] = 1
    for given, agrees in (([np.inf, 0], True), ([-np.inf, 0], False), ([np.nan, 0], False), ([np.inf, np.inf], False)):
        try:
            (found,) = compare(lambda inputs, y=given: {"y": np.array(y, np.float32)}, net, [{"x": x}], "it").values()
        except WorkError:
            assert not agrees
        else:
            assert agrees and found.agrees and found.empty is Empty.NOT_FINITE
    boxes = compare(lambda inputs: {"y": np.zeros(2, np.float32)}, net, [{"x": x * 4}], "it", unordered={"y"})["y"]
    assert boxes.agrees and boxes.empty  # as the net's has no end


def test_probabilities_that_are_all_near_zero_agree_and_prove_nothing() -> None:
    net = NetRunner(Net(parse_net(SENSITIVE), pb.TEST), {"y": "y"})
    x = np.zeros((2, 8), np.float32)
    x[0, 0] = 1e-13  # times 1e6
    (found,) = compare(
        lambda inputs: {"y": net(inputs)["y"] + np.float32(5e-8)}, net, [{"x": x}], "the file", probabilities={"y"}
    ).values()
    assert found.agrees and found.empty is Empty.CONSTANT and found.own_change is None
    with pytest.raises(WorkError):
        compare(lambda inputs: {"y": net(inputs)["y"] + np.float32(5e-8)}, net, [{"x": x}], "the file")
    with pytest.raises(WorkError):
        compare(
            lambda inputs: {"y": net(inputs)["y"] + np.float32(2e-6)}, net, [{"x": x}], "the file", probabilities={"y"}
        )


HED = """
input: "data" input_dim: 1 input_dim: 1 input_dim: 40 input_dim: 32
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 1 pad: 35 kernel_size: 3 } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "up" type: "Deconvolution" bottom: "pool1" top: "up"
  convolution_param { num_output: 1 kernel_size: 4 stride: 2 bias_term: false } }
layer { name: "crop" type: "Crop" bottom: "conv1" bottom: "data" top: "fine" }
layer { name: "crop" type: "Crop" bottom: "up" bottom: "data" top: "coarse" }
"""
"""The stem of HED, with its two first crops, whose offsets its authors' later ports state as 34 and 35."""


def test_crops_without_an_offset(tmp_path: Path) -> None:
    """A point stays where it is with `align_crops`; without it, the crops begin at 0, and the report says so."""
    net = parse_net(HED)
    conv = np.zeros((1, 1, 3, 3), np.float32)
    conv[0, 0, 1, 1] = 1
    up = np.ones((1, 1, 4, 4), np.float32)
    weights = Weights(
        "", [LayerWeights(net.layer[1], [conv, np.zeros(1, np.float32)]), LayerWeights(net.layer[3], [up])]
    )
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.notes == (
        "2 Crop layers (crop) state no offset, which is 0 in BVLC's Caffe. The Caffe of HED and of the first FCNs "
        "computes it, here 34, 35: if the net was trained there, convert it with `align_crops`",
    )
    x = np.zeros((1, 1, 40, 32), np.float32)
    x[0, 0, 10, 20] = 1
    fine, _ = session(report.output).run(["fine", "coarse"], {"data": x})
    assert not fine[0, 0, 10, 20]
    report = convert(net, weights, tmp_path / "net.onnx", align_crops=True)
    assert report.verified and not report.notes
    fine, coarse = session(report.output).run(["fine", "coarse"], {"data": x})
    assert np.argwhere(fine[0, 0]).tolist() == [[10, 20]]
    rows, columns = np.argwhere(coarse[0, 0]).T
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (9, 12, 19, 22)  # a cell of 2 x 2, enlarged to 4


def test_crops_that_state_an_offset_or_need_none(tmp_path: Path) -> None:
    stated = parse_net(HED.replace('top: "fine" }', 'top: "fine" crop_param { offset: 3 } }'))
    assert aligned_offsets(Net(stated, pb.TEST)) == {"coarse": (35, 35)}
    assert not convert(stated, None, tmp_path / "net.onnx", align_crops=True).notes
    same = HED.replace("pad: 35", "pad: 1").replace("kernel_size: 4 stride: 2", "kernel_size: 2 stride: 2")
    assert not convert(parse_net(same), None, tmp_path / "net.onnx").notes
    scaled = HED.replace("kernel_size: 4 stride: 2", "kernel_size: 4 stride: 3")
    (note,) = convert(parse_net(scaled), None, tmp_path / "net.onnx").notes
    assert note.startswith("1 Crop layer (crop) states no offset")


def test_the_offsets_that_the_authors_of_fcn_state() -> None:
    """The first FCNs leave them out; the later FCN-32s has 19, and the later FCN-16s 5 and 27."""

    def layer(kind: str, bottoms: str, top: str, fields: str = "") -> str:
        names = " ".join(f'bottom: "{name}"' for name in bottoms.split())
        return f'layer {{ name: "{top}" type: "{kind}" {names} top: "{top}" {fields} }}'

    def windows(kernel: int, stride: int = 1, pad: int = 0) -> str:
        return f"convolution_param {{ num_output: 1 kernel_size: {kernel} stride: {stride} pad: {pad} }}"

    halves = [
        layer("Pooling", f"pool{i}", f"pool{i + 1}", "pooling_param { kernel_size: 2 stride: 2 }") for i in range(5)
    ]
    net = parse_net(
        "\n".join([
            'input: "data" input_dim: 1 input_dim: 1 input_dim: 33 input_dim: 40',
            layer("Convolution", "data", "pool0", windows(3, pad=100)),
            *halves,
            layer("Convolution", "pool5", "fc6", windows(7)),
            layer("Deconvolution", "fc6", "up32", windows(64, 32)),
            layer("Crop", "up32 data", "score32"),
            layer("Deconvolution", "fc6", "up2", windows(4, 2)),
            layer("Crop", "pool4 up2", "pool4c"),
            layer("Eltwise", "up2 pool4c", "fuse"),
            layer("Deconvolution", "fuse", "up16", windows(32, 16)),
            layer("Crop", "up16 data", "score16"),
        ])
    )  # fmt: skip
    offsets = aligned_offsets(Net(net, pb.TEST))
    assert offsets == {"score32": (19, 19), "pool4c": (5, 5), "score16": (27, 27)}

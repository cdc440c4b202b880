"""`convert`: nets for optical flow and their layers, against loops after the fork's source, torch and OpenCV."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import flow_loops as loops
import flow_nets as nets
import numpy as np
import onnxruntime
import pytest
import torch
from environments import environment
from random_weights import random_weights

from autodial.converters.net_convert import convert
from autodial.converters.verification import TOLERANCE
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net, write_weights
from autodial.proto import messages as pb

A, B, FLOW, OTHER = (2, 3, 7, 20), (2, 3, 7, 20), (2, 2, 7, 20), (2, 4, 9, 11)


def run(path: Path, **feed: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def net_of(kind: str, body: str, *shapes: tuple[int, ...]) -> Any:
    """A layer `y` of the inputs x0, x1, ..."""
    text = ""
    for i, shape in enumerate(shapes):
        text += f'layer {{ name: "x{i}" type: "Input" top: "x{i}" input_param {{ shape {{ dim: {list(shape)} }} }} }}'
    bottoms = " ".join(f'bottom: "x{i}"' for i in range(len(shapes)))
    return parse_net(f'{text} layer {{ name: "y" type: "{kind}" {bottoms} top: "y" {body} }}')


def arrays(*shapes: tuple[int, ...], seed: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {f"x{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}


@pytest.mark.parametrize("subtract", [False, True])
@pytest.mark.parametrize(
    ("fields", "case"),
    [
        ("pad: 4 max_displacement: 4 stride_2: 2", {"pad": 4, "reach": 4, "stride_2": 2}),
        ("pad: 3 max_displacement: 4 stride_2: 3", {"pad": 3, "reach": 4, "stride_2": 3}),
        ("pad: 3 max_displacement: 2 stride_1: 2", {"pad": 3, "reach": 2, "stride_1": 2}),
    ],
)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dynamic", ["batch", "spatial"])
def test_correlation(
    tmp_path: Path, fields: str, case: dict[str, int], kernel: int, subtract: bool, dynamic: Any
) -> None:
    kind = "correlation_type: SUBTRACT" if subtract else ""
    net = net_of("Correlation", f"correlation_param {{ kernel_size: {kernel} {fields} {kind} }}", A, B)
    report = convert(net, None, tmp_path / "net.onnx", dynamic=dynamic)
    assert report.verified
    for size in [(7, 20)] if dynamic == "batch" else [(7, 20), (8, 37)]:
        x = arrays((1, 3, *size), (1, 3, *size))
        want = loops.correlation(x["x0"], x["x1"], kernel=kernel, subtract=subtract, **case)
        np.testing.assert_allclose(run(report.output, **x), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("direction", [-1, 0, 1])
@pytest.mark.parametrize("dynamic", ["batch", "spatial"])
def test_correlation_along_rows(tmp_path: Path, direction: int, dynamic: Any) -> None:
    fields = f"kernel_size: 3 pad: 4 max_displacement: 5 stride_2: 2 single_direction: {direction}"
    net = net_of("Correlation1D", f"correlation_param {{ {fields} }}", A, B)
    report = convert(net, None, tmp_path / "net.onnx", dynamic=dynamic)
    x = arrays(A, B)
    want = loops.correlation_1d(x["x0"], x["x1"], pad=4, kernel=3, reach=5, stride_2=2, direction=direction)
    np.testing.assert_allclose(run(report.output, **x), want, rtol=1e-4, atol=1e-6)


def test_the_matrices_of_a_correlation_are_no_larger_than_needed(tmp_path: Path) -> None:
    """FlowNetC's own correlation: 21 products of matrices in the place of 441 sums."""
    maps = (1, 256, 48, 64)
    fields = "pad: 20 kernel_size: 1 max_displacement: 20 stride_1: 1 stride_2: 2"
    net = net_of("Correlation", f"correlation_param {{ {fields} }}", maps, maps)
    report = convert(net, None, tmp_path / "net.onnx", dynamic="none")
    assert report.outputs == {"y": (1, 441, 48, 64)} and report.verified
    x = arrays(maps, maps)
    got = run(report.output, **x)
    first, second = x["x0"][0], np.pad(x["x1"][0], [(0, 0), (20, 20), (20, 20)])
    for down, right in ((-20, -20), (0, 0), (-6, 14), (20, 20)):
        moved = second[:, 20 + down : 68 + down, 20 + right : 84 + right]
        channel = (down // 2 + 10) * 21 + right // 2 + 10
        np.testing.assert_allclose(got[0, channel], (first * moved).mean(0), rtol=1e-3, atol=1e-6)


def test_more_displacements_than_can_be_written(tmp_path: Path) -> None:
    fields = "pad: 40 kernel_size: 1 max_displacement: 40 correlation_type: SUBTRACT"
    net = net_of("Correlation", f"correlation_param {{ {fields} }}", (1, 1, 2, 2), (1, 1, 2, 2))
    with pytest.raises(InputError, match=r'layer "y" .*6561 displacements'):
        convert(net, None, tmp_path / "net.onnx")


@pytest.mark.parametrize(("fields", "fill"), [("", 0.0), ("flow_warp_param { fill_value: NOT_A_NUMBER }", np.nan)])
@pytest.mark.parametrize("dynamic", ["batch", "spatial"])
def test_flow_warp(tmp_path: Path, fields: str, fill: float, dynamic: Any) -> None:
    report = convert(net_of("FlowWarp", fields, A, FLOW), None, tmp_path / "net.onnx", dynamic=dynamic)
    for size in [(7, 20)] if dynamic == "batch" else [(7, 20), (12, 9)]:
        x = arrays((3, 3, *size), (3, 2, *size))
        x["x1"] *= 4
        x["x1"][0] = x["x1"][0].round()
        x["x1"][1, :, 0] = np.nan
        want = loops.flow_warp(x["x0"], x["x1"], fill)
        np.testing.assert_allclose(run(report.output, **x), want, rtol=1e-5, atol=1e-5)


def test_channel_norm(tmp_path: Path) -> None:
    report = convert(net_of("ChannelNorm", "", A), None, tmp_path / "net.onnx", dynamic="spatial")
    x = arrays((3, 3, 4, 5))
    np.testing.assert_allclose(run(report.output, **x), np.sqrt((x["x0"] ** 2).sum(1, keepdims=True)), rtol=1e-5)


@pytest.mark.parametrize("kind", ["NEAREST", "LINEAR", "CUBIC"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(3, 8), (15, 31), (7, 20), (6, 24)])
def test_resample(tmp_path: Path, kind: str, antialias: bool, size: tuple[int, int]) -> None:
    fields = f"type: {kind} antialias: {str(antialias).lower()}"
    stated = net_of("Resample", f"resample_param {{ {fields} height: {size[0]} width: {size[1]} }}", A)
    referred = net_of("Resample", f"resample_param {{ {fields} }}", A, (2, 1, *size))
    x = arrays(A, (2, 1, *size))
    want = loops.resample(x["x0"], size, kind, antialias)
    for net in (stated, referred):
        report = convert(net, None, tmp_path / "net.onnx", dynamic="none", outputs=["y"])
        feed = {name: x[name] for name in report.inputs}
        np.testing.assert_allclose(run(report.output, **feed), want, rtol=1e-4, atol=1e-5)
    if kind != "NEAREST":
        with pytest.raises(InputError, match="the length of axis 2 must be known when the file is written"):
            convert(stated, None, tmp_path / "net.onnx", dynamic="spatial")


def test_downsample(tmp_path: Path) -> None:
    net = net_of("Downsample", "downsample_param { top_height: 4 top_width: 8 }", A)
    report = convert(net, None, tmp_path / "net.onnx")
    x = arrays(A)
    x["x0"][0, 0, 3, 4] = np.nan
    x["x0"][1, :, :4, :7] = np.nan
    want = loops.downsample(x["x0"], (4, 8))
    assert np.isnan(want).any() and not np.isnan(want[0]).any()
    np.testing.assert_allclose(run(report.output, **x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", ["batch", "spatial"])
def test_accum(tmp_path: Path, dynamic: Any) -> None:
    net = net_of("Accum", "accum_param { have_reference: true }", A, OTHER, (2, 1, 10, 12))
    report = convert(net, None, tmp_path / "net.onnx", dynamic=dynamic)
    x = arrays(A, OTHER, (2, 1, 10, 12))
    np.testing.assert_allclose(run(report.output, **x), loops.accum([x["x0"], x["x1"]], (10, 12)), rtol=1e-4, atol=1e-5)
    largest = net_of("Accum", "", A, OTHER)
    if dynamic == "spatial":
        with pytest.raises(InputError, match="the height and the width of its top must be known"):
            convert(largest, None, tmp_path / "net.onnx", dynamic=dynamic)
    else:
        convert(largest, None, tmp_path / "net.onnx")
        del x["x2"]
        want = loops.accum([x["x0"], x["x1"]], (9, 20))
        np.testing.assert_allclose(run(tmp_path / "net.onnx", **x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slope", [0, 0.25])
def test_neg_relu(tmp_path: Path, slope: float) -> None:
    net = net_of("NegReLU", f"relu_param {{ negative_slope: {slope} }}", A)
    x = arrays(A)
    got = run(convert(net, None, tmp_path / "net.onnx").output, **x)
    np.testing.assert_allclose(got, np.where(x["x0"] < 0, x["x0"], slope * x["x0"]), rtol=1e-6)


def test_mean(tmp_path: Path) -> None:
    fields = "operation: SUBTRACT value: [1, 2, 3] mean_scale: 2 input_scale: 0.5 output_scale: 4"
    report = convert(net_of("Mean", f"mean_param {{ {fields} }}", A), None, tmp_path / "net.onnx", dynamic="spatial")
    x = arrays((1, 3, 4, 5))
    want = 4 * (0.5 * x["x0"] - 2 * np.float32([1, 2, 3])[:, None, None])
    np.testing.assert_allclose(run(report.output, **x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("crop", ["", "crop_height: 5 crop_width: 9"])
def test_data_augmentation(tmp_path: Path, crop: str) -> None:
    size = (5, 9) if crop else (7, 20)
    net = net_of("DataAugmentation", f"augmentation_param {{ recompute_mean: 3 {crop} }}", A)
    mean = arrays((1, 3, *size), seed=5)["x0"]
    blobs = [np.full((1, 1, 1, 1), 3, np.float32), mean, mean.mean((2, 3), keepdims=True)]
    report = convert(net, Weights("", [LayerWeights(net.layer[1], blobs)]), tmp_path / "net.onnx")
    assert report.verified
    x = arrays(A)
    want = (loops.crop(x["x0"], size) if crop else x["x0"]) - mean
    np.testing.assert_allclose(run(report.output, **x), want, rtol=1e-4, atol=1e-5)
    blobs[0] = np.full((1, 1, 1, 1), 2, np.float32)
    with pytest.raises(InputError, match=r'layer "y" .*its mean is of 2 batches'):
        convert(net, Weights("", [LayerWeights(net.layer[1], blobs)]), tmp_path / "net.onnx")


def trained(net: Any) -> Weights:
    """Random weights and a mean of more batches than the net asks for, of images of another size."""
    weights = random_weights(net)
    kept = []
    for each in weights.layers:
        if each.type == "DataAugmentation":
            mean = np.float32([0.4, 0.5, 0.6]).reshape(1, 3, 1, 1)
            blobs = [np.full((1, 1, 1, 1), 60000, np.float32), np.ones((1, 3, 32, 48), np.float32) * mean, mean]
            each = LayerWeights(each.param, blobs)
        if each.name != "scale_conv1":  # released weights lack it, as its filler says it all
            kept.append(each)
    return Weights("", kept)


@pytest.mark.parametrize("name", ["flownet_s", "flownet_c", "flownet_2"])
def test_short_forms_of_flownets(tmp_path: Path, name: str) -> None:
    net = parse_net(getattr(nets, name)())
    weights = trained(net)
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.inputs == {"img0": (None, 3, 22, 30), "img1": (None, 3, 22, 30)}
    assert report.outputs == {"predict_flow_final": (None, 2, 22, 30)}
    (only,) = report.unverified
    assert only.startswith("the weights lack 1 layer (scale_conv1)")
    assert report.compared["predict_flow_final"].relative_difference < 1e-5
    rng = np.random.default_rng(4)
    x = {f"img{i}": rng.uniform(0, 255, (3, 3, 22, 30)).astype(np.float32) for i in range(2)}
    torch_net = Net(net, pb.TEST)
    torch_net.load_weights(weights)
    with torch.no_grad():
        want = torch_net({each: torch.from_numpy(array) for each, array in x.items()})["predict_flow_final"]
    got = run(report.output, **x)
    assert np.ptp(got) > 0.1 and np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def test_a_net_without_weights_leaves_its_images_a_mean_of_0(tmp_path: Path) -> None:
    report = convert(parse_net(nets.flownet_s()), None, tmp_path / "net.onnx")
    assert report.unverified[0].startswith("no weights were given")


OPENCV = """
import sys
import cv2, numpy as np
net = cv2.dnn.readNetFromCaffe(sys.argv[1], sys.argv[2])
x = np.load(sys.argv[3])
for name in "ab":
    net.setInput(x[name], name)
np.save(sys.argv[4], net.forward(sys.argv[5]))
"""


@pytest.mark.network
def test_flownet_c_gives_what_opencv_gives(tmp_path: Path) -> None:
    """Correlation, Accum and FlowWarp, between convolutions.

    OpenCV's Resample is another, its DataAugmentation takes the mean of each input, and it has no ChannelNorm.
    """
    python = environment(tmp_path / "opencv", "opencv-python-headless<5")
    dims = "input_shape { dim: 1 dim: 3 dim: 48 dim: 64 }"
    text = f'input: "a" input: "b" {dims} {dims} {nets.flownet_c_body("c", 6)}'
    text += nets.layer("Accum1", "Accum", "c_flow a", "full", "accum_param { have_reference: true }")
    text += nets.layer("FlowWarp1", "FlowWarp", "b full", "warped")
    net = parse_net(text)
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.verified
    rng = np.random.default_rng(4)
    x = {name: rng.uniform(0, 50, (1, 3, 48, 64)).astype(np.float32) for name in "ab"}
    np.savez(tmp_path / "x.npz", **x)
    # OpenCV's Eltwise takes no single bottom.
    scaled = r'"Eltwise"( bottom: "\w+" top: "\w+") eltwise_param { operation: SUM coeff: (\S+) }'
    (tmp_path / "net.prototxt").write_text(re.sub(scaled, r'"Power"\1 power_param { scale: \2 }', text))
    write_weights(weights, tmp_path / "net.caffemodel")
    files = [str(tmp_path / each) for each in ("net.prototxt", "net.caffemodel", "x.npz", "theirs.npy")]
    subprocess.run([str(python), "-c", OPENCV, *files, "FlowWarp1"], check=True, timeout=600)
    ours, theirs = run(report.output, **x), np.load(tmp_path / "theirs.npy")
    assert np.ptp(ours) > 10 and (ours != 0).mean() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * np.ptp(ours))

"""Reorg and the last layers of YOLO 2 and 3 against loops over what the ports' sources say; and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from detection_loops import yolo

from autodial.converters.net_convert import convert
from autodial.errors import InputError
from autodial.layers import LayerError
from autodial.proto import parse_net

V2 = """type: "YoloDetectionOutput" yolo_detection_output_param {
  num_classes: 3 num_box: 2 %s biases: [0.7, 0.9, 2.4, 2.6] }"""
V3 = """type: "Yolov3DetectionOutput" yolov3_detection_output_param {
  num_classes: 3 num_box: 2 %s biases: [10, 14, 23, 27, 37, 58, 81, 82]
  mask: [2, 3, 0, 1] anchors_scale: [32, 16] mask_group_num: 2 }"""
ANCHORS = {
    2: [[(0.7, 0.9), (2.4, 2.6)]] * 2,
    3: [[(37 / 32, 58 / 32), (81 / 32, 82 / 32)], [(10 / 16, 14 / 16), (23 / 16, 27 / 16)]],
}
LIMITS = "confidence_threshold: 0.2 nms_threshold: 0.4"
SHAPES = ((3, 16, 4, 4), (3, 16, 8, 8))


def maps(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("version", "layer", "shapes"), [(2, V2, SHAPES[:1]), (2, V2, SHAPES), (3, V3, SHAPES)], ids=str
)
def test_detections(build: Any, version: int, layer: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    made = build(layer % LIMITS, *shapes, phase=1)
    given = maps(version, *shapes)
    assert made.top_shapes(shapes) == [(1, 1, 1, 7)]
    rows = made(*map(torch.from_numpy, given))
    want = yolo(given, 3, ANCHORS[version][: len(shapes)], version=version, confidence=0.2, nms=0.4)
    assert rows.shape == (1, 1, len(want), 7) and len(want) > 15
    np.testing.assert_allclose(rows[0, 0], want, 1e-4, 1e-5)


def test_defaults_and_boxes_of_which_all_stay(build: Any) -> None:
    given = maps(1, *SHAPES)
    for fields, confidence, nms in (("", 0.01, 0.45), ("confidence_threshold: 0.5 nms_threshold: 2", 0.5, 2)):
        rows = build(V3 % fields, *SHAPES, phase=1)(*map(torch.from_numpy, given))
        want = yolo(given, 3, ANCHORS[3], version=3, confidence=confidence, nms=nms)
        assert len(want) > 2
        np.testing.assert_allclose(rows[0, 0], want, 1e-4, 1e-5)


def test_an_overlap_that_reaches_the_threshold_and_a_score_that_reaches_it(build: Any) -> None:
    """The ports leave out a box at the threshold itself; YOLO 2 keeps a score at its own, and YOLO 3 does not."""
    x = torch.zeros(1, 12, 1, 1)  # two boxes in a cell, of which the first holds the second
    x[:, [4, 10]] = torch.tensor([1.0, 0.5])[:, None, None]
    fields = "num_classes: 1 num_box: 2 biases: [1, 1, 0.5, 1] confidence_threshold: %s nms_threshold: 0.5"
    layer = f'type: "YoloDetectionOutput" yolo_detection_output_param {{ {fields} }}'
    assert build(layer % 0.1, x.shape, phase=1)(x).shape[2] == 1  # an overlap of 0.5
    assert build(layer.replace("0.5 }", "0.5001 }") % 0.1, x.shape, phase=1)(x).shape[2] == 2
    x[:, [4, 10]] = 0
    kept = build(layer % 0.5, x.shape, phase=1)(x)
    torch.testing.assert_close(kept[0, 0], torch.tensor([[0, 1, 0.5, 0, 0, 1, 1]]))
    third = f"""type: "Yolov3DetectionOutput" yolov3_detection_output_param {{ {fields}
      mask: [0, 1] anchors_scale: 1 mask_group_num: 1 }}"""
    assert build(third % 0.25, x.shape, phase=1)(x).tolist() == [[[[0, -1, -1, -1, -1, -1, -1]]]]
    assert build(third % 0.24, x.shape, phase=1)(x)[0, 0, :, 1].tolist() == [1]


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        (V2.replace("num_classes: 3", "") % "", [(1, 16, 4, 4)], "num_classes is missing or 0"),
        (V2 % "", [(1, 15, 4, 4)], r"for 2 boxes and 3 classes, a bottom must be \(1, 16, S, S\), not \(1, 15, 4, 4\)"),
        (V2 % "", [(1, 16, 4, 5)], r"must be \(1, 16, S, S\)"),
        (V2 % "", [(1, 16)], r"must be \(1, 16, S, S\)"),
        (V2 % "", [(1, 16, 4, 4), (2, 16, 4, 4)], r"must be \(1, 16, S, S\), not \(2, 16"),
        (V2.replace("num_box: 2", "num_box: 4000000000") % "", [(1, 16, 4, 4)], "biases has 4 numbers"),
        (V2.replace("num_box: 2", "num_box: 0") % "", [(1, 16, 4, 4)], "num_box must be at least 1"),
        (V2 % "nms_threshold: 0", [(1, 16, 4, 4)], "nms_threshold must be above 0, not 0"),
        (V2 % "nms_threshold: nan", [(1, 16, 4, 4)], "nms_threshold must be above 0, not nan"),
        (V3 % "", [(1, 16, 4, 4)], "mask_group_num is 2, and must be the number of bottoms"),
        (V3.replace("[32, 16]", "32") % "", [(1, 16, 4, 4)] * 2, "anchors_scale must have 2 numbers"),
        (V3.replace("[32, 16]", "[32, 0]") % "", [(1, 16, 4, 4)] * 2, "anchors_scale must have 2 numbers"),
        (V3.replace("[2, 3, 0, 1]", "[0, 1]") % "", [(1, 16, 4, 4)] * 2, "mask has 2 numbers, too few"),
        (V3.replace("[2, 3, 0, 1]", "[2, 3, 0, 4]") % "", [(1, 16, 4, 4)] * 2, "mask names anchor 4, and biases has 4"),
        (V3.replace("num_box: 2", "num_box: 0") % "", [(1, 16, 4, 4)] * 2, "num_box must be at least 1"),
    ],
)
def test_refuses(build: Any, layer: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises((LayerError, InputError), match=message):
        build(layer, *shapes, phase=1)


def darknet(x: Any, stride: int, reverse: bool) -> Any:
    """Darknet's reorg_cpu, number by number, in the flat order of both blobs."""
    count, channels, height, width = x.shape
    own, given, made = channels // stride**2, x.ravel(), np.zeros(x.size, x.dtype)
    for n, c, h, w in np.ndindex(x.shape):
        one = w + width * (h + height * (c + channels * n))
        column = w * stride + c // own % stride
        row = h * stride + c // own // stride
        other = column + width * stride * (row + height * stride * (c % own + own * n))
        if reverse:
            made[other] = given[one]
        else:
            made[one] = given[other]
    if reverse:
        return made.reshape(count, own, height * stride, width * stride)
    return made.reshape(count, channels * stride**2, height // stride, width // stride)


@pytest.mark.parametrize(("stride", "shape"), [(2, (2, 8, 6, 4)), (3, (1, 18, 3, 6)), (1, (2, 3, 4, 5))])
@pytest.mark.parametrize("reverse", [False, True])
def test_reorg(build: Any, tmp_path: Path, stride: int, shape: tuple[int, ...], reverse: bool) -> None:
    fields = f"reorg_param {{ stride: {stride} reverse: {str(reverse).lower()} }}"
    (x,) = maps(1, shape)
    want = darknet(x, stride, reverse)
    layer = build(f'type: "Reorg" {fields}', shape)
    assert layer.top_shapes([shape]) == [want.shape]
    np.testing.assert_array_equal(layer(torch.from_numpy(x)), want)
    inputs = f'input: "x" input_shape {{ dim: {list(shape)} }}'
    net = parse_net(f'{inputs} layer {{ name: "y" type: "Reorg" {fields} bottom: "x" top: "y" }}')
    report = convert(net, None, tmp_path / "net.onnx", dynamic="none" if stride == 3 else "spatial")
    (x,) = maps(2, shape if stride == 3 else (3, shape[1], 2 * shape[2], shape[3] + 2 * stride))
    session = onnxruntime.InferenceSession(str(report.output), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], darknet(x, stride, reverse))


@pytest.mark.parametrize(
    ("fields", "shape", "message"),
    [
        ("", (1, 4, 4, 4), "reorg_param.stride is missing or 0"),
        ("reorg_param { stride: 2 }", (1, 6, 4, 4), r"6 channels, which is not a multiple of stride\^2, 4"),
        ("reorg_param { stride: 2 }", (1, 4, 4, 5), "must be multiples of stride 2"),
        ("reorg_param { stride: 2 }", (1, 4, 4), "needs a bottom of 4 axes"),
        ("reorg_param { stride: 4000000000 reverse: true }", (1, 4, 4, 4), "is not a multiple of"),
    ],
)
def test_reorg_refuses(build: Any, fields: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Reorg" {fields}', shape)


@pytest.mark.parametrize(("version", "layer"), [(2, V2), (3, V3)])
def test_converted(tmp_path: Path, version: int, layer: str) -> None:
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: {list(shape)} }} }} }}'
        for name, shape in zip("ab", SHAPES, strict=True)
    )
    net = parse_net(f'{inputs} layer {{ name: "out" {layer % LIMITS} bottom: "a" bottom: "b" top: "out" }}')
    report = convert(net, None, tmp_path / "net.onnx")
    assert report.verified and report.outputs == {"out": (1, 1, None, 7)}
    session = onnxruntime.InferenceSession(str(report.output), providers=["CPUExecutionProvider"])
    given = maps(version, *((2, *shape[1:]) for shape in SHAPES))
    (got,) = session.run(["out"], dict(zip("ab", given, strict=True)))
    want = yolo(given, 3, ANCHORS[version], version=version, confidence=0.2, nms=0.4)
    assert len(want) > 10
    np.testing.assert_allclose(got[0, 0], want, rtol=1e-4, atol=1e-5)
    for x in given:
        x[:] = -30
    (none,) = session.run(["out"], dict(zip("ab", given, strict=True)))
    np.testing.assert_array_equal(none[0, 0], [[i, *[-1] * 6] for i in range(2)])

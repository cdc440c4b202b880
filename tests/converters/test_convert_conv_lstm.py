"""`convert`: ConvLSTM in ONNX Runtime, against loops over a step's formulas, and the end of a net that reads videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from caffe_loops import conv_lstm
from random_weights import random_weights

from autodial.converters.net_convert import convert
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb

X, CONT, STATIC, STATE = (3, 2, 3, 4, 5), (3, 2), (1, 2, 1, 4, 5), (1, 2, 2, 4, 5)
PLAIN = "lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 }"
WIDE = """
  lstm_conv_param { type: "hidden" num_output: 2 kernel_size: 3 pad: 2 dilation: 2 }
  lstm_conv_param { type: "input" num_output: 2 kernel_size: 1 }
"""


def net_of(options: str, tops: str, **bottoms: tuple[int, ...]) -> Any:
    text = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: {list(shape)} }} }} }}'
        for name, shape in bottoms.items()
    )
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    return parse_net(f'{text} layer {{ name: "y" type: "ConvLSTM" {names} {tops} {options} }}')


def run(path: Path, names: list[str], feed: dict[str, Any]) -> list[Any]:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(names, feed)


@pytest.mark.parametrize(
    ("options", "more", "exposed"),
    [
        (PLAIN, {}, False),
        (WIDE, {"static": STATIC}, True),
        (f"{WIDE} lstm_debug_param {{ disable_hadamard: true }}", {"static": STATIC}, False),
        (f"{PLAIN} lstm_debug_param {{ axis_hadamard: 2 num_axes_hadamard: 2 }}", {}, True),
        (f"{PLAIN} lstm_debug_param {{ ignore_x: true }}", {}, True),
    ],
)
def test_steps(options: str, more: dict[str, tuple[int, ...]], exposed: bool, tmp_path: Path) -> None:
    tops = ["y", "h", "c"] if exposed else ["y"]
    if exposed:
        options, more = options + " recurrent_param { expose_hidden: true }", {**more, "h0": STATE, "c0": STATE}
    net = net_of(options, " ".join(f'top: "{top}"' for top in tops), x=X, cont=CONT, **more)
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx")
    assert report.verified, report.unverified
    names = ["static"] * ("static" in more) + ["unused"] * 2 + ["hidden", "bias"]
    names = names if "ignore_x" in options else ["x", *names]
    blobs = dict(zip(names, weights.layers[0].blobs, strict=False))
    if "disable" not in options:
        shape = (2, 4, 1) if "axis" in options else (4, 5)
        blobs["peepholes"] = [blob.reshape(shape) for blob in weights.layers[0].blobs[len(names) : -2]]
    pads, dilations = ((0, 2), (1, 2)) if options.startswith(WIDE) else ((1, 1), (1, 1))
    for steps in (3, 5):
        rng = np.random.default_rng(steps)
        shapes = {"x": (steps, *X[1:]), **more}
        feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        feed["cont"] = rng.integers(0, 2, (steps, 2)).astype(np.float32)
        zeros = np.zeros(STATE)
        want = conv_lstm(
            feed["x"], feed["cont"], blobs, feed.get("h0", zeros)[0], feed.get("c0", zeros)[0], pads, dilations,
            feed.get("static", [None])[0],
        )  # fmt: skip
        got = run(report.output, tops, feed)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)
        for array, state in zip(got[1:], want[1:], strict=exposed):
            np.testing.assert_allclose(array[0], state, rtol=1e-4, atol=1e-5)


def test_maps_of_any_size_without_peepholes(tmp_path: Path) -> None:
    text = f"""
      layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: [3, 3, 4, 5] }} }} }}
      layer {{ name: "cont" type: "Input" top: "cont" input_param {{ shape {{ dim: [3, 1] }} }} }}
      layer {{ name: "r" type: "Reshape" bottom: "x" top: "r"
        reshape_param {{ shape {{ dim: 1 }} axis: 1 num_axes: 0 }} }}
      layer {{ name: "y" type: "ConvLSTM" bottom: "r" bottom: "cont" top: "y"
        {PLAIN} lstm_debug_param {{ disable_hadamard: true }} }}
    """
    net = parse_net(text)
    weights = random_weights(net)
    report = convert(net, weights, tmp_path / "net.onnx", dynamic="spatial")
    assert report.verified and report.outputs == {"y": (None, 1, 2, None, None)}
    weight, _, _, hidden, bias, _, _ = weights.layers[0].blobs
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 7)).astype(np.float32)
    cont = np.array([[0], [1]], np.float32)
    blobs = {"x": weight, "hidden": hidden, "bias": bias}
    want, _, _ = conv_lstm(x[:, None], cont, blobs, np.zeros((1, 2, 6, 7)), np.zeros((1, 2, 6, 7)), (1, 1), (1, 1))
    (got,) = run(report.output, ["y"], {"x": x, "cont": cont})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_frames_forward_and_back(tmp_path: Path) -> None:
    """The end of DAVSOD's net: a layer over the frames, one over its states in reverse, and their sum."""
    layer = """layer { name: "%s" type: "ConvLSTM" bottom: "%s" bottom: "cont" bottom: "zero" bottom: "zero"
      top: "%s" top: "%s_h" top: "%s_c" recurrent_param { expose_hidden: true }
      lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 } }"""
    text = f"""
      layer {{ name: "data" type: "ImageData" top: "data" top: "label"
        image_data_param {{ source: "missing.txt" batch_size: 3 new_height: 4 new_width: 5 }} }}
      layer {{ name: "cont" type: "HDF5Data" top: "cont" hdf5_data_param {{ source: "missing.txt" batch_size: 3 }} }}
      layer {{ name: "r" type: "Reshape" bottom: "data" top: "r" reshape_param {{ shape {{ dim: [3, 1, 3, 4, 5] }} }} }}
      layer {{ name: "zero" type: "DummyData" top: "zero" dummy_data_param {{ shape {{ dim: [1, 1, 2, 4, 5] }} }} }}
      {layer % (("a", "r") + ("a",) * 3)}
      layer {{ name: "s" type: "Slice" bottom: "a" top: "t0" top: "t1" top: "t2" slice_param {{ axis: 0 }} }}
      layer {{ name: "back" type: "Concat" bottom: "t2" bottom: "t1" bottom: "t0" top: "back"
        concat_param {{ axis: 0 }} }}
      {layer % (("b", "back") + ("b",) * 3)}
      layer {{ name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }}
      layer {{ name: "end" type: "Silence" bottom: "a_h" bottom: "a_c" bottom: "b_h" bottom: "b_c" bottom: "label" }}
    """
    net = parse_net(text)
    weights = drawn_weights()
    shapes = {"data": (3, 3, 4, 5), "cont": (3, 1)}
    report = convert(net, weights, tmp_path / "net.onnx", shapes=shapes)
    assert report.verified and report.outputs == {"sum": (3, 1, 2, 4, 5)}
    assert [node.op_type for node in onnx.load(report.output).graph.node].count("Scan") == 2
    rng = np.random.default_rng(2)
    x, cont = rng.standard_normal(shapes["data"]).astype(np.float32), np.array([[0], [1], [1]], np.float32)
    maps, want = x[:, None], []
    for saved in weights.layers:
        weight, _, _, hidden, bias, *peepholes = saved.blobs[:-2]
        blobs = {"x": weight, "hidden": hidden, "bias": bias, "peepholes": peepholes}
        states, _, _ = conv_lstm(maps, cont, blobs, np.zeros((1, 2, 4, 5)), np.zeros((1, 2, 4, 5)), (1, 1), (1, 1))
        maps = states[::-1]
        want.append(states)
    (got,) = run(report.output, ["sum"], {"data": x, "cont": cont})
    np.testing.assert_allclose(got, sum(want), rtol=1e-4, atol=1e-5)


def drawn_weights() -> Weights:
    """Weights of the layers a and b."""
    rng = np.random.default_rng(1)
    layers = []
    for name, channels in (("a", 3), ("b", 2)):
        shapes = [(8, channels, 3, 3), (1,), (1,), (8, 2, 3, 3), (8,), (4, 5), (4, 5), (4, 5), (1,), (1,)]
        message = pb.LayerParameter(name=name, type="ConvLSTM")
        layers.append(LayerWeights(message, [rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]))
    return Weights("", layers)

"""ConvLSTM against loops over a step's formulas, and its gradients against differences."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from caffe_loops import conv_lstm

from autodial.errors import InputError
from autodial.layers.base import TEST, LayerError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net

STEPS, STREAMS, CHANNELS, OUTPUTS, SIZE = 4, 2, 3, 2, (4, 5)
SHAPES = ((STEPS, STREAMS, CHANNELS, *SIZE), (STEPS, STREAMS))
STATE, STATIC = (1, STREAMS, OUTPUTS, *SIZE), (1, STREAMS, 1, *SIZE)
CONT = np.array([[0, 1], [1, 1], [1, 0], [1, 1]], np.float32)
PLAIN = "lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 }"
WIDE = """
  lstm_conv_param { type: "hidden" num_output: 2 kernel_size: 3 pad: 2 dilation: 2 }
  lstm_conv_param { type: "input" num_output: 2 kernel_size: 1 }
"""
EXPOSED = "recurrent_param { expose_hidden: true }"


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def built(build: Any, options: str, *more: tuple[int, ...]) -> Any:
    """A layer with random weights."""
    layer = build(f'type: "ConvLSTM" {options}', *SHAPES, *more, tops=3 if "expose_hidden" in options else 1)
    for seed, blob in enumerate(layer.blobs):
        blob.data = values(*blob.shape, seed=seed)
    return layer


def named(layer: Any, *, peepholes: tuple[int, ...] | None = None) -> dict[str, Any]:
    """The layer's blobs by name, in the order of a caffemodel; peepholes in a shape that numpy broadcasts."""
    blobs = [blob.detach().numpy() for blob in layer.blobs]
    weights = {"x": layer.input_weight, "static": layer.static_weight}
    found = {name: blobs.pop(0) for name, weight in weights.items() if weight is not None}
    assert [blob.shape for blob in blobs[:2] + blobs[-2:]] == [(1,)] * 4
    found["hidden"], found["bias"], *rest = blobs[2:-2]
    assert len(rest) == (0 if peepholes is None else 3)
    return found if peepholes is None else {**found, "peepholes": [blob.reshape(peepholes) for blob in rest]}


@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize(
    ("options", "peepholes", "shape", "static"),
    [
        (PLAIN, SIZE, SIZE, False),
        (f"{PLAIN} lstm_debug_param {{ axis_hadamard: 3 num_axes_hadamard: 2 }}", SIZE, SIZE, True),
        (f"{PLAIN} lstm_debug_param {{ axis_hadamard: 2 num_axes_hadamard: 1 }}", (2, 1, 1), (2,), False),
        (f"{PLAIN} lstm_debug_param {{ axis_hadamard: 2 num_axes_hadamard: 3 }}", (2, *SIZE), (2, *SIZE), False),
        (f"{PLAIN} lstm_debug_param {{ axis_hadamard: 3 num_axes_hadamard: 1 }}", (4, 1), (4,), False),
        (f"{WIDE} lstm_debug_param {{ disable_hadamard: true }}", None, None, True),
        (f"{PLAIN} lstm_debug_param {{ ignore_x: true }}", SIZE, SIZE, False),
        (f"{PLAIN} lstm_debug_param {{ ignore_x: true disable_hadamard: true }}", None, None, False),
        (WIDE, SIZE, SIZE, False),
    ],
)
def test_steps(build: Any, options: str, peepholes: Any, shape: Any, static: bool, exposed: bool) -> None:
    options, more = (f"{options} {EXPOSED}", (STATE, STATE)) if exposed else (options, ())
    layer = built(build, options, *([STATIC] if static else []), *more)
    blobs = named(layer, peepholes=peepholes)
    assert [blob.shape for blob in blobs.get("peepholes", [])] == [peepholes] * len(layer.peepholes)
    assert {tuple(blob.shape) for blob in layer.peepholes} == ({shape} if shape else set())
    x, fixed = values(*SHAPES[0]), values(*STATIC, seed=2)
    hidden, cell = (values(*STATE, seed=3), values(*STATE, seed=4)) if exposed else (torch.zeros(STATE),) * 2
    given = [x, torch.from_numpy(CONT), *([fixed] if static else []), *([hidden, cell] if exposed else [])]
    pads, dilations = ((0, 2), (1, 2)) if options.startswith(WIDE) else ((1, 1), (1, 1))
    want = conv_lstm(x.numpy(), CONT, blobs, hidden[0].numpy(), cell[0].numpy(), pads, dilations, fixed[0].numpy())
    for _ in range(2):  # the second pass begins as the first
        tops = layer(*given) if exposed else (layer(*given),)
        assert [tuple(top.shape) for top in tops] == layer.top_shapes([tuple(each.shape) for each in given])
        np.testing.assert_allclose(tops[0].detach(), want[0], rtol=1e-4, atol=1e-5)
        for top, state in zip(tops[1:], want[1:], strict=exposed):
            np.testing.assert_allclose(top[0].detach(), state, rtol=1e-4, atol=1e-5)


def test_gradients(build: Any) -> None:
    """Those of the blobs, too, and those that come from the exposed states and go to them."""
    layer = built(build, f"{WIDE} {EXPOSED}", STATIC, STATE, STATE).double()
    cont = torch.from_numpy(CONT).double()
    given = [values(*shape, seed=seed).double() for seed, shape in enumerate((SHAPES[0], STATIC, STATE, STATE))]
    used = [name for name, _ in layer.named_parameters() if not name.startswith("unused")]
    assert len(used) == 7

    def function(x: Any, static: Any, hidden: Any, cell: Any, *blobs: Any) -> Any:
        return torch.func.functional_call(layer, dict(zip(used, blobs, strict=True)), (x, cont, static, hidden, cell))

    inputs = [*given, *(layer.get_parameter(name).detach() for name in used)]
    assert torch.autograd.gradcheck(function, [each.requires_grad_() for each in inputs], fast_mode=True)


def test_no_gradient_goes_to_the_indicator(build: Any) -> None:
    cont = torch.from_numpy(CONT).requires_grad_()
    built(build, PLAIN)(values(*SHAPES[0]), cont).sum().backward()
    assert cont.grad is None


def test_a_sequence_begins_anew_but_for_its_peepholes(build: Any) -> None:
    x, cont = values(*SHAPES[0]), torch.ones(SHAPES[1])
    cont[2] = 0
    without = built(build, f"{PLAIN} lstm_debug_param {{ disable_hadamard: true }}")
    torch.testing.assert_close(without(x, cont)[2:], without(x[2:], cont[2:]))
    layer = built(build, PLAIN)
    assert (layer(x, cont)[2:] - layer(x[2:], cont[2:])).abs().max() > 0.01


def test_fillers(build: Any) -> None:
    numbers = 'weight_filler { type: "constant" value: %s } bias_filler { type: "constant" value: %s }'
    text = f"""
      lstm_conv_param {{ type: "input" num_output: 2 kernel_size: 1 {numbers % (2, 3)} }}
      lstm_conv_param {{ type: "hidden" num_output: 2 kernel_size: 3 pad: 1 {numbers % (4, 5)} }}
    """
    layer = build(f'type: "ConvLSTM" {text}', *SHAPES, STATIC)
    assert [set(blob.flatten().tolist()) for blob in layer.blobs] == [{n} for n in (2, 2, 0, 0, 4, 5, 1, 1, 1, 0, 0)]
    assert [tuple(blob.shape) for blob in layer.blobs] == [
        (8, 3, 1, 1), (8, 1, 1, 1), (1,), (1,), (8, 2, 3, 3), (8,), SIZE, SIZE, SIZE, (1,), (1,)
    ]  # fmt: skip


NET = f"""
  layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: [4, 2, 3, 4, 5] }} }} }}
  layer {{ name: "cont" type: "Input" top: "cont" input_param {{ shape {{ dim: [4, 2] }} }} }}
  layer {{ name: "static" type: "Input" top: "static" input_param {{ shape {{ dim: [1, 2, 1, 4, 5] }} }} }}
  layer {{ name: "y" type: "ConvLSTM" bottom: "x" bottom: "cont" bottom: "static" top: "y" {PLAIN} }}
"""


def by_gate(array: Any) -> list[Any]:
    return np.split(array, 4)


@pytest.mark.parametrize("fork", ["davsod", "davsod, without what does nothing", "agethen"])
def test_weights_of_both_forks(fork: str) -> None:
    """agethen's layer has the gates' convolutions one by one, W and b of each in turn where there is a bias."""
    net = Net(parse_net(NET), TEST)
    message = net.param.layer[-1]
    x, static, *_, hidden, bias, i, f, o, _, _ = (
        values(*blob.shape, seed=seed).numpy() for seed, blob in enumerate(net.layer("y").blobs)
    )
    one = [np.zeros(1, np.float32)] * (2 if fork == "davsod" else 0)
    if fork != "agethen":
        stored = [x, static, *one, hidden, bias, i, f, o, *one]
    else:
        pairs = [each for pair in zip(by_gate(hidden), by_gate(bias), strict=True) for each in pair]
        stored = [*by_gate(x), *by_gate(static), *pairs, i, f, o]
    assert net.load_weights(Weights("", [LayerWeights(message, stored)])) == []
    nothing = [np.zeros(1)] * 2
    for blob, want in zip(net.layer("y").blobs, [x, static, *nothing, hidden, bias, i, f, o, *nothing], strict=True):
        np.testing.assert_array_equal(blob.detach(), want)
    saved = net.weights().layers[-1].blobs
    assert [each.shape for each in saved] == [tuple(blob.shape) for blob in net.layer("y").blobs]
    assert net.load_weights(Weights("", [LayerWeights(message, saved)])) == []


def test_weights_that_do_not_fit() -> None:
    net = Net(parse_net(NET), TEST)
    message = net.param.layer[-1]
    shapes = [tuple(blob.shape) for blob in net.layer("y").blobs]
    for wrong, problem in (
        (shapes[:-1], "has 11 blobs"),
        ([(8, 3, 5, 5), *shapes[1:]], r"shape is \(8, 3, 3, 3\)"),
        ([(2, 3, 3, 3)] * 3 + [(2, 1, 3, 3)] * 5 + [(2, 2, 3, 3), (2,)] * 4 + [SIZE] * 3, "has 11 blobs"),
        ([()] * 19, "has 11 blobs"),
    ):
        blobs = [np.zeros(shape, np.float32) for shape in wrong]
        with pytest.raises(InputError, match=problem):
            net.load_weights(Weights("", [LayerWeights(message, blobs)]))


BIG = 2**31 - 1


@pytest.mark.parametrize(
    ("bottoms", "options", "tops", "message"),
    [
        ((SHAPES[0][1:], SHAPES[1]), PLAIN, 1, r"first bottom must have 5 axes \(steps"),
        (((0, *SHAPES[0][1:]), (0, 2)), PLAIN, 1, "none of length 0"),
        ((SHAPES[0], (2, 4)), PLAIN, 1, r"second bottom must have the shape \(4, 2\)"),
        ((*SHAPES, STATIC[1:]), PLAIN, 1, "static input must have 5 axes"),
        ((*SHAPES, (1, 3, 1, *SIZE)), PLAIN, 1, r"static input must have the shape \(1, 2, 1, 4, 5\)"),
        ((*SHAPES, STATE), PLAIN + EXPOSED, 3, "takes 4 bottoms with expose_hidden, or 5 with a static input"),
        ((*SHAPES, STATE, STATE), PLAIN, 1, "takes 2 bottoms without expose_hidden"),
        ((*SHAPES, STATE, STATE), PLAIN + EXPOSED, 1, "has 3 tops with expose_hidden, not 1"),
        ((*SHAPES, STATE, STATE[1:]), PLAIN + EXPOSED, 3, r"a state must have the shape \(1, 2, 2, 4, 5\)"),
        ((*SHAPES, STATIC), PLAIN + " lstm_debug_param { ignore_x: true }", 1, "can be no static input"),
        (SHAPES, "", 1, "needs lstm_conv_param, as in"),
        (SHAPES, "lstm_conv_param { kernel_size: 1 }", 1, "num_output is missing or 0"),
        (SHAPES, "lstm_conv_param { num_output: 2 }", 1, r"lstm_conv_param\.kernel_size has 0 values"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_size: 0 }", 1, "kernel_size must be positive"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_size: 3 }", 1, "make 2 x 3 pixels of 4 x 5; they must keep"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_size: 3 stride: 2 }", 1, "stride must be 1"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_size: 1 group: 2 }", 1, "group other than 1"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_size: 1 bias_term: false }", 1, "does not run in the fork"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_h: 1 }", 1, "fork: state kernel_size"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_size: 1 pad_w: 1 }", 1, "pad_w does nothing.*: state pad"),
        (SHAPES, "lstm_conv_param { num_output: 2 kernel_size: 1 axis: 1 }", 1, "axis is 2, whatever is stated"),
        (SHAPES, 'lstm_conv_param { num_output: 2 kernel_size: 1 type: "input" }', 1, "once, of the type"),
        (SHAPES, PLAIN * 2, 1, "once, of the type"),
        (SHAPES, WIDE.replace("2", "3", 1), 1, "must be the same for both types, not 3 and 2"),
        (SHAPES, PLAIN + " recurrent_param { num_output: 2 }", 1, r"recurrent_param\.num_output does nothing here"),
        (SHAPES, PLAIN + ' lstm_debug_param { expose: "c_t=1" }', 2, r"lstm_debug_param\.expose"),
        (SHAPES, PLAIN + " lstm_debug_param { axis_hadamard: 1 }", 1, "must name axes from 2 to 4"),
        (SHAPES, PLAIN + " lstm_debug_param { num_axes_hadamard: 3 }", 1, "must name axes from 2 to 4"),
        (SHAPES, PLAIN + " lstm_debug_param { num_axes_hadamard: 0 }", 1, "must name axes from 2 to 4"),
        (SHAPES, f"lstm_conv_param {{ num_output: {BIG} kernel_size: 1 }}", 1, "W_x would have the shape"),
        (SHAPES, f"lstm_conv_param {{ num_output: 2 kernel_size: 3 pad: {BIG} }}", 1, "with its margins would have"),
        (SHAPES, f"lstm_conv_param {{ num_output: 2 kernel_size: 3 dilation: {BIG} }}", 1, "does not fit"),
        (
            ((90000, 9000, 1, 1, 1), (90000, 9000)),
            "lstm_conv_param { num_output: 9 kernel_size: 1 } lstm_debug_param { ignore_x: true }",
            1,
            r"the top would have the shape \(90000, 9000, 9, 1, 1\)",
        ),
    ],
)  # fmt: skip
def test_refused(build: Any, bottoms: Any, options: str, tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "ConvLSTM" {options}', *bottoms, tops=tops)


def test_maps_of_another_size_are_refused_where_peepholes_have_one(build: Any) -> None:
    layer = built(build, PLAIN)
    larger = ((STEPS, STREAMS, CHANNELS, 6, 6), SHAPES[1])
    with pytest.raises(LayerError, match=r"peepholes have the shape \(4, 5\), and bottom .* needs \(6, 6\)"):
        layer.top_shapes(larger)
    with pytest.raises(LayerError, match="has 9 channels, the weights expect 3"):
        layer.top_shapes([(STEPS, STREAMS, 9, *SIZE), SHAPES[1]])
    free = built(build, f"{PLAIN} lstm_debug_param {{ disable_hadamard: true }}")
    assert free(values(*larger[0]), torch.ones(larger[1])).shape == free.top_shapes(larger)[0]


def test_its_options_do_nothing_in_another_layer(caplog: pytest.LogCaptureFixture) -> None:
    text = f'layer {{ name: "r" type: "ReLU" bottom: "x" top: "r" {PLAIN} }}'
    with caplog.at_level(logging.WARNING):
        Net(parse_net(NET + text), TEST)
    assert 'layer "r" (ReLU): lstm_conv_param does nothing in a layer of this type' in caplog.text

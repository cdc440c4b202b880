"""RNN and LSTM against torch's own, stream by stream and sequence by sequence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autodial.layers.base import LayerError

STEPS, STREAMS, VALUES, HIDDEN, STATIC = 5, 3, 4, 2, 6
SHAPES = ((STEPS, STREAMS, VALUES), (STEPS, STREAMS))
FILLED = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'
KINDS = ["LSTM", "RNN"]


def make(build, kind: str, *more: tuple[int, ...], fields: str = "", tops: int = 1):
    text = f'type: "{kind}" recurrent_param {{ num_output: {HIDDEN} {FILLED} {fields} }}'
    return build(text, *SHAPES, *more, tops=tops)


def torchs(kind: str, layer, static: int = 0):
    """torch.nn's module with the same weights; its LSTM has the gates in the order i, f, g, o, Caffe's i, f, o, g."""
    blobs = [blob.detach() for blob in layer.blobs]
    order = torch.arange(len(blobs[1]))
    if kind == "LSTM":
        order = order.view(4, HIDDEN)[[0, 1, 3, 2]].flatten()
    module = getattr(nn, kind)(VALUES + static, HIDDEN)
    weights = torch.cat([blobs[0], blobs[2]], 1) if static else blobs[0]
    with torch.no_grad():
        module.weight_ih_l0.copy_(weights[order])
        module.bias_ih_l0.copy_(blobs[1][order])
        module.weight_hh_l0.copy_(blobs[3 if static else 2][order])
        module.bias_hh_l0.zero_()
    return module


def outputs(kind: str, layer, hidden):
    return hidden if kind == "LSTM" else (hidden @ layer.blobs[-2].t() + layer.blobs[-1]).tanh()


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(shape or SHAPES[0], generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_and_its_gradients(build, kind: str) -> None:
    layer = make(build, kind)
    x = inputs().requires_grad_()
    top = layer(x, torch.ones(SHAPES[1]))
    module = torchs(kind, layer)
    want = outputs(kind, layer, module(x)[0])
    torch.testing.assert_close(top, want)
    for ours, theirs in zip(
        torch.autograd.grad(top.sum(), [x, layer.blobs[1]]),
        torch.autograd.grad(want.sum(), [x, module.bias_ih_l0]),
        strict=True,
    ):
        torch.testing.assert_close(ours.sort().values, theirs.sort().values)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_begins_where_cont_is_0(build, kind: str) -> None:
    layer = make(build, kind)
    x = inputs()
    cont = torch.ones(SHAPES[1])
    cont[0] = 0
    cont[3, 1] = 0
    top = layer(x, cont)
    module = torchs(kind, layer)
    whole = outputs(kind, layer, module(x)[0])
    torch.testing.assert_close(top[:, [0, 2]], whole[:, [0, 2]])
    torch.testing.assert_close(top[:3, 1], whole[:3, 1])
    torch.testing.assert_close(top[3:, 1:2], outputs(kind, layer, module(x[3:, 1:2])[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_input_is_seen_in_every_step(build, kind: str) -> None:
    layer = make(build, kind, (STREAMS, 2, 3))
    width = HIDDEN * (4 if kind == "LSTM" else 1)
    assert [tuple(blob.shape) for blob in layer.blobs[:4]] == [
        (width, VALUES), (width,), (width, STATIC), (width, HIDDEN)
    ]  # fmt: skip
    x, static = inputs(), inputs(STREAMS, 2, 3)
    top = layer(x, torch.ones(SHAPES[1]), static)
    both = torch.cat([x, static.flatten(1).expand(STEPS, -1, -1)], 2)
    torch.testing.assert_close(top, outputs(kind, layer, torchs(kind, layer, STATIC)(both)[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_goes_on_in_the_next_pass_without_gradient(build, kind: str) -> None:
    layer = make(build, kind)
    x, cont = inputs(2 * STEPS, STREAMS, VALUES).requires_grad_(), torch.ones(SHAPES[1])
    first, second = layer(x[:STEPS], cont), layer(x[STEPS:], cont)
    torch.testing.assert_close(torch.cat([first, second]), outputs(kind, layer, torchs(kind, layer)(x)[0]))
    (gradient,) = torch.autograd.grad(second.sum(), x)
    assert not gradient[:STEPS].any() and gradient[STEPS:].any()
    fresh = make(build, kind)
    assert torch.equal(layer(x[:STEPS, :2], cont[:, :2]), fresh(x[:STEPS, :2], cont[:, :2]))  # of other streams
    assert not any("state" in name for name in layer.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_can_be_repeated(build, kind: str) -> None:
    layer = make(build, kind)
    x, cont = inputs(), torch.ones(SHAPES[1])
    layer(x, cont)
    second = layer(x, cont)
    layer.rewind()
    assert torch.equal(layer(x, cont), second)


@pytest.mark.parametrize("kind", KINDS)
def test_exposed_states_come_from_outside(build, kind: str) -> None:
    count = 2 if kind == "LSTM" else 1
    shape = (1, STREAMS, HIDDEN)
    layer = make(build, kind, *[shape] * count, fields="expose_hidden: true", tops=1 + count)
    states = [inputs(*shape) * (i + 1) for i in range(count)]
    x, cont = inputs(), torch.ones(SHAPES[1])
    module = torchs(kind, layer)
    for _ in range(2):  # nothing is kept
        top, *after = layer(x, cont, *states)
        want, states_after = module(x, tuple(states) if kind == "LSTM" else states[0])
        torch.testing.assert_close(top, outputs(kind, layer, want))
        torch.testing.assert_close(after, list(states_after) if kind == "LSTM" else [states_after])
    assert not any(state.requires_grad for state in after)
    assert layer.top_shapes([*SHAPES, *[shape] * count]) == [(STEPS, STREAMS, HIDDEN), *[shape] * count]


@pytest.mark.parametrize(
    ("bottoms", "fields", "tops", "message"),
    [
        (((5, 3), (5, 3)), "num_output: 2", 1, "at least 3 axes"),
        (((5, 3, 4), (3, 5)), "num_output: 2", 1, r"second bottom must have the shape \(5, 3\)"),
        (((5, 3, 4), (5, 3), (2, 6)), "num_output: 2", 1, r"must have the shape \(3, \.\.\.\)"),
        (((5, 3, 4), (5, 3), (3,)), "num_output: 2", 1, "static input"),
        (((5, 3, 4), (5, 3)), "", 1, "num_output is missing or 0"),
        (((5, 3, 4), (5, 3)), "num_output: 2", 3, "has 1 top without expose_hidden, not 3"),
        (
            ((5, 3, 4), (5, 3)),
            "num_output: 2 expose_hidden: true",
            3,
            "takes 4 bottoms with expose_hidden, or 5 with a static input",
        ),
        (((5, 3, 4), (5, 3), (1, 3, 2), (1, 3, 3)), "num_output: 2 expose_hidden: true", 3, r"not \(1, 3, 3\)"),
    ],
)
def test_refused(build, bottoms, fields: str, tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "LSTM" recurrent_param {{ {fields} }}', *bottoms, tops=tops)


def test_lstm_unit_is_torchs_cell(build) -> None:
    layer = build('type: "LSTMUnit"', (1, 3, 2), (1, 3, 8), (1, 3), tops=2)
    cell, sums = inputs(1, 3, 2), inputs(1, 3, 8).requires_grad_()
    module = nn.LSTMCell(8, 2)
    order = torch.arange(8).view(4, 2)[[0, 1, 3, 2]].flatten()
    with torch.no_grad():
        module.weight_ih.copy_(torch.eye(8)[order])
        for blob in (module.bias_ih, module.bias_hh, module.weight_hh):
            blob.zero_()
    cont = torch.tensor([[1.0, 0, 1]])
    after, hidden = layer(cell, sums, cont)
    want = module(sums[0], (torch.zeros(3, 2), cell[0] * cont[0, :, None]))
    torch.testing.assert_close([hidden[0], after[0]], list(want))
    (ours,) = torch.autograd.grad(hidden.sum(), sums, retain_graph=True)
    (theirs,) = torch.autograd.grad(want[0].sum(), sums)
    torch.testing.assert_close(ours, theirs)
    for bottoms, message in {
        ((2, 3, 2), (2, 3, 8), (2, 3)): "first bottom",
        ((1, 3, 2), (1, 3, 6), (1, 3)): r"second bottom must have the shape \(1, 3, 8\)",
        ((1, 3, 2), (1, 3, 8), (3,)): "third bottom",
    }.items():
        with pytest.raises(LayerError, match=message):
            layer.top_shapes(bottoms)

"""RNN, LSTM and ConvLSTM, as a Scan over the steps.

ONNX's own LSTM can't start new sequences in the middle of a batch, as `cont` does here.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper
from torch import Tensor

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, Shape, Value, tensors
from autodial.layers.conv_lstm import ConvLSTM
from autodial.layers.recurrent import LSTM, RNN, ContinuationIndicator, Lstm, LSTMUnit, Recurrent
from autodial.layers.windows import Windows

Bottoms = Sequence[Value]
Tops = Sequence[Shape]
Axes = list[str | int]
"""Lengths of axes, or names for those that are known when the graph runs."""


@writes(LSTM, RNN)
def recurrent(graph: GraphWriter, layer: LSTM | RNN, bottoms: Bottoms, tops: Tops) -> list[str]:
    """The states before the first step are 0 unless the layer exposes them."""
    x, cont, *others = bottoms
    steps = graph.reshaped(x.name, (*x.shape[:2], layer.in_features), [0, 0, -1])
    weight = graph.weight(layer.input_weight.detach().numpy().T, "input_weight")
    inputs = graph.node("MatMul", steps, weight)
    inputs = graph.node("Add", inputs, graph.weight(layer.input_bias.detach().numpy(), "input_bias"))
    if layer.static_weight is not None:
        weight = graph.weight(layer.static_weight.detach().numpy().T, "static_weight")
        static = graph.node("MatMul", graph.node("Flatten", others.pop(0).name, axis=1), weight)
        inputs = graph.node("Add", inputs, static)
    if layer.expose_hidden:
        states = [graph.squeezed(state.name, 0) for state in others]
    else:
        shape = graph.joined(graph.axis_lengths(x, 1, 2), [layer.num_output])
        states = [graph.node("Expand", graph.constant(0), shape)] * layer.states
    *states, hidden = graph.nodes_of(
        "Scan",
        [*states, inputs, graph.unsqueezed(cont.name, 2)],
        layer.states + 1,
        body=_body(layer),
        num_scan_inputs=2,
    )
    if isinstance(layer, RNN):
        hidden = graph.node("MatMul", hidden, graph.weight(layer.output_weight.detach().numpy().T, "output_weight"))
        hidden = graph.node("Add", hidden, graph.weight(layer.output_bias.detach().numpy(), "output_bias"))
        hidden = graph.node("Tanh", hidden)
    return [hidden, *(graph.unsqueezed(state, 0) for state in states)] if layer.expose_hidden else [hidden]


@writes(Lstm)
def lstm(graph: GraphWriter, layer: Lstm, bottoms: Bottoms, tops: Tops) -> list[str]:
    """LSTM with the indicator that it does without: each step continues what was before."""
    (x,) = bottoms
    cont = graph.node("Expand", graph.constant(1), graph.axis_lengths(x, 0, 2))
    return recurrent(graph, layer, [x, Value(cont, x.shape[:2])], tops)


@writes(ContinuationIndicator)
def continuation_indicator(graph: GraphWriter, layer: ContinuationIndicator, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.weight(layer.value.numpy(), "indicator")]


@writes(LSTMUnit)
def lstm_unit(graph: GraphWriter, layer: LSTMUnit, bottoms: Bottoms, tops: Tops) -> list[str]:
    cell, sums, cont = bottoms
    before = graph.node("Mul", graph.unsqueezed(cont.name, 2), cell.name)
    hidden, after = _lstm_step(graph, _gates(graph, sums.name, axis=2), before)
    return [after, hidden]


@writes(ConvLSTM)
def conv_lstm(graph: GraphWriter, layer: ConvLSTM, bottoms: Bottoms, tops: Tops) -> list[str]:
    """x and the static input are convolved before the Scan, all steps at once."""
    x, cont, *others = bottoms
    read = [graph.unsqueezed(cont.name, 2, 3, 4)]
    if layer.input_weight is not None:
        maps = graph.reshaped(x.name, (None, *x.shape[2:]), [-1], graph.axis_lengths(x, 2))
        inputs = _convolution(graph, maps, layer.input_weight, "input_weight", layer.input_windows)
        width = 4 * layer.num_output
        lengths = graph.axis_lengths(x, 0, 2), [width], graph.axis_lengths(x, 3)
        inputs = graph.reshaped(inputs, (*x.shape[:2], width, *x.shape[3:]), *lengths)
        if layer.static_weight is not None:
            static = graph.squeezed(others[0].name, 0)
            static = _convolution(graph, static, layer.static_weight, "static_weight", layer.input_windows)
            inputs = graph.node("Add", inputs, static)
        read.append(inputs)
    if layer.expose_hidden:
        states = [graph.squeezed(state.name, 0) for state in others[-2:]]
    else:
        shape = graph.joined(graph.axis_lengths(x, 1, 2), [layer.num_output], graph.axis_lengths(x, 3))
        states = [graph.node("Expand", graph.constant(0), shape)] * 2
    body = _conv_lstm_body(layer)
    *states, hidden = graph.nodes_of("Scan", [*states, *read], 3, body=body, num_scan_inputs=len(read))
    return [hidden, *(graph.unsqueezed(state, 0) for state in states)] if layer.expose_hidden else [hidden]


def _convolution(
    graph: GraphWriter, maps: str, weight: Tensor, name: str, windows: Windows, bias: Tensor | None = None
) -> str:
    parameters = [graph.weight(weight.detach().numpy(), name)]
    if bias is not None:
        parameters.append(graph.weight(bias.detach().numpy(), "bias"))
    return graph.node("Conv", maps, *parameters, pads=[*windows.pad, *windows.pad], dilations=windows.dilation)


def _gates(graph: GraphWriter, sums: str, *, axis: int) -> list[str]:
    """The sums that i, f, o and g are made of."""
    return graph.nodes_of("Split", [sums], 4, axis=axis, num_outputs=4)


def _lstm_step(graph: GraphWriter, gates: Sequence[str], cell: str) -> tuple[str, str]:
    """h and c behind a step, from the gates' sums and c before."""
    let_in, keep, let_out, new = gates
    let_in, keep, let_out = (graph.node("Sigmoid", gate) for gate in (let_in, keep, let_out))
    added = graph.node("Mul", let_in, graph.node("Tanh", new))
    after = graph.node("Add", graph.node("Mul", keep, cell), added)
    return graph.node("Mul", let_out, graph.node("Tanh", after)), after


def _body(layer: Recurrent) -> onnx.GraphProto:
    """One step: (states before, transformed input, cont) -> (states behind, h)."""
    graph = GraphWriter()
    graph.layer = "step"
    befores = [graph.unused(f"state_{i}") for i in range(layer.states)]
    inputs, cont = graph.unused("inputs"), graph.unused("cont")
    states = [graph.node("Mul", state, cont) for state in befores]
    weight = graph.weight(layer.hidden_weight.detach().numpy().T, "hidden_weight")
    values = graph.node("Add", inputs, graph.node("MatMul", states[0], weight))
    if isinstance(layer, LSTM):
        afters = list(_lstm_step(graph, _gates(graph, values, axis=1), states[1]))
    else:
        afters = [graph.node("Tanh", values)]
    read: dict[str, Axes] = {inputs: ["streams", layer.gates * layer.num_output], cont: ["streams", 1]}
    return _step(graph, befores, read, afters, ["streams", layer.num_output])


def _conv_lstm_body(layer: ConvLSTM) -> onnx.GraphProto:
    """One step: (h and c before, cont, convolved input where the layer has one) -> (h and c behind, h)."""
    graph = GraphWriter()
    graph.layer = "step"
    hidden, cell, cont = (graph.unused(name) for name in ("state_0", "state_1", "cont"))
    read: dict[str, Axes] = {cont: ["streams", 1, 1, 1]}
    continued = [graph.node("Mul", state, cont) for state in (hidden, cell)]
    sums = _convolution(graph, continued[0], layer.hidden_weight, "hidden_weight", layer.hidden_windows, layer.bias)
    if layer.input_weight is not None:
        inputs = graph.unused("inputs")
        read[inputs] = ["streams", 4 * layer.num_output, "height", "width"]
        sums = graph.node("Add", sums, inputs)
    gates = _gates(graph, sums, axis=1)
    for i, weight in enumerate(layer.peepholes):
        factor = graph.weight(layer.spread(weight).detach().numpy(), "peephole")
        gates[i] = graph.node("Add", gates[i], graph.node("Mul", factor, cell))
    afters = _lstm_step(graph, gates, continued[1])
    return _step(graph, [hidden, cell], read, afters, ["streams", layer.num_output, "height", "width"])


def _step(
    graph: GraphWriter, befores: Sequence[str], read: dict[str, Axes], afters: Sequence[str], state: Axes
) -> onnx.GraphProto:
    """The body of a Scan: (states before, what is read of each step) -> (states behind, the first of them).

    Args:
        read: names and axes.
        state: the axes of each state.
    """
    results = [*afters, graph.node("Identity", afters[0])]
    ends = {**dict.fromkeys((*befores, *results), state), **read}
    typed = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, axes) for name, axes in ends.items()}
    return helper.make_graph(
        graph.nodes,
        "step",
        [typed[name] for name in (*befores, *read)],
        [typed[name] for name in results],
        tensors(graph.constants),
    )

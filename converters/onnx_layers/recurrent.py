"""RNN and LSTM, as a Scan over the steps.

ONNX's own LSTM can't start new sequences in the middle of a batch, as `cont` does here.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, Shape, Value, tensors
from autodial.layers.recurrent import LSTM, RNN, ContinuationIndicator, Lstm, LSTMUnit, Recurrent

Bottoms = Sequence[Value]
Tops = Sequence[Shape]


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
    hidden, after = _lstm_step(graph, sums.name, before, axis=2)
    return [after, hidden]


def _lstm_step(graph: GraphWriter, sums: str, cell: str, *, axis: int) -> tuple[str, str]:
    """h and c behind a step, from the gates' sums along an axis and c before."""
    let_in, keep, let_out, new = graph.nodes_of("Split", [sums], 4, axis=axis, num_outputs=4)
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
        afters = list(_lstm_step(graph, values, states[1], axis=1))
    else:
        afters = [graph.node("Tanh", values)]
    afters.append(graph.node("Identity", afters[0]))
    width = layer.gates * layer.num_output
    ends: dict[str, list[str | int]] = {
        **{name: ["streams", layer.num_output] for name in (*befores, *afters)},
        inputs: ["streams", width],
        cont: ["streams", 1],
    }
    typed = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends.items()}
    return helper.make_graph(
        graph.nodes,
        "step",
        [typed[name] for name in (*befores, inputs, cont)],
        [typed[name] for name in afters],
        tensors(graph.constants),
    )

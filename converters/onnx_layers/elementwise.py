"""Layers that work element by element, and activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, Shape, Value
from autodial.layers import (
    BNLL,
    ELU,
    AbsVal,
    Bias,
    Dropout,
    Eltwise,
    Exp,
    Log,
    Power,
    PReLU,
    ReLU,
    Scale,
    Sigmoid,
    Softmax,
    TanH,
    Threshold,
)
from autodial.layers.activations import Clip, NegReLU, ReLU6, Swish
from autodial.layers.augmentation import Mean
from autodial.layers.eltwise import Axpy
from autodial.layers.output_decay import OutputDecay

Bottoms = Sequence[Value]
Tops = Sequence[Shape]


@writes(ReLU)
def relu(graph: GraphWriter, layer: ReLU, bottoms: Bottoms, tops: Tops) -> list[str]:
    if layer.negative_slope == 0:
        return [graph.node("Relu", bottoms[0].name)]
    return [graph.node("LeakyRelu", bottoms[0].name, alpha=layer.negative_slope)]


@writes(NegReLU)
def neg_relu(graph: GraphWriter, layer: NegReLU, bottoms: Bottoms, tops: Tops) -> list[str]:
    negated = graph.node("Neg", bottoms[0].name)
    return [graph.node("Neg", graph.node("LeakyRelu", negated, alpha=layer.negative_slope))]


@writes(ReLU6)
def relu6(graph: GraphWriter, layer: ReLU6, bottoms: Bottoms, tops: Tops) -> list[str]:
    six = graph.constant(6)
    if layer.negative_slope == 0:
        return [graph.node("Clip", bottoms[0].name, graph.constant(0), six)]
    return [graph.node("Min", graph.node("LeakyRelu", bottoms[0].name, alpha=layer.negative_slope), six)]


@writes(PReLU)
def prelu(graph: GraphWriter, layer: PReLU, bottoms: Bottoms, tops: Tops) -> list[str]:
    slope = layer.slope.detach().numpy()
    axes = bottoms[0].ndim - 2 if layer.channels is not None else 0
    return [graph.node("PRelu", bottoms[0].name, graph.weight(slope.reshape(-1, *[1] * axes), "slope"))]


@writes(ELU)
def elu(graph: GraphWriter, layer: ELU, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("Elu", bottoms[0].name, alpha=layer.alpha)]


@writes(Sigmoid)
def sigmoid(graph: GraphWriter, layer: Sigmoid, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("Sigmoid", bottoms[0].name)]


@writes(TanH)
def tanh(graph: GraphWriter, layer: TanH, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("Tanh", bottoms[0].name)]


@writes(BNLL)
def bnll(graph: GraphWriter, layer: BNLL, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("Softplus", bottoms[0].name)]


@writes(Swish)
def swish(graph: GraphWriter, layer: Swish, bottoms: Bottoms, tops: Tops) -> list[str]:
    x = bottoms[0].name
    return [graph.node("Mul", x, graph.node("Sigmoid", graph.scaled(x, layer.beta)))]


@writes(Clip)
def clip(graph: GraphWriter, layer: Clip, bottoms: Bottoms, tops: Tops) -> list[str]:
    # Not the operator Clip, which leaves open what counts if the least value is above the largest.
    below = graph.node("Min", bottoms[0].name, graph.constant(layer.high))
    return [graph.node("Max", below, graph.constant(layer.low))]


@writes(Softmax)
def softmax(graph: GraphWriter, layer: Softmax, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("Softmax", bottoms[0].name, axis=layer.axis % bottoms[0].ndim)]


@writes(Dropout, OutputDecay)
def identity(graph: GraphWriter, layer: Dropout | OutputDecay, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [bottoms[0].name]


@writes(AbsVal)
def absval(graph: GraphWriter, layer: AbsVal, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("Abs", bottoms[0].name)]


@writes(Exp)
def exp(graph: GraphWriter, layer: Exp, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.scaled(graph.node("Exp", graph.scaled(bottoms[0].name, layer.inner_scale)), layer.outer_scale)]


@writes(Log)
def log(graph: GraphWriter, layer: Log, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [
        graph.scaled(graph.node("Log", graph.scaled(bottoms[0].name, layer.scale, layer.shift)), 1 / layer.log_base)
    ]


@writes(Power)
def power(graph: GraphWriter, layer: Power, bottoms: Bottoms, tops: Tops) -> list[str]:
    if layer.scale * layer.power == 0:
        value = np.float32(layer.shift) ** np.float32(layer.power)
        return [graph.node("Expand", graph.constant(value), graph.axis_lengths(bottoms[0]))]
    x = graph.scaled(bottoms[0].name, layer.scale, layer.shift)
    return [x if layer.power == 1 else graph.node("Pow", x, graph.constant(layer.power))]


@writes(Threshold)
def threshold(graph: GraphWriter, layer: Threshold, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.as_floats(graph.node("Greater", bottoms[0].name, graph.constant(layer.threshold)))]


@writes(Eltwise)
def eltwise(graph: GraphWriter, layer: Eltwise, bottoms: Bottoms, tops: Tops) -> list[str]:
    names = [bottom.name for bottom in bottoms]
    if layer.operation == "MAX":
        return [graph.node("Max", *names)]
    if layer.coeff:
        names = [graph.scaled(name, factor) for name, factor in zip(names, layer.coeff, strict=True)]
    operator = "Mul" if layer.operation == "PROD" else "Add"
    first, *others = names
    for name in others:
        first = graph.node(operator, first, name)
    return [first]


@writes(Axpy)
def axpy(graph: GraphWriter, layer: Axpy, bottoms: Bottoms, tops: Tops) -> list[str]:
    scale, x, y = bottoms
    factor = scale.name
    if scale.ndim < x.ndim:
        factor = graph.unsqueezed(factor, *range(scale.ndim, x.ndim))
    elif scale.ndim > x.ndim:
        factor = graph.squeezed(factor, *range(x.ndim, scale.ndim))
    return [graph.node("Add", graph.node("Mul", factor, x.name), y.name)]


@writes(Scale)
def scale(graph: GraphWriter, layer: Scale, bottoms: Bottoms, tops: Tops) -> list[str]:
    x = bottoms[0]
    if layer.scale is None:
        factor = _laid(graph, bottoms[1], x, layer.axis)
    else:
        factor = _stored(graph, layer.scale.detach().numpy(), x, layer.axis, "scale")
    top = graph.node("Mul", x.name, factor)
    if layer.bias is None:
        return [top]
    return [graph.node("Add", top, _stored(graph, layer.bias.detach().numpy(), x, layer.axis, "bias"))]


@writes(Bias)
def bias(graph: GraphWriter, layer: Bias, bottoms: Bottoms, tops: Tops) -> list[str]:
    x = bottoms[0]
    if layer.bias is None:
        return [graph.node("Add", x.name, _laid(graph, bottoms[1], x, layer.axis))]
    return [graph.node("Add", x.name, _stored(graph, layer.bias.detach().numpy(), x, layer.axis, "bias"))]


def _stored(
    graph: GraphWriter, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], x: Value, axis: int, name: str
) -> str:
    """A learned factor or shift whose first axis lies at the bottom's `axis`."""
    behind = x.ndim - axis % x.ndim - values.ndim if values.ndim else 0
    return graph.weight(values.reshape(*values.shape, *[1] * behind), name)


def _laid(graph: GraphWriter, operand: Value, x: Value, axis: int) -> str:
    """A bottom whose first axis lies at the first bottom's `axis`."""
    if not operand.ndim:
        return operand.name
    behind = x.ndim - axis % x.ndim - operand.ndim
    return graph.unsqueezed(operand.name, *range(operand.ndim, operand.ndim + behind))


@writes(Mean)
def mean(graph: GraphWriter, layer: Mean, bottoms: Bottoms, tops: Tops) -> list[str]:
    made = []
    for x in bottoms:
        added = graph.constant(layer.scaled_mean(x.length(1)).numpy())
        made.append(graph.scaled(graph.node("Add", graph.scaled(x.name, layer.input_scale), added), layer.output_scale))
    return made

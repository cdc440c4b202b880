"""Layers with matrices and tables, sums over axes, and constants."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value
from autodial.layers import ArgMax, DummyData, Embed, InnerProduct, ParameterLayer, Reduction
from autodial.layers.outer_product import OuterProduct

Bottoms = Sequence[Value]
Tops = Sequence[Shape]


@writes(InnerProduct)
def inner_product(graph: GraphWriter, layer: InnerProduct, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    axis = layer.axis % x.ndim
    rows = x.name
    if axis != 1 or x.ndim != 2:
        rows = graph.node("Flatten", rows, axis=axis)
    inputs = [graph.weight(layer.weight.detach().numpy(), "weight")]
    if layer.bias is not None:
        inputs.append(graph.weight(layer.bias.detach().numpy(), "bias"))
    y = graph.nodes_of("Gemm", [rows, *inputs], 1, transB=None if layer.transpose else 1)[0]
    if axis == 1:
        return [y]
    return [graph.reshaped(y, tops[0], graph.axis_lengths(x, 0, axis), [layer.num_output])]


@writes(OuterProduct)
def outer_product(graph: GraphWriter, layer: OuterProduct, bottoms: Bottoms, tops: Tops) -> list[str]:
    a = graph.node("Reshape", bottoms[0].name, graph.integers([0, 1, -1, 1]))
    return [graph.node("Mul", a, graph.node("Reshape", bottoms[1].name, graph.integers([0, 1, 1, -1])))]


@writes(Embed)
def embed(graph: GraphWriter, layer: Embed, bottoms: Bottoms, tops: Tops) -> list[str]:
    table = graph.weight(layer.weight.detach().numpy(), "weight")
    rows = graph.node("Gather", table, graph.as_integers(bottoms[0].name), axis=0)
    if layer.bias is None:
        return [rows]
    return [graph.node("Add", rows, graph.weight(layer.bias.detach().numpy(), "bias"))]


@writes(Reduction)
def reduction(graph: GraphWriter, layer: Reduction, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    axes = graph.integers(range(layer.axis % x.ndim, x.ndim))
    name = x.name
    if layer.operation == "ASUM":
        name = graph.node("Abs", name)
    elif layer.operation == "SUMSQ":
        name = graph.node("Mul", name, name)
    operator = "ReduceMean" if layer.operation == "MEAN" else "ReduceSum"
    return [graph.scaled(graph.node(operator, name, axes, keepdims=0), layer.coeff)]


@writes(ArgMax)
def argmax(graph: GraphWriter, layer: ArgMax, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    if layer.top_k > 1:
        raise NoOnnxFormError("TopK puts the lower index of two equal values first, and this layer the higher one")
    rows, axis = (x.name, layer.axis % x.ndim) if layer.axis is not None else (graph.node("Flatten", x.name, axis=1), 1)
    index = graph.as_floats(graph.node("ArgMax", rows, axis=axis, keepdims=1, select_last_index=1))
    value = graph.node("ReduceMax", rows, graph.integers([axis]), keepdims=1) if layer.values else ""
    if layer.axis is not None:
        return [value or index]
    both = graph.node("Concat", index, value, axis=1) if value else index
    return [graph.unsqueezed(both, *range(2, max(x.ndim, 3)))]


@writes(ParameterLayer)
def parameter(graph: GraphWriter, layer: ParameterLayer, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.weight(layer.value.detach().numpy(), "value")]


@writes(DummyData)
def dummy_data(graph: GraphWriter, layer: DummyData, bottoms: Bottoms, tops: Tops) -> list[str]:
    if any(filler.type != "constant" for filler in layer.fillers):
        raise NoOnnxFormError("its data_filler draws new numbers in every pass, and a file can only hold constants")
    made = []
    for data in layer.buffers():
        shape = tuple(data.shape)
        value = data.flatten()[0].item() if prod(shape) else 0.0
        made.append(graph.node("Expand", graph.constant(value), graph.integers(shape)))
    return made

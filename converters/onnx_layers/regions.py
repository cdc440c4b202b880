"""Pooling over regions of interest: ROIPooling and PSROIPooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, Shape, Value
from autodial.layers.roi_pooling import PSROIPooling, ROIPooling

Bottoms = Sequence[Value]
Tops = Sequence[Shape]


@writes(ROIPooling)
def roi_pooling(graph: GraphWriter, layer: ROIPooling, bottoms: Bottoms, tops: Tops) -> list[str]:
    """MaxRoiPool, which rounds as Caffe does; RoiAlign interpolates."""
    x, regions = bottoms
    rows = graph.node("Reshape", regions.name, graph.integers([-1, 5])) if regions.ndim > 2 else regions.name
    return [
        graph.node("MaxRoiPool", x.name, rows, pooled_shape=list(layer.bins), spatial_scale=float(layer.spatial_scale))
    ]


@writes(PSROIPooling)
def psroi_pooling(graph: GraphWriter, layer: PSROIPooling, bottoms: Bottoms, tops: Tops) -> list[str]:
    """No operator does this; the sum over a bin comes from four of the map's sums from its corner on.

    The sums are float64, as differences of large numbers.
    """
    x, regions = bottoms
    g, channels = layer.group_size, x.length(1)
    rows = graph.node("Reshape", regions.name, graph.integers([-1, 5])) if regions.ndim > 2 else regions.name
    sums = graph.node("Cast", x.name, to=TensorProto.DOUBLE)
    for axis in (2, 3):
        sums = graph.node("CumSum", sums, graph.integers(axis))
    sums = graph.node("Pad", sums, graph.integers([0, 0, 1, 1, 0, 0, 0, 0]))
    flat = graph.node("Reshape", sums, graph.integers([-1]))

    height, width = (graph.axis_lengths(x, axis, axis + 1) for axis in (2, 3))
    across = graph.node("Add", width, graph.integers([1]))
    one_map = graph.node("Mul", graph.node("Add", height, graph.integers([1])), across)
    first, last = _edges(graph, layer, rows, (2, 4), height)
    left, right = _edges(graph, layer, rows, (1, 3), width)
    first, last = (graph.unsqueezed(edge, 1, 3) for edge in (first, last))  # (R, 1, g, 1)
    left, right = (graph.unsqueezed(edge, 1, 2) for edge in (left, right))  # (R, 1, 1, g)
    bins = np.arange(g)
    which = (np.arange(layer.output_dim)[:, None, None] * g + bins[:, None]) * g + bins
    image = graph.unsqueezed(graph.as_integers(graph.picked(rows, 0, 1)), 1, 2, 3)
    image = graph.node("Mul", image, graph.integers(channels))
    start = graph.node("Mul", graph.node("Add", image, graph.constant(which, np.int64)), one_map)  # (R, channels, g, g)

    def corner(row: str, column: str) -> str:
        place = graph.node("Add", graph.node("Mul", row, across), column)
        return graph.node("Gather", flat, graph.node("Add", start, place), axis=0)

    total = graph.node("Sub", corner(last, right), corner(first, right))
    total = graph.node("Add", graph.node("Sub", total, corner(last, left)), corner(first, left))
    area = graph.node("Mul", graph.node("Sub", last, first), graph.node("Sub", right, left))
    area = graph.node("Cast", graph.node("Max", area, graph.integers(1)), to=TensorProto.DOUBLE)
    return [graph.as_floats(graph.node("Div", total, area))]


def _edges(graph: GraphWriter, layer: PSROIPooling, rows: str, ends: tuple[int, int], length: str) -> tuple[str, str]:
    """First pixel of each bin and the one behind its last, int64 (R, g), along an axis of `length` pixels."""
    scale = graph.constant(layer.spatial_scale)
    begin, end = (graph.unsqueezed(_rounded(graph, graph.picked(rows, column, 1)), 1) for column in ends)
    start = graph.node("Mul", begin, scale)
    size = graph.node("Sub", graph.node("Mul", graph.scaled(end, shift=1), scale), start)
    size = graph.node("Div", graph.node("Max", size, graph.constant(0.1)), graph.constant(layer.group_size))
    edges = []
    for operator, number in (("Floor", 0), ("Ceil", 1)):
        bins = graph.constant(np.arange(layer.group_size) + number)
        edge = graph.node(operator, graph.node("Add", graph.node("Mul", bins, size), start))
        most = graph.as_floats(length)
        edge = graph.node("Min", graph.node("Max", edge, graph.constant(0)), most)
        edges.append(graph.as_integers(edge))
    return edges[0], graph.node("Max", *edges)


def _rounded(graph: GraphWriter, name: str) -> str:
    """To the next integer, halves away from 0."""
    magnitude = graph.node("Abs", name)
    whole = graph.node("Floor", magnitude)
    more = graph.as_floats(graph.node("GreaterOrEqual", graph.node("Sub", magnitude, whole), graph.constant(0.5)))
    return graph.node("Mul", graph.node("Sign", name), graph.node("Add", whole, more))

"""Layers that change the resolution: Interp, Upsample, SameSize; FlowNet's Resample, Downsample, Accum and crops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value
from autodial.layers.augmentation import DataAugmentation
from autodial.layers.base import LayerError
from autodial.layers.interp import Interp
from autodial.layers.resample import Accum, Downsample, Floats, Matrices, Resample
from autodial.layers.same_size import SameSize, factors
from autodial.layers.upsample import Upsample
from autodial.proto import messages as pb

Bottoms = Sequence[Value]
Tops = Sequence[Shape]

_REPEATED = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""How Resize repeats each value a whole number of times."""


@writes(Interp)
def interp(graph: GraphWriter, layer: Interp, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    begin, end = layer.crop
    name = x.name
    if begin or end:
        last = 2**63 - 1 if end == 0 else -end
        starts, ends = graph.integers([begin, begin]), graph.integers([last, last])
        name = graph.node("Slice", name, starts, ends, graph.integers([2, 3]))
    if None not in tops[0][2:]:
        size: str | list[int] = [length or 0 for length in tops[0][2:]]
    else:
        size = graph.axis_lengths(x, 2)
        size = graph.node("Sub", size, graph.integers([begin + end + 1]))
        size = graph.node("Div", size, graph.integers([layer.shrink]))
        size = graph.node("Add", graph.node("Mul", size, graph.integers([layer.zoom])), graph.integers([1]))
    sizes = graph.joined(graph.axis_lengths(x, 0, 2), size)
    return [graph.node("Resize", name, "", "", sizes, mode="linear", coordinate_transformation_mode="align_corners")]


@writes(Upsample)
def upsample(graph: GraphWriter, layer: Upsample, bottoms: Bottoms, tops: Tops) -> list[str]:
    if layer.places:
        return [_in_places(graph, layer, *bottoms)]
    return [graph.node("Resize", bottoms[0].name, "", graph.constant([1, 1, *layer.scale]), **_REPEATED)]


def _in_places(graph: GraphWriter, layer: Upsample, x: Value, places: Value) -> str:
    """Each channel as a row of zeros into which the values are scattered."""
    if layer.size is not None:
        size = graph.integers(layer.size)
    else:
        scaled = graph.node("Mul", graph.axis_lengths(x, 2), graph.integers(layer.scale))
        size = graph.node("Sub", scaled, graph.integers(layer.less)) if any(layer.less) else scaled
    outer = graph.axis_lengths(x, 0, 2)
    pixels = graph.node("ReduceProd", size, graph.integers([0]), keepdims=1)
    zeros = graph.node("Expand", graph.constant(0), graph.joined(outer, pixels))
    flat = graph.integers([0, 0, -1])
    # Unpooling may have places for more channels.
    own = places.name if places.shape[1] == x.shape[1] else graph.sliced(places.name, 1, 0, x.length(1))
    index = graph.as_integers(graph.node("Reshape", own, flat))
    filled = graph.node("ScatterElements", zeros, index, graph.node("Reshape", x.name, flat), axis=2)
    return graph.node("Reshape", filled, graph.joined(outer, size))


@writes(SameSize)
def same_size(graph: GraphWriter, layer: SameSize, bottoms: Bottoms, tops: Tops) -> list[str]:
    first, *others = bottoms
    parts = [first.name, *(_enlarged(graph, x, first) for x in others)]
    return [graph.node("Concat", *parts, axis=1) if others else first.name]


def _enlarged(graph: GraphWriter, x: Value, first: Value) -> str:
    """A map at the size of the first one, with zeros at the end."""
    outer = graph.axis_lengths(x, 0, 2)
    if None in (*x.shape[2:], *first.shape[2:]):
        old, new = graph.axis_lengths(x, 2), graph.axis_lengths(first, 2)
        size = graph.node("Mul", graph.node("Div", new, old), old)
        name = graph.node("Resize", x.name, "", "", graph.joined(outer, size), **_REPEATED)
        return graph.node("Pad", name, graph.joined([0] * 6, graph.node("Sub", new, size)))
    height, width, tall, wide = *x.lengths(2), *first.lengths(2)
    down, across = factors((height, width), (tall, wide))
    if not down or not across:
        return graph.node("Expand", graph.constant(0), graph.joined(outer, [tall, wide]))
    name = x.name
    if (down, across) != (1, 1):
        name = graph.node("Resize", name, "", graph.constant([1, 1, down, across]), **_REPEATED)
    left = [tall - height * down, wide - width * across]
    return graph.node("Pad", name, graph.integers([0] * 6 + left)) if any(left) else name


@writes(Resample)
def resample(graph: GraphWriter, layer: Resample, bottoms: Bottoms, tops: Tops) -> list[str]:
    old, new = _sizes(bottoms[0], tops)
    if layer.kind != pb.ResampleParameter.NEAREST:
        return [_along_both_axes(graph, bottoms[0].name, layer.weights(old, new))]
    name = bottoms[0].name
    for axis, taken in zip((2, 3), layer.places(old, new), strict=True):
        name = graph.picked(name, taken.tolist(), axis)
    return [name]


@writes(Downsample)
def downsample(graph: GraphWriter, layer: Downsample, bottoms: Bottoms, tops: Tops) -> list[str]:
    (old, new), x = _sizes(bottoms[0], tops), bottoms[0].name
    if old == new:
        return [x]
    weights = layer.weights(old, new)
    missing = graph.node("IsNaN", x)
    lost = _along_both_axes(graph, graph.as_floats(missing), weights)
    counted = _along_both_axes(graph, graph.as_floats(graph.node("Not", missing)), weights)
    total = _along_both_axes(graph, graph.node("Where", missing, graph.constant(0), x), weights)
    enough = graph.node("LessOrEqual", lost, graph.node("Mul", counted, graph.constant(0.5)))
    return [graph.node("Where", enough, graph.node("Div", total, counted), graph.constant(np.nan))]


@writes(Accum)
def accum(graph: GraphWriter, layer: Accum, bottoms: Bottoms, tops: Tops) -> list[str]:
    maps = bottoms[:-1] if layer.reference else bottoms
    if None not in tops[0][2:]:
        size = graph.integers([length or 0 for length in tops[0][2:]])
    elif layer.reference:
        size = graph.axis_lengths(bottoms[-1], 2)
    else:
        raise NoOnnxFormError("the height and the width of its top must be known when the file is written")
    resized = []
    for x in maps:
        sizes = graph.joined(graph.axis_lengths(x, 0, 2), size)
        mode = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
        resized.append(graph.node("Resize", x.name, "", "", sizes, **mode))
    return [graph.node("Concat", *resized, axis=1) if len(resized) > 1 else resized[0]]


@writes(DataAugmentation)
def data_augmentation(graph: GraphWriter, layer: DataAugmentation, bottoms: Bottoms, tops: Tops) -> list[str]:
    try:
        mean = layer.mean()
    except LayerError as error:
        raise NoOnnxFormError(str(error)) from error
    name = bottoms[0].name
    if layer.crop is not None:
        old, _ = _sizes(bottoms[0], tops)
        name = _along_both_axes(graph, name, layer.weights(old))
    return [name if mean is None else graph.node("Sub", name, graph.weight(mean.numpy(), "mean"))]


def _sizes(bottom: Value, tops: Tops) -> tuple[tuple[int, int], tuple[int, int]]:
    """(height, width) of the bottom and the top, which must be known."""
    top = Value("", tops[0])
    return (bottom.length(2), bottom.length(3)), (top.length(2), top.length(3))


def _along_both_axes(graph: GraphWriter, name: str, weights: Matrices) -> str:
    """Weights of rows @ map @ weights of columns, without those that change nothing."""
    rows, columns = weights
    if not _is_identity(columns):
        name = graph.node("MatMul", name, graph.constant(columns.T))
    return name if _is_identity(rows) else graph.node("MatMul", graph.constant(rows), name)


def _is_identity(matrix: Floats) -> bool:
    return matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix)))

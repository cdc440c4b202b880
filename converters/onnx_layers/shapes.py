"""Layers that move data without computing."""

from __future__ import annotations

from collections.abc import Sequence

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, Shape, Value
from autodial.layers import Concat, Crop, Flatten, Reshape, Silence, Slice, Split, Tile
from autodial.layers.gradient_scaler import GradientScaler
from autodial.layers.rows import BatchReindex, Filter
from autodial.layers.shape import CropCenter, Permute, Reorg, Reverse, ShuffleChannel

Bottoms = Sequence[Value]
Tops = Sequence[Shape]


@writes(Concat)
def concat(graph: GraphWriter, layer: Concat, bottoms: Bottoms, tops: Tops) -> list[str]:
    if len(bottoms) == 1:
        return [bottoms[0].name]
    return [graph.node("Concat", *(bottom.name for bottom in bottoms), axis=layer.axis % bottoms[0].ndim)]


@writes(Slice)
def slice_(graph: GraphWriter, layer: Slice, bottoms: Bottoms, tops: Tops) -> list[str]:
    axis = layer.axis % bottoms[0].ndim
    if len(tops) == 1:
        return [bottoms[0].name]
    if bottoms[0].shape[axis] is None and not layer.slice_point:
        return graph.nodes_of("Split", [bottoms[0].name], len(tops), axis=axis, num_outputs=len(tops))
    if bottoms[0].shape[axis] is None:  # the last piece has whatever is left
        starts, last = [0, *layer.slice_point], 2**63 - 1
        ends = [*layer.slice_point, last]
        return [graph.sliced(bottoms[0].name, axis, start, end) for start, end in zip(starts, ends, strict=True)]
    sizes = [top[axis] or 0 for top in tops]
    return graph.nodes_of("Split", [bottoms[0].name, graph.integers(sizes)], len(tops), axis=axis)


@writes(Crop)
def crop(graph: GraphWriter, layer: Crop, bottoms: Bottoms, tops: Tops) -> list[str]:
    x, reference = bottoms
    first = layer.axis % x.ndim
    axes = range(first, x.ndim)
    offsets = list(layer.offset) * len(axes) if len(layer.offset) == 1 else list(layer.offset)
    starts, lengths = graph.integers(offsets), graph.axis_lengths(reference, first)
    if None in reference.shape[first:]:
        ends = graph.node("Add", lengths, starts)
    else:
        ends = graph.integers(start + n for start, n in zip(offsets, reference.lengths(first), strict=True))
    return [graph.node("Slice", x.name, starts, ends, graph.integers(axes))]


@writes(CropCenter)
def crop_center(graph: GraphWriter, layer: CropCenter, bottoms: Bottoms, tops: Tops) -> list[str]:
    cut = {axis: size for axis, size in enumerate(layer.crop_size) if size}
    if not cut:
        return [bottoms[0].name]
    starts, ends = graph.integers(cut.values()), graph.integers(-size for size in cut.values())
    return [graph.node("Slice", bottoms[0].name, starts, ends, graph.integers(cut))]


@writes(Flatten)
def flatten(graph: GraphWriter, layer: Flatten, bottoms: Bottoms, tops: Tops) -> list[str]:
    x = bottoms[0]
    first, last = layer.axis % x.ndim, layer.end_axis % x.ndim
    if first == last:
        return [x.name]
    if first == 1 and last == x.ndim - 1:
        return [graph.node("Flatten", x.name, axis=1)]
    if first == 0:
        return [graph.reshaped(x.name, tops[0], [-1], graph.axis_lengths(x, last + 1))]
    parts: list[str | list[int]] = [[0] * first, [-1]]
    if last + 1 < x.ndim:
        parts.append(graph.axis_lengths(x, last + 1))
    return [graph.reshaped(x.name, tops[0], *parts)]


@writes(Reshape)
def reshape(graph: GraphWriter, layer: Reshape, bottoms: Bottoms, tops: Tops) -> list[str]:
    x = bottoms[0]
    start = layer.axis if layer.axis >= 0 else x.ndim + layer.axis + 1
    end = x.ndim if layer.num_axes == -1 else start + layer.num_axes
    # As in Caffe, 0 copies the length in the same place.
    parts: list[str | list[int]] = [[*[0] * start, *layer.shape]]
    if end < x.ndim:
        parts.append(graph.axis_lengths(x, end))
    return [graph.node("Reshape", x.name, graph.joined(*parts))]


@writes(Permute)
def permute(graph: GraphWriter, layer: Permute, bottoms: Bottoms, tops: Tops) -> list[str]:
    x = bottoms[0]
    order = (*layer.order, *(axis for axis in range(x.ndim) if axis not in layer.order))
    return [x.name if order == tuple(range(x.ndim)) else graph.node("Transpose", x.name, perm=order)]


@writes(Reverse)
def reverse(graph: GraphWriter, layer: Reverse, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.sliced(bottoms[0].name, layer.axis, -1, -(2**63) + 1, -1)]


@writes(Reorg)
def reorg(graph: GraphWriter, layer: Reorg, bottoms: Bottoms, tops: Tops) -> list[str]:
    x, stride = bottoms[0], layer.stride
    own = x.length(1) // stride**2
    count, height, width = (graph.axis_lengths(x, axis, axis + 1) for axis in (0, 2, 3))
    factor = graph.integers([stride])
    if layer.reverse:
        parts = graph.node("Reshape", x.name, graph.joined(count, [stride, stride, own], height, width))
        squares = graph.node("Transpose", parts, perm=[0, 3, 4, 1, 5, 2])
        channels, scaled = own, [graph.node("Mul", length, factor) for length in (height, width)]
    else:
        parts = graph.node("Reshape", x.name, graph.joined(count, [own], height, [stride], width, [stride]))
        squares = graph.node("Transpose", parts, perm=[0, 3, 5, 1, 2, 4])
        channels, scaled = x.length(1) * stride**2, [graph.node("Div", length, factor) for length in (height, width)]
    return [graph.reshaped(squares, tops[0], count, [channels], *scaled)]


@writes(ShuffleChannel)
def shuffle_channel(graph: GraphWriter, layer: ShuffleChannel, bottoms: Bottoms, tops: Tops) -> list[str]:
    x = bottoms[0]
    channels = x.length(1)
    groups = graph.node("Reshape", x.name, graph.integers([0, layer.group, channels // layer.group, -1]))
    swapped = graph.node("Transpose", groups, perm=[0, 2, 1, 3])
    return [graph.reshaped(swapped, x.shape, graph.axis_lengths(x))]


@writes(Tile)
def tile(graph: GraphWriter, layer: Tile, bottoms: Bottoms, tops: Tops) -> list[str]:
    repeats = [1] * bottoms[0].ndim
    repeats[layer.axis % bottoms[0].ndim] = layer.tiles
    return [graph.node("Tile", bottoms[0].name, graph.integers(repeats))]


@writes(Split)
def split(graph: GraphWriter, layer: Split, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [bottoms[0].name] * len(tops)


@writes(GradientScaler)
def gradient_scaler(graph: GraphWriter, layer: GradientScaler, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [bottom.name for bottom in bottoms]


@writes(Silence)
def silence(graph: GraphWriter, layer: Silence, bottoms: Bottoms, tops: Tops) -> list[str]:
    return []


@writes(BatchReindex)
def batch_reindex(graph: GraphWriter, layer: BatchReindex, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("Gather", bottoms[0].name, graph.as_integers(bottoms[1].name), axis=0)]


@writes(Filter)
def filter_(graph: GraphWriter, layer: Filter, bottoms: Bottoms, tops: Tops) -> list[str]:
    *rows, selector = bottoms
    flat = graph.node("Reshape", selector.name, graph.integers([-1]))
    places = graph.squeezed(graph.node("NonZero", flat), 0)
    return [graph.node("Gather", row.name, places, axis=0) for row in rows]

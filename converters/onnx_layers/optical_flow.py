"""Layers of nets for optical flow and stereo: Correlation, Correlation1D, FlowWarp and ChannelNorm."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value
from autodial.layers.correlation import Correlation
from autodial.layers.flow_warp import FlowWarp
from autodial.layers.reduction import ChannelNorm

Bottoms = Sequence[Value]
Tops = Sequence[Shape]

_MOST_MAPS = 4096
"""Displacements that are written one by one, at most."""


@writes(Correlation)
def correlation(graph: GraphWriter, layer: Correlation, bottoms: Bottoms, tops: Tops) -> list[str]:
    """As the layer does it, so that the memory needed is in proportion to the top."""
    unrolled = layer.vertical.count * (layer.horizontal.count if layer.subtract else 1)
    if unrolled > _MOST_MAPS:
        raise NoOnnxFormError(f"{unrolled} displacements would be written one by one, and {_MOST_MAPS} are the most")
    rows, columns = (
        None if length is None else length + 2 * axis.margin
        for length, axis in zip(bottoms[0].shape[2:], (layer.vertical, layer.horizontal), strict=True)
    )
    margins = (layer.vertical.margin,) * 2, (layer.horizontal.margin,) * 2
    first = _padded(graph, bottoms[0].name, *margins)
    second = _padded(graph, bottoms[1].name, layer.vertical.pads, layer.horizontal.pads)
    shape = (*bottoms[0].shape[:2], rows, columns)
    made = (_differences if layer.subtract else _products)(graph, layer, Value(first, shape), second)
    if layer.kernel_size == layer.stride == 1:
        return [made]
    return [graph.node("AveragePool", made, kernel_shape=[layer.kernel_size] * 2, strides=[layer.stride] * 2)]


def _padded(graph: GraphWriter, name: str, rows: tuple[int, int], columns: tuple[int, int]) -> str:
    """Zeros put around maps, or, where numbers are negative, pixels cut off."""
    cut = [[max(-each, 0) for each in axis] for axis in (rows, columns)]
    if np.any(cut):
        ends = [2**63 - 1 if last == 0 else -last for _, last in cut]
        starts = [begin for begin, _ in cut]
        name = graph.node("Slice", name, *(graph.integers(numbers) for numbers in (starts, ends, (2, 3))))
    (top, bottom), (left, right) = ([max(each, 0) for each in axis] for axis in (rows, columns))
    if top or bottom or left or right:
        name = graph.node("Pad", name, graph.integers([0, 0, top, left, 0, 0, bottom, right]))
    return name


def _differences(graph: GraphWriter, layer: Correlation, first: Value, second: str) -> str:
    """Each displacement by itself: (N, displacements, rows, columns)."""
    starts = [range(0, axis.span + 1, axis.step) for axis in (layer.vertical, layer.horizontal)]
    size = graph.axis_lengths(first, 2)
    axes = graph.integers([2, 3])
    maps = []
    for row, column in product(*starts):
        start = graph.integers([row, column])
        if None in first.shape[2:]:
            end = graph.node("Add", size, start)
        else:
            end = graph.integers([first.length(2) + row, first.length(3) + column])
        difference = graph.node("Sub", first.name, graph.node("Slice", second, start, end, axes))
        maps.append(graph.node("ReduceMean", graph.node("Abs", difference), graph.integers([1]), keepdims=1))
    return graph.node("Concat", *maps, axis=1)


def _products(graph: GraphWriter, layer: Correlation, first: Value, second: str) -> str:
    """Products of matrices, of which diagonals are taken: (N, displacements, rows, columns)."""
    across, count = layer.horizontal, layer.vertical.count
    columns = first.shape[3]
    block = layer.block(columns)
    reach = block + across.span
    blocks = None if columns is None else -(-columns // block)
    height, width = (graph.axis_lengths(first, axis, axis + 1) for axis in (2, 3))
    if blocks is None or columns is None:
        # the next multiple of `block`, less the width
        extra = graph.node("Mod", graph.node("Neg", width), graph.integers([block]))
        number = graph.node("Div", graph.node("Add", width, extra), graph.integers([block]))
        begins = graph.node("Range", graph.integers(0), graph.squeezed(number, 0), graph.integers(1))
        begins = graph.unsqueezed(graph.node("Mul", begins, graph.integers(block)), 1)
        ours_at = graph.node("Add", begins, graph.integers(range(block)))
        theirs_at = graph.node("Add", begins, graph.integers(range(reach)))
    else:
        extra = graph.integers([blocks * block - columns])
        begin = block * np.arange(blocks)[:, None]
        ours_at, theirs_at = (graph.constant(begin + np.arange(n), np.int64) for n in (block, reach))
    if columns is None or columns % block:
        pads = graph.joined([0] * 7, extra)
        first_name, second = (graph.node("Pad", name, pads) for name in (first.name, second))
    else:
        first_name = first.name
    ours = graph.node("Gather", first_name, ours_at, axis=3)  # (N, C, rows, blocks, block)
    ours = graph.unsqueezed(graph.node("Transpose", ours, perm=[0, 2, 3, 4, 1]), 1)
    theirs = graph.node("Gather", second, theirs_at, axis=3)
    theirs = graph.unsqueezed(graph.node("Transpose", theirs, perm=[0, 2, 3, 1, 4]), 1)
    made = []
    for row in range(0, layer.vertical.span + 1, layer.vertical.step):
        if first.shape[2] is None:
            end = graph.node("Add", height, graph.integers([row]))
        else:
            end = graph.integers([first.shape[2] + row])
        partners = graph.node("Slice", theirs, graph.integers([row]), end, graph.integers([2]))
        made.append(graph.node("MatMul", ours, partners))  # (N, 1, rows, blocks, block, reach)
    flat = graph.node("Concat", *made, axis=1) if count > 1 else made[0]
    flat = graph.node("Reshape", flat, graph.integers([0, 0, 0, 0, block * reach]))
    # With `block` more values, every row of the matrix begins one column later: diagonals become columns.
    flat = graph.node("Pad", flat, graph.integers([0] * 9 + [block]))
    skewed = graph.node("Reshape", flat, graph.integers([0, 0, 0, 0, block, reach + 1]))
    maps = graph.node("Transpose", graph.sliced(skewed, 5, 0, across.span + 1, across.step), perm=[0, 1, 5, 2, 3, 4])
    shape = graph.joined([0, count * across.count], height, [-1])
    maps = graph.node("Reshape", maps, shape)
    if columns is None or columns % block:
        end = graph.node("Slice", maps, graph.integers([0]), width, graph.integers([3]))
        maps = end
    return graph.node("Mul", maps, graph.constant(1 / first.length(1)))


@writes(FlowWarp)
def flow_warp(graph: GraphWriter, layer: FlowWarp, bottoms: Bottoms, tops: Tops) -> list[str]:
    """The four pixels around each place; GridSample's places are fractions of the size, which loses digits."""
    image, flow = bottoms
    height, width = (graph.axis_lengths(image, axis, axis + 1) for axis in (2, 3))
    zero, one = graph.constant(0), graph.constant(1)
    inside, places = [], []
    for channel, length in ((1, height), (0, width)):
        pixels = graph.as_floats(graph.node("Range", graph.integers(0), graph.squeezed(length, 0), graph.integers(1)))
        if channel:
            pixels = graph.unsqueezed(pixels, 1)
        place = graph.node("Add", graph.picked(flow.name, channel, 1), pixels)  # (N, H, W)
        most = graph.as_floats(length)
        inside.append(graph.node("And", graph.node("GreaterOrEqual", place, zero), graph.node("Less", place, most)))
        places.append((place, graph.node("Sub", most, one)))
    within = graph.node("And", *inside)
    corners, weights = [], []
    for place, last in places:
        place = graph.node("Where", within, place, zero)
        before = graph.node("Floor", place)
        after = graph.node("Min", graph.node("Add", before, one), last)
        near = graph.unsqueezed(graph.node("Sub", place, before), 1)  # (N, 1, H, W)
        corners.append([graph.as_integers(each) for each in (before, after)])
        weights.append([graph.node("Sub", one, near), near])
    flat = graph.node("Reshape", image.name, graph.integers([0, 0, -1]))
    spread = graph.node("Shape", flat)
    total = ""
    for i, j in product(range(2), range(2)):
        index = graph.node("Add", graph.node("Mul", corners[0][i], width), corners[1][j])
        index = graph.node("Expand", graph.node("Reshape", index, graph.integers([0, 1, -1])), spread)
        value = graph.node("GatherElements", flat, index, axis=2)
        value = graph.node("Reshape", value, graph.joined(graph.axis_lengths(image)))
        value = graph.node("Mul", graph.node("Mul", weights[0][i], weights[1][j]), value)
        total = graph.node("Add", total, value) if total else value
    return [graph.node("Where", graph.unsqueezed(within, 1), total, graph.constant(layer.fill))]


@writes(ChannelNorm)
def channel_norm(graph: GraphWriter, layer: ChannelNorm, bottoms: Bottoms, tops: Tops) -> list[str]:
    return [graph.node("ReduceL2", bottoms[0].name, graph.integers([1]), keepdims=1)]

"""Layers that change the resolution: Interp and both Upsamples."""

from __future__ import annotations

from collections.abc import Sequence

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, Shape, Value
from autodial.layers.interp import Interp
from autodial.layers.upsample import Upsample

Bottoms = Sequence[Value]
Tops = Sequence[Shape]


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
    scales = graph.constant([1, 1, *layer.scale])
    return [
        graph.node(
            "Resize",
            bottoms[0].name,
            "",
            scales,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
    ]


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

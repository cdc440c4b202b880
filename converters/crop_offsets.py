"""Where the Caffe of HED and of early FCNs crops: it has no `crop_param`, and finds the offset from the layers between.

In that Caffe, each layer says which place of its top lies on a place of its bottom, centre on centre. A Crop layer
follows its two bottoms back to the blob that both come from, each time by a layer's first bottom, and cuts out what
lies on its second bottom's pixels (crop_layer.cpp of longjon/caffe).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from autodial.layers import Convolution, Crop, Deconvolution, Layer, Pooling
from autodial.net.net import Net
from autodial.netparam.graph import Graph, Node
from autodial.netparam.layer_types import PIXELWISE
from autodial.wording import counted


class _Map(NamedTuple):
    """Along one axis, pixel x of one blob is pixel scale * x + shift of another."""

    scale: Fraction = Fraction(1)
    shift: Fraction = Fraction(0)

    def after(self, first: _Map) -> _Map:
        """The map that does `first`, and then this one."""
        return _Map(self.scale * first.scale, self.scale * first.shift + self.shift)

    def inverse(self) -> _Map:
        return _Map(1 / self.scale, -self.shift / self.scale)


_Maps = tuple[_Map, _Map]
"""For rows and for columns."""


def aligned_offsets(net: Net) -> dict[str, tuple[int, int]]:
    """The offsets other than 0 that HED's Caffe finds for Crop layers without a `crop_param`.

    Args:
        net: a net of one phase.

    Returns:
        (rows, columns) by the layer's top, as layers may share a name. Layers for which that Caffe stops are left out,
        and so are layers whose bottom ends before what would be cut out.
    """
    graph = Graph(net.param.layer)
    made = {value: node for node in graph.nodes for value in node.tops}
    layers = dict(zip(graph.nodes, net.layers.values(), strict=True))
    found: dict[str, tuple[int, int]] = {}
    steps: dict[Node, _Maps] = {}
    for node, layer in layers.items():
        assert isinstance(layer, Layer)
        maps = _step(node, layer)
        if isinstance(layer, Crop) and not node.param.HasField("crop_param"):
            offset = _offset(node, made, steps)
            large, small = (net.blob_shapes[name] for name in node.param.bottom)
            if offset is not None and all(o + s <= n for o, s, n in zip(offset, small[2:], large[2:], strict=True)):
                maps = (_Map(shift=Fraction(-offset[0])), _Map(shift=Fraction(-offset[1])))
                if any(offset):
                    found[node.param.top[0]] = offset
        if maps is not None:
            steps[node] = maps
    return found


def describe_offsets(net: Net, offsets: Mapping[str, tuple[int, int]]) -> str:
    """A sentence about Crop layers that begin at 0 and not at these offsets."""
    names = list(dict.fromkeys(layer.name for layer in net.param.layer if layer.top[:1] and layer.top[0] in offsets))
    places = dict.fromkeys(
        str(rows) if rows == columns else f"{rows} x {columns}" for rows, columns in offsets.values()
    )
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    verb = "states" if len(offsets) == 1 else "state"
    return (
        f"{counted(len(offsets), 'Crop layer')} ({', '.join(names[:5])}{more}) {verb} no offset, which is 0 in BVLC's "
        f"Caffe. The Caffe of HED and of the first FCNs computes it, here {', '.join(places)}: if the net was trained "
        "there, convert it with `align_crops`"
    )


def _step(node: Node, layer: Layer) -> _Maps | None:
    """A layer's maps from its first bottom to its top; None if it does not keep pixels in place."""
    if isinstance(layer, Crop):
        return _both([_Map(shift=Fraction(-offset)) for offset in (layer.offset * 2)[:2]])
    if isinstance(layer, Deconvolution):
        windows = zip(layer.windows.extents, layer.windows.stride, layer.windows.pad, strict=True)
        return _both([_Map(Fraction(stride), Fraction(extent - 1, 2) - pad) for extent, stride, pad in windows])
    if isinstance(layer, Convolution):
        return _both(_windows(layer.windows.extents, layer.windows.stride, layer.windows.pad))
    if isinstance(layer, Pooling):
        return None if layer.kernel_size is None else _both(_windows(layer.kernel_size, layer.stride, layer.pad))
    return (_Map(), _Map()) if node.param.type in PIXELWISE and node.bottoms else None


def _windows(extents: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...]) -> list[_Map]:
    return [
        _Map(Fraction(1, stride), (pad - Fraction(extent - 1, 2)) / stride)
        for extent, stride, pad in zip(extents, strides, pads, strict=True)
    ]


def _both(maps: list[_Map]) -> _Maps | None:
    return (maps[0], maps[1]) if len(maps) == 2 else None


def _offset(node: Node, made: Mapping[int, Node], steps: Mapping[Node, _Maps]) -> tuple[int, int] | None:
    """(rows, columns) that a Crop layer cuts at; None if its bottoms have no common blob, or don't match in scale."""
    large = dict(_back(node.bottoms[0], made, steps))
    for value, maps in _back(node.bottoms[1], made, steps):
        if value in large:
            between = [to.after(own.inverse()) for to, own in zip(maps, large[value], strict=True)]
            if any(one.scale != 1 or one.shift > 0 or one.shift.denominator != 1 for one in between):
                return None
            rows, columns = (int(-one.shift) for one in between)
            return rows, columns
    return None


def _back(value: int, made: Mapping[int, Node], steps: Mapping[Node, _Maps]) -> Iterator[tuple[int, _Maps]]:
    """A blob and those that it comes from by first bottoms, each with the maps from it to the blob."""
    maps = (_Map(), _Map())
    while True:
        yield value, maps
        node = made[value]
        if node not in steps:
            return
        rows, columns = steps[node]
        maps = (maps[0].after(rows), maps[1].after(columns))
        value = node.bottoms[0]

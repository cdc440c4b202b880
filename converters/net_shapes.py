"""Which lengths of a net's blobs are known before it runs: they are the same for inputs of several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autodial.converters.onnx_layers import Shape
from autodial.layers import Layer, LayerError
from autodial.layers import Shape as KnownShape
from autodial.layers.detection_output import DetectionOutput
from autodial.layers.proposal import Proposal
from autodial.layers.rows import Filter
from autodial.layers.yolo import YoloDetectionOutput, Yolov3DetectionOutput
from autodial.net.net import Net

_FOUND: dict[type[Layer], int] = {
    DetectionOutput: 2,
    Filter: 0,
    Proposal: 0,
    YoloDetectionOutput: 2,
    Yolov3DetectionOutput: 2,
}
"""Layers that find how many rows their tops have, with the axis of the rows."""


def known_shapes(net: Net, inputs: Sequence[Mapping[str, KnownShape]]) -> list[list[Shape]]:
    """The shape of each top of each layer, in the order of `net.param.layer`, None where lengths differ.

    Args:
        inputs: the inputs' shapes in several cases, by blob.

    Raises:
        LayerError: a layer takes no such bottom.
    """
    cases = [_shapes(net, shapes, rows) for shapes, rows in zip(inputs, range(1, len(inputs) + 1), strict=True)]
    cases.append(_shapes(net, inputs[0], len(inputs) + 1))  # rows may differ where all inputs are the same
    return [[_common(top) for top in zip(*tops, strict=True)] for tops in zip(*cases, strict=True)]


def takes(net: Net, inputs: Mapping[str, KnownShape]) -> str | None:
    """Why the net takes no inputs of these shapes, naming the layer; None if it does."""
    try:
        _shapes(net, inputs, 1)
    except LayerError as error:
        return str(error)
    return None


def _shapes(net: Net, inputs: Mapping[str, KnownShape], rows: int) -> list[list[KnownShape]]:
    """The tops' shapes for inputs of these shapes; layers that find their rows find this many."""
    blobs = dict(inputs)
    made = []
    for message, layer in zip(net.param.layer, net.layers.values(), strict=True):
        assert isinstance(layer, Layer)
        if layer.is_data:
            tops = [blobs[top] for top in message.top]
        else:
            try:
                tops = [tuple(shape) for shape in layer.top_shapes([blobs[bottom] for bottom in message.bottom])]
            except LayerError as error:
                raise LayerError(f'layer "{message.name}" ({message.type}): {error}') from error
        if type(layer) in _FOUND:
            axis = _FOUND[type(layer)]
            tops = [(*top[:axis], rows, *top[axis + 1 :]) for top in tops]
        blobs.update(zip(message.top, tops, strict=True))
        made.append(tops)
    return made


def _common(shapes: Iterable[KnownShape]) -> Shape:
    first, *others = shapes
    return tuple(
        length if all(other[axis] == length for other in others) else None for axis, length in enumerate(first)
    )

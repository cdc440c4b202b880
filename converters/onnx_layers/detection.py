"""Layers that detect objects: PriorBox, DetectionOutput, Proposal, TextProposals and YOLO's last layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from onnx import TensorProto

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value
from autodial.layers.detection_output import CLOCKWISE, DetectionOutput
from autodial.layers.prior_box import PriorBox
from autodial.layers.proposal import Proposal, placed
from autodial.layers.text_proposals import TextProposals
from autodial.layers.yolo import COORDINATES, YoloDetectionOutput, YoloDetections, Yolov3DetectionOutput

Bottoms = Sequence[Value]
Tops = Sequence[Shape]

_LOWEST = float(np.finfo(np.float32).min)
_LEFT_OUT = -float("inf")
"""The score of a box that is out of the question."""


@writes(PriorBox)
def prior_box(graph: GraphWriter, layer: PriorBox, bottoms: Bottoms, tops: Tops) -> list[str]:
    """Constants for maps of a known size; otherwise computed from the sizes."""
    x, image = bottoms
    if None not in x.shape[2:] and (layer.image_size is not None or None not in image.shape[2:]):
        like = [torch.empty(1, 1, *(length or 1 for length in bottom.shape[2:])) for bottom in bottoms]
        return [graph.weight(layer(*like).numpy(), "priors")]
    counts = [graph.axis_lengths(x, axis, axis + 1) for axis in (2, 3)]
    if layer.image_size is None:
        sizes = [graph.as_floats(graph.axis_lengths(image, axis, axis + 1)) for axis in (2, 3)]
    else:
        sizes = [graph.constant([side]) for side in layer.image_size]
    if layer.steps is None:
        steps = [graph.node("Div", size, graph.as_floats(length)) for length, size in zip(counts, sizes, strict=True)]
    else:
        steps = [graph.constant([step]) for step in layer.steps]
    rows, columns = (graph.as_floats(_range(graph, length)) for length in counts)
    rows = graph.node("Add", graph.unsqueezed(rows, 1, 2), graph.constant(layer.row_offsets))
    y = graph.node("Mul", rows, steps[0])
    x_ = graph.unsqueezed(graph.node("Mul", graph.scaled(columns, shift=layer.offset), steps[1]), 0, 2)
    boxes = np.array(layer.sizes, np.float32)
    zero = graph.node("Mul", graph.node("Add", y, x_), graph.constant(0))  # the shape of all centres
    corners = []
    for sign in (-1, 1):
        for centre, half, size in (
            (x_, boxes[:, 0] / 2, sizes[1]),
            (y, boxes[:, 1] / 2, sizes[0]),
        ):
            corner = graph.node("Add", graph.node("Add", centre, zero), graph.constant(sign * half))
            corners.append(graph.unsqueezed(graph.node("Div", corner, size), 3))
    flat = graph.node("Reshape", graph.node("Concat", *corners, axis=3), graph.integers([1, 1, -1]))
    if layer.clip:
        flat = graph.node("Clip", flat, graph.constant(0), graph.constant(1))
    number = graph.node("Mul", graph.node("Mul", *counts), graph.integers([len(boxes)]))
    variances = graph.node("Tile", graph.constant([[layer.variances]]), graph.joined([1, 1], number))
    return [graph.node("Concat", flat, variances, axis=1)]


@writes(DetectionOutput)
def detection_output(graph: GraphWriter, layer: DetectionOutput, bottoms: Bottoms, tops: Tops) -> list[str]:
    """NonMaxSuppression, once for classes that share their locations and else for each class.

    The operator swaps the corners of a box whose end lies before its start. Here such boxes have no area and suppress
    nothing, so the operator gets a point in their place.
    """
    if layer.eta < 1 and layer.nms_threshold > 0.5:
        raise NoOnnxFormError("NonMaxSuppression has one threshold, and eta lowers it with each detection")
    locations, scores, priors, *others = bottoms
    sets = 1 if layer.share_location else layer.num_classes
    labels = [label for label in range(layer.num_classes) if label != layer.background]
    first = others[1] if len(others) == 2 else None
    boxes, located = _decoded(graph, layer, locations, priors, sets, first)
    by_class = graph.node("Reshape", scores.name, graph.integers([0, -1, layer.num_classes]))
    if first is not None:
        objects = graph.node("Reshape", others[0].name, graph.integers([0, -1, 2]))
        without = graph.node("Less", graph.sliced(objects, 2, 1, 2), graph.constant(layer.objectness))
        by_class = graph.node("Where", without, graph.constant(np.eye(layer.num_classes)[0]), by_class)
    by_class = graph.node("Transpose", by_class, perm=[0, 2, 1])
    count = None if priors.shape[2] is None else priors.length(2) // 4
    if layer.share_location:
        shared = graph.squeezed(boxes, 2), graph.squeezed(located, 2)
        found = [_suppressed(graph, layer, *shared, graph.picked(by_class, labels, 1), labels, count)]
    else:
        found = [
            _suppressed(
                graph,
                layer,
                graph.picked(boxes, label, 2),
                graph.picked(located, label, 2),
                graph.picked(by_class, [label], 1),
                [label],
                count,
            )
            for label in labels
        ]
    rows = found[0] if len(found) == 1 else graph.node("Concat", *found, axis=0)
    images = graph.axis_lengths(locations, 0, 1)
    rows = _ordered(graph, layer, rows, images)
    width = 3 + layer.location_size
    return [graph.node("Reshape", _or_nothing(graph, rows, images, width), graph.integers([1, 1, -1, width]))]


def _decoded(
    graph: GraphWriter, layer: DetectionOutput, locations: Value, priors: Value, sets: int, first: Value | None
) -> tuple[str, str]:
    """The corners of the boxes, (N, P, sets, 4), and what the rows hold of each: these, or also its quadrangle's."""
    pairs = graph.node("Reshape", priors.name, graph.integers([2, -1, 1, 4]))
    prior, variance = graph.picked(pairs, 0), graph.picked(pairs, 1)
    if first is not None:
        change = graph.node("Reshape", first.name, graph.integers([0, -1, 1, 4]))
        prior = _moved(graph, layer, prior, variance, change)
    change = graph.node("Reshape", locations.name, graph.integers([0, -1, sets, layer.location_size]))
    if not layer.polygons:
        boxes = _moved(graph, layer, prior, variance, change)
        if layer.clip:
            boxes = graph.node("Clip", boxes, graph.constant(0), graph.constant(1))
        return boxes, boxes
    boxes = _moved(graph, layer, prior, variance, graph.sliced(change, 3, 0, 4))
    low, high = graph.nodes_of("Split", [prior], 2, axis=-1, num_outputs=2)
    size = graph.node("Mul", graph.node("Sub", high, low), graph.picked(variance, [0, 1], 2))
    moved = graph.node("Mul", graph.sliced(change, 3, 4, layer.location_size), graph.picked(size, [0, 1] * 4, 2))
    quadrangles = graph.node("Add", moved, graph.picked(prior, CLOCKWISE, 2))
    return boxes, graph.node("Concat", boxes, quadrangles, axis=3)


def _moved(graph: GraphWriter, layer: DetectionOutput, prior: str, variance: str, change: str) -> str:
    """Boxes (P, 1, 4) or (N, P, 1, 4) with changes (N, P, sets, 4)."""
    if not layer.variance_in_target:
        change = graph.node("Mul", change, variance)
    if layer.code_type == "CORNER":
        return graph.node("Add", prior, change)
    low, high = graph.nodes_of("Split", [prior], 2, axis=-1, num_outputs=2)
    size = graph.node("Sub", high, low)
    if layer.code_type == "CORNER_SIZE":
        return graph.node("Add", prior, graph.node("Mul", change, graph.node("Concat", size, size, axis=-1)))
    move, grow = graph.nodes_of("Split", [change], 2, axis=3, num_outputs=2)
    centre = graph.node("Add", graph.node("Mul", move, size), graph.scaled(graph.node("Add", low, high), 0.5))
    half = graph.scaled(graph.node("Mul", graph.node("Exp", grow), size), 0.5)
    return graph.node("Concat", graph.node("Sub", centre, half), graph.node("Add", centre, half), axis=3)


def _suppressed(
    graph: GraphWriter,
    layer: DetectionOutput,
    boxes: str,
    located: str,
    scores: str,
    labels: Sequence[int],
    count: int | None,
) -> str:
    """Rows image, label, score, then what `located` (N, P, 4 or 12) holds, of boxes (N, P, 4) that stay.

    Args:
        scores: (N, labels, P).
    """
    candidates = scores
    if layer.top_k >= 0 and (count is None or layer.top_k < count):
        candidates = _best(graph, scores, layer.top_k)
    threshold = max(layer.confidence, _LOWEST)
    most = graph.integers([count]) if count is not None else graph.node("Shape", boxes, start=1, end=2)
    chosen = graph.node(
        "NonMaxSuppression",
        boxes if layer.code_type == "CENTER_SIZE" else _with_points(graph, boxes),
        candidates,
        most,
        graph.constant([layer.nms_threshold]),
        graph.constant([threshold]),
    )
    image, label, place = (graph.picked(chosen, [column], 1) for column in range(3))
    head = graph.as_floats(image)
    name = graph.node("Gather", graph.constant(labels), label, axis=0)
    score = graph.unsqueezed(graph.node("GatherND", scores, chosen), 1)
    corners = graph.node("GatherND", located, graph.node("Concat", image, place, axis=1))
    return graph.node("Concat", head, name, score, corners, axis=1)


def _best(graph: GraphWriter, scores: str, top_k: int) -> str:
    """The scores (N, labels, P) with all but the best of each label left out; of equal ones the first stay."""
    whole = graph.node("Shape", scores)
    number = graph.node("Min", graph.integers([top_k]), graph.sliced(whole, 0, 2, 3))
    values, places = graph.nodes_of("TopK", [scores, number], 2, axis=2)
    return graph.node("ScatterElements", graph.node("Expand", graph.constant(_LEFT_OUT), whole), places, values, axis=2)


def _with_points(graph: GraphWriter, boxes: str) -> str:
    """Boxes (N, P, 4) with a point in the place of each whose end lies before its start."""
    low, high = graph.nodes_of("Split", [boxes], 2, axis=2, num_outputs=2)
    sides = graph.node("Sub", high, low)
    shortest = graph.node("ReduceMin", sides, graph.integers([2]), keepdims=1)
    inverted = graph.node("Less", shortest, graph.constant(0))
    return graph.node("Where", inverted, graph.node("Concat", low, low, axis=2), boxes)


def _ordered(graph: GraphWriter, layer: DetectionOutput, rows: str, images: str) -> str:
    """Rows by image, then label, then falling score; of each image only the best `keep_top_k`."""
    rows = _sorted(graph, rows, graph.picked(rows, 2, 1), largest=True)
    if layer.keep_top_k >= 0:
        rows = _sorted(graph, rows, graph.picked(rows, 0, 1), largest=False)
        image = graph.as_integers(graph.picked(rows, 0, 1))
        number = graph.node("Shape", rows, start=0, end=1)
        own = graph.node("Equal", graph.unsqueezed(_range(graph, images), 1), graph.unsqueezed(image, 0))
        counts = graph.node("Cast", own, to=TensorProto.INT64)
        counts = graph.node("ReduceSum", counts, graph.integers([1]), keepdims=0)
        begins = graph.node("CumSum", counts, graph.integers(0), exclusive=1)
        rank = graph.node("Sub", _range(graph, number), graph.node("Gather", begins, image, axis=0))
        kept = graph.node("NonZero", graph.node("Less", rank, graph.integers(layer.keep_top_k)))
        rows = graph.node("Gather", rows, graph.squeezed(kept, 0), axis=0)
    key = graph.scaled(graph.picked(rows, 0, 1), float(layer.num_classes))
    return _sorted(graph, rows, graph.node("Add", key, graph.picked(rows, 1, 1)), largest=False)


def _sorted(graph: GraphWriter, rows: str, key: str, *, largest: bool) -> str:
    """Rows in the order of a key, (rows,); of equal keys the first comes first, as TopK has it."""
    number = graph.node("Shape", rows, start=0, end=1)
    _, order = graph.nodes_of("TopK", [key, number], 2, axis=0, largest=int(largest))
    return graph.node("Gather", rows, order, axis=0)


def _or_nothing(graph: GraphWriter, rows: str, images: str, width: int) -> str:
    """The rows of that width, or where there are none, for each image a row of its number and of -1."""
    number = graph.node("Shape", rows, start=0, end=1)
    empty = graph.node("Equal", number, graph.integers([0]))
    most = graph.node("Where", empty, images, graph.integers([0]))
    head = graph.unsqueezed(graph.as_floats(_range(graph, most)), 1)
    rest = graph.node("Expand", graph.constant(-1), graph.joined(most, [width - 1]))
    return graph.node("Concat", rows, graph.node("Concat", head, rest, axis=1), axis=0)


def _range(graph: GraphWriter, number: str) -> str:
    """0, 1, ... below a number, int64 of one axis with one element."""
    return graph.node("Range", graph.integers(0), graph.squeezed(number, 0), graph.integers(1))


@writes(Proposal)
def proposal(graph: GraphWriter, layer: Proposal, bottoms: Bottoms, tops: Tops) -> list[str]:
    """NonMaxSuppression has no pixels at a box's end, so it gets boxes that end a pixel later."""
    scores, changes, info = bottoms
    count = len(layer.anchors)
    objects = graph.sliced(scores.name, 1, count, 2 * count)
    objects = graph.node("Reshape", graph.node("Transpose", objects, perm=[0, 2, 3, 1]), graph.integers([-1]))
    sizes = graph.node("Reshape", info.name, graph.integers([-1]))
    height, width, scale = (graph.picked(sizes, [i]) for i in range(3))

    boxes = _shifted(graph, layer, changes)
    ends = graph.scaled(graph.node("Concat", width, height, width, height, axis=0), shift=-1)
    boxes = graph.node("Max", graph.node("Min", boxes, ends), graph.constant(0))
    low, high = graph.nodes_of("Split", [boxes], 2, axis=1, num_outputs=2)
    sides = graph.scaled(graph.node("Sub", high, low), shift=1)
    shortest = graph.node("ReduceMin", sides, graph.integers([1]), keepdims=0)
    large = graph.node("GreaterOrEqual", shortest, graph.scaled(scale, float(layer.min_size)))

    # Of equal scores the last comes first: TopK has the first first, so it gets them backwards.
    kept = graph.node("Where", large, objects, graph.constant(_LEFT_OUT))
    backwards = [graph.sliced(name, 0, -1, -(2**63) + 1, -1) for name in (kept, objects, boxes)]
    number = graph.node("Min", graph.integers([layer.before]), graph.node("Shape", objects))
    best, order = graph.nodes_of("TopK", [backwards[0], number], 2, axis=0)
    boxes, objects = (graph.node("Gather", name, order, axis=0) for name in (backwards[2], backwards[1]))

    reaching = graph.node("Add", boxes, graph.constant([0, 0, 1, 1]))
    chosen = graph.node(
        "NonMaxSuppression",
        graph.unsqueezed(reaching, 0),
        graph.unsqueezed(best, 0, 1),
        graph.integers([layer.after]),
        graph.constant([layer.threshold]),
        graph.constant([_LOWEST]),
    )
    places = graph.picked(chosen, 2, 1)
    places, _ = graph.nodes_of("TopK", [places, graph.node("Shape", places)], 2, axis=0, largest=0)
    corners = graph.node("Gather", boxes, places, axis=0)
    regions = graph.node("Pad", corners, graph.integers([0, 1, 0, 0]))
    if not layer.probabilities:
        return [regions]
    return [regions, graph.unsqueezed(graph.node("Gather", objects, places, axis=0), 1)]


def _shifted(graph: GraphWriter, layer: Proposal, changes: Value) -> str:
    """The anchors at every pixel, moved and resized: (H W A, 4)."""
    low, high = graph.nodes_of("Split", [_placed(graph, layer, changes)], 2, axis=1, num_outputs=2)
    size = graph.scaled(graph.node("Sub", high, low), shift=1)
    centre = graph.node("Add", low, graph.scaled(size, 0.5))
    change = graph.node("Transpose", changes.name, perm=[0, 2, 3, 1])
    change = graph.node("Reshape", change, graph.integers([-1, 4]))
    move, grow = graph.nodes_of("Split", [change], 2, axis=1, num_outputs=2)
    middle = graph.node("Add", graph.node("Mul", move, size), centre)
    half = graph.scaled(graph.node("Mul", graph.node("Exp", grow), size), 0.5)
    return graph.node("Concat", graph.node("Sub", middle, half), graph.node("Add", middle, half), axis=1)


def _placed(graph: GraphWriter, layer: Proposal | TextProposals, changes: Value) -> str:
    """The anchors at every pixel: (H W A, 4)."""
    if None not in changes.shape[2:]:
        return graph.weight(placed(layer.anchors, layer.stride, *changes.lengths(2)).numpy(), "anchors")
    rows, columns = (
        graph.scaled(graph.as_floats(_range(graph, graph.axis_lengths(changes, axis, axis + 1))), layer.stride)
        for axis in (2, 3)
    )
    y, x = graph.unsqueezed(rows, 1, 2), graph.unsqueezed(columns, 0, 2)
    zero = graph.node("Mul", graph.node("Add", y, x), graph.constant(0))
    places = graph.node("Concat", *(graph.node("Add", zero, name) for name in (x, y, x, y)), axis=2)
    before = graph.node("Add", graph.unsqueezed(places, 2), graph.constant(layer.anchors.numpy()))
    return graph.node("Reshape", before, graph.integers([-1, 4]))


@writes(TextProposals)
def text_proposals(graph: GraphWriter, layer: TextProposals, bottoms: Bottoms, tops: Tops) -> list[str]:
    scores, changes, info = bottoms
    count = len(layer.anchors)
    left, top, right, bottom = graph.nodes_of("Split", [_placed(graph, layer, changes)], 4, axis=1, num_outputs=4)
    size = graph.scaled(graph.node("Sub", bottom, top), shift=1)
    centre = graph.scaled(graph.node("Add", top, bottom), 0.5)
    change = graph.node("Reshape", graph.node("Transpose", changes.name, perm=[0, 2, 3, 1]), graph.integers([-1, 2]))
    move, grow = graph.nodes_of("Split", [change], 2, axis=1, num_outputs=2)
    height = graph.node("Mul", graph.node("Exp", grow), size)
    middle = graph.node("Add", graph.node("Mul", move, size), centre)
    start = graph.node("Sub", middle, graph.scaled(height, 0.5))
    boxes = graph.node("Concat", left, start, right, graph.node("Add", start, height), axis=1)
    ends = graph.scaled(graph.picked(info.name, [1, 0, 1, 0], 1), shift=-1)
    boxes = graph.node("Max", graph.node("Min", boxes, ends), graph.constant(0))
    objects = graph.node("Transpose", graph.sliced(scores.name, 1, count, 2 * count), perm=[0, 2, 3, 1])
    return [boxes, graph.node("Reshape", objects, graph.integers([-1, 1]))]


@writes(YoloDetectionOutput, Yolov3DetectionOutput)
def yolo_detections(graph: GraphWriter, layer: YoloDetections, bottoms: Bottoms, tops: Tops) -> list[str]:
    """One NonMaxSuppression for all labels: their boxes keep each other out."""
    parts = [_yolo_boxes(graph, layer, *each) for each in zip(bottoms, layer.anchors, strict=True)]
    boxes, objects, classes = (
        part[0] if len(parts) == 1 else graph.node("Concat", *part, axis=1) for part in zip(*parts, strict=True)
    )
    labels = None
    threshold = layer.confidence
    if isinstance(layer, YoloDetectionOutput):
        classes = graph.node("Softmax", classes, axis=2)
        labels = graph.node("ArgMax", classes, axis=2, keepdims=0)
        classes = graph.node("ReduceMax", classes, graph.integers([2]), keepdims=1)
        threshold = float(np.nextafter(np.float32(threshold), np.float32(-np.inf)))  # which is to be exceeded
    else:
        classes = graph.node("Sigmoid", classes)
        each = graph.node("Expand", graph.unsqueezed(boxes, 2), graph.integers([1, 1, layer.num_classes, 1]))
        boxes = graph.node("Reshape", each, graph.integers([0, -1, 4]))
    scores = graph.node("Reshape", graph.node("Mul", classes, objects), graph.integers([0, 1, -1]))
    chosen = graph.node(
        "NonMaxSuppression",
        boxes,
        scores,
        graph.node("Shape", boxes, start=1, end=2),
        graph.constant([layer.kept_up_to]),
        graph.constant([threshold]),
    )
    where = graph.picked(chosen, [0, 2], 1)
    if labels is None:
        label = graph.node("Mod", graph.picked(chosen, [2], 1), graph.integers([layer.num_classes]))
    else:
        label = graph.unsqueezed(graph.node("GatherND", labels, where), 1)
    rows = graph.node(
        "Concat",
        graph.as_floats(graph.picked(chosen, [0], 1)),
        graph.scaled(graph.as_floats(label), shift=1),
        graph.unsqueezed(graph.node("GatherND", scores, chosen), 1),
        graph.node("GatherND", boxes, where),
        axis=1,
    )
    rows = _sorted(graph, rows, graph.picked(rows, 2, 1), largest=True)
    rows = _sorted(graph, rows, graph.picked(rows, 0, 1), largest=False)
    images = graph.axis_lengths(bottoms[0], 0, 1)
    return [graph.node("Reshape", _or_nothing(graph, rows, images, 7), graph.integers([1, 1, -1, 7]))]


def _yolo_boxes(graph: GraphWriter, layer: YoloDetections, x: Value, anchors: torch.Tensor) -> tuple[str, str, str]:
    """A map's boxes (N, P, 4), the probabilities of an object (N, P, 1), and the numbers of the classes (N, P, C)."""
    side, width = x.length(2), COORDINATES + layer.num_classes
    cells = graph.node("Reshape", x.name, graph.integers([0, len(anchors), width, side * side]))
    cells = graph.node("Transpose", cells, perm=[0, 3, 1, 2])
    rows, columns = np.divmod(np.arange(side * side), side)
    corners = graph.constant(np.stack([columns, rows], 1)[:, None])
    centre = graph.node("Add", graph.node("Sigmoid", graph.sliced(cells, 3, 0, 2)), corners)
    centre = graph.scaled(centre, 1 / side)
    sizes = graph.constant(anchors.numpy() / (2 * side))
    half = graph.node("Mul", graph.node("Exp", graph.sliced(cells, 3, 2, 4)), sizes)
    boxes = graph.node("Concat", graph.node("Sub", centre, half), graph.node("Add", centre, half), axis=3)
    objects = graph.node("Sigmoid", graph.sliced(cells, 3, 4, 5))
    parts = (boxes, 4), (objects, 1), (graph.sliced(cells, 3, COORDINATES, width), layer.num_classes)
    one, other, third = (graph.node("Reshape", name, graph.integers([0, -1, size])) for name, size in parts)
    return one, other, third

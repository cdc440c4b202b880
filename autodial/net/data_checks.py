"""What can be known to be wrong with a net's images and labels before the first iteration."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple, Protocol, cast

from autodial.errors import InputError
from autodial.layers import DomainAlignment
from autodial.layers.base import canonical_axis
from autodial.net.feed import sources
from autodial.net.net import Net

_log = logging.getLogger(__name__)


class _ReadsLabels(Protocol):
    """What a layer with `reads_labels` has."""

    axis: int
    ignore_label: int | None


class LabelReader(NamedTuple):
    """A loss or an accuracy that takes labels as a data layer gives them."""

    layer: str
    source: str
    """The data layer's name."""
    top: int
    """Which of the data layer's tops holds the labels."""
    classes: int
    """The labels are in [0, classes)."""
    ignored: int | None
    """A label that counts for nothing."""


def check_data(net: Net) -> None:
    """Look at every file in the image lists, and at every label that a loss or an accuracy reads.

    Labels that no such layer reads, a target's for example, may be anything. Of a database too large for it, labels
    are left to the layer that reads them.

    Raises:
        InputError: an image that is missing or no image, or a label that is no class of the scores it is compared
            with; it names the list and the line.
    """
    for source in sources(net).values():
        source.check()
    for reader in label_readers(net):
        for where, label in sources(net)[reader.source].labels(reader.top):
            if not 0 <= label < reader.classes and label != reader.ignored:
                raise InputError(
                    f"{where}: label {label} is not in [0, {reader.classes}), "
                    f'the classes that layer "{reader.layer}" compares it with'
                )


def check_slices(net: Net) -> None:
    """Warn where a train net splits the batch into source and target at several rows: one of them is a mistake.

    A Slice layer may also cut where parts of the target were joined in turn: images with labels and images without.
    Where one of several sources ends, its rows are joined with the next one's.
    """
    cuts: dict[str, int] = {}
    joined: dict[str, _Join] = {}
    among_sources: set[int] = set()
    for message in net.param.layer:
        layer = net.layer(message.name)
        join = joined.get(message.bottom[0]) if message.bottom else None
        if isinstance(layer, DomainAlignment) and layer.training and layer.slice_point is not None:
            cuts[message.name] = layer.slice_point
            among_sources.update(layer.source_slice_point)
        elif message.type == "Slice" and message.slice_param.axis == 0 and len(message.slice_param.slice_point) == 1:
            if join is None or message.slice_param.slice_point[0] != join.seam:
                cuts[message.name] = message.slice_param.slice_point[0]
            join = None
        elif message.type == "Concat" and message.concat_param.axis == 0 and len(message.bottom) == 2:
            inner = joined.get(message.bottom[1])
            row = net.blob_shapes[message.bottom[0]][0]
            join = _Join(message.name, row, None if inner is None else row + inner.row)
            cuts[message.name] = row
            if inner is not None:
                cuts.pop(inner.layer, None)
        for top in message.top:
            joined.pop(top, None)
            if join is not None:
                joined[top] = join
    points: dict[int, str] = {}
    for name, row in cuts.items():
        if row not in among_sources:
            points.setdefault(row, name)
    if len(points) > 1:
        places = ", ".join(f'{point} by layer "{name}"' for point, name in points.items())
        _log.warning("The batch is split into source and target at several rows: %s", places)


class _Join(NamedTuple):
    """A layer that joined two parts of a batch, and the row at which the second begins.

    Attributes:
        seam: the row at which the second part was joined in turn; None if it was not.
    """

    layer: str
    row: int
    seam: int | None


def label_readers(net: Net) -> Iterator[LabelReader]:
    """The losses and accuracies to which labels of data layers go as they are, or joined along the batch axis."""
    read = sources(net)
    labels: dict[str, list[tuple[str, int]]] = {}
    for message in net.param.layer:
        layer = net.layer(message.name)
        if layer.reads_labels and message.bottom[1] in labels:
            reader = cast(_ReadsLabels, layer)
            shape = net.blob_shapes[message.bottom[0]]
            classes = shape[canonical_axis(reader.axis, len(shape))]
            for origin in labels[message.bottom[1]]:
                yield LabelReader(message.name, *origin, classes, reader.ignore_label)
        passed_on = None
        if message.type in ("Concat", "Split") and all(bottom in labels for bottom in message.bottom):
            passed_on = [origin for bottom in message.bottom for origin in labels[bottom]]
        for j, top in enumerate(message.top):
            labels.pop(top, None)
            if passed_on is not None:
                labels[top] = passed_on
            elif message.name in read:
                labels[top] = [(message.name, j)]

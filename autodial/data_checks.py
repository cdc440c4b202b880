"""What can be known to be wrong with a net's images and labels before the first iteration."""

from __future__ import annotations

from collections.abc import Iterator

from autodial.errors import InputError
from autodial.feed import sources
from autodial.layers.base import canonical_axis
from autodial.net import Net

_PARAMETERS = {"SoftmaxWithLoss": ("softmax_param", "loss_param"), "Accuracy": ("accuracy_param", "accuracy_param")}
"""By type of the layers that take class labels: the messages that hold axis and ignore_label."""


def check_data(net: Net) -> None:
    """Look at every file in the image lists, and at every label that a loss or an accuracy reads.

    Labels that no such layer reads, a target's for example, may be anything.

    Raises:
        InputError: an image that is missing or no image, or a label that is no class of the scores it is compared
            with; it names the list and the line.
    """
    for source in sources(net).values():
        source.check()
    for layer, data_layer, classes, ignored in _readers_of_labels(net):
        source = sources(net)[data_layer]
        for entry in source.entries:
            if not 0 <= entry.label < classes and entry.label != ignored:
                raise InputError(
                    f"{source.list_path}:{entry.line}: label {entry.label} is not in [0, {classes}), "
                    f'the classes that layer "{layer}" compares it with'
                )


def label_readers(net: Net) -> dict[str, str]:
    """The data layers whose labels go to a loss or an accuracy as they are, by the name of that layer."""
    return {layer: data_layer for layer, data_layer, _, _ in _readers_of_labels(net)}


def _readers_of_labels(net: Net) -> Iterator[tuple[str, str, int, int | None]]:
    """Layer, data layer, number of classes and ignored label, for each layer that `label_readers` gives."""
    labels: dict[str, str] = {}
    for message in net.param.layer:
        if message.type in _PARAMETERS and message.bottom[1] in labels:
            with_axis, with_ignored = (getattr(message, field) for field in _PARAMETERS[message.type])
            shape = net.blob_shapes[message.bottom[0]]
            ignored = with_ignored.ignore_label if with_ignored.HasField("ignore_label") else None
            yield message.name, labels[message.bottom[1]], shape[canonical_axis(with_axis.axis, len(shape))], ignored
        passed_on = labels.get(message.bottom[0]) if message.type == "Split" else None
        for j, top in enumerate(message.top):
            labels.pop(top, None)
            if passed_on is not None:
                labels[top] = passed_on
            elif message.name in sources(net) and j == 1:
                labels[top] = message.name

"""Class labels as Caffe passes them: a float blob with one label per row or position of the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autodial.layers.base import LayerError, Shape, canonical_axis
from autodial.wording import counted


def check_label_shape(scores: Shape, labels: Shape, axis: int) -> None:
    """Raise LayerError unless there is one label for every position of the scores outside the class axis."""
    axis = canonical_axis(axis, len(scores))
    wanted = math.prod(scores) // scores[axis]
    if math.prod(labels) != wanted:
        raise LayerError(
            f"scores {scores} with classes along axis {axis} need {counted(wanted, 'label')}, "
            f"the label blob has shape {labels}"
        )


def class_labels(labels: Tensor, scores: Tensor, axis: int, ignore_label: int | None) -> tuple[Tensor, Tensor]:
    """Labels as class indices, and which of them count.

    Args:
        labels: any shape with one label per position, in the order of the scores; fractions are cut off.
        scores: (..., classes, ...), classes along `axis`.
        axis: the class axis, possibly negative.
        ignore_label: a label that does not count; None if all do.

    Returns:
        int64 class indices (0 where ignored) and a bool mask, both of the scores' shape without the class axis.

    Raises:
        LayerError: on the CPU, for a label outside [0, classes). On other devices labels are not checked, as that would
            mean to wait for the device.
    """
    axis %= scores.ndim
    classes = scores.shape[axis]
    index = labels.reshape(scores.shape[:axis] + scores.shape[axis + 1 :]).long()
    valid = torch.ones_like(index, dtype=torch.bool) if ignore_label is None else index != ignore_label
    index = index.where(valid, 0)
    check_indices(index, classes, "label", "classes")
    return index, valid


def check_indices(index: Tensor, count: int, what: str, of: str) -> None:
    """Raise LayerError, on the CPU alone, for an index outside [0, count): "`what` 7 is out of range for 5 `of`"."""
    if index.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = index[(index < 0) | (index >= count)]
        if len(wrong):
            raise LayerError(f"{what} {int(wrong[0])} is out of range for {count} {of} (0 to {count - 1})")

"""Caffe's Accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, register
from autodial.layers.labels import check_label_shape, class_labels
from autodial.layers.shares import Rows


@register("Accuracy")
class Accuracy(Layer):
    """Share of the labels whose class is among the `top_k` highest scores (accuracy_layer.cpp).

    Bottoms: scores (N, classes, ...) and labels, one per position. Tops: the accuracy, a scalar in [0, 1], NaN if no
    label counts; and, if asked for, one accuracy per class, (classes,), 0 for a class without labels.

    Caffe sorts pairs (score, class): of equal scores the higher class wins. A NaN is neither above nor below any score,
    so that it counts as equal to all of them. A label is right if fewer than `top_k` classes come before it, each
    compared with it alone. Where all scores of a row are NaN, these are the `top_k` highest classes, as in Caffe; of
    rows that hold NaN beside other scores, in which such pairs have no order, Caffe's result depends on how its sort
    proceeds, and differs now and then.

    Args:
        top_k: how many of the highest scores count as right, from 1 to the number of classes.
        axis: the class axis.
        ignore_label: a label that does not count; None if all do.
        per_class: whether there is a second top.
    """

    bottoms = (2, 2)
    tops = (1, 2)
    no_gradient = (0, 1)
    rows = Rows.SUMMED
    reads_scores = True
    reads_labels = True

    def __init__(
        self, top_k: int = 1, *, axis: int = 1, ignore_label: int | None = None, per_class: bool = False
    ) -> None:
        super().__init__()
        if top_k < 1:
            raise LayerError(f"top_k must be positive, not {top_k}")
        self.top_k, self.axis, self.ignore_label, self.per_class = top_k, axis, ignore_label, per_class

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Accuracy:
        param = context.param.accuracy_param
        return cls(
            param.top_k,
            axis=param.axis,
            ignore_label=param.ignore_label if param.HasField("ignore_label") else None,
            per_class=context.num_tops > 1,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scores, labels = bottom_shapes
        check_label_shape(scores, labels, self.axis)
        classes = scores[canonical_axis(self.axis, len(scores))]
        if self.top_k > classes:
            raise LayerError(f"top_k {self.top_k} is more than the {classes} classes of scores {scores}")
        return [(), (classes,)] if self.per_class else [()]

    @torch.no_grad()
    def forward(self, scores: Tensor, labels: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        hits, labelled = self.class_counts(scores, labels)
        accuracy = hits.sum().to(scores.dtype) / self.whole(labelled.sum())
        if not self.per_class:
            return accuracy
        return accuracy, hits.to(scores.dtype) / self.whole(labelled).clamp(min=1)

    def class_counts(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """By class, int64 (classes,) each: the labels that are right, and all labels; without ignored ones."""
        axis = self.axis % scores.ndim
        target, valid = class_labels(labels, scores, axis, self.ignore_label)
        target = target.unsqueeze(axis)
        own = scores.gather(axis, target)
        classes = scores.shape[axis]
        index = torch.arange(classes, device=scores.device).view(-1, *(1,) * (scores.ndim - axis - 1))
        better = (scores > own) | (~(scores < own) & (index > target))
        hit = (better.sum(axis) < self.top_k) & valid
        own_class = target.flatten()
        counts = scores.new_zeros(2, classes, dtype=torch.int64)
        for row, counted in zip(counts, (hit, valid), strict=True):
            row.index_add_(0, own_class, counted.flatten().long())
        return counts[0], counts[1]

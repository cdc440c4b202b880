"""Caffe's losses that compare two blobs: EuclideanLoss, SigmoidCrossEntropyLoss, ContrastiveLoss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.loss_normalization import normalization_mode, normalizer, refuse_loss_param
from autodial.layers.shares import Rows
from autodial.wording import counted


@register("EuclideanLoss")
class EuclideanLoss(Layer):
    """Sum of (a - b)^2 over 2 N (euclidean_loss_layer.cpp), a scalar.

    Bottoms: a and b, (N, ...), with the same number of elements; both get a gradient.
    """

    bottoms = (2, 2)
    is_loss = True
    rows = Rows.SUMMED

    @classmethod
    def from_caffe(cls, context: LayerContext) -> EuclideanLoss:
        refuse_loss_param(context.param)
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        _check_same_size(*bottom_shapes)
        return [()]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (a - b.reshape(a.shape)).square().sum() / (2 * self.whole(a.shape[0]))


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(Layer):
    """Cross-entropy of sigmoid scores with target probabilities (sigmoid_cross_entropy_loss_layer.cpp), a scalar.

    Bottoms: scores x and targets t in [0, 1], (N, ...), with the same number of elements. With s = sigmoid(x),
    -t log(s) - (1 - t) log(1 - s) is summed, in a form that does not overflow, and divided, by at least 1.

    Args:
        ignore_label: targets that are this integer, their fraction cut off, add nothing; None if all count.
        normalization: what the sum is divided by: "BATCH_SIZE", N; "VALID", targets not ignored; "FULL", all targets;
            "NONE", 1.
    """

    bottoms = (2, 2)
    is_loss = True
    no_gradient = (1,)
    options = ("loss_param",)
    rows = Rows.SUMMED

    def __init__(self, *, ignore_label: int | None = None, normalization: str = "BATCH_SIZE") -> None:
        super().__init__()
        self.ignore_label, self.normalization = ignore_label, normalization

    @classmethod
    def from_caffe(cls, context: LayerContext) -> SigmoidCrossEntropyLoss:
        param = context.param.loss_param
        return cls(
            ignore_label=param.ignore_label if param.HasField("ignore_label") else None,
            normalization=normalization_mode(param, default="BATCH_SIZE"),
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        _check_same_size(*bottom_shapes)
        return [()]

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        targets = targets.detach().reshape(scores.shape)
        loss = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        valid = torch.ones_like(targets, dtype=torch.bool)
        if self.ignore_label is not None:
            valid = targets.trunc() != self.ignore_label
        return loss.where(valid, 0).sum() / normalizer(self, self.normalization, valid, scores.shape[0])


@register("ContrastiveLoss")
class ContrastiveLoss(Layer):
    """Pulls similar pairs together and pushes others apart (contrastive_loss_layer.cpp), a scalar.

    Bottoms: a and b, (N, C), which get a gradient, and per row whether they are similar (not 0), (N,). With d the
    distance of a and b, a similar pair costs d^2, another one max(margin - d, 0)^2, or, in the legacy version,
    max(margin - d^2, 0); the sum is divided by 2 N. As in Caffe the gradient of d divides by d + 1e-4.

    Args:
        margin: distance, or squared distance in the legacy version, beyond which a pair costs nothing.
        legacy_version: see above.
    """

    bottoms = (3, 3)
    is_loss = True
    no_gradient = (2,)
    rows = Rows.SUMMED

    def __init__(self, margin: float = 1.0, *, legacy_version: bool = False) -> None:
        super().__init__()
        self.margin, self.legacy_version = margin, legacy_version

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ContrastiveLoss:
        refuse_loss_param(context.param)
        param = context.param.contrastive_loss_param
        return cls(param.margin, legacy_version=param.legacy_version)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        a, b, similar = bottom_shapes
        if math.prod(a) != math.prod(a[:2]) or math.prod(b) != math.prod(b[:2]):
            raise LayerError(f"bottoms {a} and {b} must be rows of features (N, C)")
        _check_same_size(a, b)
        if math.prod(similar) != a[0]:
            raise LayerError(
                f"the third bottom must say of each of {counted(a[0], 'pair')} whether it is similar, and has the "
                f"shape {similar}"
            )
        return [()]

    def forward(self, a: Tensor, b: Tensor, similar: Tensor) -> Tensor:
        num = a.shape[0]
        square = (a.reshape(num, -1) - b.reshape(num, -1)).square().sum(1)
        if self.legacy_version:
            apart = F.relu(self.margin - square)
        else:
            distance = square.detach().sqrt()
            short = F.relu(self.margin - distance)
            # The last term is 0, and has the gradient.
            apart = short.square() - (square - square.detach()) * short / (distance + 1e-4)
        return torch.where(similar.reshape(num).trunc() != 0, square, apart).sum() / (2 * self.whole(num))


def _check_same_size(a: Shape, b: Shape) -> None:
    if not a or not b or a[0] != b[0] or math.prod(a) != math.prod(b):
        raise LayerError(f"bottoms {a} and {b} must have the same number of rows and of elements")

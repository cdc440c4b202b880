"""Caffe's SoftmaxWithLoss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.labels import check_label_shape, class_labels
from autodial.proto import messages as pb

LOG_FLT_MIN = math.log(torch.finfo(torch.float32).tiny)


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(Layer):
    """Cross-entropy of softmax scores with class labels (softmax_loss_layer.cpp).

    Bottoms: scores (N, classes, ...) and labels, one per position: (N,), (N, 1), (N, H, W) or (N, 1, H, W). Tops: the
    loss, a scalar, and the probabilities (no gradient flows through them) if asked for.

    -log(max(p, FLT_MIN)) of each label's probability is summed and divided, by at least 1. As in Caffe the gradient
    ignores the floor under p.

    Args:
        axis: the class axis.
        ignore_label: a label that adds nothing; None if all count.
        normalization: what the sum is divided by: "VALID", labels not ignored; "FULL", all labels; "BATCH_SIZE", N;
            "NONE", 1.
        probabilities: whether there is a second top.
    """

    bottoms = (2, 2)
    tops = (1, 2)
    is_loss = True
    no_gradient = (1,)

    def __init__(
        self,
        *,
        axis: int = 1,
        ignore_label: int | None = None,
        normalization: str = "VALID",
        probabilities: bool = False,
    ) -> None:
        super().__init__()
        self.axis, self.ignore_label, self.normalization = axis, ignore_label, normalization
        self.probabilities = probabilities

    @classmethod
    def from_caffe(cls, context: LayerContext) -> SoftmaxWithLoss:
        param = context.param.loss_param
        normalization = pb.LossParameter.NormalizationMode.Name(param.normalization)
        if param.HasField("normalize"):
            if param.HasField("normalization"):
                raise LayerError("loss_param sets both normalization and the old normalize: keep normalization")
            normalization = "VALID" if param.normalize else "BATCH_SIZE"
        return cls(
            axis=context.param.softmax_param.axis,
            ignore_label=param.ignore_label if param.HasField("ignore_label") else None,
            normalization=normalization,
            probabilities=context.num_tops > 1,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scores, labels = bottom_shapes
        check_label_shape(scores, labels, self.axis)
        return [(), scores] if self.probabilities else [()]

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        target, valid = class_labels(labels, scores, self.axis, self.ignore_label)
        log_softmax = F.log_softmax(scores, self.axis)
        log_p = log_softmax.gather(self.axis, target.unsqueeze(self.axis)).squeeze(self.axis)
        # The value is floored, the gradient is not.
        log_p = log_p + (log_p.clamp(min=LOG_FLT_MIN) - log_p).detach()
        loss = -log_p.where(valid, 0).sum() / self._normalizer(scores, valid)
        return (loss, log_softmax.detach().exp()) if self.probabilities else loss

    def _normalizer(self, scores: Tensor, valid: Tensor) -> Tensor | int:
        if self.normalization == "VALID":
            return valid.sum().clamp(min=1)
        if self.normalization == "FULL":
            return valid.numel()
        # All that stands before the class axis is the batch: BATCH_SIZE with axis 2 of (N, C, classes) is N C.
        return math.prod(scores.shape[: self.axis % scores.ndim]) if self.normalization == "BATCH_SIZE" else 1

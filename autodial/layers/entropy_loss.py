"""Entropy of the predictions (paper, equation for L^t; Caffe layer `EntropyLoss` of the AutoDIAL fork)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast, get_args

from torch import Tensor
from torch.nn import functional as F

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, register
from autodial.layers.loss import LOG_FLT_MIN
from autodial.layers.probability_entropy import ProbabilityEntropy
from autodial.layers.shares import Rows
from autodial.proto import messages as pb

Normalization = Literal["full", "valid", "batch_size", "none"]


@register("EntropyLoss")
class EntropyLoss(Layer):
    """Shannon entropy, in nats, of softmax(x) along `axis`, summed over all positions and divided by a normalizer.

    H = -sum p * log(max(p, FLT_MIN)); its gradient by the scores is -p * (H + log p).

    Input: scores (N, C, ...); output: a scalar in [0, log C] per row when averaged.

    Args:
        axis: of the classes.
        normalization: "full" and "valid" divide by the number of positions, "batch_size" by the size of what
            stands before the class axis, "none" by 1.
    """

    is_loss = True
    options = ("loss_param", "softmax_param", "entropy_param")
    rows = Rows.SUMMED
    reads_scores = True

    def __init__(self, *, axis: int = 1, normalization: Normalization = "valid") -> None:
        super().__init__()
        known = get_args(Normalization)
        if normalization not in known:
            raise LayerError(f'normalization must be one of {", ".join(known)}, not "{normalization}"')
        self.axis = axis
        self.normalization = normalization

    @classmethod
    def from_caffe(cls, context: LayerContext) -> EntropyLoss | ProbabilityEntropy:
        if context.param.HasField("entropy_param"):
            return ProbabilityEntropy.from_caffe(context)
        loss = context.param.loss_param
        if loss.HasField("ignore_label"):
            raise LayerError("loss_param.ignore_label has no meaning without labels; remove it")
        if loss.HasField("normalization") or not loss.HasField("normalize"):
            name = pb.LossParameter.NormalizationMode.Name(loss.normalization)
        else:
            name = "VALID" if loss.normalize else "BATCH_SIZE"
        return cls(axis=context.param.softmax_param.axis, normalization=cast("Normalization", name.lower()))

    def extra_repr(self) -> str:
        return f"axis={self.axis}, normalization={self.normalization}"

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        canonical_axis(self.axis, len(bottom_shapes[0]))
        return [()]

    def forward(self, x: Tensor) -> Tensor:
        log_p = F.log_softmax(x, self.axis)
        total = 0 - (log_p.exp() * log_p.clamp_min(LOG_FLT_MIN)).sum()
        if self.normalization == "none":
            return total
        if self.normalization == "batch_size":
            return total / self.whole(math.prod(x.shape[: self.axis % x.dim()]))
        return total / self.whole(x.numel() // x.shape[self.axis])

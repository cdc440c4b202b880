"""Xlearn's EntropyLoss, of probabilities (RTN: Long et al., NIPS 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape
from autodial.layers.shares import Rows

_LEAST = 1e-5
"""The least probability that the printed value counts."""


class ProbabilityEntropy(Layer):
    """Entropy of rows of probabilities, with another sign in the printed value than in the gradient.

    Bottoms: probabilities, N rows of K = all further values; a second bottom is not read. Top: a scalar, the sum over
    rows and classes of p log p, for p of at least 1e-5: minus the summed entropy. Its gradient is that of the mean
    entropy, -(1 + log p) / N, where p is at least `threshold`, and 0 elsewhere (entropy_loss_layer.cu of Xlearn).

    The type is EntropyLoss, as AutoDIAL's is, which takes scores; a layer with an `entropy_param` is this one.

    Args:
        threshold: probabilities below it get no gradient.
        iterations_num: in so many training passes, the first ones, the layer prints 0 and gives no gradient. Snapshots
            don't hold the count.
    """

    type_name = "EntropyLoss"
    bottoms = (1, 2)
    is_loss = True
    no_gradient = (1,)
    rows = Rows.SUMMED
    reads_scores = True
    backward_reads_bottoms = True

    def __init__(self, *, threshold: float = 1e-3, iterations_num: int = 0) -> None:
        super().__init__()
        self.threshold, self.iterations_num = threshold, iterations_num
        self._passes = 0

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ProbabilityEntropy:
        param = context.param.entropy_param
        return cls(threshold=param.threshold, iterations_num=param.iterations_num)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        if not bottom_shapes[0]:
            raise LayerError("the probabilities must be rows (N, ...), not a scalar")
        return [()]

    def forward(self, probabilities: Tensor, unread: Tensor | None = None) -> Tensor:
        waits = self._passes < self.iterations_num
        if torch.is_grad_enabled() and probabilities.requires_grad:
            self._passes += 1
        if waits:
            return probabilities.sum() * 0
        p = probabilities
        known = p.detach()
        printed = torch.where(known >= _LEAST, known * known.clamp_min(_LEAST).log(), 0).sum()
        entropy = -torch.where(known >= self.threshold, p * (p.clamp_min(_tiny(p))).log(), 0).sum()
        mean = entropy / self.whole(p.shape[0])
        # The last term is 0, and has the gradient.
        return printed + (mean - mean.detach())

    def extra_repr(self) -> str:
        return f"threshold={self.threshold:g}, iterations_num={self.iterations_num}"


def _tiny(tensor: Tensor) -> float:
    return math.ldexp(1.0, -126) if tensor.dtype == torch.float32 else torch.finfo(tensor.dtype).tiny

"""Caffe's BatchNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autodial.layers.alignment_torch import grad_sums_of, moments_of, normalize_into
from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows, Shares


class StoredStatistics(Layer):
    """What BatchNorm and MultiModalBatchNorm share: accumulated statistics, and when they are used.

    Batch statistics, where they are in use, are also accumulated: `mean` and `variance` become new + fraction * old,
    and `normalizer` 1 + fraction * old. The stored statistics are `mean` and `variance` divided by `normalizer`, 0
    while nothing is stored.

    Args:
        channels: C.
        eps: added to the variance.
        moving_average_fraction: how much of the accumulated past a new batch keeps, in [0, 1].
        use_global_stats: whether the stored statistics are used; None: in evaluation only.
    """

    statistics = (0, 1, 2)
    per_channel = True
    mean: Tensor
    variance: Tensor
    normalizer: Tensor

    def __init__(
        self,
        channels: int,
        *,
        eps: float = 1e-5,
        moving_average_fraction: float = 0.999,
        use_global_stats: bool | None = None,
    ) -> None:
        super().__init__()
        if not eps >= 0:
            raise LayerError(f"eps must not be negative, and is {eps:g}")
        self.channels, self.eps, self.moving_average_fraction = channels, eps, moving_average_fraction
        self.use_global_stats = use_global_stats
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.zeros(channels))
        self.register_buffer("normalizer", torch.zeros(1))

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return self.mean, self.variance, self.normalizer

    @property
    def uses_stored(self) -> bool:
        """Whether a pass would normalize with the stored statistics rather than with the batch's."""
        return not self.training if self.use_global_stats is None else self.use_global_stats

    def stored(self) -> tuple[Tensor, Tensor]:
        """The stored mean and variance, (C,) each."""
        factor = torch.where(self.normalizer == 0, 0, 1 / self.normalizer)
        return self.mean * factor, self.variance * factor

    def store(self, mean: Tensor, variance: Tensor) -> None:
        """Accumulate a batch's mean and variance, (C,) each."""
        for blob, new in ((self.mean, mean), (self.variance, variance), (self.normalizer, 1)):
            blob.mul_(self.moving_average_fraction).add_(new)


@register("BatchNorm")
class BatchNorm(StoredStatistics):
    """(x - mean) / sqrt(variance + eps) per channel (batch_norm_layer.cpp): (N, C, ...) -> the same shape.

    A bottom of one axis is one channel. The layer has no scale and no shift of its own.

    An accumulated variance carries m / (m - 1) with m the values per channel. The arguments are StoredStatistics'.
    """

    rows = Rows.STATISTICS

    @classmethod
    def from_caffe(cls, context: LayerContext) -> BatchNorm:
        param = context.param.batch_norm_param
        return cls(
            _channels(context.bottom_shapes[0]),
            eps=param.eps,
            moving_average_fraction=param.moving_average_fraction,
            use_global_stats=param.use_global_stats if param.HasField("use_global_stats") else None,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if _channels(shape) != self.channels:
            raise LayerError(f"bottom {shape} has {_channels(shape)} channels, the layer expects {self.channels}")
        if not self.uses_stored and math.prod(shape) == self.channels:
            raise LayerError(f"bottom {shape} has one value per channel, too few for statistics of the batch")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        if bottom.ndim == 1:
            return self.forward(bottom.unsqueeze(1)).squeeze(1)
        if self.uses_stored:
            mean, variance = (t.view(-1, *(1,) * (bottom.ndim - 2)) for t in self.stored())
            return (bottom - mean) * (variance + self.eps).rsqrt()
        if self.shares is None:
            # With momentum 1, torch's running statistics are the batch's, the variance with m / (m - 1).
            mean, variance = torch.zeros_like(self.mean), torch.zeros_like(self.variance)
            cudnn = torch.backends.cudnn.enabled
            # Not the one of torch.nn.functional, which refuses Caffe's eps: 0.
            top = torch.batch_norm(bottom, None, None, mean, variance, True, 1.0, self.eps, cudnn)
        else:
            top, mean, variance = _Shared.apply(bottom, self.eps, self.shares)
            count = self.whole(bottom.numel() // self.channels)
            variance = variance * (count / (count - 1))
        self.store(mean, variance)
        return top


class _Shared(torch.autograd.Function):
    """Batch normalization of a batch that several processes have rows of: the top, the mean, the biased variance."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, eps: float, shares: Shares) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = shares.merge(torch.stack(moments_of(bottom)).unsqueeze(0))[0]
        top = torch.empty_like(bottom)
        normalize_into(bottom, mean, variance, None, None, eps, top)
        ctx.save_for_backward(top, (variance + eps).rsqrt())
        ctx.shares = shares
        ctx.mark_non_differentiable(mean, variance)
        return top, mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        top, inv_std = ctx.saved_tensors
        grad, shares = grads[0], ctx.shares
        zero, one = torch.zeros_like(inv_std), torch.ones_like(inv_std)
        means = shares.whole(torch.stack(grad_sums_of(grad, top, zero, one)))
        means /= shares.whole(top.numel() // top.shape[1])
        constant, factor = means.mul_(-inv_std)  # the gradient is inv_std * (grad - mean - top * mean of grad * top)
        bottom_grad = torch.empty_like(top)
        normalize_into(grad, zero, one, inv_std, constant, 0.0, bottom_grad)
        bottom_grad.addcmul_(top, factor.to(top.dtype).view(-1, *[1] * (top.dim() - 2)))
        return bottom_grad, None, None


def _channels(shape: Shape) -> int:
    if not shape:
        raise LayerError("BatchNorm needs a bottom of at least 1 axis, not a scalar")
    return shape[1] if len(shape) > 1 else 1

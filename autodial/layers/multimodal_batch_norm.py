"""MultiModalBatchNorm (Mancini et al., Boosting Domain Adaptation by Discovering Latent Domains, CVPR 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows


@register("MultiModalBatchNorm")
class MultiModalBatchNorm(Layer):
    """Batch normalization for one of several domains, to which each row belongs with a weight.

    Bottoms: x (N, C, ...) and weights, of which the first N values are read. Top: weight (x - mean) / sqrt(variance +
    eps), shaped like x, so that the tops of all domains add up to the normalized batch.

    Batch statistics are weighted means over rows and positions, the variance around the weighted mean. As in BatchNorm
    they are also accumulated: `mean` and `variance` become new + fraction * old, `normalizer` 1 + fraction * old, the
    new variance with m / (m - 1) for the m values per channel, whatever their weights. The stored statistics are `mean`
    and `variance` divided by `normalizer`, 0 while nothing is stored.

    The gradients are exact for both bottoms (multimodal_batch_norm_layer.cpp of latent_domains_DA leaves out the weight
    where stored statistics are used, and takes eps for 0 in the weights' gradient).

    Args:
        channels: C.
        eps, moving_average_fraction, use_global_stats: as in BatchNorm.

    Raises:
        LayerError: a negative eps; a bottom of another number of channels, or fewer weights than rows.
    """

    bottoms = (2, 2)
    statistics = (0, 1, 2)
    rows = Rows.NONE
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

    @classmethod
    def from_caffe(cls, context: LayerContext) -> MultiModalBatchNorm:
        param, shape = context.param.multimodal_batch_norm_param, context.bottom_shapes[0]
        if len(shape) < 2:
            raise LayerError(f"bottom {shape} must have at least 2 axes (N, C, ...)")
        return cls(
            shape[1],
            eps=param.eps,
            moving_average_fraction=param.moving_average_fraction,
            use_global_stats=param.use_global_stats if param.HasField("use_global_stats") else None,
        )

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

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, weights = bottom_shapes
        if len(shape) < 2 or shape[1] != self.channels:
            raise LayerError(f"bottom {shape} must have {self.channels} channels on its second axis")
        if math.prod(weights) < shape[0]:
            raise LayerError(f"weights of shape {weights} are too few for {shape[0]} rows")
        return [shape]

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        per_channel = (1, -1, *(1,) * (x.dim() - 2))
        weight = weights.flatten()[: x.shape[0]].view(-1, *(1,) * (x.dim() - 1))
        if self.uses_stored:
            mean, variance = self.stored()
        else:
            axes = [0, *range(2, x.dim())]
            values = x.numel() // self.channels
            total = weight.sum() * (values // x.shape[0])
            mean = (weight * x).sum(axes) / total
            variance = (weight * (x - mean.view(per_channel)).square()).sum(axes) / total
            self._store(mean.detach(), variance.detach() * (values / max(values - 1, 1)))
        scale = (variance + self.eps).rsqrt()
        return weight * ((x - mean.view(per_channel)) * scale.view(per_channel))

    def _store(self, mean: Tensor, variance: Tensor) -> None:
        for blob, new in ((self.mean, mean), (self.variance, variance), (self.normalizer, 1)):
            blob.mul_(self.moving_average_fraction).add_(new)

    def extra_repr(self) -> str:
        fields = ("eps", "moving_average_fraction", "use_global_stats")
        return ", ".join([str(self.channels), *(f"{field}={getattr(self, field)}" for field in fields)])

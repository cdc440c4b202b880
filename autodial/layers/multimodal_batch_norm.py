"""MultiModalBatchNorm (Mancini et al., Boosting Domain Adaptation by Discovering Latent Domains, CVPR 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import LayerContext, LayerError, Shape, register
from autodial.layers.batch_norm import StoredStatistics
from autodial.layers.shares import Rows


@register("MultiModalBatchNorm")
class MultiModalBatchNorm(StoredStatistics):
    """Batch normalization for one of several domains, to which each row belongs with a weight.

    Bottoms: x (N, C, ...) and weights, of which the first N values are read. Top: weight (x - mean) / sqrt(variance +
    eps), shaped like x, so that the tops of all domains add up to the normalized batch.

    Batch statistics are weighted means over rows and positions, the variance around the weighted mean. An accumulated
    variance carries m / (m - 1) for the m values per channel, whatever their weights. If all weights are 0, mean and
    variance are 0, and so is the top (in latent_domains_DA they are NaN, and stay so in the stored statistics).

    The gradients are exact for both bottoms (multimodal_batch_norm_layer.cpp of latent_domains_DA leaves out the weight
    where stored statistics are used, and takes eps for 0 in the weights' gradient).

    Args:
        channels, eps, moving_average_fraction, use_global_stats: StoredStatistics'.

    Raises:
        LayerError: a negative eps; a bottom of another number of channels, or fewer weights than rows.
    """

    bottoms = (2, 2)
    rows = Rows.NONE

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
            total = torch.where(total == 0, 1, total)  # of a domain to which no row belongs
            mean = (weight * x).sum(axes) / total
            variance = (weight * (x - mean.view(per_channel)).square()).sum(axes) / total
            self.store(mean.detach(), variance.detach() * (values / max(values - 1, 1)))
        scale = (variance + self.eps).rsqrt()
        return weight * ((x - mean.view(per_channel)) * scale.view(per_channel))

    def extra_repr(self) -> str:
        fields = ("eps", "moving_average_fraction", "use_global_stats")
        return ", ".join([str(self.channels), *(f"{field}={getattr(self, field)}" for field in fields)])

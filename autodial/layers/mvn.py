"""Caffe's MVN (mean-variance normalization)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows


@register("MVN")
class MVN(Layer):
    """(x - mean) / (standard deviation + eps) of every channel of every image (mvn_layer.cpp): (N, C, H, W) -> the same
    shape.

    A bottom of fewer axes gets axes of length 1 behind them, up to 4. The variance is the mean of (x - mean)^2. As in
    Caffe the gradient takes the deviation plus eps for the root of the variance, so that a constant channel has one.

    Args:
        normalize_variance: False subtracts the mean only.
        across_channels: normalize every image as a whole.
        eps: added to the standard deviation.
    """

    rows = Rows.INDEPENDENT

    def __init__(self, *, normalize_variance: bool = True, across_channels: bool = False, eps: float = 1e-9) -> None:
        super().__init__()
        self.normalize_variance, self.across_channels, self.eps = normalize_variance, across_channels, eps

    @classmethod
    def from_caffe(cls, context: LayerContext) -> MVN:
        param = context.param.mvn_param
        return cls(normalize_variance=param.normalize_variance, across_channels=param.across_channels, eps=param.eps)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) > 4:
            raise LayerError(f"MVN needs a bottom of at most 4 axes (N, C, H, W), not {shape}")
        return [(*shape, *(1,) * (4 - len(shape)))]

    def forward(self, bottom: Tensor) -> Tensor:
        bottom = bottom.reshape(*bottom.shape, *(1,) * (4 - bottom.ndim))
        axes = (1, 2, 3) if self.across_channels else (2, 3)
        centred = bottom - bottom.mean(axes, keepdim=True)
        if not self.normalize_variance:
            return centred
        variance = centred.square().mean(axes, keepdim=True)
        deviation = variance.detach().sqrt() + self.eps
        # Adds 0, and gives the deviation the derivative 1 / (2 deviation) by the variance.
        deviation = deviation + (variance - variance.detach()) / (2 * deviation)
        return centred / deviation

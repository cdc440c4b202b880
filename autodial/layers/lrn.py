"""Caffe's LRN (local response normalization)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb


@register("LRN")
class LRN(Layer):
    """Division by the energy of a neighbourhood (lrn_layer.cpp): (N, C, H, W) -> the same shape.

    ACROSS_CHANNELS: x / (k + alpha / n * sum of x^2 over n neighbouring channels)^beta.
    WITHIN_CHANNEL: x / (1 + alpha * mean of x^2 over n x n pixels)^beta; zeros outside the image count, k does not.

    Args:
        channels: C.
        local_size: n, odd.
        alpha, beta, k: the constants above.
        within_channel: which of the two regions.
    """

    window: Tensor

    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(
        self,
        channels: int,
        local_size: int = 5,
        alpha: float = 1.0,
        beta: float = 0.75,
        k: float = 1.0,
        *,
        within_channel: bool = False,
    ) -> None:
        super().__init__()
        if local_size % 2 == 0:
            raise LayerError(f"local_size must be odd, not {local_size}")
        self.local_size, self.alpha, self.beta, self.within_channel = local_size, alpha, beta, within_channel
        self.k = 1.0 if within_channel else k
        # The mean over neighbouring channels as a banded 1 x 1 convolution: on the CPU faster than pooling or adding up
        # shifted copies, above all backward and in ONNX Runtime.
        index = torch.arange(channels)
        band = (index[:, None] - index).abs() <= local_size // 2
        self.register_buffer("window", band[:, :, None, None] / local_size, persistent=False)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> LRN:
        param = context.param.lrn_param
        shape = _image_shape(context.bottom_shapes[0])
        within = param.norm_region == pb.LRNParameter.WITHIN_CHANNEL
        return cls(shape[1], param.local_size, param.alpha, param.beta, param.k, within_channel=within)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = _image_shape(bottom_shapes[0])
        if shape[1] != self.window.shape[0]:
            raise LayerError(f"bottom {shape} has {shape[1]} channels, the layer expects {self.window.shape[0]}")
        if self.within_channel:
            check_size("the bottom with its margins", (*shape[:2], *(n + self.local_size for n in shape[2:])))
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        top: Tensor = _Normalize.apply(bottom, self)
        return top

    def energy(self, square: Tensor) -> Tensor:
        """The mean over each element's neighbourhood, a symmetric matrix; a new tensor."""
        if self.within_channel:
            return F.avg_pool2d(F.pad(square, (self.local_size // 2,) * 4), self.local_size, 1)
        return F.conv2d(square, self.window.to(square.dtype))


class _Normalize(torch.autograd.Function):
    """x * s^-beta with s = k + alpha * E(x^2). For the backward pass only x and s are kept.

    The gradient is grad * s^-beta - 2 * alpha * beta * x * E(grad * x * s^(-beta - 1)), as E is symmetric.
    """

    @staticmethod
    @torch.no_grad()  # given for torch.export, which traces through the function
    def forward(ctx: Any, x: Tensor, layer: LRN) -> Tensor:
        s = layer.energy(x * x).mul_(layer.alpha).add_(layer.k)
        ctx.save_for_backward(x, s)
        ctx.layer = layer
        return _power(s, layer.beta).mul_(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, s = ctx.saved_tensors
        layer = ctx.layer
        scaled = _power(s, layer.beta).mul_(grads[0])
        spread = layer.energy((scaled * x).div_(s))
        return scaled.addcmul_(spread, x, value=-2 * layer.alpha * layer.beta), None


def _power(s: Tensor, beta: float) -> Tensor:
    """s^-beta, a new tensor; two square roots are faster than the power for the usual 0.75."""
    if beta != 0.75:
        return s.pow(-beta)
    root = s.rsqrt()
    return root.sqrt().mul_(root)


def _image_shape(shape: Shape) -> Shape:
    if len(shape) != 4:
        raise LayerError(f"LRN needs a bottom of 4 axes (N, C, H, W), not {shape}")
    return shape

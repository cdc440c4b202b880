"""Caffe's layers that work element by element: ReLU, Dropout, Softmax, Power."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, register


class _Elementwise(Layer):
    """One bottom, one top of the same shape."""

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [bottom_shapes[0]]


@register("ReLU")
class ReLU(_Elementwise):
    """max(x, 0) + negative_slope * min(x, 0) (relu_layer.cpp)."""

    def __init__(self, negative_slope: float = 0.0) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ReLU:
        return cls(context.param.relu_param.negative_slope)

    def forward(self, bottom: Tensor) -> Tensor:
        if self.negative_slope == 0:
            return F.relu(bottom)
        return F.leaky_relu(bottom, self.negative_slope)


@register("Dropout")
class Dropout(_Elementwise):
    """In training, zeroes elements with probability `dropout_ratio` and divides the others by 1 - dropout_ratio
    (dropout_layer.cpp); in evaluation returns its input.

    After `reseed(seed)` the masks are a function of the seed and of the number of passes since; before the first
    reseed they come from torch's global generator.

    Args:
        dropout_ratio: in [0, 1).
    """

    is_random = True

    def __init__(self, dropout_ratio: float = 0.5) -> None:
        super().__init__()
        if not 0 <= dropout_ratio < 1:
            raise LayerError(f"dropout_ratio must be in [0, 1), not {dropout_ratio:g}")
        self.dropout_ratio = dropout_ratio
        self._seed: int | None = None
        self._generator: torch.Generator | None = None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Dropout:
        return cls(context.param.dropout_param.dropout_ratio)

    def reseed(self, seed: int) -> None:
        self._seed = seed
        self._generator = None

    def forward(self, bottom: Tensor) -> Tensor:
        if not self.training or self.dropout_ratio == 0:
            return bottom
        if self._seed is not None and (self._generator is None or self._generator.device != bottom.device):
            self._generator = torch.Generator(bottom.device).manual_seed(self._seed)
        kept = 1 - self.dropout_ratio
        return bottom * torch.empty_like(bottom).bernoulli_(kept, generator=self._generator).div_(kept)


@register("Softmax")
class Softmax(_Elementwise):
    """exp(x) over the sum of exp(x) along `axis` (softmax_layer.cpp)."""

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Softmax:
        return cls(context.param.softmax_param.axis)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        canonical_axis(self.axis, len(bottom_shapes[0]))
        return [bottom_shapes[0]]

    def forward(self, bottom: Tensor) -> Tensor:
        return F.softmax(bottom, self.axis)


@register("Power")
class Power(_Elementwise):
    """(shift + scale * x) ** power (power_layer.cpp)."""

    def __init__(self, power: float = 1.0, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.power, self.scale, self.shift = power, scale, shift

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Power:
        param = context.param.power_param
        return cls(param.power, param.scale, param.shift)

    def forward(self, bottom: Tensor) -> Tensor:
        top = bottom * self.scale + self.shift
        return top if self.power == 1 else top.pow(self.power)

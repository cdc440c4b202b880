"""Caffe's layers of elementary functions, element by element: AbsVal, Exp, Log, Power, Threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb


class Elementwise(Layer):
    """One bottom, one top of the same shape."""

    rows = Rows.INDEPENDENT

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [bottom_shapes[0]]


@register("AbsVal")
class AbsVal(Elementwise):
    """|x| (absval_layer.cpp); the gradient at 0 is 0."""

    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> AbsVal:
        return cls()

    def forward(self, bottom: Tensor) -> Tensor:
        return bottom.abs()


@register("Exp")
class Exp(Elementwise):
    """base ** (shift + scale * x) (exp_layer.cpp).

    Args:
        base: positive; None for e.
    """

    def __init__(self, base: float | None = None, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        log_base = _log_base(base)
        self.inner_scale, self.outer_scale = log_base * scale, math.exp(log_base * shift)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Exp:
        param = context.param.exp_param
        return cls(_base(param), param.scale, param.shift)

    def forward(self, bottom: Tensor) -> Tensor:
        return (bottom * self.inner_scale).exp() * self.outer_scale


@register("Log")
class Log(Elementwise):
    """log_base(shift + scale * x) (log_layer.cpp).

    Args:
        base: positive, not 1; None for e.
    """

    backward_reads_bottoms = True

    def __init__(self, base: float | None = None, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.log_base, self.scale, self.shift = _log_base(base), scale, shift
        if self.log_base == 0:
            raise LayerError("there are no logarithms with base 1")

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Log:
        param = context.param.log_param
        return cls(_base(param), param.scale, param.shift)

    def forward(self, bottom: Tensor) -> Tensor:
        return (bottom * self.scale + self.shift).log() / self.log_base


@register("Power")
class Power(Elementwise):
    """(shift + scale * x) ** power (power_layer.cpp); with a scale or a power of 0 a constant, without gradient."""

    backward_reads_bottoms = True

    def __init__(self, power: float = 1.0, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.power, self.scale, self.shift = power, scale, shift

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Power:
        param = context.param.power_param
        return cls(param.power, param.scale, param.shift)

    def forward(self, bottom: Tensor) -> Tensor:
        if self.scale * self.power == 0:  # by torch's rules the gradient would be 0 times infinity for some shifts
            value = torch.tensor(self.shift).pow(self.power)
            return bottom.masked_fill(torch.ones_like(bottom, dtype=torch.bool), value.item())
        top = bottom * self.scale + self.shift
        return top if self.power == 1 else top.pow(self.power)


@register("Threshold")
class Threshold(Elementwise):
    """1 where x > threshold, else 0 (threshold_layer.cpp); there is no gradient."""

    no_gradient = (0,)

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        self.threshold = threshold

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Threshold:
        return cls(context.param.threshold_param.threshold)

    def forward(self, bottom: Tensor) -> Tensor:
        return (bottom > self.threshold).to(bottom.dtype)


def _base(param: pb.ExpParameter | pb.LogParameter) -> float | None:
    """The base of an ExpParameter or LogParameter, whose -1 stands for e."""
    return None if param.base == -1 else param.base


def _log_base(base: float | None) -> float:
    if base is None:
        return 1.0
    if not 0 < base < math.inf:
        raise LayerError(f"base must be positive, or -1 for e, not {base:g}")
    return math.log(base)

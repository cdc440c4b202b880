"""GradientScaler, the gradient reversal of ReverseGrad (Ganin and Lempitsky, ICML 2015)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows


@register("GradientScaler")
class GradientScaler(Layer):
    """The identity, whose gradient is multiplied by -coefficient (gradient_scaler_layer.cpp of ddtm/caffe and Xlearn).

    Bottoms and tops: k of any shape, top i for bottom i.

    The coefficient goes from `lower_bound` in iteration 0 to about `upper_bound` in iteration `max_iter`: 2 h / (1 +
    exp(-alpha p)) - h + lower_bound, with h = upper_bound - lower_bound and p = min(1, iteration / max_iter). Without a
    solver, which tells the iteration, the coefficient is 1.

    Args:
        lower_bound, upper_bound: ends of the schedule.
        alpha: its steepness, at least 0.
        max_iter: the iteration from which p is 1, at least 1.
        threshold_iter: in so many forward passes, the first ones, no gradient flows. Snapshots don't hold the count.

    Raises:
        LayerError: bounds in the wrong order, a negative alpha, a max_iter below 1.
    """

    bottoms = (1, None)
    tops = (1, None)
    is_scheduled = True
    rows = Rows.INDEPENDENT

    def __init__(
        self,
        *,
        lower_bound: float = 0.0,
        upper_bound: float = 1.0,
        alpha: float = 10.0,
        max_iter: float = 1.0,
        threshold_iter: int = 0,
    ) -> None:
        super().__init__()
        if lower_bound > upper_bound:
            raise LayerError(f"lower_bound {lower_bound:g} must not be above upper_bound {upper_bound:g}")
        if alpha < 0:
            raise LayerError(f"alpha must not be negative, and is {alpha:g}")
        if max_iter < 1:
            raise LayerError(f"max_iter must be at least 1, and is {max_iter:g}")
        self.lower_bound, self.upper_bound, self.alpha, self.max_iter = lower_bound, upper_bound, alpha, max_iter
        self.threshold_iter = threshold_iter
        self.coefficient = 1.0
        self._passes = 0

    @classmethod
    def from_caffe(cls, context: LayerContext) -> GradientScaler:
        if len(context.bottom_shapes) != context.num_tops:
            raise LayerError(f"{len(context.bottom_shapes)} bottoms need as many tops, not {context.num_tops}")
        param = context.param.gradient_scaler_param
        return cls(
            lower_bound=param.lower_bound,
            upper_bound=param.upper_bound,
            alpha=param.alpha,
            max_iter=param.max_iter,
            threshold_iter=param.threshold_iter,
        )

    def begin_iteration(self, iteration: int) -> None:
        height = self.upper_bound - self.lower_bound
        progress = min(1.0, iteration / self.max_iter)
        self.coefficient = 2 * height / (1 + math.exp(-self.alpha * progress)) - height + self.lower_bound

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return list(bottom_shapes)

    def forward(self, *bottoms: Tensor) -> Tensor | tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            return bottoms[0] if len(bottoms) == 1 else bottoms
        self._passes += 1
        factor = 0.0 if self._passes <= self.threshold_iter else -self.coefficient
        tops = tuple(_ScaledGradient.apply(bottom, factor) for bottom in bottoms)
        return tops[0] if len(tops) == 1 else tops

    def extra_repr(self) -> str:
        fields = ("lower_bound", "upper_bound", "alpha", "max_iter", "threshold_iter")
        return ", ".join(f"{field}={getattr(self, field):g}" for field in fields)


class _ScaledGradient(torch.autograd.Function):
    """The identity, with a factor on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None

"""SmoothL1Loss as Fast R-CNN, R-FCN and SSD have it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.loss_normalization import normalization_mode
from autodial.layers.shares import Rows

_log = logging.getLogger(__name__)


@register("SmoothL1Loss")
class SmoothL1Loss(Layer):
    """A square near 0, linear beyond (smooth_L1_loss_layer.cpp): f(e) = (sigma e)^2 / 2 where |e| < 1 / sigma^2, else
    |e| - 1 / (2 sigma^2).

    Bottoms: x and t, (N, ...), of one shape, which both get a gradient; weights of that shape inside of f, and outside.
    Tops: the sum of outside * f(inside * (x - t)), divided as below, a scalar; and, if asked for, the sums over the
    channels, (N, 1, H, W), through which no gradient flows.

    Which version it is follows from the number of bottoms. Fast R-CNN's takes 2 or 4, SSD's 2; both divide by N.
    R-FCN's takes 3 and divides as a LossParameter says, and so does it with 2 where there is one, or a second top.

    Args:
        sigma: positive.
        normalization: what the sum is divided by, at least 1: "BATCH_SIZE", N; "VALID" and "FULL", N H W; "PRE_FIXED",
            `fixed`; "NONE", 1.
        fixed: the divisor for "PRE_FIXED".
        errors: whether there is a second top.
    """

    bottoms = (2, 4)
    tops = (1, 2)
    is_loss = True
    no_gradient = (2, 3)
    options = ("smooth_l1_loss_param", "loss_param")
    fork_fields = ("loss_param.normalization: PRE_FIXED", "loss_param.pre_fixed_normalizer")
    rows = Rows.SUMMED_FIRST
    backward_reads_bottoms = True

    def __init__(
        self, sigma: float = 1.0, *, normalization: str = "BATCH_SIZE", fixed: float = 1.0, errors: bool = False
    ) -> None:
        super().__init__()
        if not sigma > 0:
            raise LayerError(f"sigma must be positive, not {sigma:g}")
        self.sigma, self.normalization, self.fixed, self.errors = sigma, normalization, fixed, errors

    @classmethod
    def from_caffe(cls, context: LayerContext) -> SmoothL1Loss:
        param, loss = context.param.smooth_l1_loss_param, context.param.loss_param
        bottoms = len(context.bottom_shapes)
        if not (bottoms == 3 or (bottoms == 2 and (context.num_tops == 2 or loss.ListFields()))):
            for field, _ in loss.ListFields():
                raise LayerError(f"loss_param.{field.name} does nothing with 4 bottoms: remove it")
            if context.num_tops == 2:
                raise LayerError("a second top goes with 2 or 3 bottoms, not with 4")
            return cls(param.sigma)
        return cls._as_rfcn(context)

    @classmethod
    def _as_rfcn(cls, context: LayerContext) -> SmoothL1Loss:
        """R-FCN's version."""
        param, loss = context.param.smooth_l1_loss_param, context.param.loss_param
        if param.sigma != 1:
            _log.warning(
                'Layer "%s" (%s): sigma does nothing in R-FCN\'s version of this loss, which it is by its bottoms and '
                "options; it is 1",
                context.param.name,
                context.param.type,
            )
        if loss.HasField("ignore_label"):
            raise LayerError("loss_param.ignore_label does nothing in this loss: remove it")
        mode = normalization_mode(loss)
        if loss.HasField("pre_fixed_normalizer") and mode != "PRE_FIXED":
            raise LayerError("loss_param.pre_fixed_normalizer goes with normalization: PRE_FIXED")
        fixed = loss.pre_fixed_normalizer
        return cls(normalization=mode, fixed=fixed, errors=context.num_tops == 2)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        first = bottom_shapes[0]
        for shape in bottom_shapes[1:]:
            if shape != first:
                raise LayerError(f"bottoms {first} and {shape} must have the same shape")
        if not first:
            raise LayerError("bottoms must have at least 1 axis, not be scalars")
        if not self.errors:
            return [()]
        if not 2 <= len(first) <= 4:
            raise LayerError(f"a second top needs bottoms (N, C, H, W), not {first}")
        return [(), (first[0], 1, *first[2:], *[1] * (4 - len(first)))]

    def forward(
        self, x: Tensor, t: Tensor, inside: Tensor | None = None, outside: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        error = x - t if inside is None else inside.detach() * (x - t)
        size = error.abs()
        knee = 1 / self.sigma**2
        values = torch.where(size < knee, error.square() * (0.5 / knee), size - 0.5 * knee)
        if outside is not None:
            values = outside.detach() * values
        loss = values.sum() / self._divisor(x)
        if not self.errors:
            return loss
        sums = values.detach().sum(1, keepdim=True)
        return loss, sums.reshape(*sums.shape, *[1] * (4 - sums.ndim))

    def _divisor(self, x: Tensor) -> float:
        rows = self.whole(x.shape[0])
        if self.normalization == "BATCH_SIZE":
            return max(rows, 1)
        if self.normalization == "PRE_FIXED":
            return max(self.fixed, 1)
        return 1 if self.normalization == "NONE" else max(rows * prod(x.shape[2:]), 1)


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(SmoothL1Loss):
    """R-FCN's version of SmoothL1Loss, of 2 or 3 bottoms."""

    bottoms = (2, 3)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> SmoothL1Loss:
        return cls._as_rfcn(context)

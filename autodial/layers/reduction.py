"""Layers that reduce axes: Caffe's Reduction and ArgMax, and FlowNet's ChannelNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted


@register("Reduction")
class Reduction(Layer):
    """All axes from `axis` on made one number (reduction_layer.cpp): (a, b, c, ...) with axis 2 -> (a, b).

    Args:
        operation: "SUM", "ASUM" (of absolute values), "SUMSQ" (of squares) or "MEAN".
        axis: the first axis that is reduced.
        coeff: factor of the result.
    """

    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(self, operation: str = "SUM", *, axis: int = 0, coeff: float = 1.0) -> None:
        super().__init__()
        self.operation, self.axis, self.coeff = operation, axis, coeff

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Reduction:
        param = context.param.reduction_param
        operation = pb.ReductionParameter.ReductionOp.Name(param.operation)
        return cls(operation, axis=param.axis, coeff=param.coeff)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        return [shape[: canonical_axis(self.axis, len(shape))]]

    def forward(self, bottom: Tensor) -> Tensor:
        axes = list(range(self.axis % bottom.ndim, bottom.ndim))
        if self.operation == "MEAN":
            return bottom.mean(axes) * self.coeff
        if self.operation == "ASUM":
            bottom = bottom.abs()
        elif self.operation == "SUMSQ":
            bottom = bottom.square()
        return bottom.sum(axes) * self.coeff


@register("ArgMax")
class ArgMax(Layer):
    """The `top_k` highest values, or where they stand, from the highest on (argmax_layer.cpp); there is no gradient.

    Without an axis a row is searched as a whole: (N, ...) -> (N, 1, top_k) with the indices, or (N, 2, top_k) with the
    indices and the values, and axes of length 1 behind them if the bottom has more than 3. With an axis, that axis gets
    the length top_k and holds either. Caffe sorts pairs (value, index): of equal values the higher index comes first.
    NaN comes before every number, so that it is seen. Caffe does the same where all values are NaN; otherwise the place
    depends on how its sort proceeds.

    Args:
        top_k: from 1 to the number of values.
        axis: the axis that is searched; None for all but the first.
        values: whether the values are given: instead of the indices with an axis, as well as they without.
    """

    no_gradient = (0,)
    rows = Rows.INDEPENDENT

    def __init__(self, top_k: int = 1, *, axis: int | None = None, values: bool = False) -> None:
        super().__init__()
        if top_k < 1:
            raise LayerError(f"top_k must be positive, not {top_k}")
        self.top_k, self.axis, self.values = top_k, axis, values

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ArgMax:
        param = context.param.argmax_param
        return cls(param.top_k, axis=param.axis if param.HasField("axis") else None, values=param.out_max_val)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if not shape:
            raise LayerError("ArgMax needs a bottom of at least 1 axis, not a scalar")
        axis = None if self.axis is None else canonical_axis(self.axis, len(shape))
        count = math.prod(shape[1:]) if axis is None else shape[axis]
        if self.top_k > count:
            raise LayerError(
                f"top_k {self.top_k} is more than the {counted(count, 'value')} that bottom {shape} has to compare"
            )
        if axis is None:
            return [(shape[0], 1 + self.values, self.top_k, *(1,) * (len(shape) - 3))]
        return [(*shape[:axis], self.top_k, *shape[axis + 1 :])]

    @torch.no_grad()
    def forward(self, bottom: Tensor) -> Tensor:
        rows = bottom.reshape(bottom.shape[0], -1) if self.axis is None else bottom
        axis = 1 if self.axis is None else self.axis
        # Backwards, so that a stable sort puts the higher of two equal values' indices first.
        values, places = rows.flip(axis).sort(stable=True, dim=axis, descending=True)
        values = values.narrow(axis, 0, self.top_k)
        indices = (rows.shape[axis] - 1 - places.narrow(axis, 0, self.top_k)).to(bottom.dtype)
        if self.axis is not None:
            return values if self.values else indices
        top = torch.stack([indices, values] if self.values else [indices], 1)
        return top.reshape(*top.shape, *(1,) * (bottom.ndim - 3))


@register("ChannelNorm")
class ChannelNorm(Layer):
    """The length of each pixel's vector (channel_norm_layer.cpp of FlowNet 2.0): (N, C, H, W) -> (N, 1, H, W).

    The root of the sum of squares over the channels; its gradient at 0 is 0.
    """

    in_place = False
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ChannelNorm:
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 4:
            raise LayerError(f"ChannelNorm needs a bottom of 4 axes (N, C, H, W), not {shape}")
        return [(shape[0], 1, *shape[2:])]

    def forward(self, bottom: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(bottom, dim=1, keepdim=True)
        return length

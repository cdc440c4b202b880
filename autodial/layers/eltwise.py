"""Caffe's Eltwise, and SENet's Axpy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted


@register("Eltwise")
class Eltwise(Layer):
    """Product, weighted sum or maximum of bottoms of one shape (eltwise_layer.cpp).

    If the maximum stands in several bottoms, its gradient goes to one of them: the second bottom, else the first, else
    the earliest of the others.

    A sum may have one bottom, as in FlowNet 2.0's nets, which scale a map so.

    Args:
        operation: "PROD", "SUM" or "MAX".
        coeff: for SUM, a factor per bottom; empty for 1 each.
    """

    bottoms = (1, None)
    rows = Rows.INDEPENDENT

    def __init__(self, operation: str = "SUM", coeff: Sequence[float] = ()) -> None:
        super().__init__()
        if coeff and operation != "SUM":
            raise LayerError(f"coeff goes with operation SUM, not with {operation}")
        self.operation, self.coeff = operation, tuple(coeff)
        self.backward_reads_bottoms = operation == "PROD"

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Eltwise:
        param = context.param.eltwise_param
        # stable_prod_grad chooses between two ways to the same gradient; ours is always the stable one.
        return cls(pb.EltwiseParameter.EltwiseOp.Name(param.operation), list(param.coeff))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        if len(bottom_shapes) < 2 and self.operation != "SUM":
            raise LayerError(f"operation {self.operation} needs 2 bottoms or more")
        if self.coeff and len(self.coeff) != len(bottom_shapes):
            times, bottoms = counted(len(self.coeff), "time"), counted(len(bottom_shapes), "bottom")
            raise LayerError(f"coeff is given {times} and the layer has {bottoms}")
        for shape in bottom_shapes:
            if shape != bottom_shapes[0]:
                raise LayerError(f"bottoms {bottom_shapes[0]} and {shape} must have the same shape")
        return [bottom_shapes[0]]

    def forward(self, *bottoms: Tensor) -> Tensor:
        if self.operation == "MAX":
            first, second, *others = bottoms
            top = torch.where(first > second, first, second)
            return reduce(lambda top, other: torch.where(other > top, other, top), others, top)
        if self.operation == "PROD":
            return reduce(torch.mul, bottoms)
        if self.coeff:
            bottoms = tuple(c * bottom for c, bottom in zip(self.coeff, bottoms, strict=True))
        return reduce(torch.add, bottoms)


@register("Axpy")
class Axpy(Layer):
    """a x + y (axpy_layer.cpp of SENet), where a is one number per channel.

    Bottoms: a, (N, C) or with axes of length 1 behind; x and y, (N, C, ...). Top: the shape of x.
    """

    bottoms = (3, 3)
    in_place = False
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Axpy:
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scale, x, y = bottom_shapes
        if len(x) < 2 or scale[:2] != x[:2] or any(length != 1 for length in scale[2:]):
            raise LayerError(
                f"the first bottom must be one number per channel, {x[:2]} or with axes of length 1 behind, not {scale}"
            )
        if x != y:
            raise LayerError(f"the second and third bottoms must have one shape, not {x} and {y}")
        return [x]

    def forward(self, scale: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return scale.reshape(*scale.shape[:2], *[1] * (x.ndim - 2)) * x + y


@register("AxpyFast")
class AxpyFast(Axpy):
    """Axpy by another name (waifu2x's fork)."""

"""Caffe's Parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.shares import Rows


@register("Parameter")
class ParameterLayer(Layer):
    """A learned blob as a top (parameter_layer.hpp); it starts at zero.

    Args:
        shape: of the blob, and of the top.
    """

    bottoms = (0, 0)
    rows = Rows.NONE

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if min(shape, default=1) < 1:
            raise LayerError(f"parameter_param.shape must be positive, not {shape}")
        self.value = nn.Parameter(torch.zeros(check_size("the blob", shape)))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ParameterLayer:
        return cls(tuple(context.param.parameter_param.shape.dim))

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (self.value,)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [tuple(self.value.shape)]

    def forward(self) -> Tensor:
        return self.value

"""Caffe's InnerProduct, the fully connected layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.linear import linear
from autodial.layers.shares import Rows
from autodial.wording import counted


@register("InnerProduct")
class InnerProduct(Layer):
    """Affine map of everything from `axis` on (inner_product_layer.cpp): (..., K's axes) -> (..., num_output).

    Weights start at zero, as Caffe's default filler leaves them.

    Args:
        in_features: K, the number of elements of the bottom from `axis` on.
        num_output: length of the last axis of the top.
        axis: first axis that is flattened.
        bias: whether a bias (num_output,) is added.
        transpose: store the weight as (K, num_output) rather than (num_output, K).
    """

    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(
        self, in_features: int, num_output: int, *, axis: int = 1, bias: bool = True, transpose: bool = False
    ) -> None:
        super().__init__()
        if num_output < 1:
            raise LayerError("num_output is missing or 0")
        self.in_features, self.num_output, self.axis, self.transpose = in_features, num_output, axis, transpose
        shape = (in_features, num_output) if transpose else (num_output, in_features)
        self.weight = nn.Parameter(torch.zeros(check_size("the weight", shape)))
        self.bias = nn.Parameter(torch.zeros(num_output)) if bias else None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> InnerProduct:
        param = context.param.inner_product_param
        shape = context.bottom_shapes[0]
        axis = canonical_axis(param.axis, len(shape))
        layer = cls(
            math.prod(shape[axis:]), param.num_output, axis=axis, bias=param.bias_term, transpose=param.transpose
        )
        fill(layer.weight, param.weight_filler, context.generator)
        if layer.bias is not None:
            fill(layer.bias, param.bias_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        axis = canonical_axis(self.axis, len(shape))
        if math.prod(shape[axis:]) != self.in_features:
            raise LayerError(
                f"bottom {shape} has {counted(math.prod(shape[axis:]), 'element')} from axis {axis} on, "
                f"the weights expect {self.in_features}"
            )
        return [(*shape[:axis], self.num_output)]

    def forward(self, bottom: Tensor) -> Tensor:
        weight = self.weight.t() if self.transpose else self.weight
        return linear(bottom.flatten(self.axis), weight, self.bias)

"""Caffe's Embed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.labels import check_indices
from autodial.layers.shares import Rows


@register("Embed")
class Embed(Layer):
    """Rows of a learned table (embed_layer.cpp): indices (...) -> (..., num_output).

    Indices come as floats, whose fractions are cut off; no gradient flows to them. Weights start at zero, as Caffe's
    default filler leaves them.

    Args:
        input_dim: rows of the table; indices are in [0, input_dim).
        num_output: length of a row.
        bias: whether a bias (num_output,) is added.
    """

    no_gradient = (0,)
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(self, input_dim: int, num_output: int, *, bias: bool = True) -> None:
        super().__init__()
        for name, value in (("input_dim", input_dim), ("num_output", num_output)):
            if value < 1:
                raise LayerError(f"{name} is missing or 0")
        self.input_dim, self.num_output = input_dim, num_output
        self.weight = nn.Parameter(torch.zeros(check_size("the weight", (input_dim, num_output))))
        self.bias = nn.Parameter(torch.zeros(num_output)) if bias else None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Embed:
        param = context.param.embed_param
        layer = cls(param.input_dim, param.num_output, bias=param.bias_term)
        fill(layer.weight, param.weight_filler, context.generator)
        if layer.bias is not None:
            fill(layer.bias, param.bias_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [(*bottom_shapes[0], self.num_output)]

    def forward(self, bottom: Tensor) -> Tensor:
        index = bottom.long()
        check_indices(index, self.input_dim, "index", "rows")
        top = F.embedding(index, self.weight)
        return top if self.bias is None else top + self.bias

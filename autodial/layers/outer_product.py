"""OuterProduct of Xlearn, which fuses features and class probabilities in RTN (Long et al., NIPS 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows


@register("OuterProduct")
class OuterProduct(Layer):
    """top[n, 0, i, j] = a[n, i] b[n, j] (outer_product_layer.cu of Xlearn).

    Bottoms: a (N, C1) and b (N, C2); further axes must be 1. Top: (N, 1, C1, C2).
    """

    bottoms = (2, 2)
    in_place = False
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> OuterProduct:
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        a, b = bottom_shapes
        for shape in bottom_shapes:
            if len(shape) < 2 or math.prod(shape[2:]) != 1:
                raise LayerError(f"bottom {shape} must be rows of values (N, C), with further axes of 1 at the most")
        if a[0] != b[0]:
            raise LayerError(f"bottoms {a} and {b} must have the same number of rows")
        return [(a[0], 1, a[1], b[1])]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        rows = a.shape[0]
        return a.reshape(rows, 1, -1, 1) * b.reshape(rows, 1, 1, -1)

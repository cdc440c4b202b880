"""CORALLoss (Sun and Saenko, Deep CORAL, ECCV workshops 2016, equations 1 to 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.shares import Rows


@register("CORALLoss")
class CORALLoss(Layer):
    """Squared distance of the covariances of source and target, over 4 d^2.

    Bottoms: source and target, (N, ...) each with d values per row; N at least 2. Top: a scalar.

    ||C_source - C_target||_F^2 / (4 d^2) with C the unbiased covariance matrix (d, d) of the rows, as in the paper. The
    released layer takes the column sums wrongly and so compares uncentred second moments.
    """

    bottoms = (2, 2)
    is_loss = True
    rows = Rows.NONE
    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> CORALLoss:
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        source, target = bottom_shapes
        if not source or not target or source[0] != target[0] or math.prod(source) != math.prod(target):
            raise LayerError(f"bottoms {source} and {target} must have the same number of rows and of values")
        if source[0] < 2:
            raise LayerError("a batch of 1 row has no covariance")
        values = math.prod(source[1:])
        check_size("the covariance matrix", (values, values))
        return [()]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        difference = _covariance(source) - _covariance(target)
        return difference.square().sum() / (4 * difference.shape[0] ** 2)


def _covariance(rows: Tensor) -> Tensor:
    rows = rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)
    centred = rows - rows.mean(0)
    return centred.T @ centred / (len(rows) - 1)

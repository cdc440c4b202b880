"""Caffe's layers that choose among the rows of a batch: BatchReindex and Filter."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.labels import check_indices
from autodial.layers.shares import Rows


@register("BatchReindex")
class BatchReindex(Layer):
    """Rows of the first bottom in the order of the second (batch_reindex_layer.cpp): (N, ...) and (M,) -> (M, ...).

    Indices come as floats in [0, N), whose fractions are cut off. A row that is named several times gets the sum of the
    gradients; no gradient flows to the indices.
    """

    bottoms = (2, 2)
    no_gradient = (1,)
    rows = Rows.NONE
    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> BatchReindex:
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        bottom, order = bottom_shapes
        if not bottom or len(order) != 1:
            raise LayerError(
                f"BatchReindex needs bottoms (N, ...) and (M,), rows and their indices, not {bottom} and {order}"
            )
        return [(order[0], *bottom[1:])]

    def forward(self, bottom: Tensor, order: Tensor) -> Tensor:
        index = order.long()
        check_indices(index, bottom.shape[0], "index", "rows")
        return bottom.index_select(0, index)


@register("Filter")
class Filter(Layer):
    """The rows for which the last bottom is not 0 (filter_layer.cpp): (N, ...) -> (M, ...) for every other bottom.

    M is known only in the forward pass, and may be 0; `top_shapes` gives N, the most that it can be. The last bottom,
    (N,) or (N, 1, ...), gets no gradient.
    """

    bottoms = (2, None)
    tops = (1, None)
    no_gradient = (-1,)
    in_place = False
    rows = Rows.NONE

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Filter:
        if context.num_tops != len(context.bottom_shapes) - 1:
            raise LayerError(
                f"there must be a top for each bottom but the last, which says what stays: "
                f"{len(context.bottom_shapes) - 1}, not {context.num_tops}"
            )
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        *bottoms, selector = bottom_shapes
        if not selector or any(length != 1 for length in selector[1:]):
            raise LayerError(f"the last bottom, which says what stays, must have one value per row, not {selector}")
        for shape in bottoms:
            if shape[:1] != selector[:1]:
                raise LayerError(f"bottom {shape} must have the {selector[0]} rows of the last bottom {selector}")
        return list(bottoms)

    def forward(self, *bottoms: Tensor) -> tuple[Tensor, ...]:
        *rows, selector = bottoms
        (index,) = selector.flatten().nonzero(as_tuple=True)
        return tuple(bottom.index_select(0, index) for bottom in rows)

"""Correlation and Correlation1D of FlowNet and DispNet: each pixel of one map with the pixels around it in another."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb

_log = logging.getLogger(__name__)

SMALLEST_BLOCK = 16
"""Columns of the first map whose products are computed together, at least."""


@dataclass(frozen=True)
class Displacements:
    """How far a pixel's partners lie away along one axis: at `first`, `first` + step, ..., `count` numbers.

    Attributes:
        margin: pixels by which the correlated part of the axis reaches beyond both of its ends, into zeros; negative
            if it stays that far within.
    """

    first: int = 0
    count: int = 1
    step: int = 1
    margin: int = 0

    @property
    def span(self) -> int:
        """Pixels from the first partner to the last."""
        return (self.count - 1) * self.step

    @property
    def pads(self) -> tuple[int, int]:
        """Zeros before and after the second map's axis; negative where pixels are cut off."""
        return self.margin - self.first, self.margin + self.first + self.span


@register("Correlation")
class Correlation(Layer):
    """How alike two maps are at displaced places (correlation_layer.cu of FlowNet 2.0).

    Bottoms: two maps (N, C, H, W), padded with zeros by `pad` on all sides. Top: (N, D, H', W'), a channel for each of
    the D = G^2 displacements of the second map, G = 2 (max_displacement div stride_2) + 1 along each axis: multiples
    of stride_2 around 0, row by row. At each place the value is the mean over the C channels and over a window of
    kernel_size x kernel_size pixels of the products first * second, or with SUBTRACT of |first - second|. The windows
    are stride_1 apart. The first begins max_displacement from the padded map's corner, and the last ends as far from
    the opposite one, at most, so that all displaced windows lie within.

    Products are computed as matrices, a block of a row with all its partners in one row of the second map, and the
    diagonals are taken out.

    Gradients are those of what is computed. With SUBTRACT, the fork's are not: it compares the maps at places other
    than those it subtracted.

    Args:
        vertical, horizontal: the displacements along both axes.
        kernel_size: odd.
        stride: stride_1.
        subtract: whether the maps are subtracted.
    """

    bottoms = (2, 2)
    in_place = False
    options = ("correlation_param",)
    rows = Rows.INDEPENDENT

    def __init__(
        self,
        vertical: Displacements,
        horizontal: Displacements,
        *,
        kernel_size: int = 1,
        stride: int = 1,
        subtract: bool = False,
    ) -> None:
        super().__init__()
        self.vertical, self.horizontal = vertical, horizontal
        self.kernel_size, self.stride, self.subtract = kernel_size, stride, subtract

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Correlation:
        param = context.param.correlation_param
        for field in ("kernel_size", "max_displacement"):
            if not param.HasField(field):
                raise LayerError(f"correlation_param needs {field}")
        if param.kernel_size % 2 == 0:
            raise LayerError(f"correlation_param.kernel_size must be odd, not {param.kernel_size}")
        for field in ("stride_1", "stride_2"):
            if getattr(param, field) < 1:
                raise LayerError(f"correlation_param.{field} must be positive, not {getattr(param, field)}")
        if param.do_abs:
            _log.warning("correlation_param.do_abs does nothing, as in FlowNet's own code")
        vertical, horizontal = cls._displacements(param)
        return cls(
            vertical,
            horizontal,
            kernel_size=param.kernel_size,
            stride=param.stride_1,
            subtract=param.correlation_type == pb.CorrelationParameter.SUBTRACT,
        )

    @classmethod
    def _displacements(cls, param: pb.CorrelationParameter) -> tuple[Displacements, Displacements]:
        if param.single_direction:
            raise LayerError("correlation_param.single_direction is for Correlation1D: it does nothing here, remove it")
        both = _around(param)
        return both, both

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        first, second = bottom_shapes
        if len(first) != 4 or first != second:
            raise LayerError(f"needs two bottoms of one shape (N, C, H, W), not {first} and {second}")
        sizes = [
            length + 2 * axis.margin for length, axis in zip(first[2:], (self.vertical, self.horizontal), strict=True)
        ]
        height, width = ((size - self.kernel_size) // self.stride + 1 for size in sizes)
        if min(height, width) < 1:
            raise LayerError(
                f"the displacements and the kernel do not fit into maps {first}: enlarge pad, or make max_displacement "
                "or kernel_size smaller"
            )
        batch, channels, (rows, columns) = first[0], first[1], sizes
        rows_of_second, columns_of_second = rows + self.vertical.span, columns + self.horizontal.span
        check_size("the second map with its margins", (batch, channels, rows_of_second, columns_of_second))
        if not self.subtract:
            block = self.block(columns)
            blocks = -(-columns // block)
            check_size("products", (batch, self.vertical.count, rows, blocks, block, block + self.horizontal.span))
        return [(batch, self.vertical.count * self.horizontal.count, height, width)]

    def block(self, columns: int | None) -> int:
        """Columns of the first map that are multiplied together, of so many, or of a number that is not known.

        As many as there are partners in a row, so that half of the products at least are of partners.
        """
        block = max(self.horizontal.span + 1, SMALLEST_BLOCK)
        return block if columns is None else min(block, columns)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        (top, bottom), (left, right) = self.vertical.pads, self.horizontal.pads
        rows, columns = self.vertical.margin, self.horizontal.margin
        first = F.pad(first, (columns, columns, rows, rows))
        second = F.pad(second, (left, right, top, bottom))
        alike = self._differences(first, second) if self.subtract else self._products(first, second)
        if self.kernel_size == self.stride == 1:
            return alike
        return F.avg_pool2d(alike, self.kernel_size, self.stride)

    def _differences(self, first: Tensor, second: Tensor) -> Tensor:
        """The mean difference at each place, (N, displacements, rows, columns)."""
        rows, columns = first.shape[2:]
        maps = []
        for row in range(0, self.vertical.span + 1, self.vertical.step):
            for column in range(0, self.horizontal.span + 1, self.horizontal.step):
                partner = second[:, :, row : row + rows, column : column + columns]
                maps.append((first - partner).abs().mean(1))
        return torch.stack(maps, 1)

    def _products(self, first: Tensor, second: Tensor) -> Tensor:
        """The mean product at each place, (N, displacements, rows, columns)."""
        _, channels, rows, columns = first.shape
        across = self.horizontal
        block = self.block(columns)
        blocks = -(-columns // block)
        extra = blocks * block - columns
        ours = F.pad(first, (0, extra)).unfold(3, block, block).permute(0, 2, 3, 4, 1)
        theirs = F.pad(second, (0, extra)).unfold(3, block + across.span, block).permute(0, 2, 3, 1, 4)
        maps = []
        for row in range(0, self.vertical.span + 1, self.vertical.step):
            products = ours @ theirs[:, row : row + rows]  # (N, rows, blocks, block, block + span)
            # With `block` more values, every row of the matrix begins one column later: diagonals become columns.
            flat = F.pad(products.flatten(3), (0, block))
            skewed = flat.view(*products.shape[:4], block + across.span + 1)
            partners = skewed[..., : across.span + 1 : across.step]
            maps.append(partners.permute(0, 4, 1, 2, 3).flatten(3)[..., :columns])
        return torch.cat(maps, 1) / channels


@register("Correlation1D")
class Correlation1D(Correlation):
    """Correlation along rows alone (correlation_layer1d.cu of FlowNet 2.0, for DispNet): (N, D, H', W').

    `pad` widens the maps to the left and right only, and windows begin at the first row. The D displacements are, with
    R = max_displacement div stride_2 and in multiples of stride_2, those from -R to R; with `single_direction` 1 those
    from 0 to R, and with -1 those from -(R + 1) to -1. The last begin one step beyond max_displacement. Where that lies
    left of the padding, the fork reads pixels of the row above, which is refused here.
    """

    @classmethod
    def _displacements(cls, param: pb.CorrelationParameter) -> tuple[Displacements, Displacements]:
        across = _around(param)
        direction, count = param.single_direction, across.count // 2 + 1
        if not -1 <= direction <= 1:
            raise LayerError(f"correlation_param.single_direction must be -1, 0 or 1, not {direction}")
        if direction == 1:
            across = Displacements(0, count, across.step, across.margin)
        elif direction == -1:
            across = Displacements(-count * across.step, count, across.step, across.margin)
            if across.margin - across.first > 2 * param.pad:
                raise LayerError(
                    "correlation_param: with single_direction -1 the last displacement lies beyond max_displacement, "
                    f"which needs a pad of {count * param.stride_2 - param.max_displacement} at least"
                )
        return Displacements(), across


def _around(param: pb.CorrelationParameter) -> Displacements:
    """Multiples of stride_2 on both sides of 0."""
    reach = param.max_displacement // param.stride_2
    return Displacements(
        -reach * param.stride_2, 2 * reach + 1, param.stride_2, margin=param.pad - param.max_displacement
    )

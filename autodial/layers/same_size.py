"""Maps of several sizes joined at the size of the first, which is a Python layer of MEnet."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape
from autodial.layers.shares import Rows

Pair = tuple[int, int]


class SameSize(Layer):
    """Bottoms (N, C_i, H_i, W_i) at the first one's height and width, joined along the channels (resize.py of MEnet).

    Each value of a bottom becomes a rectangle of H_1 div H_i rows and W_1 div W_i columns. The rows and columns that
    are left over at the end are 0, and so is all of a bottom that is higher or wider than the first one.
    """

    bottoms = (1, None)
    rows = Rows.INDEPENDENT

    @classmethod
    def from_python(cls, context: LayerContext) -> SameSize:
        """The layer that `python_param { module: "resize" layer: "resize_to_same_size" }` describes."""
        bottoms, tops = len(context.bottom_shapes), context.num_tops
        if bottoms < 1 or tops != 1:
            raise LayerError(f"resize_to_same_size takes 1 or more bottoms and 1 top, not {bottoms} and {tops}")
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        first = bottom_shapes[0]
        for shape in bottom_shapes:
            if len(shape) != 4 or min(shape) < 1:
                raise LayerError(
                    f"resize_to_same_size needs bottoms of 4 axes (N, C, H, W), none of length 0, not {shape}"
                )
            if shape[0] != first[0]:
                raise LayerError(f"bottoms {first} and {shape} must agree in the first axis")
        return [(first[0], sum(shape[1] for shape in bottom_shapes), *first[2:])]

    def forward(self, *bottoms: Tensor) -> Tensor:
        height, width = bottoms[0].shape[2:]
        return torch.cat([_enlarged(bottom, (height, width)) for bottom in bottoms], 1)


def factors(old: Pair, new: Pair) -> Pair:
    """How many rows and columns each value of a map of the size `old` gets in one of the size `new`."""
    return new[0] // old[0], new[1] // old[1]


def _enlarged(bottom: Tensor, size: Pair) -> Tensor:
    height, width = bottom.shape[2:]
    down, across = factors((height, width), size)
    rectangles = bottom[:, :, :, None, :, None].expand(-1, -1, -1, down, -1, across)
    whole = rectangles.flatten(4, 5).flatten(2, 3)
    return F.pad(whole, (0, size[1] - width * across, 0, size[0] - height * down))

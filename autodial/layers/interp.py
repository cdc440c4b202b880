"""Interp of DeepLab and PSPNet."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb

Pair = tuple[int, int]


@register("Interp")
class Interp(Layer):
    """Bilinear resizing with the corners' pixels aligned (interp_layer.cpp of PSPNet): (N, C, H, W) -> (N, C, H', W').

    Row i of the top lies at row i (H - 1) / (H' - 1) of the bottom, at row 0 if H' is 1; likewise the columns.

    Args:
        size: (H', W'); or None, and H' follows from H: first ((H - 1) div shrink) + 1, of this H (H - 1) zoom + 1.
        shrink, zoom: positive.
        crop: rows and columns that are cut off before, (at the beginning, at the end) of both axes.
    """

    rows = Rows.INDEPENDENT

    def __init__(self, size: Pair | None = None, *, shrink: int = 1, zoom: int = 1, crop: Pair = (0, 0)) -> None:
        super().__init__()
        if size is not None and min(size) < 1:
            raise LayerError(f"height and width must be positive, not {size[0]} and {size[1]}")
        for name, value in (("shrink_factor", shrink), ("zoom_factor", zoom)):
            if value < 1:
                raise LayerError(f"{name} must be positive, not {value}")
        if min(crop) < 0:
            raise LayerError("pad_beg and pad_end cut off rows and columns: they must not be positive")
        self.size, self.shrink, self.zoom, self.crop = size, shrink, zoom, crop

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Interp:
        param = context.param.interp_param
        crop = (-param.pad_beg, -param.pad_end)
        size, shrink, zoom = _target(param)
        return cls(size, shrink=shrink, zoom=zoom, crop=crop)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 4:
            raise LayerError(f"Interp needs a bottom of 4 axes (N, C, H, W), not {shape}")
        if min(shape[2:]) <= sum(self.crop):
            raise LayerError(f"pad_beg -{self.crop[0]} and pad_end -{self.crop[1]} leave nothing of bottom {shape}")
        return [(*shape[:2], *self._out_size((shape[2], shape[3])))]

    def forward(self, bottom: Tensor) -> Tensor:
        size = self._out_size((bottom.shape[2], bottom.shape[3]))
        begin, end = self.crop
        if begin or end:
            bottom = bottom[:, :, begin : bottom.shape[2] - end, begin : bottom.shape[3] - end]
        return F.interpolate(bottom, size, mode="bilinear", align_corners=True)

    def _out_size(self, size: Pair) -> Pair:
        if self.size is not None:
            return self.size
        height, width = ((length - sum(self.crop) - 1) // self.shrink * self.zoom + 1 for length in size)
        return height, width


def _target(param: pb.InterpParameter) -> tuple[Pair | None, int, int]:
    """Size, shrink and zoom, of which those fields decide that are given."""
    given = {field for field in ("shrink_factor", "zoom_factor", "height", "width") if param.HasField(field)}
    if "shrink_factor" in given and "zoom_factor" not in given:
        return None, param.shrink_factor, 1
    if "zoom_factor" in given and "shrink_factor" not in given:
        return None, 1, param.zoom_factor
    if {"height", "width"} <= given:
        return (param.height, param.width), 1, 1
    if {"shrink_factor", "zoom_factor"} <= given:
        return None, param.shrink_factor, param.zoom_factor
    raise LayerError("interp_param needs height and width, zoom_factor, or shrink_factor")

"""Caffe's Im2col."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows
from autodial.layers.windows import Windows, channel_axis

_IGNORED = ("num_output", "group", "bias_term", "weight_filler", "bias_filler")


@register("Im2col")
class Im2col(Layer):
    """Every window as a column (im2col_layer.cpp): (N, C, H, W) -> (N, C * kernel height * kernel width, H', W').

    Channel (c * kernel height + i) * kernel width + j of the top holds the values at row i and column j of all windows
    over channel c. There may be any number of spatial axes and of batch axes, as for Convolution.

    Args:
        windows: their sizes, steps, margins and gaps.
        axis: the axis of the channels.
    """

    options = ("convolution_param",)
    rows = Rows.INDEPENDENT

    def __init__(self, windows: Windows, axis: int = 1) -> None:
        super().__init__()
        self.windows, self.axis = windows, axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Im2col:
        param = context.param.convolution_param
        for field in _IGNORED:
            if param.HasField(field):
                raise LayerError(f"convolution_param.{field} does nothing in an Im2col layer: remove it")
        (shape,) = context.bottom_shapes
        axis = channel_axis(param, shape)
        # force_nd_im2col and engine choose between implementations of the same numbers.
        return cls(Windows.from_caffe(param, len(shape) - axis - 1), axis)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != self.axis + 1 + len(self.windows.kernel_size):
            raise LayerError(f"bottom {shape} must have the same number of axes as when the net was built")
        channels = shape[self.axis] * prod(self.windows.kernel_size)
        return [(*shape[: self.axis], channels, *self.windows.checked_counts(shape))]

    def forward(self, bottom: Tensor) -> Tensor:
        windows, first = self.windows, self.axis + 1
        counts = windows.counts(bottom.shape)
        margins = zip(windows.pad, windows.overhang(bottom.shape), strict=True)
        top = F.pad(bottom, [side for pad, over in reversed([*margins]) for side in (pad, pad + over)])
        # From the last axis to the first, so that the axes still to be cut keep their places. Each becomes two,
        # (windows, values of a window).
        for i in reversed(range(len(counts))):
            rows = torch.arange(counts[i], device=top.device)[:, None] * windows.stride[i]
            columns = torch.arange(windows.kernel_size[i], device=top.device) * windows.dilation[i]
            places = rows + columns
            parts = top.index_select(first + i, places.flatten())
            top = parts.reshape(*top.shape[: first + i], *places.shape, *top.shape[first + i + 1 :])
        spatial = range(first, first + 2 * len(counts))
        top = top.permute(*range(first), *spatial[1::2], *spatial[::2])
        return top.reshape(*bottom.shape[: self.axis], -1, *counts)

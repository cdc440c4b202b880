"""Caffe's Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.fillers import fill

Pair = tuple[int, int]


@register("Convolution")
class Convolution(Layer):
    """2-D cross-correlation (base_conv_layer.cpp): (N, C, H, W) -> (N, num_output, H', W').

    H' = floor((H + 2 pad - dilation (kernel - 1) - 1) / stride) + 1, and likewise W'. Weights start at zero, as Caffe's
    default filler leaves them.

    Args:
        in_channels: C, a multiple of `group`.
        num_output: a multiple of `group`.
        kernel_size, stride, pad, dilation: (height, width) in pixels.
        group: output group i sees input group i alone.
        bias: whether a bias (num_output,) is added.
    """

    def __init__(
        self,
        in_channels: int,
        num_output: int,
        kernel_size: Pair,
        *,
        stride: Pair = (1, 1),
        pad: Pair = (0, 0),
        dilation: Pair = (1, 1),
        group: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        positive = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        for name, values in {**positive, "num_output": (num_output,), "group": (group,)}.items():
            if min(values) < 1:
                raise LayerError(f"{name} must be positive, not {' x '.join(map(str, values))}")
        for name, channels in (("bottom's channels", in_channels), ("num_output", num_output)):
            if channels % group:
                raise LayerError(f"{name} {channels} is not a multiple of group {group}")
        self.in_channels = in_channels
        self.kernel_size, self.stride, self.pad, self.dilation, self.group = kernel_size, stride, pad, dilation, group
        self.weight = nn.Parameter(torch.zeros(num_output, in_channels // group, *kernel_size))
        self.bias = nn.Parameter(torch.zeros(num_output)) if bias else None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Convolution:
        param = context.param.convolution_param
        shape = _image_shape(context.bottom_shapes[0])
        if param.axis not in (1, -3):
            raise LayerError(f"convolution_param.axis {param.axis} is not supported, only 1 (channels) is")
        layer = cls(
            shape[1],
            param.num_output,
            _pair(param, "kernel_size", "kernel", None),
            stride=_pair(param, "stride", "stride", 1),
            pad=_pair(param, "pad", "pad", 0),
            dilation=_pair(param, "dilation", None, 1),
            group=param.group,
            bias=param.bias_term,
        )
        # force_nd_im2col and engine choose between implementations of the same numbers.
        fill(layer.weight, param.weight_filler, context.generator)
        if layer.bias is not None:
            fill(layer.bias, param.bias_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        num, channels, *size = _image_shape(bottom_shapes[0])
        if channels != self.in_channels:
            raise LayerError(f"bottom {bottom_shapes[0]} has {channels} channels, the weights {self.in_channels}")
        out = []
        for length, kernel, stride, pad, dilation in zip(
            size, self.kernel_size, self.stride, self.pad, self.dilation, strict=True
        ):
            extent = dilation * (kernel - 1) + 1
            if length + 2 * pad < extent:
                raise LayerError(f"a kernel over {extent} pixels does not fit bottom {bottom_shapes[0]} with pad {pad}")
            out.append((length + 2 * pad - extent) // stride + 1)
        return [(num, self.weight.shape[0], *out)]

    def forward(self, bottom: Tensor) -> Tensor:
        return F.conv2d(bottom, self.weight, self.bias, self.stride, self.pad, self.dilation, self.group)


def _image_shape(shape: Shape) -> Shape:
    if len(shape) != 4:
        raise LayerError(f"a convolution needs a bottom of 4 axes (N, C, H, W), not {shape}")
    return shape


def _pair(param: Any, field: str, stem: str | None, default: int | None) -> Pair:
    """(height, width) from a repeated field, one value for both or one each, or from STEM_h and STEM_w."""
    values = list(getattr(param, field))
    if stem and (param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w")):
        if values:
            raise LayerError(f"convolution_param sets both {field} and {stem}_h or {stem}_w: keep one form")
        return getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")
    if not values and default is not None:
        values = [default]
    if len(values) not in (1, 2):
        raise LayerError(f"convolution_param.{field} has {len(values)} values, but an image has 2 spatial axes")
    return values[0], values[-1]

"""Caffe's Convolution and Deconvolution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.wording import counted

Pair = tuple[int, int]
C = TypeVar("C", bound="BaseConvolution")


class BaseConvolution(Layer):
    """What Convolution and Deconvolution have in common (base_conv_layer.cpp).

    Any number of bottoms (N, C, H, W) of one shape give as many tops (N, num_output, H', W') with the same weights,
    which start at zero, as Caffe's default filler leaves them.

    Args:
        in_channels: C, a multiple of `group`.
        num_output: a multiple of `group`.
        kernel_size, stride, pad, dilation: (height, width) in pixels.
        group: output group i sees input group i alone.
        bias: whether a bias (num_output,) is added.
    """

    bottoms = (1, None)
    tops = (1, None)
    options = ("convolution_param",)
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

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
        self.in_channels, self.num_output = in_channels, num_output
        self.kernel_size, self.stride, self.pad, self.dilation, self.group = kernel_size, stride, pad, dilation, group
        self.weight = nn.Parameter(torch.zeros(check_size("the weight", self._weight_channels() + kernel_size)))
        self.bias = nn.Parameter(torch.zeros(num_output)) if bias else None

    @classmethod
    def from_caffe(cls: type[C], context: LayerContext) -> C:
        param = context.param.convolution_param
        shape = _image_shape(context.bottom_shapes[0])
        if param.axis not in (1, -3):
            raise LayerError(f"convolution_param.axis {param.axis} is not supported, only 1 (channels) is")
        if context.num_tops != len(context.bottom_shapes):
            raise LayerError(
                f"{counted(len(context.bottom_shapes), 'bottom')} must have as many tops, not {context.num_tops}"
            )
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
        first = bottom_shapes[0]
        num, channels, *size = _image_shape(first)
        if channels != self.in_channels:
            raise LayerError(f"bottom {first} has {channels} channels, the weights {self.in_channels}")
        for shape in bottom_shapes:
            if shape != first:
                raise LayerError(f"bottoms {first} and {shape} must have the same shape")
        out = []
        for length, kernel, stride, pad, dilation in zip(
            size, self.kernel_size, self.stride, self.pad, self.dilation, strict=True
        ):
            extent = dilation * (kernel - 1) + 1
            out.append(self._out_length(length, extent, stride, pad))
            if out[-1] < 1:
                raise LayerError(f"a kernel over {extent} pixels does not fit bottom {first} with pad {pad}")
        return [(num, self.num_output, *out)] * len(bottom_shapes)

    def forward(self, bottom: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        top = self._convolve(bottom)
        return (top, *map(self._convolve, others)) if others else top

    @abstractmethod
    def _weight_channels(self) -> Pair:
        """The first two axes of the weights."""

    @abstractmethod
    def _out_length(self, length: int, extent: int, stride: int, pad: int) -> int:
        """Length of a spatial axis of the top; `extent` is the kernel's, dilated."""

    @abstractmethod
    def _convolve(self, bottom: Tensor) -> Tensor:
        """The top of one bottom."""


@register("Convolution")
class Convolution(BaseConvolution):
    """2-D cross-correlation (conv_layer.cpp): (N, C, H, W) -> (N, num_output, H', W').

    H' = floor((H + 2 pad - dilation (kernel - 1) - 1) / stride) + 1, and likewise W'. Weights: (num_output, C / group,
    kernel height, kernel width). The arguments are those of BaseConvolution.
    """

    def _weight_channels(self) -> Pair:
        return self.num_output, self.in_channels // self.group

    def _out_length(self, length: int, extent: int, stride: int, pad: int) -> int:
        return (length + 2 * pad - extent) // stride + 1

    def _convolve(self, bottom: Tensor) -> Tensor:
        return F.conv2d(bottom, self.weight, self.bias, self.stride, self.pad, self.dilation, self.group)


@register("Deconvolution")
class Deconvolution(BaseConvolution):
    """The transpose of a 2-D cross-correlation (deconv_layer.cpp): (N, C, H, W) -> (N, num_output, H', W').

    H' = stride (H - 1) + dilation (kernel - 1) + 1 - 2 pad, and likewise W'. Weights: (C, num_output / group, kernel
    height, kernel width). The arguments are those of BaseConvolution.
    """

    def _weight_channels(self) -> Pair:
        return self.in_channels, self.num_output // self.group

    def _out_length(self, length: int, extent: int, stride: int, pad: int) -> int:
        return stride * (length - 1) + extent - 2 * pad

    def _convolve(self, bottom: Tensor) -> Tensor:
        return F.conv_transpose2d(
            bottom, self.weight, self.bias, self.stride, self.pad, groups=self.group, dilation=self.dilation
        )


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

"""Caffe's Convolution and Deconvolution, over any number of spatial axes, and its forks' depthwise convolutions."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.layers.windows import Lengths, Windows, channel_axis
from autodial.proto import messages as pb
from autodial.wording import counted

_log = logging.getLogger(__name__)

C = TypeVar("C", bound="BaseConvolution")


class BaseConvolution(Layer):
    """What Convolution and Deconvolution have in common (base_conv_layer.cpp).

    Any number of bottoms (N, C, H, W) of one shape give as many tops (N, num_output, H', W') with the same weights,
    which start at zero, as Caffe's default filler leaves them. There may be any number of spatial axes in the place of
    H and W, and any number of batch axes in the place of N.

    Args:
        in_channels: C, a multiple of `group`.
        num_output: a multiple of `group`.
        kernel_size: one number for each spatial axis, (height, width) in pixels for images.
        stride, pad, dilation: as many, or a single number for all.
        group: output group i sees input group i alone.
        bias: whether a bias (num_output,) is added.
        axis: the axis of the channels.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (1, None)
    tops: ClassVar[tuple[int, int | None]] = (1, None)
    options: ClassVar[tuple[str, ...]] = ("convolution_param",)
    fork_fields: ClassVar[tuple[str, ...]] = ("convolution_param.weight_filler.diag_val",)
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(
        self,
        in_channels: int,
        num_output: int,
        kernel_size: Lengths,
        *,
        stride: Lengths = (1,),
        pad: Lengths = (0,),
        dilation: Lengths = (1,),
        group: int = 1,
        bias: bool = True,
        axis: int = 1,
    ) -> None:
        super().__init__()
        axes = len(kernel_size)
        self.windows = Windows(
            kernel_size, *(each * axes if len(each) == 1 else each for each in (stride, pad, dilation))
        )
        if num_output < 1:
            raise LayerError("num_output is missing or 0")
        if group < 1:
            raise LayerError(f"group must be positive, not {group}")
        for name, channels in (("bottom's channels", in_channels), ("num_output", num_output)):
            if channels % group:
                raise LayerError(f"{name} {channels} is not a multiple of group {group}")
        self.in_channels, self.num_output, self.group, self.axis = in_channels, num_output, group, axis
        self.weight = nn.Parameter(torch.zeros(check_size("the weight", (*self._weight_channels(), *kernel_size))))
        self.bias = nn.Parameter(torch.zeros(num_output)) if bias else None

    @classmethod
    def from_caffe(cls: type[C], context: LayerContext) -> C:
        return cls._of(context, context.param.convolution_param)

    @classmethod
    def _of(cls: type[C], context: LayerContext, param: pb.ConvolutionParameter) -> C:
        """The layer with these options."""
        shape = context.bottom_shapes[0]
        axis = channel_axis(param, shape)
        if context.num_tops != len(context.bottom_shapes):
            raise LayerError(
                f"{counted(len(context.bottom_shapes), 'bottom')} must have as many tops, not {context.num_tops}"
            )
        windows = Windows.from_caffe(param, len(shape) - axis - 1)
        layer = cls(
            shape[axis],
            param.num_output,
            windows.kernel_size,
            stride=windows.stride,
            pad=windows.pad,
            dilation=windows.dilation,
            group=param.group,
            bias=param.bias_term,
            axis=axis,
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
        axes = self.axis + 1 + len(self.windows.kernel_size)
        if len(first) != axes:
            raise LayerError(f"bottom {first} must have {counted(axes, 'axis', 'axes')}, as when the net was built")
        if first[self.axis] != self.in_channels:
            raise LayerError(f"bottom {first} has {first[self.axis]} channels, the weights {self.in_channels}")
        for shape in bottom_shapes:
            if shape != first:
                raise LayerError(f"bottoms {first} and {shape} must have the same shape")
        return [(*first[: self.axis], self.num_output, *self._out_lengths(first))] * len(bottom_shapes)

    def forward(self, bottom: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        top = self._top(bottom)
        return (top, *map(self._top, others)) if others else top

    def _top(self, bottom: Tensor) -> Tensor:
        """The top of one bottom."""
        if self.axis == 1:
            return self._convolve(bottom)
        batch = bottom.shape[: self.axis]
        top = self._convolve(bottom.reshape(prod(batch), *bottom.shape[self.axis :]))
        return top.reshape(*batch, *top.shape[1:])

    @abstractmethod
    def _weight_channels(self) -> tuple[int, int]:
        """The first two axes of the weights."""

    @abstractmethod
    def _out_lengths(self, bottom: Shape) -> Lengths:
        """Lengths of the top's spatial axes; LayerError where one has none."""

    @abstractmethod
    def _convolve(self, bottom: Tensor) -> Tensor:
        """The top of a bottom with one batch axis."""


@register("Convolution")
class Convolution(BaseConvolution):
    """Cross-correlation (conv_layer.cpp): (N, C, H, W) -> (N, num_output, H', W').

    H' = (H + 2 pad - dilation (kernel - 1) - 1) / stride + 1, and likewise W', where the division cuts the fraction
    off, so that a kernel may reach beyond the padded bottom by less than a stride. Weights: (num_output, C / group,
    kernel height, kernel width). The arguments are those of BaseConvolution.
    """

    def _weight_channels(self) -> tuple[int, int]:
        return self.num_output, self.in_channels // self.group

    def _out_lengths(self, bottom: Shape) -> Lengths:
        return self.windows.checked_counts(bottom)

    def _convolve(self, bottom: Tensor) -> Tensor:
        over = self.windows.overhang(bottom.shape)
        if any(over):
            bottom = F.pad(bottom, [side for length in reversed(over) for side in (0, length)])
        return _convolve(bottom, self.weight, self.bias, self.windows, self.group)


@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    """Convolution by another name (yonghenglh6): depthwise if `group` is the number of channels, which it is not by
    default."""


@register("Convolution3D")
class Convolution3D(Convolution):
    """Convolution over frames, rows and columns (convolution3d_layer.cpp of C3D).

    Bottom: (N, C, L, H, W); top: (N, num_output, L', H', W'). The options are those of `convolution3d_param`, or of
    `convolution_param` in nets of C3D 1.0.
    """

    bottoms = (1, 1)
    tops = (1, 1)
    options = ("convolution_param", "convolution3d_param")
    fork_fields = tuple(f"convolution_param.{name}" for name in ("kernel_depth", "temporal_pad", "temporal_stride"))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Convolution3D:
        old, new = context.param.convolution_param, context.param.convolution3d_param
        if old.ListFields() and new.ListFields():
            raise LayerError("give convolution3d_param or, as C3D 1.0 has it, convolution_param, and not both")
        if len(context.bottom_shapes[0]) != 5:
            raise LayerError(f"needs a bottom of 5 axes (N, C, L, H, W), not {context.bottom_shapes[0]}")
        given = old if old.ListFields() else new
        for field, _ in old.ListFields():
            if field.name not in _FIELDS_3D:
                raise LayerError(f"convolution_param.{field.name} is not for Convolution3D: remove it")
        param = pb.ConvolutionParameter(
            num_output=given.num_output,
            bias_term=given.bias_term,
            group=old.group if given is old else new.filter_group,
            weight_filler=given.weight_filler,
            bias_filler=given.bias_filler,
            kernel_size=_frames(given, "kernel_depth", "kernel_size", None),
            stride=_frames(given, "temporal_stride", "stride", 1),
            pad=_frames(given, "temporal_pad", "pad", 0),
        )
        return cls._of(context, param)


_FIELDS_3D = (
    "num_output", "bias_term", "kernel_size", "stride", "pad", "group", "weight_filler", "bias_filler", "kernel_depth",
    "temporal_pad", "temporal_stride", "engine",
)  # fmt: skip


def _frames(
    param: pb.ConvolutionParameter | pb.Convolution3DParameter, frames: str, pixels: str, default: int | None
) -> list[int]:
    """Numbers along frames, rows and columns, from a field for frames and one for pixels in both directions."""
    given = getattr(param, pixels)
    values = [*given] if isinstance(param, pb.ConvolutionParameter) else [given] if param.HasField(pixels) else []
    if len(values) > 1:
        raise LayerError(f"{pixels} must be one number for rows and columns, not {values}")
    if default is None and not (values and param.HasField(frames)):
        raise LayerError(f"needs {pixels} and {frames}")
    fallback = 0 if default is None else default  # needed where it is None, and given
    along: int = getattr(param, frames) if param.HasField(frames) else fallback
    side = values[0] if values else fallback
    return [along, side, side]


@register("ConvolutionDepthwise")
class ConvolutionDepthwise(Convolution):
    """A 2-D convolution of each channel by itself (BVLC's pull request 5665): (N, C, H, W) -> (N, C, H', W').

    `num_output` and `group` do nothing: both are C. Weights: (C, 1, kernel height, kernel width).
    """

    bottoms = (1, 1)
    tops = (1, 1)
    per_channel = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ConvolutionDepthwise:
        given = context.param.convolution_param
        (shape,) = context.bottom_shapes
        if len(shape) != 4 or given.axis not in (1, -3):
            raise LayerError(f"needs a bottom of 4 axes (N, C, H, W) and axis 1, not {shape} and axis {given.axis}")
        channels = shape[1]
        if given.num_output not in (0, channels) or given.group not in (1, channels):
            _log.warning(
                'Layer "%s" (ConvolutionDepthwise): num_output %d and group %d do nothing; there are as many as the '
                "bottom's channels, %d",
                context.param.name,
                given.num_output,
                given.group,
                channels,
            )
        param = pb.ConvolutionParameter()
        param.CopyFrom(given)
        param.num_output = param.group = channels
        for stem, field in (("kernel", "kernel_size"), ("stride", "stride"), ("pad", "pad")):
            if param.HasField(f"{stem}_h") and param.HasField(f"{stem}_w"):
                param.ClearField(field)
        return cls._of(context, param)


@register("Deconvolution")
class Deconvolution(BaseConvolution):
    """The transpose of a cross-correlation (deconv_layer.cpp): (N, C, H, W) -> (N, num_output, H', W').

    H' = stride (H - 1) + dilation (kernel - 1) + 1 - 2 pad, and likewise W'. Weights: (C, num_output / group, kernel
    height, kernel width). The arguments are those of BaseConvolution.
    """

    def _weight_channels(self) -> tuple[int, int]:
        return self.in_channels, self.num_output // self.group

    def _out_lengths(self, bottom: Shape) -> Lengths:
        windows = self.windows
        lengths = bottom[self.axis + 1 :]
        whole = [
            stride * (length - 1) + extent
            for length, extent, stride in zip(lengths, windows.extents, windows.stride, strict=True)
        ]
        for length, pad in zip(whole, windows.pad, strict=True):
            if length <= 2 * pad:
                raise LayerError(f"pad {pad} leaves nothing of the {length} pixels that bottom {bottom} makes")
        return tuple(length - 2 * pad for length, pad in zip(whole, windows.pad, strict=True))

    def _convolve(self, bottom: Tensor) -> Tensor:
        return _convolve_transposed(bottom, self.weight, self.bias, self.windows, self.group)


_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONVOLVE_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
"""Torch's functions by the number of spatial axes. Other numbers are reduced to these."""


def _convolve(bottom: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows, group: int) -> Tensor:
    """The cross-correlation of (N, C, ...) over any number of axes."""
    axes = len(windows.kernel_size)
    if axes == 0:
        return F.conv1d(bottom.unsqueeze(2), weight.unsqueeze(2), bias, groups=group).squeeze(2)
    if axes in _CONVOLVE:
        return _CONVOLVE[axes](bottom, weight, bias, windows.stride, windows.pad, windows.dilation, group)
    (stride, pad, dilation), rest = _first(windows), _rest(windows)
    bottom = F.pad(bottom, [0, 0] * (axes - 1) + [pad, pad])
    count = (bottom.shape[2] - windows.extents[0]) // stride + 1
    parts = [
        _over_rest(bottom[:, :, start : start + stride * (count - 1) + 1 : stride], weight[:, :, k], rest, group)
        for k, start in enumerate(range(0, windows.extents[0], dilation))
    ]
    top = torch.stack(parts).sum(0)
    return top if bias is None else top + bias.reshape(-1, *[1] * axes)


def _convolve_transposed(bottom: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows, group: int) -> Tensor:
    """The transposed cross-correlation of (N, C, ...) over any number of axes."""
    axes = len(windows.kernel_size)
    if axes == 0:
        top = F.conv_transpose1d(bottom.unsqueeze(2), weight.unsqueeze(2), bias, groups=group)
        return top.squeeze(2)
    if axes in _CONVOLVE_TRANSPOSED:
        function = _CONVOLVE_TRANSPOSED[axes]
        return function(bottom, weight, bias, windows.stride, windows.pad, 0, group, windows.dilation)
    (stride, pad, dilation), rest = _first(windows), _rest(windows)
    reach = stride * (bottom.shape[2] - 1) + 1
    parts = [_over_rest(bottom, weight[:, :, k], rest, group, transposed=True) for k in range(windows.kernel_size[0])]
    top = parts[0].new_zeros(*parts[0].shape[:2], reach + windows.extents[0] - 1, *parts[0].shape[3:])
    for part, start in zip(parts, range(0, windows.extents[0], dilation), strict=True):
        top[:, :, start : start + reach : stride] += part
    top = top[:, :, pad : top.shape[2] - pad]
    return top if bias is None else top + bias.reshape(-1, *[1] * axes)


def _first(windows: Windows) -> tuple[int, int, int]:
    """Stride, pad and dilation of the first axis."""
    return windows.stride[0], windows.pad[0], windows.dilation[0]


def _rest(windows: Windows) -> Windows:
    """The windows over all axes but the first."""
    return Windows(windows.kernel_size[1:], windows.stride[1:], windows.pad[1:], windows.dilation[1:])


def _over_rest(bottom: Tensor, weight: Tensor, rest: Windows, group: int, *, transposed: bool = False) -> Tensor:
    """The result over all spatial axes but the first: each place along the first is treated as an image of its own."""
    function = _convolve_transposed if transposed else _convolve
    images = bottom.movedim(2, 1)
    top = function(images.flatten(0, 1), weight, None, rest, group)
    return top.reshape(*images.shape[:2], *top.shape[1:]).movedim(1, 2)

"""Caffe's Scale and Bias."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.proto import messages as pb


@register("Scale")
class Scale(Layer):
    """Product with a tensor of fewer axes, and an optional bias (scale_layer.cpp): any shape -> the same shape.

    The scale is laid along the bottom's axes from `axis` on and repeated over the others. It is learned (and starts at
    1), or it is a second bottom. The bias is learned, has the scale's shape and starts at 0.

    Args:
        shape: shape of the scale, () for a single number.
        axis: the bottom's axis at which the scale's first axis lies.
        bias: whether a bias is added.
        learned: False if the scale comes as a second bottom.
    """

    bottoms = (1, 2)
    rows = Rows.INDEPENDENT
    per_channel = True
    backward_reads_bottoms = True

    def __init__(self, shape: Shape, *, axis: int = 1, bias: bool = False, learned: bool = True) -> None:
        super().__init__()
        self.shape, self.axis = shape, axis
        self.scale = nn.Parameter(torch.ones(shape)) if learned else None
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Scale:
        param = context.param.scale_param
        axis, shape = _place(param, "scale", context.bottom_shapes)
        layer = cls(shape, axis=axis, bias=param.bias_term, learned=len(context.bottom_shapes) == 1)
        if layer.scale is not None and param.HasField("filler"):
            fill(layer.scale, param.filler, context.generator)
        if layer.bias is not None:
            fill(layer.bias, param.bias_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return tuple(blob for blob in (self.scale, self.bias) if blob is not None)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        bottom, *second = bottom_shapes
        scale = second[0] if second else self.shape
        _check_fit("scale", scale, bottom, self.axis)
        if self.bias is not None and scale != self.shape:
            raise LayerError(f"a bias of shape {self.shape} does not fit a scale of shape {scale}")
        return [bottom]

    def forward(self, bottom: Tensor, scale: Tensor | None = None) -> Tensor:
        if scale is None:
            scale = self.scale
        assert scale is not None, "a Scale that isn't learned takes its scale as a second bottom"
        top = bottom * _laid(scale, bottom, self.axis)
        return top if self.bias is None else top + _laid(self.bias, bottom, self.axis)


@register("Bias")
class Bias(Layer):
    """Sum with a tensor of fewer axes (bias_layer.cpp): any shape -> the same shape.

    The bias is laid along the bottom's axes as a Scale's scale is. It is learned (and starts at 0), or it is a second
    bottom.

    Args:
        shape: shape of the bias, () for a single number.
        axis: the bottom's axis at which the bias's first axis lies.
        learned: False if the bias comes as a second bottom.
    """

    bottoms = (1, 2)
    rows = Rows.INDEPENDENT
    per_channel = True

    def __init__(self, shape: Shape, *, axis: int = 1, learned: bool = True) -> None:
        super().__init__()
        self.shape, self.axis = shape, axis
        self.bias = nn.Parameter(torch.zeros(shape)) if learned else None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Bias:
        param = context.param.bias_param
        axis, shape = _place(param, "bias", context.bottom_shapes)
        layer = cls(shape, axis=axis, learned=len(context.bottom_shapes) == 1)
        if layer.bias is not None:
            fill(layer.bias, param.filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return () if self.bias is None else (self.bias,)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        bottom, *second = bottom_shapes
        _check_fit("bias", second[0] if second else self.shape, bottom, self.axis)
        return [bottom]

    def forward(self, bottom: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            bias = self.bias
        assert bias is not None, "a Bias that isn't learned takes its bias as a second bottom"
        return bottom + _laid(bias, bottom, self.axis)


def _place(param: pb.ScaleParameter | pb.BiasParameter, what: str, bottom_shapes: Sequence[Shape]) -> tuple[int, Shape]:
    """Axis and shape of the scale or bias that a ScaleParameter or BiasParameter describes."""
    bottom = bottom_shapes[0]
    # a single number has no axis to lie at
    axis = 0 if list(bottom_shapes[1:]) == [()] else canonical_axis(param.axis, len(bottom))
    if len(bottom_shapes) > 1:
        for field in ("num_axes", "filler"):
            if param.HasField(field):
                raise LayerError(f"{what}_param.{field} does nothing where a second bottom is the {what}: remove it")
        return axis, bottom_shapes[1]
    if param.num_axes < -1:
        raise LayerError(f"num_axes must be at least 0, or -1 for all axes, not {param.num_axes}")
    end = len(bottom) if param.num_axes == -1 else axis + param.num_axes
    if end > len(bottom):
        raise LayerError(f"num_axes {param.num_axes} from axis {axis} reaches beyond bottom {bottom}")
    return axis, bottom[axis:end]


def _check_fit(what: str, shape: Shape, bottom: Shape, axis: int) -> None:
    if not shape:
        return
    axis = canonical_axis(axis, len(bottom))
    if bottom[axis : axis + len(shape)] != shape:
        raise LayerError(f"a {what} of shape {shape} does not fit bottom {bottom} from axis {axis} on")


def _laid(operand: Tensor, bottom: Tensor, axis: int) -> Tensor:
    """The operand with trailing axes of length 1, so that broadcasting lays its first axis at the bottom's `axis`."""
    if not operand.ndim:
        return operand
    trailing = (1,) * (bottom.ndim - axis % bottom.ndim - operand.ndim)
    return operand.reshape(operand.shape + trailing)

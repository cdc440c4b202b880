"""Caffe's Scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, register
from autodial.layers.fillers import fill


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

    def __init__(self, shape: Shape, *, axis: int = 1, bias: bool = False, learned: bool = True) -> None:
        super().__init__()
        self.shape, self.axis = shape, axis
        self.scale = nn.Parameter(torch.ones(shape)) if learned else None
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Scale:
        param = context.param.scale_param
        bottom = context.bottom_shapes[0]
        axis = canonical_axis(param.axis, len(bottom))
        if len(context.bottom_shapes) > 1:
            for field in ("num_axes", "filler"):
                if param.HasField(field):
                    raise LayerError(f"scale_param.{field} does nothing where a second bottom is the scale: remove it")
            shape = context.bottom_shapes[1]
        else:
            if param.num_axes < -1:
                raise LayerError(f"num_axes must be at least 0, or -1 for all axes, not {param.num_axes}")
            end = len(bottom) if param.num_axes == -1 else axis + param.num_axes
            if end > len(bottom):
                raise LayerError(f"num_axes {param.num_axes} from axis {axis} reaches beyond bottom {bottom}")
            shape = bottom[axis:end]
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
        axis = canonical_axis(self.axis, len(bottom))
        if bottom[axis : axis + len(scale)] != scale:
            raise LayerError(f"a scale of shape {scale} does not fit bottom {bottom} from axis {axis} on")
        if self.bias is not None and scale != self.shape:
            raise LayerError(f"a bias of shape {self.shape} does not fit a scale of shape {scale}")
        return [bottom]

    def forward(self, bottom: Tensor, scale: Tensor | None = None) -> Tensor:
        if scale is None:
            scale = self.scale
        assert scale is not None, "a Scale that isn't learned takes its scale as a second bottom"
        trailing = (1,) * (bottom.ndim - self.axis % bottom.ndim - scale.ndim)
        top = bottom * scale.reshape(scale.shape + trailing)
        return top if self.bias is None else top + self.bias.reshape(self.bias.shape + trailing)

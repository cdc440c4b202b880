"""Group normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows

_COUNTS = ("group_num", "group_ratio", "group")
"""The forks' names for the number of groups."""


@register("GroupNorm")
class GroupNorm(Layer):
    """Normalization of groups of channels (group_norm_layer.cpp of several forks): (N, C, ...) -> the same shape.

    y = scale * (x - mean) / sqrt(variance + eps) + shift, where mean and variance are those of each row's group of C /
    groups neighbouring channels, over all their pixels; the variance is divided by the number of values.

    The forks agree on that, and differ in their options. The number of groups is `group_num` (blankWorld),
    `group_ratio` (niezhongliang) or `group` (hujie). The last has a scale and a shift for each channel, both
    (1, C, 1, 1); the others have none. `eps` is 1e-5 with `group_num`, and must be stated with the others.

    Args:
        groups: divides C.
        eps: added to the variance, at least 0.
        channels: C, for a scale and a shift of each; None for neither.
    """

    rows = Rows.INDEPENDENT
    per_channel = True

    def __init__(self, groups: int, *, eps: float = 1e-5, channels: int | None = None) -> None:
        super().__init__()
        if groups < 1:
            raise LayerError(f"the number of groups must be positive, not {groups}")
        if not 0 <= eps < float("inf"):
            raise LayerError(f"group_norm_param.eps must be a number from 0 on, not {eps:g}")
        self.groups, self.eps, self.channels = groups, eps, channels
        if channels is not None:
            self.scale = nn.Parameter(torch.ones(1, channels, 1, 1))
            self.shift = nn.Parameter(torch.zeros(1, channels, 1, 1))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> GroupNorm:
        param = context.param.group_norm_param
        stated = [name for name in _COUNTS if param.HasField(name)]
        if len(stated) != 1:
            raise LayerError(
                "group_norm_param needs one of group_num, group_ratio and group, which say which fork's layer this is"
            )
        (name,) = stated
        if name != "group_num" and not param.HasField("eps"):
            raise LayerError(f"group_norm_param needs eps: what it is without it in the forks with {name} is not known")
        if name != "group" and (param.HasField("scale_filler") or param.HasField("bias_filler")):
            raise LayerError(f"group_norm_param: with {name} there is no scale and no shift, and so no filler for them")
        channels = _channels(context.bottom_shapes[0])
        layer = cls(getattr(param, name), eps=param.eps, channels=channels if name == "group" else None)
        if param.HasField("scale_filler"):
            fill(layer.scale, param.scale_filler, context.generator)
        if param.HasField("bias_filler"):
            fill(layer.shift, param.bias_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return () if self.channels is None else (self.scale, self.shift)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        channels = _channels(shape)
        if self.channels not in (None, channels):
            raise LayerError(f"bottom {shape} has {channels} channels, the layer has {self.channels} scales")
        if channels % self.groups:
            raise LayerError(f"bottom {shape} has {channels} channels, which {self.groups} groups do not divide")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        weight, bias = (None, None) if self.channels is None else (self.scale.flatten(), self.shift.flatten())
        return nn.functional.group_norm(bottom, self.groups, weight, bias, self.eps)


def _channels(shape: Shape) -> int:
    if len(shape) < 2:
        raise LayerError(f"GroupNorm needs a bottom of at least 2 axes (N, C, ...), not {shape}")
    return shape[1]

"""Division by the L2 norm: SSD's Normalize, and a published Python layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows


@register("Normalize")
class Normalize(Layer):
    """Division by the L2 norm, and a scale (normalize_layer.cpp of SSD): (N, C, ...) -> the same shape.

    y = scale * x / sqrt(sum of x^2 + eps), where the sum is over the channels of each pixel, or over an image.

    Args:
        channels: C, for a scale per channel, (C,); None for a single one, ().
        across_spatial: take the norm of each image as a whole.
        eps: added to the sum of squares.
        learned: False if the scale gets no gradient (fix_scale of ParseNet).
    """

    rows = Rows.INDEPENDENT
    options = ("norm_param",)
    per_channel = True
    backward_reads_bottoms = True

    def __init__(
        self, channels: int | None, *, across_spatial: bool = True, eps: float = 1e-10, learned: bool = True
    ) -> None:
        super().__init__()
        self.channels, self.across_spatial, self.eps, self.learned = channels, across_spatial, eps, learned
        self.scale = nn.Parameter(torch.ones(() if channels is None else (channels,)))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Normalize:
        param = context.param.norm_param
        layer = cls(
            None if param.channel_shared else _channels(context.bottom_shapes[0]),
            across_spatial=param.across_spatial,
            eps=param.eps,
            # ParseNet's default is true, SSD lacks the field
            learned=not (param.HasField("fix_scale") and param.fix_scale),
        )
        if param.HasField("scale_filler"):
            fill(layer.scale, param.scale_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (self.scale,)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        channels = _channels(shape)
        if self.channels not in (None, channels):
            raise LayerError(f"bottom {shape} has {channels} channels, the layer has {self.channels} scales")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        axes = tuple(range(1, bottom.ndim)) if self.across_spatial else 1
        norm = (bottom.square().sum(axes, keepdim=True) + self.eps).sqrt()
        scale = self.scale if self.learned else self.scale.detach()
        if self.channels is not None:
            scale = scale.reshape(-1, *[1] * (bottom.ndim - 2))
        return bottom / norm * scale


class UnitRows(Layer):
    """Division of each row by its L2 norm (l2norm_layer.py of hizhangp/triplet): (N, C) -> the same shape.

    A row of zeros stays.
    """

    rows = Rows.INDEPENDENT

    @classmethod
    def from_python(cls, context: LayerContext) -> UnitRows:
        """The layer that `python_param { module: "triplet.l2norm_layer" layer: "L2NormLayer" }` describes."""
        bottoms, tops = len(context.bottom_shapes), context.num_tops
        if bottoms != 1 or tops != 1:
            raise LayerError(f"L2NormLayer takes 1 bottom and 1 top, not {bottoms} and {tops}")
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 2:
            raise LayerError(f"L2NormLayer needs a bottom of 2 axes (N, C), not {shape}")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(bottom, dim=1, keepdim=True)
        return bottom / norm.where(norm != 0, 1)


def _channels(shape: Shape) -> int:
    if len(shape) < 2:
        raise LayerError(f"Normalize needs a bottom of at least 2 axes (N, C, ...), not {shape}")
    return shape[1]

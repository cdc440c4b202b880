"""BN of SegNet, PSPNet and BVLC's pull request 1965: normalization with a factor and a summand per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.netparam.bn import BNOptions, read_bn
from autodial.proto import messages as pb


@register("BN")
class BN(Layer):
    """slope * (x - mean) / sqrt(variance + eps) + bias (bn_layer.cpp of the forks): (N, C, ...) -> the same shape.

    In TRAIN with stored statistics, these become kept * old + (1 - kept) * new, with the biased variance. SegNet in its
    mode INFERENCE normalizes with nothing: its statistics are in the factors.

    Args:
        channels: C.
        options: of `read_bn`.
    """

    per_channel = True
    rows = Rows.NONE

    def __init__(self, channels: int, options: BNOptions) -> None:
        super().__init__()
        self.channels, self.how = channels, options
        shape = (1, channels, 1, 1)
        self.slope, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.mean: Tensor | None
        self.variance: Tensor | None
        self.register_buffer("mean", torch.zeros(shape) if options.stores else None)
        self.register_buffer("variance", torch.ones(shape) if options.stores else None)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> BN:
        param = context.param.bn_param
        options = read_bn(param)
        if options.foreign:
            raise LayerError(f"bn_param.{options.foreign[0]} is of another version of BN than the fields beside it")
        layer = cls(_channels(context.bottom_shapes[0]), options)
        for blob, name in zip((layer.slope, layer.bias), options.fillers, strict=True):
            fill(blob, getattr(param, name), context.generator)
        if options.uses[pb.TRAIN] == "batch" and layer.variance is not None:
            layer.variance.zero_()
        specs = context.param.param
        held = (*(() if options.learned else (0, 1)), *((2, 3) if options.stores else ()))
        for i in held:  # as the forks do, whatever the prototxt states
            while len(specs) <= i:
                specs.add()
            specs[i].lr_mult = specs[i].decay_mult = 0
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        stored = () if self.mean is None or self.variance is None else (self.mean, self.variance)
        return self.slope, self.bias, *stored

    @property
    def uses(self) -> str:
        """The statistics that a pass normalizes with: "batch", "stored" or "none"."""
        return self.how.uses[pb.TRAIN if self.training else pb.TEST]

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if _channels(shape) != self.channels:
            raise LayerError(f"bottom {shape} has {_channels(shape)} channels, the layer expects {self.channels}")
        if self.uses == "batch" and math.prod(shape) == self.channels:
            raise LayerError(f"bottom {shape} has one value per channel, too few for statistics of the batch")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        slope, bias = (blob.view(-1) if self.how.learned else blob.detach().view(-1) for blob in self.blobs[:2])
        along = (-1, *[1] * (bottom.ndim - 2))
        if self.uses == "none":
            return bottom * slope.view(along) + bias.view(along)
        if self.uses == "stored":
            assert self.mean is not None and self.variance is not None, "stored statistics are blobs"
            factor = slope * (self.variance.view(-1) + self.how.eps).rsqrt()
            return (bottom - self.mean.view(along)) * factor.view(along) + bias.view(along)
        mean, variance = torch.zeros_like(slope), torch.zeros_like(slope)
        cudnn = torch.backends.cudnn.enabled
        # With momentum 1, torch's running statistics are the batch's, the variance with m / (m - 1).
        top = torch.batch_norm(bottom, slope, bias, mean, variance, True, 1.0, self.how.eps, cudnn)
        if self.training and self.mean is not None and self.variance is not None:
            count = bottom.numel() // self.channels
            with torch.no_grad():
                for blob, new in ((self.mean, mean), (self.variance, variance * ((count - 1) / count))):
                    blob.mul_(self.how.kept).add_(new.view_as(blob), alpha=1 - self.how.kept)
        return top


def _channels(shape: Shape) -> int:
    if not 2 <= len(shape) <= 4:
        raise LayerError(f"BN needs a bottom of 2 to 4 axes (N, C, ...), not {shape}")
    return shape[1]

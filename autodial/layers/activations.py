"""Activation functions of Caffe and its forks: ReLU, NegReLU, ReLU6, PReLU, ELU, Sigmoid, TanH, BNLL, Swish, Clip,
Softmax; and Dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers.base import LayerContext, LayerError, Shape, canonical_axis, register
from autodial.layers.draws import Draws
from autodial.layers.elementwise import Elementwise
from autodial.layers.fillers import fill


@register("ReLU")
class ReLU(Elementwise):
    """max(x, 0) + negative_slope * min(x, 0) (relu_layer.cpp)."""

    backward_reads_bottoms = True

    def __init__(self, negative_slope: float = 0.0) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ReLU:
        return cls(context.param.relu_param.negative_slope)

    def forward(self, bottom: Tensor) -> Tensor:
        if self.negative_slope == 0:
            return F.relu(bottom)
        return F.leaky_relu(bottom, self.negative_slope)


@register("NegReLU")
class NegReLU(Elementwise):
    """min(x, 0) + negative_slope * max(x, 0) (neg_relu_layer.cpp of FlowNet 2.0); the slope is the gradient at 0."""

    options = ("relu_param",)
    backward_reads_bottoms = True

    def __init__(self, negative_slope: float = 0.0) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    @classmethod
    def from_caffe(cls, context: LayerContext) -> NegReLU:
        return cls(context.param.relu_param.negative_slope)

    def forward(self, bottom: Tensor) -> Tensor:
        return torch.where(bottom < 0, bottom, bottom * self.negative_slope)


@register("ReLU6")
class ReLU6(Elementwise):
    """min(max(x, 0) + negative_slope * min(x, 0), 6) (relu6_layer.cpp of MobileNet-YOLO); the gradient at 6 is 0."""

    backward_reads_bottoms = True

    def __init__(self, negative_slope: float = 0.0) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ReLU6:
        return cls(context.param.relu6_param.negative_slope)

    def forward(self, bottom: Tensor) -> Tensor:
        if self.negative_slope == 0:
            return F.relu6(bottom)
        return F.leaky_relu(bottom, self.negative_slope).masked_fill(bottom >= 6, 6)


@register("PReLU")
class PReLU(Elementwise):
    """max(x, 0) + slope * min(x, 0) with a learned slope (prelu_layer.cpp): (N, C, ...) -> the same shape.

    Args:
        channels: C, for a slope per channel, (C,); None for a single one, ().
    """

    per_channel = True
    backward_reads_bottoms = True

    def __init__(self, channels: int | None) -> None:
        super().__init__()
        self.channels = channels
        self.slope = nn.Parameter(torch.full(() if channels is None else (channels,), 0.25))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> PReLU:
        param = context.param.prelu_param
        layer = cls(None if param.channel_shared else _channels(context.bottom_shapes[0]))
        if param.HasField("filler"):
            fill(layer.slope, param.filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return (self.slope,)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        channels = _channels(shape)
        if self.channels not in (None, channels):
            raise LayerError(f"bottom {shape} has {channels} channels, the layer has {self.channels} slopes")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        return F.prelu(bottom, self.slope)


@register("ELU")
class ELU(Elementwise):
    """x where x > 0, else alpha * (exp(x) - 1) (elu_layer.cpp)."""

    backward_reads_bottoms = True

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ELU:
        return cls(context.param.elu_param.alpha)

    def forward(self, bottom: Tensor) -> Tensor:
        return F.elu(bottom, self.alpha)


@register("Sigmoid")
class Sigmoid(Elementwise):
    """1 / (1 + exp(-x)) (sigmoid_layer.cpp)."""

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Sigmoid:
        return cls()

    def forward(self, bottom: Tensor) -> Tensor:
        return bottom.sigmoid()


@register("TanH")
class TanH(Elementwise):
    """Hyperbolic tangent (tanh_layer.cpp)."""

    @classmethod
    def from_caffe(cls, context: LayerContext) -> TanH:
        return cls()

    def forward(self, bottom: Tensor) -> Tensor:
        return bottom.tanh()


@register("BNLL")
class BNLL(Elementwise):
    """log(1 + exp(x)), the binomial normal log likelihood (bnll_layer.cpp)."""

    backward_reads_bottoms = True

    @classmethod
    def from_caffe(cls, context: LayerContext) -> BNLL:
        return cls()

    def forward(self, bottom: Tensor) -> Tensor:
        return F.softplus(bottom, threshold=50)


@register("Swish")
class Swish(Elementwise):
    """x / (1 + exp(-beta x)) (swish_layer.cpp)."""

    backward_reads_bottoms = True

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Swish:
        return cls(context.param.swish_param.beta)

    def forward(self, bottom: Tensor) -> Tensor:
        return F.silu(bottom) if self.beta == 1 else bottom * (bottom * self.beta).sigmoid()


@register("Clip")
class Clip(Elementwise):
    """max(low, min(x, high)) (clip_layer.cpp), so that `low` wins where it is the larger one.

    The gradient is 1 at the bounds, too. It belongs to the bottom as it was before, in place as well.
    """

    backward_reads_bottoms = True

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Clip:
        param = context.param.clip_param
        for field in ("min", "max"):
            if not param.HasField(field):
                raise LayerError(f"clip_param.{field} is missing")
        return cls(param.min, param.max)

    def forward(self, bottom: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and bottom.requires_grad):
            return bottom.clamp(max=self.high).clamp(min=self.low)
        # what clamp's gradient is at the bounds differs among the versions of torch
        top = bottom.masked_fill(bottom > self.high, self.high)
        return top.masked_fill(top < self.low, self.low)


@register("BReLU")
class BReLU(Clip):
    """Clip by another name (brelu_layer.cpp); its options are `brelu_param`'s."""

    options = ("brelu_param",)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> BReLU:
        param = context.param.brelu_param
        for field in ("minval", "maxval"):
            if not param.HasField(field):
                raise LayerError(f"brelu_param.{field} is missing")
        if param.minval > param.maxval:
            raise LayerError(f"brelu_param.minval {param.minval:g} is above maxval {param.maxval:g}")
        return cls(param.minval, param.maxval)


@register("Dropout")
class Dropout(Elementwise):
    """In training, zeroes elements with probability `dropout_ratio` and divides the others by 1 - dropout_ratio
    (dropout_layer.cpp); in evaluation returns its input. Without `scale_train`, which Fast R-CNN's fork added, training
    does not divide, and evaluation multiplies by 1 - dropout_ratio.

    After `reseed(seed)` the masks are a function of the seed and the number of passes since; before the first
    reseed they come from torch's global generator.

    Args:
        dropout_ratio: in [0, 1).
        scale_train: whether training rather than evaluation keeps the mean of the values.
    """

    is_random = True
    fork_fields = ("dropout_param.scale_train",)

    def __init__(self, dropout_ratio: float = 0.5, *, scale_train: bool = True) -> None:
        super().__init__()
        if not 0 <= dropout_ratio < 1:
            raise LayerError(f"dropout_ratio must be in [0, 1), not {dropout_ratio:g}")
        self.dropout_ratio, self.scale_train = dropout_ratio, scale_train
        self._draws = Draws()

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Dropout:
        param = context.param.dropout_param
        return cls(param.dropout_ratio, scale_train=param.scale_train)

    def reseed(self, seed: int) -> None:
        self._draws.reseed(seed)

    def forward(self, bottom: Tensor) -> Tensor:
        kept = 1 - self.dropout_ratio
        if self.dropout_ratio == 0 or (not self.training and self.scale_train):
            return bottom
        if not self.training:
            return bottom * kept
        mask = self._draws.bernoulli(bottom, kept, self.shares)
        return bottom * (mask.div_(kept) if self.scale_train else mask)


@register("Softmax")
class Softmax(Elementwise):
    """exp(x) over the sum of exp(x) along `axis` (softmax_layer.cpp)."""

    full_precision = True
    reads_scores = True

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Softmax:
        return cls(context.param.softmax_param.axis)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        canonical_axis(self.axis, len(bottom_shapes[0]))
        return [bottom_shapes[0]]

    def forward(self, bottom: Tensor) -> Tensor:
        return F.softmax(bottom, self.axis)


def _channels(shape: Shape) -> int:
    if len(shape) < 2:
        raise LayerError(f"PReLU needs a bottom of at least 2 axes (N, C, ...), not {shape}")
    return shape[1]

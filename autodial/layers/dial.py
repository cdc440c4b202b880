"""Domain alignment (paper, section 3.1 and appendix A; Caffe layer `Dial` of the AutoDIAL fork)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Literal, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers import pairs
from autodial.layers.alignment import align
from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted

SOURCE, TARGET = 0, 1
"""Rows of the stored statistics."""


def _channels(shape: Sequence[int]) -> int:
    if not shape:
        raise LayerError("normalizes a batch and gets a single number")
    return shape[1] if len(shape) > 1 else 1


def _whole_number(name: str, value: SupportsIndex) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise LayerError(f"{name} must be a whole number, not {value!r}") from None


@register("Dial")
class DomainAlignment(Layer):
    """Domain alignment layer: batch normalization whose source and target statistics are mixed by a learned alpha.

    A training batch holds the source's samples first, the target's behind them. Per channel, the source is normalized
    with mean alpha * E_s[x] + (1 - alpha) * E_t[x] and the variance around it in the same proportions, the target with
    the mirrored ones (paper, equation 1 and appendix A). alpha = 0.5 aligns both with joint statistics, alpha = 1 with
    their own. There is no scale or shift. Moving sums of the mixed statistics are stored; in eval mode they replace
    the batch's, the whole batch is of one domain, and alpha takes no part.

    Input and output: (N, C, ...) float tensors. The backward pass takes the output, which must not be changed in place
    until then, and has no second derivatives.

    Args:
        num_features: C.
        slice_point: number of source samples at the head of a training batch; None: half of the batch, rounded down.
        alpha: initial value of the mixing parameter, clipped to [0.5, 1] in place at each training forward pass; its
            gradient is not masked by the clip.
        eps: added to variances.
        moving_average_fraction: what remains of the stored sums at each training forward pass.
        use_global_stats: whether to normalize with the stored statistics; None: in eval mode only.
        test_stats: the domain whose stored statistics are used.

    State: `alpha` (1,); `mean`, `variance` (2, C), row 0 source and row 1 target, moving sums, the variances' with a
    factor of m / (m - 1) for the m values per channel of both domains; `normalizer` (1,), the moving sum of ones that
    divides them (0: nothing stored yet, mean and variance count as 0). Where the layer is made bfloat16 or float16, the
    statistics stay as they are.

    Raises:
        LayerError: num_features or a slice_point that is no whole number, a slice_point below 1, a negative eps, an
            alpha that is NaN, a moving_average_fraction outside of [0, 1], or other test_stats than those two; a batch
            of whole numbers or of another number of channels, or a training batch without samples of both domains, or
            not of the pair's samples that an AutoDIAL is given.
    """

    statistics = (1, 2, 3)
    rows = Rows.STATISTICS
    per_channel = True
    paired: bool = False
    """Whether the layer belongs to an AutoDIAL, whose pairs say which samples come from the source."""
    alpha: nn.Parameter
    mean: Tensor
    variance: Tensor
    normalizer: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        slice_point: int | None = None,
        alpha: float = 1.0,
        eps: float = 1e-5,
        moving_average_fraction: float = 0.999,
        use_global_stats: bool | None = None,
        test_stats: Literal["source", "target"] = "target",
    ) -> None:
        super().__init__()
        num_features = _whole_number("num_features", num_features)
        if slice_point is not None and (slice_point := _whole_number("slice_point", slice_point)) < 1:
            raise LayerError(f"slice_point must be at least 1, or None for half of the batch, not {slice_point}")
        if test_stats not in ("source", "target"):
            raise LayerError(f'test_stats must be "source" or "target", not "{test_stats}"')
        if not eps >= 0:
            raise LayerError(f"eps must not be negative, and is {eps:g}")
        if math.isnan(alpha):
            raise LayerError("alpha must be a number, from 0.5 to 1, and is NaN")
        if not 0 <= moving_average_fraction <= 1:
            raise LayerError(f"moving_average_fraction must be from 0 to 1, and is {moving_average_fraction:g}")
        self.num_features = num_features
        self.slice_point = slice_point
        self.eps = eps
        self.moving_average_fraction = moving_average_fraction
        self.use_global_stats = use_global_stats
        self.test_stats = test_stats
        self.alpha = nn.Parameter(torch.full((1,), float(alpha)))
        self.register_buffer("mean", torch.zeros(2, num_features))
        self.register_buffer("variance", torch.zeros(2, num_features))
        self.register_buffer("normalizer", torch.zeros(1))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> DomainAlignment:
        p = context.param.dial_param
        shape = context.bottom_shapes[0]
        layer = cls(
            _channels(shape),
            eps=p.eps,
            moving_average_fraction=p.moving_average_fraction,
            use_global_stats=p.use_global_stats if p.HasField("use_global_stats") else None,
            test_stats="target" if p.test_stats == pb.DialParameter.TARGET else "source",
        )
        # Without a slice point, the batch at set-up decides; a later reshape doesn't move it. In TEST it may be any.
        layer.slice_point = p.slice_point if p.HasField("slice_point") and p.slice_point != -1 else shape[0] // 2
        fill(layer.alpha, p.weight_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return self.alpha, self.mean, self.variance, self.normalizer

    @property
    def mixing(self) -> float:
        """alpha as a forward pass uses it: clipped to [0.5, 1]."""
        return min(max(self.alpha.item(), 0.5), 1.0)

    @property
    def uses_stored(self) -> bool:
        """Whether a pass would normalize with the stored statistics rather than with the batch's."""
        return not self.training if self.use_global_stats is None else self.use_global_stats

    def source_samples(self, batch_size: int) -> int:
        """How many samples at the head of a training batch are the source's; LayerError if a domain has none."""
        slice_point = batch_size // 2 if self.slice_point is None else self.slice_point
        if batch_size < 2:
            raise LayerError(f"a batch of {batch_size} can't hold samples of both domains")
        if not 0 < slice_point < batch_size:
            raise LayerError(
                f"slice_point {slice_point} leaves a batch of {batch_size} without samples of both domains; "
                f"it must lie between 1 and {batch_size - 1}"
            )
        return slice_point

    def clip_alpha(self) -> None:
        """Clip alpha to [0.5, 1], as a training forward pass does first; in an AutoDIAL, before it runs its module."""
        with torch.no_grad():
            # To autograd `data` is no change: a compiled graph keeps alpha for its backward pass, and the next forward
            # pass may come before that. torch.export doesn't know it.
            (self.alpha if torch.compiler.is_exporting() else self.alpha.data).clamp_(0.5, 1)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (C,) that eval mode normalizes with: those of the domain `test_stats`."""
        row = TARGET if self.test_stats == "target" else SOURCE
        scale = torch.where(self.normalizer == 0, self.normalizer, self.normalizer.reciprocal())
        return self.mean[row] * scale, self.variance[row] * scale

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        self._check_channels(shape)
        if not self.uses_stored:
            self.source_samples(shape[0])
        return [tuple(shape)]

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x)

    def scaled(
        self, x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, *, relu: bool = False
    ) -> Tensor:
        """`forward`, times `scale`, plus `bias` ((C,), either may be None), negative values as 0 if `relu`.

        It takes fewer passes over the data than these steps one by one, and less memory for the backward pass.
        """
        self._check_channels(x.shape)
        if not x.is_floating_point():
            raise LayerError(f"normalizes floating-point numbers and gets {x.dtype}: convert them, as with x.float()")
        if x.dim() == 1:
            return self.scaled(x.unsqueeze(1), scale, bias, relu=relu).squeeze(1)
        if self.uses_stored:
            mean, variance = self.stored()
            scale, bias = (row if row is None else row.to(mean.dtype) for row in (scale, bias))
            y = F.batch_norm(x, mean, variance, scale, bias, eps=self.eps)
            return F.relu(y) if relu else y
        samples = self.whole(x.shape[0])
        slice_point = self._paired_samples(samples) if self.paired else None
        if slice_point is None:
            slice_point = self.source_samples(samples)
            self.clip_alpha()
        y, mean, var = align(x, self.alpha, slice_point, self.eps, scale, bias, relu=relu, shares=self.shares)
        self._store(mean, var, self.whole(x.numel() // self.num_features))
        return y

    def extra_repr(self) -> str:
        fields = ("slice_point", "eps", "moving_average_fraction", "use_global_stats", "test_stats")
        return ", ".join([str(self.num_features), *(f"{field}={getattr(self, field)}" for field in fields)])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DomainAlignment:
        """What torch converts and moves layers with."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.dtype in (torch.bfloat16, torch.float16):  # a moving sum would stop where its steps round away
                setattr(self, name, before[name].to(buffer.device))
        return self

    def _paired_samples(self, batch_size: int) -> int | None:
        """`source_samples` from the AutoDIAL's pair that made the batch; None if no pair did."""
        pair, layer = pairs.current(), f"{type(self).__name__} of {counted(self.num_features, 'channel')}"
        if pair is not None:
            if batch_size != sum(pair):
                raise LayerError(
                    f"{layer} gets a batch of {batch_size} where source and target together are {sum(pair)}: keep the "
                    "samples along the first axis, and merge that axis with no other, so that the two domains can be "
                    "told apart"
                )
            return pair.source
        if pairs.evaluated() is not None:
            raise LayerError(
                f"{layer} is run again in a backward pass, and can't know for which pair: set use_reentrant=False in "
                "every checkpoint that is inside another one"
            )
        if self.slice_point is None:
            raise LayerError(
                f"{layer} belongs to an AutoDIAL, and in training mode it gets a batch of {batch_size} that the "
                "AutoDIAL did not make of a pair (it comes from another caller, a thread, or a checkpoint around "
                "compiled layers): call the AutoDIAL with a source and a target, compile checkpoints too, or set the "
                "layer's slice_point"
            )
        return None

    def _check_channels(self, shape: Sequence[int]) -> None:
        if _channels(shape) != self.num_features:
            raise LayerError(
                f"was built for {counted(self.num_features, 'channel')} and gets a blob of shape {tuple(shape)}"
            )

    @torch.no_grad()
    def _store(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Add batch statistics of `count` elements per channel, source and target together, to the moving sums."""
        fraction = self.moving_average_fraction
        self.mean.mul_(fraction).add_(mean)
        self.variance.mul_(fraction).add_(var, alpha=count / (count - 1) if count > 1 else 1.0)
        self.normalizer.mul_(fraction).add_(1)

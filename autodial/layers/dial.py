"""Domain alignment (paper, section 3.1 and appendix A; Caffe layer `Dial` of the AutoDIAL fork)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import SupportsIndex, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.layers import pairs
from autodial.layers.alignment import align
from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted


def _channels(shape: Sequence[int]) -> int:
    if not shape:
        raise LayerError("normalizes a batch and gets a single number")
    return shape[1] if len(shape) > 1 else 1


DomainName: TypeAlias = str
"""Whose statistics: "target" or "source", with several sources "target", "source 1", "source 2" and so on."""


@cache
def domain_names(sources: int) -> tuple[DomainName, ...]:
    """The domains by row of a layer's statistics."""
    return (*(["source"] if sources == 1 else (f"source {i + 1}" for i in range(sources))), "target")


def _row(sources: int, domain: DomainName) -> int:
    """The row of a domain's statistics; LayerError if there is no such domain."""
    names = domain_names(sources)
    if domain not in names:
        quoted = [f'"{name}"' for name in names]
        raise LayerError(f'test_stats must be {", ".join(quoted[:-1])} or {quoted[-1]}, not "{domain}"')
    return names.index(domain)


def _check_sources(sources: int, points: Sequence[int], slice_point: int | None) -> None:
    """Raise LayerError unless each source begins behind the one before it and before the target."""
    if points and len(points) != sources - 1:
        raise LayerError(
            f"source_slice_point must have {counted(sources - 1, 'number')}, where the second and later of {sources} "
            f"sources begin, and has {len(points)}"
        )
    ends = () if slice_point is None else (slice_point,)
    if points and any(start >= end for start, end in pairwise((0, *points, *ends))):
        limit = "" if slice_point is None else f", below slice_point {slice_point}"
        raise LayerError(
            f"source_slice_point must have ascending numbers from 1{limit}, and is {', '.join(map(str, points))}"
        )


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

    With several sources, each source and the target have statistics of their own. A domain is normalized with a
    mixture of all D domains in which its own has the weight alpha and each other one (1 - alpha) / (D - 1): alpha = 1
    / D, the least, aligns all of them with joint statistics, alpha = 1 each with its own (`autodial.layers.alignment`).
    The paper has one source, for which this is the same.

    Input and output: (N, C, ...) float tensors. The backward pass takes the output, which must not be changed in place
    until then, and has no second derivatives.

    Args:
        num_features: C.
        slice_point: number of source samples at the head of a training batch, all sources' together; None: half of
            the batch, rounded down, or with several sources their part of as many equal ones as there are domains.
        sources: number of sources.
        source_slice_point: the samples at which the second and later sources begin; (): equal parts of the source
            samples, rounded down.
        alpha: initial value of the mixing parameter, clipped to [1 / D, 1], with one source [0.5, 1], in place at each
            training forward pass; its gradient is not masked by the clip.
        eps: added to variances.
        moving_average_fraction: what remains of the stored sums at each training forward pass.
        use_global_stats: whether to normalize with the stored statistics; None: in eval mode only.
        test_stats: the domain whose stored statistics are used: "target" or "source"; with several sources "target",
            "source 1", "source 2" and so on.

    State: `alpha` (1,); `mean`, `variance` (D, C), a row for each source and the last for the target, moving sums, the
    variances' with a factor of m / (m - 1) for the m values per channel of all domains; `normalizer` (1,), the moving
    sum of ones that divides them (0: nothing stored yet, mean and variance count as 0). Where the layer is made
    bfloat16 or float16, the statistics stay as they are.

    Raises:
        LayerError: num_features, sources or a slice_point that is no whole number, or is below 1, a source_slice_point
            that does not ascend, of another number of sources, or beyond slice_point, a negative eps, an alpha that is
            NaN, a moving_average_fraction outside of [0, 1], or other test_stats than those two; a batch of whole
            numbers or of another number of channels, or a training batch without samples of every domain, or not of
            the pair's samples that an AutoDIAL is given.
    """

    statistics = (1, 2, 3)
    rows = Rows.STATISTICS
    per_channel = True
    fork_fields = ("dial_param.source_slice_point",)
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
        sources: int = 1,
        source_slice_point: Sequence[int] = (),
        alpha: float = 1.0,
        eps: float = 1e-5,
        moving_average_fraction: float = 0.999,
        use_global_stats: bool | None = None,
        test_stats: DomainName = "target",
    ) -> None:
        super().__init__()
        num_features = _whole_number("num_features", num_features)
        if slice_point is not None and (slice_point := _whole_number("slice_point", slice_point)) < 1:
            raise LayerError(f"slice_point must be at least 1, or None for half of the batch, not {slice_point}")
        sources = _whole_number("sources", sources)
        if sources < 1:
            raise LayerError(f"sources must be at least 1, and is {sources}")
        points = tuple(_whole_number("source_slice_point", point) for point in source_slice_point)
        _check_sources(sources, points, slice_point)
        _row(sources, test_stats)
        if not eps >= 0:
            raise LayerError(f"eps must not be negative, and is {eps:g}")
        if math.isnan(alpha):
            raise LayerError(f"alpha must be a number, from {1 / (1 + sources):.3g} to 1, and is NaN")
        if not 0 <= moving_average_fraction <= 1:
            raise LayerError(f"moving_average_fraction must be from 0 to 1, and is {moving_average_fraction:g}")
        self.num_features = num_features
        self.slice_point = slice_point
        self.sources = sources
        self.source_slice_point = points
        self.eps = eps
        self.moving_average_fraction = moving_average_fraction
        self.use_global_stats = use_global_stats
        self.test_stats = test_stats
        self.alpha = nn.Parameter(torch.full((1,), float(alpha)))
        shape = check_size("the statistics", (sources + 1, num_features))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.zeros(shape))
        self.register_buffer("normalizer", torch.zeros(1))

    @classmethod
    def from_caffe(cls, context: LayerContext) -> DomainAlignment:
        p = context.param.dial_param
        shape = context.bottom_shapes[0]
        # Without a slice point, the batch at set-up decides; a later reshape doesn't move it. In TEST it may be any.
        stated = p.HasField("slice_point") and p.slice_point != -1
        sources, points = 1 + len(p.source_slice_point), tuple(p.source_slice_point)
        slice_point = p.slice_point if stated else shape[0] * sources // (sources + 1)
        _check_sources(sources, points, slice_point if stated else None)
        if sources > 1 and p.test_stats != pb.DialParameter.TARGET:
            raise LayerError(f"has {sources} sources, and test_stats: SOURCE does not say which: leave it out")
        layer = cls(
            _channels(shape),
            sources=sources,
            eps=p.eps,
            moving_average_fraction=p.moving_average_fraction,
            use_global_stats=p.use_global_stats if p.HasField("use_global_stats") else None,
            test_stats="target" if p.test_stats == pb.DialParameter.TARGET else "source",
        )
        layer.slice_point, layer.source_slice_point = slice_point, points
        fill(layer.alpha, p.weight_filler, context.generator)
        return layer

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return self.alpha, self.mean, self.variance, self.normalizer

    @property
    def mixing(self) -> float:
        """alpha as a forward pass uses it: clipped to [1 / D, 1] for D domains, [0.5, 1] for a source and a target."""
        return min(max(self.alpha.item(), 1 / (1 + self.sources)), 1.0)

    @property
    def uses_stored(self) -> bool:
        """Whether a pass would normalize with the stored statistics rather than with the batch's."""
        return not self.training if self.use_global_stats is None else self.use_global_stats

    def points(self, batch_size: int) -> tuple[int, ...]:
        """The samples of a training batch at which the second and later domains begin; the last is the target's.

        Raises:
            LayerError: a domain has no sample.
        """
        domains = self.sources + 1
        slice_point = batch_size * self.sources // domains if self.slice_point is None else self.slice_point
        if batch_size < domains:
            raise LayerError(
                f"a batch of {batch_size} can't hold samples of {'both' if domains == 2 else f'all {domains}'} domains"
            )
        if not 0 < slice_point < batch_size:
            raise LayerError(
                f"slice_point {slice_point} leaves a batch of {batch_size} without samples of both domains; "
                f"it must lie between 1 and {batch_size - 1}"
            )
        inner = self.source_slice_point or tuple(slice_point * i // self.sources for i in range(1, self.sources))
        points = (*inner, slice_point)
        if any(start >= end for start, end in pairwise((0, *points))):
            raise LayerError(
                f"{counted(slice_point, 'source sample')} can't be split at {', '.join(map(str, inner))}: each of the "
                f"{self.sources} sources needs one or more"
            )
        return points

    def clip_alpha(self) -> None:
        """Clip alpha to [1 / D, 1], as a training pass does first; in an AutoDIAL, before it runs its module."""
        with torch.no_grad():
            # To autograd `data` is no change: a compiled graph keeps alpha for its backward pass, and the next forward
            # pass may come before that. torch.export doesn't know it.
            alpha = self.alpha if torch.compiler.is_exporting() else self.alpha.data
            alpha.clamp_(1 / (1 + self.sources), 1)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (C,) that eval mode normalizes with: those of the domain `test_stats`."""
        row = self.row
        scale = torch.where(self.normalizer == 0, self.normalizer, self.normalizer.reciprocal())
        return self.mean[row] * scale, self.variance[row] * scale

    @property
    def row(self) -> int:
        """The row of the stored statistics that `test_stats` names."""
        return _row(self.sources, self.test_stats)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        self._check_channels(shape)
        if not self.uses_stored:
            self.points(shape[0])
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
        points = self._paired_points(samples) if self.paired else None
        if points is None:
            points = self.points(samples)
            self.clip_alpha()
        y, mean, var = align(x, self.alpha, points, self.eps, scale, bias, relu=relu, shares=self.shares)
        self._store(mean, var, self.whole(x.numel() // self.num_features))
        return y

    def extra_repr(self) -> str:
        several = ("sources", "source_slice_point") if self.sources > 1 else ()
        fields = ("slice_point", *several, "eps", "moving_average_fraction", "use_global_stats", "test_stats")
        return ", ".join([str(self.num_features), *(f"{field}={getattr(self, field)}" for field in fields)])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DomainAlignment:
        """What torch converts and moves layers with."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.dtype in (torch.bfloat16, torch.float16):  # a moving sum would stop where its steps round away
                setattr(self, name, before[name].to(buffer.device))
        return self

    def _paired_points(self, batch_size: int) -> tuple[int, ...] | None:
        """`points` from the AutoDIAL's pair that made the batch; None if no pair did."""
        pair, layer = pairs.current(), f"{type(self).__name__} of {counted(self.num_features, 'channel')}"
        if pair is not None:
            if batch_size != sum(pair):
                raise LayerError(
                    f"{layer} gets a batch of {batch_size} where source and target together are {sum(pair)}: keep the "
                    "samples along the first axis, and merge that axis with no other, so that the two domains can be "
                    "told apart"
                )
            return tuple(accumulate(pair[:-1]))
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

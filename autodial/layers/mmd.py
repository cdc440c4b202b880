"""MMDLoss and JMMDLoss of Xlearn: maximum mean discrepancies over random pairs (DAN, ICML 2015; JAN, ICML 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows


class Quadruples(NamedTuple):
    """Rows that are compared, int64 (q,) each: two of the source and two of the target."""

    s1: Tensor
    s2: Tensor
    t1: Tensor
    t2: Tensor


def draw_quadruples(source_rows: int, target_rows: int, generator: torch.Generator | None = None) -> Quadruples:
    """max(source_rows, target_rows) quadruples, drawn with replacement as Xlearn draws them.

    Both rows of a domain are uniform; where they are the same row, the second is the row behind it (the first row
    behind the last one). So a row meets its successor twice as often as any other.

    Args:
        source_rows, target_rows: at least 1.
        generator: on the CPU; None: torch's global one.
    """
    count = max(source_rows, target_rows)
    pairs = [_draw_pairs(count, rows, generator) for rows in (source_rows, target_rows)]
    return Quadruples(*pairs[0], *pairs[1])


def _draw_pairs(count: int, rows: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    first, second = torch.randint(rows, (2, count), generator=generator)
    return first, torch.where(first == second, (second + 1) % rows, second)


def bandwidth(rows: Tensor) -> Tensor:
    """1 / the mean squared distance of two different rows of (n, d), a scalar."""
    count = len(rows)
    # The squared distances of all ordered pairs add up to 2 n times the squared distances from the mean.
    return (count - 1) / (2 * (rows - rows.mean(0)).square().sum())


def mmd_sum(source: Tensor, target: Tensor, quadruples: Quadruples, gammas: Sequence[Tensor]) -> Tensor:
    """Sum over the quadruples of K(s1, s2) + K(t1, t2) - K(s1, t2) - K(s2, t1), a scalar.

    Args:
        source, target: rows (n, d) and (m, d).
        quadruples: on the same device.
        gammas: of the Gaussian kernels exp(-gamma |a - b|^2), which K sums.
    """
    s1, s2, t1, t2 = source[quadruples.s1], source[quadruples.s2], target[quadruples.t1], target[quadruples.t2]
    return sum(  # type: ignore[return-value]
        sign * _gaussians((a - b).square().sum(1), gammas).sum()
        for a, b, sign in ((s1, s2, 1), (t1, t2, 1), (s1, t2, -1), (t1, s2, -1))
    )


def jmmd_sum(
    sources: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    quadruples: Quadruples,
    gammas: Sequence[Tensor],
    sigma: Tensor | float,
    label_factors: Sequence[float],
) -> Tensor:
    """`mmd_sum` with K times a kernel L of the labels' rows: only its gradient is Xlearn's, whatever its value.

    L sums exp(-|y - y'|^2 / (sigma factor)). As in Xlearn, the gradient by the labels' rows takes sigma alone for what
    stands before each exponential, so that with several label kernels it is not the derivative.

    Args:
        sources, targets: rows of features and rows of labels, (n, d) and (n, k), (m, d) and (m, k).
        quadruples, gammas: as in `mmd_sum`.
        sigma: bandwidth of the labels' kernels.
        label_factors: multiples of sigma, one per label kernel.
    """
    rows = []
    for source, target in zip(sources, targets, strict=True):
        rows.append((source[quadruples.s1], source[quadruples.s2], target[quadruples.t1], target[quadruples.t2]))
    total: Tensor | float = 0.0
    for i, j, sign in ((0, 1, 1), (2, 3, 1), (0, 3, -1), (2, 1, -1)):
        distance, label_distance = ((part[i] - part[j]).square().sum(1) for part in rows)
        kernel = _gaussians(distance, gammas)
        label_kernel = _gaussians(label_distance.detach(), [1 / (sigma * factor) for factor in label_factors])
        by_labels = kernel.detach() * label_kernel * (-label_distance / sigma)
        total = total + sign * (kernel * label_kernel + by_labels).sum()
    assert isinstance(total, Tensor)
    return total


def _gaussians(distance: Tensor, gammas: Sequence[Tensor | float]) -> Tensor:
    return torch.stack([(-gamma * distance).exp() for gamma in gammas]).sum(0)


class _PairLoss(Layer):
    """What the two losses share: the kernels' bandwidth and the draws.

    After `reseed(seed)` the draws are a function of the seed and the number of passes since; before the first reseed
    they come from torch's global generator.

    Args:
        kernel_num: number of Gaussian kernels, at least 1.
        kernel_mul: ratio of one kernel's gamma to the one before it.
        fix_gamma: whether the first pass's gamma is kept. Snapshots don't hold it.
    """

    is_loss = True
    is_random = True
    rows = Rows.NONE
    backward_reads_bottoms = True

    def __init__(self, *, kernel_num: int = 5, kernel_mul: float = 2.0, fix_gamma: bool = False) -> None:
        super().__init__()
        if kernel_num < 1:
            raise LayerError("kernel_num must be at least 1, and is 0")
        self.kernel_num, self.kernel_mul, self.fix_gamma = kernel_num, kernel_mul, fix_gamma
        self._gamma: Tensor | None = None
        self._generator: torch.Generator | None = None

    def reseed(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        for source, target in zip(bottom_shapes[::2], bottom_shapes[1::2], strict=True):
            if not source or not target or math.prod(source[1:]) != math.prod(target[1:]):
                raise LayerError(f"bottoms {source} and {target} must be rows of as many values")
        return [()]

    def _gammas(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Each kernel's gamma: kernel_mul^i times that of all rows together, for i around 0."""
        gamma = self._gamma
        if gamma is None:
            gamma = bandwidth(torch.cat((source, target)).detach())
            if self.fix_gamma:
                self._gamma = gamma
        return [gamma * self.kernel_mul ** (i - self.kernel_num // 2) for i in range(self.kernel_num)]

    def _draw(self, source: Tensor, target: Tensor) -> Quadruples:
        drawn = draw_quadruples(len(source), len(target), self._generator)
        return Quadruples(*(rows.to(source.device) for rows in drawn))


@register("MMDLoss")
class MMDLoss(_PairLoss):
    """Multi-kernel maximum mean discrepancy of source and target over random pairs (mmd_layer.cu of Xlearn).

    Bottoms: source (n, ...) and target (m, ...), rows of as many values. Top: a scalar, the sum over q = max(n, m)
    random quadruples (`mmd_sum`), which may be negative. Its gradient is that of the sum over q quadruples of their
    own, divided by q. The kernels' gammas are constant in it. A domain of a single row gives no gradient.

    Kernel i of kernel_num has gamma kernel_mul^(i - floor(kernel_num / 2)) / (mean squared distance of two rows).
    """

    bottoms = (2, 2)
    options = ("mmd_param",)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> MMDLoss:
        param = context.param.mmd_param
        return cls(kernel_num=param.kernel_num, kernel_mul=param.kernel_mul, fix_gamma=param.fix_gamma)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source, target = _as_rows(source), _as_rows(target)
        gammas = self._gammas(source, target)
        printed = mmd_sum(source.detach(), target.detach(), self._draw(source, target), gammas)
        quadruples = self._draw(source, target)
        if min(len(source), len(target)) < 2:
            return printed + _nothing(source, target)
        mean = mmd_sum(source, target, quadruples, gammas) / len(quadruples.s1)
        # The last term is 0, and has the gradient.
        return printed + (mean - mean.detach())


@register("JMMDLoss")
class JMMDLoss(_PairLoss):
    """Joint maximum mean discrepancy of features and predictions over random pairs (jmmd_layer.cu of Xlearn).

    Bottoms: source and target features, (n, ...) and (m, ...), source and target predictions, likewise. Tops: a scalar
    that is always 0, as in Xlearn, and which has the gradient (`jmmd_sum` over q = max(n, m) random quadruples, divided
    by q); a second top is 0, too. The kernels' bandwidths are constant in the gradient. A domain of a single row gives
    none.

    Args:
        sigma: bandwidth of the predictions' kernels, above 0; None: in each pass the mean squared distance of as many
            random pairs of predictions as there are rows.
        label_kernel_num: number of kernels of the predictions, at least 1.
        label_kernel_mul: ratio of one such kernel's bandwidth to the one before it.
    """

    bottoms = (4, 4)
    tops = (1, 2)
    options = ("jmmd_param",)

    def __init__(
        self,
        *,
        kernel_num: int = 5,
        kernel_mul: float = 2.0,
        fix_gamma: bool = False,
        sigma: float | None = None,
        label_kernel_num: int = 5,
        label_kernel_mul: float = 2.0,
        num_tops: int = 1,
    ) -> None:
        super().__init__(kernel_num=kernel_num, kernel_mul=kernel_mul, fix_gamma=fix_gamma)
        if sigma is not None and sigma <= 0:
            raise LayerError(f"sigma must be above 0, and is {sigma:g}: give it, or set auto_sigma")
        if label_kernel_num < 1:
            raise LayerError("label_kernel_num must be at least 1, and is 0")
        self.sigma, self.num_tops = sigma, num_tops
        self.label_factors = [label_kernel_mul ** (j - label_kernel_num // 2) for j in range(label_kernel_num)]

    @classmethod
    def from_caffe(cls, context: LayerContext) -> JMMDLoss:
        param = context.param.jmmd_param
        return cls(
            kernel_num=param.kernel_num,
            kernel_mul=param.kernel_mul,
            fix_gamma=param.fix_gamma,
            sigma=None if param.auto_sigma else param.sigma,
            label_kernel_num=param.label_kernel_num,
            label_kernel_mul=param.label_kernel_mul,
            num_tops=context.num_tops,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        super().top_shapes(bottom_shapes)
        for features, predictions in zip(bottom_shapes[:2], bottom_shapes[2:], strict=True):
            if features[0] != predictions[0]:
                raise LayerError(f"features {features} and predictions {predictions} must have the same number of rows")
        return [()] * self.num_tops

    def forward(
        self, source: Tensor, target: Tensor, source_labels: Tensor, target_labels: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        sources = _as_rows(source), _as_rows(source_labels)
        targets = _as_rows(target), _as_rows(target_labels)
        gammas = self._gammas(sources[0], targets[0])
        sigma = self._sigma(sources[1], targets[1]) if self.sigma is None else self.sigma
        quadruples = self._draw(sources[0], targets[0])
        if min(len(source), len(target)) < 2:
            top = _nothing(*sources, *targets)
        else:
            mean = jmmd_sum(sources, targets, quadruples, gammas, sigma, self.label_factors) / len(quadruples.s1)
            top = mean - mean.detach()
        return top if self.num_tops == 1 else (top, torch.zeros_like(top))

    def _sigma(self, source: Tensor, target: Tensor) -> Tensor:
        rows = torch.cat((source, target)).detach()
        first, second = (drawn.to(rows.device) for drawn in _draw_pairs(len(rows), len(rows), self._generator))
        return (rows[first] - rows[second]).square().sum(1).mean()


def _as_rows(blob: Tensor) -> Tensor:
    return blob.reshape(blob.shape[0], -1)


def _nothing(*bottoms: Tensor) -> Tensor:
    """0, with a gradient of 0."""
    return torch.stack([bottom.sum() * 0 for bottom in bottoms]).sum()

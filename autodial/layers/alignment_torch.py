"""Domain alignment by torch's own operations: what `alignment` does with a batch wherever torch runs.

What works on whole blobs are torch's batch normalization kernels, several times faster on the CPU than reductions and
broadcasts; the rest are rows of C numbers, in as few operations as there can be. `n` is the number of the source's
rows, which come first; with several sources, the rows at which the second and later domains begin. Of D domains the
target is the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

_aten = torch.ops.aten


Points = int | tuple[int, ...]
"""Rows at which the second and later domains begin; a number is such a row alone."""
Pairs = Sequence[Sequence[Tensor]]
"""Two rows of C numbers for each domain, the target's last; a (D, 2, C) tensor is such, too."""


class Mixed(NamedTuple):
    """What predictors normalize with: (D, C), the target's row last, of the statistics' dtype."""

    mean: Tensor
    variance: Tensor
    inv_std: Tensor
    """1 / sqrt(variance + eps)"""
    gaps: Tensor
    """How the domains differ in mean and variance: here (D, 2, C), from the average of all domains; in kernels for two
    domains (2, C), how much larger the source's mean and variance are."""
    alpha: Tensor | float
    """A copy, as the layer clips it in place at its next pass; a number where that takes no waiting."""
    eps: float


class Gradients(NamedTuple):
    """By alpha, one element; by scale and bias, (C,) each, or None where there was neither and no ReLU."""

    alpha: Tensor
    scale: Tensor | None
    bias: Tensor | None


class Coefficients(NamedTuple):
    """Of the input's gradient, slope * grad + constant + factor * (saved - shift): (D, C) each, a row per domain."""

    slope: Tensor
    constant: Tensor
    factor: Tensor


def dense(x: Tensor) -> Tensor:
    """x in an order in memory that the functions below take: any."""
    return x


def moments(x: Tensor, n: Points) -> Pairs:
    """Mean and biased variance of each domain."""
    return [moments_of(part) for part in parts_of(x, n)]


def stacked(pairs: Pairs) -> Tensor:
    """As one tensor, (D, 2, C)."""
    return pairs if isinstance(pairs, Tensor) else torch.stack([torch.stack(list(pair)) for pair in pairs])


def mix(moments: Pairs, alpha: Tensor, eps: float) -> Mixed:
    """All predictors' statistics, from what `moments` gives and one-element alpha (the formulas are in `align`)."""
    domains = stacked(moments)
    alpha = alpha.reshape(()).to(domains.dtype, copy=True)
    # from differences, which are exact where domains are close to each other and far from 0
    gaps = (domains.unsqueeze(1) - domains).mean(1)
    other, rest, own = _shares_of(alpha, len(domains))
    mean, variance = (domains - rest * gaps).unbind(1)
    between = gaps[:, 0].square()
    variance = variance + other * between.sum(0) + (own * rest) * between
    return Mixed(mean, variance, (variance + eps).rsqrt_(), gaps, alpha, eps)


def _shares_of(alpha: Tensor, domains: int) -> tuple[Tensor, Tensor, Tensor]:
    """beta, the weight of each other domain in a predictor; domains * beta; and 1 minus that.

    A predictor's mean lies between the average of all domains and its own domain's, at the last of these.
    """
    other = (1 - alpha) / (domains - 1)
    rest = domains * other
    return other, rest, 1 - rest


def normalize(x: Tensor, n: Points, mixed: Mixed, scale: Tensor | None, bias: Tensor | None, *, relu: bool) -> Tensor:
    """All domains normalized, times `scale`, plus `bias` ((C,)), negative results as 0 if `relu`; like x."""
    mean, variance = mixed.mean, mixed.variance
    scale, bias = (row if row is None else row.to(mean.dtype) for row in (scale, bias))
    y = torch.empty_like(x)
    for part, out, m, v in zip(parts_of(x, n), parts_of(y, n), mean, variance, strict=True):
        normalize_into(part, m, v, scale, bias, mixed.eps, out)
    return y.relu_() if relu else y


def prepared(grad: Tensor, saved: Tensor, positive: Tensor | None) -> Tensor:
    """The output's gradient as the functions below take it.

    Args:
        saved: what else they take: the input, or the output where it is the normalized values.
        positive: like saved; where it is 0 or less, the gradient is 0.
    """
    return grad if positive is None else _aten.threshold_backward(grad, positive, 0)


def grad_sums(
    grad: Tensor,
    saved: Tensor,
    n: Points,
    shift: Sequence[Tensor] | None,
    factor: Sequence[Tensor] | None,
    positive: Tensor | None,
) -> Pairs:
    """The sums of grad and of grad * (saved - shift) * factor over each domain.

    shift and factor are a row for each domain, and None leaves them out; grad and positive are `prepared`'s.
    """
    if shift is None or factor is None:
        ones = torch.ones(saved.shape[1], dtype=torch.promote_types(saved.dtype, torch.float32), device=saved.device)
        domains = 2 if isinstance(n, int) else len(n) + 1
        shift, factor = [torch.zeros_like(ones)] * domains, [ones] * domains
    return list(map(grad_sums_of, parts_of(grad, n), parts_of(saved, n), shift, factor))


def coefficients(
    sums: Pairs, whole: Pairs, mixed: Mixed, scale: Tensor | None, counts: Sequence[int], *, shifted: bool
) -> tuple[Gradients, Coefficients]:
    """Gradients by alpha, scale and bias, and what the input's is made of (paper, appendix A).

    Args:
        sums: `grad_sums` of the rows that are here, which these gradients are of.
        whole: those of the whole batch; the same tensor, if it is here.
        mixed: what the forward pass normalized with.
        scale: (C,).
        counts: values per channel of the whole batch's domains.
        shifted: whether `grad_sums` had a shift: what is saved is not the normalized values.
    """
    local = stacked(sums)
    inv_std, gaps = mixed.inv_std, mixed.gaps
    domains = len(gaps)
    other, _, own = _shares_of(torch.as_tensor(mixed.alpha, device=gaps.device), domains)
    slope = inv_std if scale is None else inv_std * scale.to(inv_std.dtype)
    # the loss's derivatives, times -1 and -2, by each predictor's mean, in which its variance is stationary, and by
    # its variance
    derivatives = _by_moments(local, slope, inv_std)
    gap, gap_of_variances = gaps.unbind(1)
    # what alpha moves: other by -1 / (domains - 1), own by domains / (domains - 1)
    between = gap.square()
    moved = domains * (gap_of_variances + (1 - 2 * own) * between) - between.sum(0)
    by_mean, by_variance = derivatives.unbind(1)
    grad_alpha = (by_mean * gap).sum() * domains + (by_variance * moved).sum() / 2
    grad_alpha = (grad_alpha / (1 - domains)).reshape(1)
    grad_bias, grad_scale = local.sum(0).unbind() if shifted else (None, None)

    # Of domain d's samples, x - (mean of d's predictor) = normalized / inv_std[d], and the domain's own mean lies
    # rest * gap beside that of its predictor: the gradient is slope * grad - (constant + factor * normalized) / count.
    if whole is not sums:
        derivatives = _by_moments(stacked(whole), slope, inv_std)
    total = derivatives.sum(0)
    rows = other * total + own * derivatives
    constant, factor = rows.unbind(1)
    crossed = (derivatives[:, 1] * gap).sum(0)
    constant = constant + (own * other) * (gap * total[1] - crossed)
    if not shifted:
        factor = factor / inv_std
    count = torch.tensor([[-1 / count] for count in counts], dtype=rows.dtype, device=rows.device)
    return Gradients(grad_alpha, grad_scale, grad_bias), Coefficients(slope, constant * count, factor * count)


def input_grad(
    grad: Tensor, saved: Tensor, n: Points, coefficients: Coefficients, shift: Tensor | None, positive: Tensor | None
) -> Tensor:
    """slope * grad + constant + factor * (saved - shift), like saved; shift and the rest as in `grad_sums`."""
    slope, constant, factor = coefficients
    if torch.compiler.is_compiling():
        return _input_grad_in_one(grad, saved, n, coefficients, shift)
    factor = factor.to(saved.dtype)
    if shift is not None:
        constant = torch.addcmul(constant, factor, shift, value=-1)
    grad_x = torch.empty_like(saved) if positive is None else grad  # `prepared`'s own copy
    rows = slope, constant, factor.view(len(factor), -1, *[1] * (saved.dim() - 2))
    blobs = (parts_of(blob, n) for blob in (grad, saved, grad_x))
    for g, part, out, a, b, c in zip(*blobs, *rows, strict=True):
        normalize_into(g, torch.zeros_like(a), torch.ones_like(a), a, b, 0.0, out)
        out.addcmul_(part, c)
    return grad_x


def _input_grad_in_one(
    grad: Tensor, saved: Tensor, n: Points, coefficients: Coefficients, shift: Tensor | None
) -> Tensor:
    """`input_grad` as one expression: of writes into parts torch 2.14's inductor makes wrong code for small shapes."""
    positions = [1] * (saved.dim() - 2)
    samples = torch.arange(saved.shape[0], device=saved.device).view(-1, 1, *positions)
    points = (n,) if isinstance(n, int) else n

    def of_samples(rows: Tensor) -> Tensor:
        first, *others = rows.view(len(rows), -1, *positions).unbind()
        for point, row in zip(points, others, strict=True):
            first = torch.where(samples < point, first, row)
        return first

    slope, constant, factor = map(of_samples, coefficients)
    centred = saved if shift is None else saved - of_samples(shift)
    return (slope * grad + constant + factor * centred).to(saved.dtype)


def parts_of(x: Tensor, n: Points) -> tuple[Tensor, ...]:
    """The domains' samples."""
    if isinstance(n, int):
        return x.split_with_sizes((n, x.shape[0] - n))
    return x.split_with_sizes([end - start for start, end in pairwise((0, *n, x.shape[0]))])


def _by_moments(sums: Tensor, slope: Tensor, inv_std: Tensor) -> Tensor:
    derivatives = sums * slope.unsqueeze(1)
    derivatives[:, 1].mul_(inv_std)
    return derivatives


def moments_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel, in at least float32, each pass stable for large offsets."""
    if torch.compiler.is_compiling() or x.is_meta:  # the kernel below has no shapes to trace with
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = torch.var_mean(wide, axes, correction=0)
        return mean, var
    if x.dtype not in (torch.bfloat16, torch.float16):
        mean, var = _aten.batch_norm_update_stats(x, None, None, 0.0)
        return mean, var
    # running statistics of float32, which momentum 0 leaves alone, make the kernel's sums float32
    unused = torch.zeros(2, x.shape[1], dtype=torch.float32, device=x.device)
    mean, var = _aten.batch_norm_update_stats(x, unused[0], unused[1], 0.0)
    return mean, var


def normalize_into(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out: Tensor
) -> None:
    """(x - mean) / sqrt(var + eps) * weight + bias into `out`, which may be x."""
    if x.stride() != out.stride():  # the CPU's kernel takes both to have the same order in memory
        x = out.copy_(x)
    # two tensors, as the CUDA kernel keeps its statistics there
    unused = mean.new_empty(0), mean.new_empty(0)
    _aten.native_batch_norm.out(
        x, weight, bias, mean, var, False, 0.0, eps, out=out, save_mean=unused[0], save_invstd=unused[1]
    )


def grad_sums_of(grad: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of grad and of grad * (x - shift) * factor per channel."""
    # the CUDA kernel takes its outputs' dtype from the weight, which they do not depend on
    _, by_x, plain = _aten.native_batch_norm_backward(
        grad, x, factor, None, None, shift, factor, True, 0.0, [False, True, True]
    )
    return plain, by_x

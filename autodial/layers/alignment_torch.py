"""Domain alignment by torch's own operations: what `alignment` does with a batch wherever torch runs.

What works on whole blobs are torch's batch normalization kernels, several times faster on the CPU than reductions and
broadcasts; the rest are rows of C numbers, in as few operations as there can be. `n` is the number of the source's
rows, which come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_aten = torch.ops.aten


Pairs = Sequence[Sequence[Tensor]]
"""Two rows of C numbers for each domain, the source's first; a (2, 2, C) tensor is such, too."""


class Mixed(NamedTuple):
    """What predictors normalize with: (2, C), row 0 the source's and row 1 the target's, of the statistics' dtype."""

    mean: Tensor
    variance: Tensor
    inv_std: Tensor
    """1 / sqrt(variance + eps)"""
    gaps: Tensor
    """Row 0 how much larger the source's mean is than the target's, row 1 its variance."""
    alpha: Tensor | float
    """A copy, as the layer clips it in place at its next pass; a number where that takes no waiting."""
    eps: float


class Gradients(NamedTuple):
    """By alpha, one element; by scale and bias, (C,) each, or None where there was neither and no ReLU."""

    alpha: Tensor
    scale: Tensor | None
    bias: Tensor | None


class Coefficients(NamedTuple):
    """Of the input's gradient, slope * grad + constant + factor * (saved - shift): (2, C) each, a row per domain."""

    slope: Tensor
    constant: Tensor
    factor: Tensor


def dense(x: Tensor) -> Tensor:
    """x in an order in memory that the functions below take: any."""
    return x


def moments(x: Tensor, n: int) -> Pairs:
    """Mean and biased variance of each domain."""
    return [moments_of(half) for half in halves(x, n)]


def stacked(pairs: Pairs) -> Tensor:
    """As one tensor, (2, 2, C)."""
    return pairs if isinstance(pairs, Tensor) else torch.stack([torch.stack(list(pair)) for pair in pairs])


def mix(moments: Pairs, alpha: Tensor, eps: float) -> Mixed:
    """Both predictors' statistics, from what `moments` gives and one-element alpha."""
    both = stacked(moments)
    alpha = alpha.reshape(()).to(both.dtype, copy=True)
    gaps = both[0] - both[1]
    mean, variance = torch.lerp(both.flip(0), both, alpha).unbind(1)
    gap = gaps[0]
    variance.addcmul_(gap, gap * (alpha - alpha * alpha))
    return Mixed(mean, variance, (variance + eps).rsqrt_(), gaps, alpha, eps)


def normalize(x: Tensor, n: int, mixed: Mixed, scale: Tensor | None, bias: Tensor | None, *, relu: bool) -> Tensor:
    """Both domains normalized, times `scale`, plus `bias` ((C,)), negative results as 0 if `relu`; like x."""
    mean, variance = mixed.mean, mixed.variance
    scale, bias = (row if row is None else row.to(mean.dtype) for row in (scale, bias))
    y = torch.empty_like(x)
    for half, out, m, v in zip(halves(x, n), halves(y, n), mean, variance, strict=True):
        normalize_into(half, m, v, scale, bias, mixed.eps, out)
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
    n: int,
    shift: Sequence[Tensor] | None,
    factor: Sequence[Tensor] | None,
    positive: Tensor | None,
) -> Pairs:
    """The sums of grad and of grad * (saved - shift) * factor over each domain.

    shift and factor are a row for each domain, and None leaves them out; grad and positive are `prepared`'s.
    """
    if shift is None or factor is None:
        ones = torch.ones(saved.shape[1], dtype=torch.promote_types(saved.dtype, torch.float32), device=saved.device)
        shift, factor = [torch.zeros_like(ones)] * 2, [ones] * 2
    return list(map(grad_sums_of, halves(grad, n), halves(saved, n), shift, factor))


def coefficients(
    sums: Pairs, whole: Pairs, mixed: Mixed, scale: Tensor | None, counts: tuple[int, int], *, shifted: bool
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
    inv_std, gaps, alpha = mixed.inv_std, mixed.gaps, mixed.alpha
    slope = inv_std if scale is None else inv_std * scale.to(inv_std.dtype)
    # the loss's derivatives, times -1 and -2, by each predictor's mean, in which its variance is stationary, and by
    # its variance
    derivatives = _by_moments(local, slope, inv_std)
    source, target = derivatives
    apart = (source - target).mul_(gaps).sum(1)
    gap = gaps[0]
    by_gap = torch.dot(source[1] + target[1], gap.square())
    grad_alpha = (apart[1] + by_gap * (1 - 2 * alpha)).mul_(-0.5).sub_(apart[0]).reshape(1)
    grad_bias, grad_scale = local.sum(0).unbind() if shifted else (None, None)

    # Of domain d's samples, x - (mean of d's predictor) = normalized / inv_std[d], and the predictors' means differ by
    # (2 * alpha - 1) * gap: the gradient is slope * grad - (constant + factor * normalized) / count.
    if whole is not sums:
        derivatives = _by_moments(stacked(whole), slope, inv_std)
    rows = torch.lerp(derivatives.flip(0), derivatives, alpha)
    constant, factor = rows.unbind(1)
    between = gap * ((2 * alpha - 1) * (1 - alpha))
    by_source, by_target = derivatives.unbind()
    constant[0].addcmul_(between, by_target[1])
    constant[1].addcmul_(between, by_source[1], value=-1)
    if not shifted:
        factor.div_(inv_std)
    for row, count in zip(rows, counts, strict=True):
        row.mul_(-1 / count)
    return Gradients(grad_alpha, grad_scale, grad_bias), Coefficients(slope, constant, factor)


def input_grad(
    grad: Tensor, saved: Tensor, n: int, coefficients: Coefficients, shift: Tensor | None, positive: Tensor | None
) -> Tensor:
    """slope * grad + constant + factor * (saved - shift), like saved; shift and the rest as in `grad_sums`."""
    slope, constant, factor = coefficients
    if torch.compiler.is_compiling():
        return _input_grad_in_one(grad, saved, n, coefficients, shift)
    factor = factor.to(saved.dtype)
    if shift is not None:
        constant = torch.addcmul(constant, factor, shift, value=-1)
    grad_x = torch.empty_like(saved) if positive is None else grad  # `prepared`'s own copy
    rows = slope, constant, factor.view(2, -1, *[1] * (saved.dim() - 2))
    blobs = (halves(blob, n) for blob in (grad, saved, grad_x))
    for g, half, out, a, b, c in zip(*blobs, *rows, strict=True):
        normalize_into(g, torch.zeros_like(a), torch.ones_like(a), a, b, 0.0, out)
        out.addcmul_(half, c)
    return grad_x


def _input_grad_in_one(grad: Tensor, saved: Tensor, n: int, coefficients: Coefficients, shift: Tensor | None) -> Tensor:
    """`input_grad` as one expression: of writes into halves torch 2.14's inductor makes wrong code for small shapes."""
    positions = [1] * (saved.dim() - 2)
    is_source = (torch.arange(saved.shape[0], device=saved.device) < n).view(-1, 1, *positions)

    def of_samples(rows: Tensor) -> Tensor:
        source, target = rows.view(2, -1, *positions).unbind()
        return torch.where(is_source, source, target)

    slope, constant, factor = map(of_samples, coefficients)
    centred = saved if shift is None else saved - of_samples(shift)
    return (slope * grad + constant + factor * centred).to(saved.dtype)


def halves(x: Tensor, n: int) -> tuple[Tensor, ...]:
    """The two domains' samples."""
    return x.split_with_sizes((n, x.shape[0] - n))


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

"""Domain alignment on the CPU: what `alignment` does with a batch there, unless it is being compiled.

What works on whole blobs are torch's kernels, as in `alignment_torch`, which says more about the functions. A pass over
a large blob leaves nothing else in the caches, neither data nor code, so that what lies between two passes costs as
much as it touches. It is numpy's, whose operations touch less than torch's, and of few kinds; rows of C numbers stay
where kernels put them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autodial.layers import alignment_torch
from autodial.layers.alignment_torch import Coefficients, Gradients, Mixed, Pairs, parts_of
from autodial.layers.alignment_torch import dense as dense
from autodial.layers.alignment_torch import moments as moments
from autodial.layers.alignment_torch import prepared as prepared

_Rows = NDArray[Any]
"""Of float32 or float64 numbers; the last axis is the channels'."""


def mix(moments: Pairs, alpha: Tensor, eps: float) -> Mixed:
    """Both predictors' statistics, from what `moments` gives and one-element alpha."""
    weight = alpha.item()
    source, target = ([row.numpy() for row in pair] for pair in moments)
    rows = np.empty((4, 2, len(source[0])), source[0].dtype)
    _, variance, inv_std, gaps = rows
    with _quiet():
        for mixed, of_source, of_target, gap in zip(rows, source, target, gaps, strict=False):
            np.subtract(of_source, of_target, out=gap)
            # with alpha 1 each domain's moments stay what they are, to the last bit
            moved = gap * (1 - weight)
            np.subtract(of_source, moved, out=mixed[0])
            np.add(of_target, moved, out=mixed[1])
        between = gaps[0] * gaps[0]
        between *= weight * (1 - weight)
        variance += between
        np.add(variance, eps, out=inv_std)
        np.sqrt(inv_std, out=inv_std)
        np.divide(1, inv_std, out=inv_std)
    means, variances, inv_stds, differences = map(torch.from_numpy, rows)
    return Mixed(means, variances, inv_stds, differences, weight, eps)


def normalize(x: Tensor, n: int, mixed: Mixed, scale: Tensor | None, bias: Tensor | None, *, relu: bool) -> Tensor:
    """Both domains normalized, times `scale`, plus `bias` ((C,)), negative results as 0 if `relu`; like x."""
    if not _by_rows(x):
        return alignment_torch.normalize(x, n, mixed, scale, bias, relu=relu)
    with _quiet():
        slope = _slope(mixed, scale)
        constant = slope * mixed.mean.numpy()
        if bias is None:
            np.negative(constant, out=constant)
        else:
            np.subtract(_parameter(bias, mixed), constant, out=constant)
    y = torch.empty_like(x)
    lines = (torch.from_numpy(line).unbind() for line in (slope, constant))
    for half, out, a, b in zip(parts_of(x, n), parts_of(y, n), *lines, strict=True):
        torch.addcmul(b, half, a, out=out)
    return y.relu_() if relu else y


def grad_sums(
    grad: Tensor,
    saved: Tensor,
    n: int,
    shift: Sequence[Tensor] | None,
    factor: Sequence[Tensor] | None,
    positive: Tensor | None,
) -> Pairs:
    """The sums of grad and of grad * (saved - shift) * factor over each domain."""
    if shift is None or factor is None:
        shift, factor = _neutral(saved.shape[1], torch.promote_types(saved.dtype, torch.float32))
    return alignment_torch.grad_sums(grad, saved, n, shift, factor, positive)


def coefficients(
    sums: Pairs, whole: Pairs, mixed: Mixed, scale: Tensor | None, counts: tuple[int, int], *, shifted: bool
) -> tuple[Gradients, Coefficients]:
    """Gradients by alpha, scale and bias, and what the input's is made of (paper, appendix A)."""
    alpha, inv_std, (gap, gap_of_variances) = float(mixed.alpha), mixed.inv_std.numpy(), mixed.gaps.numpy()
    with _quiet():
        slope = _slope(mixed, scale)
        derivatives, apart, by_gap = _by_moments(sums, slope, inv_std, gap)
        by_variances = np.dot(apart[1], gap_of_variances)
        by_variances += (1 - 2 * alpha) * (np.dot(by_gap[0], gap) + np.dot(by_gap[1], gap))
        grad_alpha = np.array([-np.dot(apart[0], gap) - by_variances / 2], slope.dtype)
        grad_bias, grad_scale = (a + b for a, b in zip(*sums, strict=True)) if shifted else (None, None)

        if whole is not sums:
            derivatives, apart, by_gap = _by_moments(whole, slope, inv_std, gap)
        apart *= 1 - alpha
        derivatives[0] -= apart
        derivatives[1] += apart
        by_gap *= (2 * alpha - 1) * (1 - alpha)
        derivatives[0, 0] += by_gap[1]
        derivatives[1, 0] -= by_gap[0]
        if not shifted:
            derivatives[:, 1] /= inv_std
        for rows, count in zip(derivatives, counts, strict=True):
            rows *= -1 / count
    return (
        Gradients(torch.from_numpy(grad_alpha), grad_scale, grad_bias),
        Coefficients(*map(torch.from_numpy, (slope, derivatives[:, 0], derivatives[:, 1]))),
    )


def input_grad(
    grad: Tensor, saved: Tensor, n: int, coefficients: Coefficients, shift: Tensor | None, positive: Tensor | None
) -> Tensor:
    """slope * grad + constant + factor * (saved - shift), like saved; shift and the rest as in `grad_sums`."""
    if not _by_rows(saved):
        return alignment_torch.input_grad(grad, saved, n, coefficients, shift, positive)
    if shift is not None:
        constant = torch.addcmul(coefficients.constant, coefficients.factor, shift, value=-1)
        coefficients = coefficients._replace(constant=constant)
    grad_x = torch.empty_like(saved) if positive is None else grad  # `prepared`'s own copy
    blobs = (parts_of(blob, n) for blob in (grad, saved, grad_x))
    for g, half, out, a, b, c in zip(*blobs, *(rows.unbind() for rows in coefficients), strict=True):
        torch.addcmul(b, g, a, out=out)
        out.addcmul_(half, c)
    return grad_x


def _quiet() -> np.errstate:
    """Infinities and NaNs go through without a word, as in torch."""
    return np.errstate(all="ignore")


def _by_rows(x: Tensor) -> bool:
    """Whether broadcasting over x's rows is faster than the normalization kernel: without positions, it is."""
    return x.dim() == 2 and x.dtype in (torch.float32, torch.float64)


def _slope(mixed: Mixed, scale: Tensor | None) -> _Rows:
    """The derivative of what `normalize` gives by x, (2, C)."""
    inv_std: _Rows = mixed.inv_std.numpy()
    return inv_std if scale is None else inv_std * _parameter(scale, mixed)


def _parameter(row: Tensor, mixed: Mixed) -> _Rows:
    """A scale's or bias's numbers, of the statistics' dtype."""
    numbers: _Rows = row.detach().to(mixed.mean.dtype).numpy()
    return numbers


@cache
def _neutral(channels: int, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """For each domain a shift, and for each a factor, (channels,), that change nothing."""
    zeros, ones = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
    return (zeros, zeros), (ones, ones)


def _by_moments(sums: Pairs, slope: _Rows, inv_std: _Rows, gap: _Rows) -> tuple[_Rows, _Rows, _Rows]:
    """The loss's derivatives by the predictors' moments, as in `alignment_torch.coefficients`.

    Returns:
        (2, 2, C): domain, by mean and by variance, channel; by how much the source's exceed the target's, (2, C); those
        by variance, times the gap between the means, (2, C).
    """
    derivatives = np.empty((2, *slope.shape), slope.dtype)
    for rows, (plain, by_x), a, v in zip(derivatives, sums, slope, inv_std, strict=True):
        np.multiply(plain.numpy(), a, out=rows[0])
        np.multiply(by_x.numpy(), a, out=rows[1])
        rows[1] *= v
    return derivatives, derivatives[0] - derivatives[1], derivatives[:, 1] * gap

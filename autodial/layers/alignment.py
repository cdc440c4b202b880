"""The domain alignment of one batch: the paper's equation 1, with the closed-form gradients of its appendix A."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def align(x: Tensor, alpha: Tensor, slice_point: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the two domains of a batch with their mixed statistics.

    With biased moments m_d and v_d of domain d per channel, the predictor of domain p, whose other domain is q, has

        mean = alpha * m_p + (1 - alpha) * m_q
        variance = alpha * v_p + (1 - alpha) * v_q + alpha * (1 - alpha) * (m_p - m_q)^2

    The latter is the appendix's variance around the mixed mean, in a form that stays exact for large offsets.

    Gradients reach `x` and `alpha`. They are computed from the output alone, so that no copy of the input is kept
    (appendix A). There are no second derivatives.

    Args:
        x: (N, C, ...), the source's samples first; float32, float64, or bfloat16 and float16, whose statistics are
            float32. Contiguous and channels-last stay what they are.
        alpha: one element, in [0.5, 1].
        slice_point: the number of source samples, from 1 to N - 1.
        eps: added to variances.

    Returns:
        the output, of x's shape and dtype; the mixed means and the biased mixed variances, (2, C), row 0 the source's
        predictor and row 1 the target's, without gradients.
    """
    y, mean, var = _Align.apply(x, alpha, slice_point, eps)
    return y, mean, var


class _Align(torch.autograd.Function):
    """What works on whole blobs are torch's own batch normalization kernels, several times faster on the CPU than
    reductions and broadcasts; the rest are rows of C numbers."""

    @staticmethod
    @torch.no_grad()  # given for torch.export, which traces through the function
    def forward(ctx: Any, x: Tensor, alpha: Tensor, slice_point: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        halves = x[:slice_point], x[slice_point:]
        alpha = alpha.reshape(()).clone()  # the layer clips it in place at its next pass
        moments = [_moments(half) for half in halves]
        means, variances = (torch.stack(rows) for rows in zip(*moments, strict=True))
        gap = means[0] - means[1]
        mean = torch.lerp(means.flip(0), means, alpha)
        var = torch.lerp(variances.flip(0), variances, alpha)
        var.addcmul_(gap * gap, alpha - alpha * alpha)
        y = torch.empty_like(x)
        for half, out, m, v in zip(halves, (y[:slice_point], y[slice_point:]), mean, var, strict=True):
            _normalize(half, m, v, None, None, eps, out)
        ctx.save_for_backward(y, alpha, gap, variances, (var + eps).rsqrt_())
        ctx.slice_point = slice_point
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad = grads[0]
        if grad is None:
            return None, None, None, None
        y, alpha, gap, variances, inv_std = ctx.saved_tensors
        n = ctx.slice_point
        zero, one = torch.zeros_like(gap), torch.ones_like(gap)
        halves = [(grad[:n], y[:n]), (grad[n:], y[n:])]
        # sums over a half of grad * y and of grad
        sums = [_grad_sums(g, half, zero, one) for g, half in halves]
        sum_grad_y, sum_grad = (torch.stack(rows) for rows in zip(*sums, strict=True))
        # derivatives of the loss by each predictor's mean and variance; the variance is stationary in the mixed mean
        d_mean = -inv_std * sum_grad
        d_var = inv_std * inv_std * sum_grad_y * -0.5

        grad_alpha = None
        if ctx.needs_input_grad[1]:
            by_mean = (d_mean[0] - d_mean[1]) * gap
            by_var = (d_var[0] - d_var[1]) * (variances[0] - variances[1])
            by_gap = (d_var[0] + d_var[1]) * (gap * gap) * (1 - 2 * alpha)
            grad_alpha = (by_mean + by_var + by_gap).sum().reshape(1)

        grad_x = None
        if ctx.needs_input_grad[0]:
            # Of domain d's samples, x - (mean of d's predictor) = y / inv_std[d], and the predictors' means differ by
            # (2 * alpha - 1) * gap: the gradient is inv_std * (grad + slope * y) + constant.
            positions = y.numel() // (y.shape[0] * gap.shape[0])
            share = inv_std.new_tensor([[1 / (n * positions)], [1 / ((y.shape[0] - n) * positions)]])
            slope = torch.lerp(d_var.flip(0), d_var, alpha) * (2 * share) / (inv_std * inv_std)
            between = gap * (2 * alpha - 1)
            other = torch.stack([between, -between]) * d_var.flip(0) * (2 - 2 * alpha)
            constant = (torch.lerp(d_mean.flip(0), d_mean, alpha) + other) * share
            grad_x = torch.empty_like(y)
            outs = grad_x[:n], grad_x[n:]
            for (g, half), out, a, b, c in zip(halves, outs, slope, inv_std, constant, strict=True):
                _affine_sum(g, half, a, b, c, zero, one, out)
        return grad_x, grad_alpha, None, None


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel, in at least float32, each pass stable for large offsets."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        mean, var = _aten.batch_norm_update_stats(x, None, None, 0.0)
        return mean, var
    # running statistics of float32, which momentum 0 leaves alone, make the kernel's sums float32
    unused = torch.zeros(2, x.shape[1], dtype=torch.float32, device=x.device)
    mean, var = _aten.batch_norm_update_stats(x, unused[0], unused[1], 0.0)
    return mean, var


def _normalize(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out: Tensor
) -> None:
    """(x - mean) / sqrt(var + eps) * weight + bias into `out`, which may be x."""
    unused = mean.new_empty(0)
    _aten.native_batch_norm.out(
        x, weight, bias, mean, var, False, 0.0, eps, out=out, save_mean=unused, save_invstd=unused
    )


def _grad_sums(grad: Tensor, y: Tensor, zero: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of grad * y and of grad per channel."""
    _, by_y, plain = _aten.native_batch_norm_backward(
        grad, y, None, None, None, zero, one, True, 0.0, [False, True, True]
    )
    return by_y, plain


def _affine_sum(
    grad: Tensor, y: Tensor, slope: Tensor, scale: Tensor, constant: Tensor, zero: Tensor, one: Tensor, out: Tensor
) -> None:
    """scale * (grad + slope * y) + constant per channel into `out`."""
    if y.dim() == 2:
        torch.addcmul(constant, y, slope * scale, out=out).addcmul_(grad, scale)
    else:
        torch.mul(y, slope.view(1, -1, *[1] * (y.dim() - 2)), out=out).add_(grad)
        _normalize(out, zero, one, scale, constant, 0.0, out)

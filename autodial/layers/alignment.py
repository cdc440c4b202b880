"""The domain alignment of one batch: the paper's equation 1, with the closed-form gradients of its appendix A."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autodial.layers.shares import Shares

_aten = torch.ops.aten


def align(
    x: Tensor,
    alpha: Tensor,
    slice_point: int,
    eps: float,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    shares: Shares | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the two domains of a batch with their mixed statistics.

    With biased moments m_d and v_d of domain d per channel, the predictor of domain p, whose other domain is q, has

        mean = alpha * m_p + (1 - alpha) * m_q
        variance = alpha * v_p + (1 - alpha) * v_q + alpha * (1 - alpha) * (m_p - m_q)^2

    The latter is the appendix's variance around the mixed mean, in a form that stays exact for large offsets.

    A scale and a bias per channel and a ReLU, which follow batch normalization in most nets, can be done in the same
    passes. Gradients reach `x`, `alpha`, `scale` and `bias`. Alone, alignment computes them from its output, so that no
    copy of the input is kept (appendix A); with any of the others it keeps its input and a ReLU's output, and nothing
    between. There are no second derivatives.

    Args:
        x: (N, C, ...), the source's samples first; float32, float64, or bfloat16 and float16, whose statistics are
            float32. Contiguous and channels-last stay what they are.
        alpha: one element, in [0.5, 1].
        slice_point: the number of source samples, from 1 to N - 1.
        eps: added to variances.
        scale, bias: (C,), what the normalized values are multiplied by, and what is added to that.
        relu: whether negative results become 0.
        shares: where several processes have rows of one batch, how they are shared out: x holds those that are here,
            N and slice_point are the whole batch's, and so are the statistics, forward and backward. The gradients of
            alpha, scale and bias are those of the rows here, which add up over the processes.

    Returns:
        the output, of x's shape and dtype; the mixed means and the biased mixed variances, (2, C), row 0 the source's
        predictor and row 1 the target's, without gradients.
    """
    y, mean, var = _Align.apply(x, alpha, slice_point, eps, scale, bias, relu, shares)
    return y, mean, var


class _Align(torch.autograd.Function):
    """What works on whole blobs are torch's own batch normalization kernels, several times faster on the CPU than
    reductions and broadcasts; the rest are rows of C numbers, in as few operations as there can be."""

    @staticmethod
    @torch.no_grad()  # given for torch.export, which traces through the function
    def forward(
        ctx: Any,
        x: Tensor,
        alpha: Tensor,
        slice_point: int,
        eps: float,
        scale: Tensor | None,
        bias: Tensor | None,
        relu: bool,
        shares: Shares | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = slice_point if shares is None else shares.before(slice_point)
        halves = x[:n], x[n:]
        # (domain, mean and variance, C)
        moments = torch.stack([*moments_of(halves[0]), *moments_of(halves[1])]).view(2, 2, -1)
        if shares is not None:
            moments = shares.merge(moments, [slice_point])
        alpha = alpha.reshape(()).to(moments.dtype, copy=True)  # the layer clips it in place at its next pass
        source, target = moments
        gaps = source - target
        mixed = torch.lerp(moments.flip(0), moments, alpha)
        mean, var = mixed.unbind(1)
        gap_squared = gaps[0].square()
        var.addcmul_(gap_squared, alpha - alpha * alpha)
        if scale is not None:
            scale = scale.to(mean.dtype)
        if bias is not None:
            bias = bias.to(mean.dtype)
        y = torch.empty_like(x)
        normalize(halves[0], mean[0], var[0], scale, bias, eps, y[:n])
        normalize(halves[1], mean[1], var[1], scale, bias, eps, y[n:])
        if relu:
            y.relu_()
        inv_std = (var + eps).rsqrt_()
        if scale is None and bias is None and not relu:
            ctx.save_for_backward(y, None, None, None, alpha, gaps, gap_squared, inv_std)
        else:
            ctx.save_for_backward(x, mean, scale, y if relu else None, alpha, gaps, gap_squared, inv_std)
        ctx.slice_point, ctx.shares = n, shares
        # the domains' samples in the whole batch
        ctx.samples = slice_point, (x.shape[0] if shares is None else shares.rows) - slice_point
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        if grad is None:
            return (None,) * 8
        # the normalized values are (saved - shift) * inv_std, or `saved` itself where there is no shift
        saved, shift, scale, positive, alpha, gaps, gap_squared, inv_std = ctx.saved_tensors
        n = ctx.slice_point
        if positive is not None:
            grad = _aten.threshold_backward(grad, positive, 0)
        halves = (grad[:n], saved[:n]), (grad[n:], saved[n:])
        zero, one = torch.zeros_like(inv_std[0]), torch.ones_like(inv_std[0])
        centres = (zero, zero) if shift is None else shift
        # sums over a half of the gradient and of its product with the normalized values: (domain, 2, C)
        sums = torch.stack(
            [
                *grad_sums(*halves[0], centres[0], one if shift is None else inv_std[0]),
                *grad_sums(*halves[1], centres[1], one if shift is None else inv_std[1]),
            ]
        ).view(2, 2, -1)
        slope = inv_std if scale is None else inv_std * scale
        # the loss's derivatives, times -1 and -2, by each predictor's mean, in which its variance is stationary, and by
        # its variance
        derivatives = _by_moments(sums, slope, inv_std)

        grad_alpha = grad_x = grad_bias = grad_scale = None
        if ctx.needs_input_grad[1]:
            apart = (derivatives[0] - derivatives[1]).mul_(gaps).sum(1)
            by_gap = torch.dot(derivatives[0, 1] + derivatives[1, 1], gap_squared)
            grad_alpha = (apart[1] + by_gap * (1 - 2 * alpha)).mul_(-0.5).sub_(apart[0]).reshape(1)
        if ctx.needs_input_grad[4]:
            grad_scale = sums[0, 1] + sums[1, 1]
        if ctx.needs_input_grad[5]:
            grad_bias = sums[0, 0] + sums[1, 0]
        if ctx.needs_input_grad[0]:
            # Of domain d's samples, x - (mean of d's predictor) = normalized / inv_std[d], and the predictors' means
            # differ by (2 * alpha - 1) * gap: the gradient is slope * grad - (constant + factor * normalized) / count.
            if ctx.shares is not None:
                derivatives = _by_moments(ctx.shares.whole(sums), slope, inv_std)
            rows = torch.lerp(derivatives.flip(0), derivatives, alpha)
            between = gaps[0] * ((2 * alpha - 1) * (1 - alpha))
            grad_x = torch.empty_like(saved) if positive is None else grad
            positions = math.prod(saved.shape[2:])
            for d, ((g, half), out) in enumerate(zip(halves, (grad_x[:n], grad_x[n:]), strict=True)):
                constant, factor = rows[d]
                constant.addcmul_(between, derivatives[1 - d, 1], value=-1 if d else 1)
                if shift is None:
                    factor.div_(inv_std[d])
                rows[d].mul_(-1 / (ctx.samples[d] * positions))  # by the domain's samples per channel
                factor = factor.to(half.dtype)
                if shift is not None:
                    constant.addcmul_(factor, shift[d], value=-1)
                normalize(g, zero, one, slope[d], constant, 0.0, out)
                out.addcmul_(half, factor.view(-1, *[1] * (half.dim() - 2)))
        return grad_x, grad_alpha, None, None, grad_scale, grad_bias, None, None


def _by_moments(sums: Tensor, slope: Tensor, inv_std: Tensor) -> Tensor:
    derivatives = sums * slope.unsqueeze(1)
    derivatives[:, 1].mul_(inv_std)
    return derivatives


def moments_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel, in at least float32, each pass stable for large offsets."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        mean, var = _aten.batch_norm_update_stats(x, None, None, 0.0)
        return mean, var
    # running statistics of float32, which momentum 0 leaves alone, make the kernel's sums float32
    unused = torch.zeros(2, x.shape[1], dtype=torch.float32, device=x.device)
    mean, var = _aten.batch_norm_update_stats(x, unused[0], unused[1], 0.0)
    return mean, var


def normalize(
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


def grad_sums(grad: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of grad and of grad * (x - shift) * factor per channel."""
    # the CUDA kernel takes its outputs' dtype from the weight, which they do not depend on
    _, by_x, plain = _aten.native_batch_norm_backward(
        grad, x, factor, None, None, shift, factor, True, 0.0, [False, True, True]
    )
    return plain, by_x

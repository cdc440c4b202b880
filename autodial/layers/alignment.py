"""The domain alignment of one batch: the paper's equation 1, with the closed-form gradients of its appendix A."""

from __future__ import annotations

import logging
import math
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autodial.layers import alignment_cpu, alignment_torch
from autodial.layers.alignment_torch import Points
from autodial.layers.shares import Shares

_log = logging.getLogger(__name__)


def align(
    x: Tensor,
    alpha: Tensor,
    slice_point: Points,
    eps: float,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    shares: Shares | None = None,
    kernels: ModuleType | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the domains of a batch with their mixed statistics.

    With biased moments m_d and v_d of domain d per channel, the predictor of domain p, whose other domain is q, has

        mean = alpha * m_p + (1 - alpha) * m_q
        variance = alpha * v_p + (1 - alpha) * v_q + alpha * (1 - alpha) * (m_p - m_q)^2

    The latter is the appendix's variance around the mixed mean, in a form that stays exact for large offsets.

    Of D > 2 domains, of which the paper has none, each predictor gives its own domain the weight alpha and each other
    domain beta = (1 - alpha) / (D - 1). Its statistics are those of this mixture: with the average m and v of all
    domains' moments and gamma = alpha - beta,

        mean = m + gamma * (m_p - m)
        variance = v + gamma * (v_p - v) + beta * (sum over d of (m_d - m)^2) + gamma * (1 - gamma) * (m_p - m)^2

    alpha 1 / D gives all predictors the same statistics, alpha 1 each its own domain's. With D = 2 it is the paper's.

    A scale and a bias per channel and a ReLU, which follow batch normalization in most nets, can be done in the same
    passes. Gradients reach `x`, `alpha`, `scale` and `bias`. Alone, alignment computes them from its output, so that no
    copy of the input is kept (appendix A); with any of the others it keeps its input and a ReLU's output, and nothing
    between. There are no second derivatives.

    Args:
        x: (N, C, ...), each domain's samples together, the target's last; float32, float64, or bfloat16 and float16,
            whose statistics are float32. Contiguous and channels-last stay what they are.
        alpha: one element, in [1 / D, 1].
        slice_point: the number of source samples, from 1 to N - 1; of more domains, the samples at which the second
            and later ones begin.
        eps: added to variances.
        scale, bias: (C,), what the normalized values are multiplied by, and what is added to that.
        relu: whether negative results become 0.
        shares: where several processes have rows of one batch, how they are shared out: x holds those that are here,
            N and slice_point are the whole batch's, and so are the statistics, forward and backward. The gradients of
            alpha, scale and bias are those of the rows here, which add up over the processes.
        kernels: what works on the batch, `alignment_cpu`, `alignment_torch` or `alignment_triton`; None: what
            `kernels_for` says. With more than two domains it is `alignment_torch`.

    Returns:
        the output, of x's shape and dtype; the mixed means and the biased mixed variances, (D, C), a row for each
        domain's predictor, without gradients.
    """
    points = (slice_point,) if isinstance(slice_point, int) else slice_point
    if kernels is None:
        kernels = kernels_for(x) if len(points) == 1 else alignment_torch
    y, mean, var = _Align.apply(kernels.dense(x), alpha, points, eps, scale, bias, relu, shares, kernels)
    return y, mean, var


class _Align(torch.autograd.Function):
    """What all sets of kernels do in the same order, and what is kept between the passes."""

    @staticmethod
    @torch.no_grad()  # given for torch.export, which traces through the function
    def forward(
        ctx: Any,
        x: Tensor,
        alpha: Tensor,
        points: tuple[int, ...],
        eps: float,
        scale: Tensor | None,
        bias: Tensor | None,
        relu: bool,
        shares: Shares | None,
        kernels: ModuleType,
    ) -> tuple[Tensor, Tensor, Tensor]:
        here = points if shares is None else tuple(map(shares.before, points))
        n = here[0] if len(here) == 1 else here
        moments = kernels.moments(x, n)
        if shares is not None:
            moments = shares.merge(alignment_torch.stacked(moments), points)
        mixed = kernels.mix(moments, alpha, eps)
        y = kernels.normalize(x, n, mixed, scale, bias, relu=relu)
        ctx.shifted = relu or scale is not None or bias is not None
        ctx.save_for_backward(x if ctx.shifted else y, scale, y if relu else None)
        ctx.n, ctx.mixed, ctx.shares, ctx.kernels = n, mixed, shares, kernels
        # the domains' samples in the whole batch
        ends = (0, *points, x.shape[0] if shares is None else shares.rows)
        ctx.samples = tuple(end - start for start, end in pairwise(ends))
        mean, variance = mixed.mean, mixed.variance
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        if grad is None:
            return (None,) * 9
        kernels, n, mixed = ctx.kernels, ctx.n, ctx.mixed
        saved, scale, positive = ctx.saved_tensors
        # the normalized values are (saved - shift) * factor, or `saved` itself
        shift, factor = (mixed.mean, mixed.inv_std) if ctx.shifted else (None, None)
        grad = kernels.prepared(grad, saved, positive)
        sums = kernels.grad_sums(grad, saved, n, shift, factor, positive)
        needed = ctx.needs_input_grad
        whole = sums
        if needed[0] and ctx.shares is not None:
            whole = ctx.shares.whole(alignment_torch.stacked(sums).clone())
        positions = math.prod(saved.shape[2:])
        counts = tuple(samples * positions for samples in ctx.samples)
        by, parts = kernels.coefficients(sums, whole, mixed, scale, counts, shifted=ctx.shifted)
        grad_x = kernels.input_grad(grad, saved, n, parts, shift, positive) if needed[0] else None
        grad_scale, grad_bias = by.scale if needed[4] else None, by.bias if needed[5] else None
        return grad_x, by.alpha, None, None, grad_scale, grad_bias, None, None, None


def kernels_for(x: Tensor) -> ModuleType:
    """What aligns x: `alignment_cpu` or, on an NVIDIA GPU, `alignment_triton`; elsewhere `alignment_torch`.

    The latter is what torch.compile and torch.export see, too. Triton's kernels are tried the first time that a GPU has
    a blob of a dtype; a warning says if they fail.
    """
    if torch.compiler.is_compiling():
        return alignment_torch
    if x.device.type == "cpu":
        return alignment_cpu
    return alignment_torch if not x.is_cuda or torch.version.hip is not None else gpu_kernels(x.device, x.dtype)


@cache
def gpu_kernels(device: torch.device, dtype: torch.dtype) -> ModuleType:
    """What aligns blobs of a dtype on a GPU: `alignment_triton` if its kernels work there, else `alignment_torch`."""
    try:
        from autodial.layers import alignment_triton
    except ImportError:  # torch brings Triton along on Linux only
        return alignment_torch
    if dtype not in alignment_triton.DTYPES:
        return alignment_torch
    try:
        difference = _difference(alignment_triton, device, dtype)
        if difference <= max(1e-3, 8 * torch.finfo(dtype).eps):  # no NaN
            return alignment_triton
        problem = f"results differ by {difference:.2g}"
    except Exception as error:  # whatever a compiler, a driver and a GPU may come up with
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    _log.warning("DA-layers of %s on %s run without Triton's kernels, which fail there: %s", dtype, device, problem)
    return alignment_torch


@torch.inference_mode(False)
@torch.enable_grad()
def _difference(kernels: ModuleType, device: torch.device, dtype: torch.dtype) -> float:
    """How far results are from those of torch, as a share of the largest number of each; NaN, if any is.

    They are those of both passes, for a blob of either memory format, with and without scale, bias and ReLU.
    """
    # of so many positions that sums have several parts, and of few values, none of which ends up where a ReLU bends
    blob = (torch.arange(3 * 2 * 96 * 128).square() % 101 / 50).view(3, 2, 96, 128)
    blob[1:] *= 2
    grad = (blob * 5 % 3).to(device, dtype)
    results: list[list[Tensor]] = []
    for by in (kernels, alignment_torch):
        results.append([])
        for memory_format in (torch.contiguous_format, torch.channels_last):
            for relu in (False, True):
                x = blob.to(device, dtype, memory_format=memory_format).requires_grad_()
                alpha = torch.tensor([0.75], device=device, requires_grad=True)
                scale = torch.tensor([0.5, -1], device=device, requires_grad=True) if relu else None
                bias = torch.tensor([0.1, -0.2], device=device, requires_grad=True) if relu else None
                outputs = align(x, alpha, 1, 1e-5, scale, bias, relu=relu, kernels=by)
                inputs = [each for each in (x, alpha, scale, bias) if each is not None]
                results[-1] += [*outputs, *torch.autograd.grad(outputs[0], inputs, grad)]
    apart = [(a.float() - b.float()).abs().max() / b.abs().max() for a, b in zip(*results, strict=True)]
    return torch.stack(apart).max().detach().item()

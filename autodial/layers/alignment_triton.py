"""Domain alignment on a GPU: what `alignment` does with a batch, as Triton kernels.

Every function works on both domains at once, the source's `n` rows first. Blobs are (N, C, ...), contiguous or
channels-last. A pass over the data is one launch, and what is between the passes is one more; nothing waits for the
GPU. Sums and statistics are float32, and the same in every run. The functions are those of `alignment_torch`, which
says more about them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from autodial.layers import alignment_kernels as kernels
from autodial.layers.alignment_torch import Coefficients, Gradients, Mixed

DTYPES = torch.float32, torch.bfloat16, torch.float16
"""Of blobs. Scales and biases may have others, and are taken as float32."""

_TILE = 2048  # values that a program reads at once: 16 a thread
_PROGRAMS = 2048  # for a reduction, several for each multiprocessor of a large GPU, so that its last ones cost little
_TILES = 4  # of a program of a reduction at least, before there is a second one


class _Matrix(NamedTuple):
    """How a blob lies in memory: contiguous, a row is a sample's channel, otherwise one of its positions."""

    boundary: int
    rows: int
    channels: int
    columns: int
    planes: bool

    @classmethod
    def of(cls, x: Tensor, n: int) -> _Matrix:
        samples, channels = x.shape[:2]
        positions = math.prod(x.shape[2:])
        if x.is_contiguous() and positions > 1:
            return cls(n * channels, samples * channels, channels, positions, True)
        return cls(n * positions, samples * positions, channels, channels, False)

    def tile(self, rows: int) -> dict[str, int | bool]:
        """The tile for a number of rows; of the wide tiles, the one that covers the least beyond them."""
        widest = triton.next_power_of_2(self.columns)
        if not self.planes:
            columns = min(widest, 64)
        elif widest < 256:
            columns = widest
        else:
            columns = min((1024, 512, 256), key=lambda k: triton.cdiv(self.columns, k) * triton.cdiv(rows, _TILE // k))
        return {"PLANES": self.planes, "R": min(triton.next_power_of_2(rows), _TILE // columns), "K": columns}

    def mapped(self) -> tuple[int, dict[str, int | bool]]:
        """For a kernel that writes a blob: the number of programs and the tile."""
        tile = self.tile(max(self.boundary, self.rows - self.boundary))
        rows = triton.cdiv(self.boundary, tile["R"]) + triton.cdiv(self.rows - self.boundary, tile["R"])
        return rows * triton.cdiv(self.columns, tile["K"]), tile

    def reduced(self) -> tuple[_Matrix, int, int, dict[str, int | bool]]:
        """For a kernel with a result per channel: the matrix as it reads it, programs, parts of a domain, the tile."""
        matrix = self
        if self.planes:  # a program has one channel: its rows are samples
            matrix = self._replace(boundary=self.boundary // self.channels, rows=self.rows // self.channels)
        most = max(matrix.boundary, matrix.rows - matrix.boundary)
        tile = matrix.tile(most)
        across = triton.cdiv(self.columns, tile["K"])
        tiles, blocks = triton.cdiv(most, tile["R"]), across
        if self.planes:
            tiles, blocks = tiles * across, self.channels
        parts = max(1, min(triton.cdiv(_PROGRAMS, 2 * blocks), tiles // _TILES))
        return matrix, 2 * blocks * parts, parts, tile


def dense(x: Tensor) -> Tensor:
    """x, or a contiguous copy if it is neither contiguous nor channels-last."""
    return x if x.is_contiguous() or x.movedim(1, -1).is_contiguous() else x.contiguous()


def moments(x: Tensor, n: int) -> Tensor:
    """Means and biased variances of both domains, (2, 2, C): domain, mean and variance, channel."""
    matrix, programs, parts, tile = _Matrix.of(x, n).reduced()
    boundary, rows, channels, columns, _ = matrix
    out = x.new_empty((parts, 2, 2, channels), dtype=torch.float32)
    counts = x.new_empty((parts, 2), dtype=torch.float32)
    _launch(kernels.moments, programs, x, out, counts, boundary, rows, channels, columns, parts, **tile)
    if parts == 1:
        return out[0]
    merged = out.new_empty((2, 2, channels))
    block = triton.next_power_of_2(parts)
    at_once = min(max(4096 // block, 8), 64)
    programs = 2 * triton.cdiv(channels, at_once)
    _launch(kernels.merge, programs, out, counts, merged, channels, parts, P=block, C=at_once, num_warps=8)
    return merged


def mix(moments: Tensor, alpha: Tensor, eps: float) -> Mixed:
    """Both predictors' statistics (paper, equation 1), from (2, 2, C) moments and one-element alpha."""
    channels = moments.shape[2]
    out = moments.new_empty((4, 2, channels))
    copy = moments.new_empty(1)
    _launch(kernels.mix, triton.cdiv(channels, 128), moments, alpha, out, copy, channels, eps, C=128)
    mean, variance, inv_std, gaps = out
    return Mixed(mean, variance, inv_std, gaps, copy, eps)


def normalize(x: Tensor, n: int, mixed: Mixed, scale: Tensor | None, bias: Tensor | None, *, relu: bool) -> Tensor:
    """Both domains normalized, times `scale`, plus `bias` ((C,)), negative results as 0 if `relu`; like x."""
    matrix = _Matrix.of(x, n)
    programs, tile = matrix.mapped()
    boundary, rows, channels, columns, _ = matrix
    y = torch.empty_like(x)
    of_channels = mixed.mean, mixed.inv_std, _row(scale), _row(bias)
    _launch(kernels.normalize, programs, x, y, *of_channels, boundary, rows, channels, columns, RELU=relu, **tile)
    return y


def prepared(grad: Tensor, saved: Tensor, positive: Tensor | None) -> Tensor:
    """The gradient as the functions below take it: in the order that saved has in memory."""
    return grad if grad.stride() == saved.stride() else torch.empty_like(saved, dtype=grad.dtype).copy_(grad)


def grad_sums(
    grad: Tensor, saved: Tensor, n: int, shift: Tensor | None, factor: Tensor | None, positive: Tensor | None
) -> Tensor:
    """Sums over each domain of g and of g * (saved - shift) * factor, (2, 2, C): domain, which, channel.

    g is grad where `positive`, a blob like saved, is not 0 or less; shift and factor are (2, C). None leaves each out.
    """
    matrix, programs, parts, tile = _Matrix.of(saved, n).reduced()
    boundary, rows, channels, columns, _ = matrix
    out = saved.new_empty((parts, 2, 2, channels), dtype=torch.float32)
    blobs = grad, saved, positive
    _launch(kernels.grad_sums, programs, *blobs, shift, factor, out, boundary, rows, channels, columns, parts, **tile)
    return out[0] if parts == 1 else out.sum(0)


def coefficients(
    sums: Tensor, whole: Tensor, mixed: Mixed, scale: Tensor | None, counts: tuple[int, int], *, shifted: bool
) -> tuple[Gradients, Coefficients]:
    """Gradients by alpha, scale and bias, and what the input's is made of (paper, appendix A)."""
    channels = sums.shape[2]
    out = sums.new_empty((4, 2, channels))
    grad_alpha = sums.new_empty(1)
    of_channels = sums, whole, mixed.gaps, mixed.inv_std, _row(scale)
    by_source, by_target = (-1 / count for count in counts)
    block = min(triton.next_power_of_2(channels), 1024)
    _launch(
        kernels.coefficients, 1, *of_channels, mixed.alpha, grad_alpha, out, by_source, by_target, channels,
        SHIFTED=shifted, C=block, num_warps=8,
    )  # fmt: skip
    slope, constant, factor, (by_scale, by_bias) = out
    return Gradients(grad_alpha, by_scale, by_bias), Coefficients(slope, constant, factor)


def input_grad(
    grad: Tensor, saved: Tensor, n: int, coefficients: Coefficients, shift: Tensor | None, positive: Tensor | None
) -> Tensor:
    """slope * g + constant + factor * (saved - shift), with g, shift and positive as in `grad_sums`; like saved."""
    matrix = _Matrix.of(saved, n)
    programs, tile = matrix.mapped()
    boundary, rows, channels, columns, _ = matrix
    out = torch.empty_like(saved)
    blobs = grad, saved, positive
    _launch(kernels.input_grad, programs, *blobs, shift, *coefficients, out, boundary, rows, channels, columns, **tile)
    return out


def _row(of_channels: Tensor | None) -> Tensor | None:
    return None if of_channels is None else of_channels.contiguous()


def _launch(kernel: Any, programs: int, *arguments: Any, **constants: object) -> None:
    """On the first argument's device, which need not be the current one."""
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        kernel[(programs,)](*arguments, **constants)

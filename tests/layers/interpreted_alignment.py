"""What the Triton kernels compute, under Triton's interpreter: `test_alignment_triton` runs this in its own process.

The interpreter takes the place of the compiler for kernels that are decorated while TRITON_INTERPRET is 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from twins import Twins

from autodial.layers import alignment, alignment_torch
from autodial.layers import alignment_triton as kernels
from autodial.layers.alignment import align
from autodial.layers.shares import Shares

EPS = 1e-5
CHANNELS_LAST, CONTIGUOUS = True, False

BLOBS = [
    # rank 2: columns that fill no block, a domain of one sample, one channel
    ((9, 70), 1, CONTIGUOUS),
    ((5, 1), 2, CONTIGUOUS),
    # contiguous maps: rows and columns that fill no block; several tiles; several parts, one of them short
    ((9, 3, 5), 4, CONTIGUOUS),
    ((4, 17, 3, 3), 3, CONTIGUOUS),
    ((3, 2, 20, 33), 1, CONTIGUOUS),
    ((7, 1, 52, 60), 2, CONTIGUOUS),
    ((5, 2, 3, 2, 3), 2, CONTIGUOUS),
    ((6, 3, 1, 1), 2, CONTIGUOUS),
    # channels-last
    ((4, 70, 3, 3), 1, CHANNELS_LAST),
    ((9, 3, 5), 8, CHANNELS_LAST),
    ((5, 3, 40, 41), 2, CHANNELS_LAST),
    ((3, 16, 2, 2, 3), 2, CHANNELS_LAST),
]


def blob(shape: tuple[int, ...], channels_last: bool, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of `dtype`, as float64; the last sample's are apart."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 1
    x[-1] += 2
    x = x.to(dtype).double()
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else x


def precision(dtype: torch.dtype) -> float:
    """Relative, of results that are stored in it: of several float32 operations, or of a rounding to fewer bits."""
    return 5e-6 if dtype == torch.float32 else torch.finfo(dtype).eps


def close(got: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Within the precision of the largest of the numbers."""
    assert got.shape == expected.shape
    limit = precision(dtype) * expected.abs().max().item()
    torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=limit)


def rows(x: Tensor) -> Tensor:
    return x.movedim(1, 0).flatten(1)


def statistics(x: Tensor, n: int) -> Tensor:
    halves = [rows(half) for half in (x[:n], x[n:])]
    return torch.stack([torch.stack([half.mean(1), half.var(1, unbiased=False)]) for half in halves])


def formula(x: Tensor, n: int, alpha: Tensor, scale: Tensor | None, bias: Tensor | None, relu: bool) -> Tensor:
    """Equation 1 as it is written, for autograd to differentiate."""
    broad = (1, -1, *[1] * (x.dim() - 2))
    axes = [0, *range(2, x.dim())]
    outputs = []
    for mine, other in ((x[:n], x[n:]), (x[n:], x[:n])):
        mean = alpha * mine.mean(axes) + (1 - alpha) * other.mean(axes)
        variance = alpha * (mine - mean.view(broad)).square().mean(axes)
        variance = variance + (1 - alpha) * (other - mean.view(broad)).square().mean(axes)
        outputs.append((mine - mean.view(broad)) / (variance.view(broad) + EPS).sqrt())
    y = torch.cat(outputs)
    y = y if scale is None else y * scale.view(broad)
    y = y if bias is None else y + bias.view(broad)
    return F.relu(y) if relu else y


@pytest.mark.parametrize(("shape", "n", "channels_last"), BLOBS)
def test_moments_of_large_numbers(shape: tuple[int, ...], n: int, channels_last: bool) -> None:
    x = (blob(shape, channels_last) + 1e4).float()
    got, expected = kernels.moments(x, n), statistics(x.double(), n)
    # a mean near 1e4 is known to 5e-4 in float32, and so are the differences that the merging of parts goes by
    torch.testing.assert_close(got[:, 0].double(), expected[:, 0], rtol=1e-7, atol=1e-6)
    torch.testing.assert_close(got[:, 1].double(), expected[:, 1], rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_of_few_bits_are_float32(dtype: torch.dtype, channels_last: bool) -> None:
    x = blob((7, 3, 30, 31), channels_last, dtype=dtype)
    got = kernels.moments(x.to(dtype), 3)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), statistics(x, 3), rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("channels_last", [False, True])
def test_variance_where_the_first_values_are_far_from_the_others(channels_last: bool) -> None:
    x = blob((8, 1, 80, 80), channels_last) + 1e4
    x[:1] = x[4:5] = 0
    x = x.float()
    assert kernels._Matrix.of(x, 4).reduced()[2] > 1, "in several parts"
    got, expected = kernels.moments(x, 4), statistics(x.double(), 4)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=0)


def test_moments_of_a_constant_have_no_variance() -> None:
    assert torch.equal(kernels.moments(torch.full((8, 2, 60, 60), 1e4 + 0.1), 3)[:, 1], torch.zeros(2, 2))


@pytest.mark.parametrize("alpha", [0.5, 0.73, 1.0])
def test_mix(alpha: float) -> None:
    x = blob((9, 200), False)
    moments = statistics(x, 4)
    mixed = kernels.mix(moments.float(), torch.tensor([alpha]), EPS)
    parts = (x[:4], x[4:]), (x[4:], x[:4])
    mean = torch.stack([alpha * a.mean(0) + (1 - alpha) * b.mean(0) for a, b in parts])
    variance = torch.stack(
        [
            alpha * (a - m).square().mean(0) + (1 - alpha) * (b - m).square().mean(0)
            for (a, b), m in zip(parts, mean, strict=True)
        ]
    )
    close(mixed.mean, mean)
    torch.testing.assert_close(mixed.variance.double(), variance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mixed.inv_std.double(), (variance + EPS).rsqrt(), rtol=1e-5, atol=1e-6)
    close(mixed.gaps, moments[0] - moments[1])
    assert mixed.alpha.item() == torch.tensor(alpha).item()


def test_mix_copies_alpha() -> None:
    alpha = torch.tensor([0.75])
    mixed = kernels.mix(torch.ones(2, 2, 3), alpha, EPS)
    alpha.zero_()
    assert mixed.alpha.item() == 0.75


@pytest.mark.parametrize(("shape", "n", "channels_last"), BLOBS)
def test_each_domain_by_itself_is_batch_norm(shape: tuple[int, ...], n: int, channels_last: bool) -> None:
    x = blob(shape, channels_last)
    weight, bias = torch.linspace(-1, 2, shape[1]), torch.linspace(1, -1, shape[1])
    stored = statistics(x, n)
    mixed = kernels.mix(stored.float(), torch.ones(1), EPS)
    y = kernels.normalize(x.float(), n, mixed, weight, bias, relu=False)
    expected = [
        F.batch_norm(half, mean, variance, weight.double(), bias.double(), eps=EPS)
        for half, (mean, variance) in zip((x[:n], x[n:]), stored, strict=True)
    ]
    assert y.stride() == x.stride()
    close(y, torch.cat(expected))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("weight", [None, torch.tensor([-1.0, 0.0, 0.5])])
@pytest.mark.parametrize("bias", [None, torch.tensor([0.5, -0.1, 0.0], dtype=torch.bfloat16)])
@pytest.mark.parametrize("relu", [False, True])
def test_normalize_with_scale_bias_and_relu(
    weight: Tensor | None, bias: Tensor | None, relu: bool, channels_last: bool
) -> None:
    x = blob((5, 3, 4, 3), channels_last)
    mixed = kernels.mix(statistics(x, 2).float(), torch.tensor([0.8]), EPS)
    y = kernels.normalize(x.float(), 2, mixed, weight, bias, relu=relu)
    terms = [None if row is None else row.double() for row in (weight, bias)]
    close(y, formula(x, 2, torch.tensor(0.8, dtype=torch.float64), *terms, relu))


@pytest.mark.parametrize(("shape", "n", "channels_last"), BLOBS[::3])
@pytest.mark.parametrize("shifted", [False, True])
def test_grad_sums(shape: tuple[int, ...], n: int, channels_last: bool, shifted: bool) -> None:
    grad, saved, positive = (blob(shape, channels_last, seed) - 2 for seed in range(3))
    shift, factor = torch.rand(2, 2, shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    given = [blob.float() for blob in (grad, saved, positive)]
    if shifted:
        got = kernels.grad_sums(given[0], given[1], n, shift.float(), factor.float(), given[2])
        grad = torch.where(positive > 0, grad, 0)
    else:
        shift, factor = torch.zeros_like(shift), torch.ones_like(factor)
        got = kernels.grad_sums(given[0], given[1], n, None, None, None)
    for d, (g, x) in enumerate(((rows(grad[:n]), rows(saved[:n])), (rows(grad[n:]), rows(saved[n:])))):
        close(got[d, 0], g.sum(1))
        close(got[d, 1], (g * (x - shift[d, :, None]) * factor[d, :, None]).sum(1))


@pytest.mark.parametrize(("shape", "n", "channels_last"), BLOBS[::3])
def test_input_grad_is_its_formula(shape: tuple[int, ...], n: int, channels_last: bool) -> None:
    grad, saved, positive = (blob(shape, channels_last, seed) - 2 for seed in range(3))
    slope, constant, factor, shift = torch.rand(
        4, 2, shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    by_channel = alignment_torch.Coefficients(slope.float(), constant.float(), factor.float())
    given = [blob.float() for blob in (grad, saved, positive)]
    for masked, shifted in ((False, False), (True, True)):
        got = kernels.input_grad(
            given[0], given[1], n, by_channel, shift.float() if shifted else None, given[2] if masked else None
        )
        broad = (1, -1, *[1] * (len(shape) - 2))
        g = torch.where(positive > 0, grad, 0) if masked else grad
        halves = []
        for d, part in enumerate((slice(n), slice(n, None))):
            x = saved[part] - shift[d].view(broad) if shifted else saved[part]
            halves.append(g[part] * slope[d].view(broad) + constant[d].view(broad) + x * factor[d].view(broad))
        assert got.stride() == given[1].stride()
        close(got, torch.cat(halves))


FORMS = list(itertools.product([False, True], [False, True], [False, True]))


@pytest.mark.parametrize(("scaled", "biased", "relu"), FORMS)
def test_whole_passes_of_every_form_against_autograd(scaled: bool, biased: bool, relu: bool) -> None:
    check_passes((6, 3, 5, 7), 2, False, 0.73, scaled, biased, relu)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("plain", [True, False])
def test_whole_passes_at_the_ends_of_alpha(alpha: float, plain: bool) -> None:
    check_passes((6, 3, 5, 7), 4, True, alpha, not plain, not plain, not plain)


@pytest.mark.parametrize(("shape", "n", "channels_last"), BLOBS)
@pytest.mark.parametrize("plain", [True, False])
def test_whole_passes_of_every_blob_against_autograd(
    shape: tuple[int, ...], n: int, channels_last: bool, plain: bool
) -> None:
    check_passes(shape, n, channels_last, 0.8, not plain, not plain, not plain)


def check_passes(
    shape: tuple[int, ...],
    n: int,
    channels_last: bool,
    alpha: float,
    scaled: bool,
    biased: bool,
    relu: bool,
    dtype: torch.dtype = torch.float32,
) -> None:
    x, grad = (blob(shape, channels_last, seed, dtype) for seed in (0, 1))
    scale = torch.linspace(-1, 1.5, shape[1], dtype=torch.float64) if scaled else None
    bias = torch.linspace(0.3, -0.4, shape[1], dtype=torch.float64) if biased else None
    given = (x, torch.tensor([alpha], dtype=torch.float64), scale, bias)
    wide = [None if each is None else each.clone().requires_grad_() for each in given]
    narrow = [
        None if each is None else each.to(dtype if each is x else torch.float32).requires_grad_() for each in given
    ]
    expected = formula(wide[0], n, *wide[1:], relu)
    expected.backward(grad)
    y, _, _ = align(*narrow[:2], n, EPS, *narrow[2:], relu=relu, kernels=kernels)
    y.backward(grad.to(dtype))
    assert y.dtype == narrow[0].grad.dtype == dtype and y.stride() == narrow[0].grad.stride() == x.stride()
    close(y, expected, dtype)
    close(narrow[0].grad, wide[0].grad, dtype)
    # sums whose terms have either sign
    magnitude = grad.abs().sum().item()
    for got, exact in zip(narrow[1:], wide[1:], strict=True):
        if got is not None:
            limit = magnitude * (1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps)
            torch.testing.assert_close(got.grad.double(), exact.grad, rtol=1e-5, atol=limit)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_whole_passes_in_few_bits(dtype: torch.dtype, channels_last: bool) -> None:
    check_passes((6, 3, 5, 7), 2, channels_last, 0.75, False, False, False, dtype)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_passes_against_torch_s_kernels(dtype: torch.dtype, relu: bool) -> None:
    """Of a blob that is a part of another, and gradients of another order in memory."""
    wide = blob((6, 5, 7, 4), True).to(dtype)
    grads = blob((6, 3, 7, 4), False, seed=1).to(dtype), blob((6, 3, 1, 1), False, seed=2).to(dtype).expand(6, 3, 7, 4)
    for grad in grads:
        results = []
        for by in (kernels, alignment_torch):
            x, alpha = wide.clone().requires_grad_(), torch.tensor([0.8], requires_grad=True)
            outputs = align(x[:, 1:4], alpha, 2, EPS, relu=relu, kernels=by)
            results.append([*outputs, *torch.autograd.grad(outputs[0], (x, alpha), grad)])
        for got, expected in zip(*results, strict=True):
            close(got, expected, dtype)


@pytest.mark.parametrize("by", [kernels, alignment_torch])
def test_a_batch_that_processes_share(by: ModuleType) -> None:
    results = []
    for slice_point, shares in ((3, None), (6, Shares(Twins(), (6, 10)))):
        x, alpha = blob((8, 4, 3, 3), False).float().requires_grad_(), torch.tensor([0.8], requires_grad=True)
        outputs = align(x, alpha, slice_point, EPS, shares=shares, kernels=by)
        results.append([*outputs, *torch.autograd.grad(outputs[0].pow(3).sum(), (x, alpha))])
    for got, expected in zip(*results, strict=True):
        close(got, expected)


def test_coefficients_take_the_input_s_gradient_from_the_whole_batch_s_sums() -> None:
    x, grad = blob((8, 4), False).float(), blob((8, 4), False, seed=1).float()
    mixed = kernels.mix(kernels.moments(x, 3), torch.tensor([0.8]), EPS)
    y = kernels.normalize(x, 3, mixed, None, None, relu=False)
    sums = kernels.grad_sums(grad, y, 3, None, None, None)
    whole = kernels.coefficients(sums, sums, mixed, None, (3, 5), shifted=False)
    part = kernels.coefficients(sums / 4, sums, mixed, None, (3, 5), shifted=False)
    torch.testing.assert_close(part[0].alpha, whole[0].alpha / 4)
    torch.testing.assert_close(part[0].scale, whole[0].scale / 4)
    for got, expected in zip(part[1], whole[1], strict=True):
        assert torch.equal(got, expected)


def test_more_channels_than_a_block_of_coefficients() -> None:
    check_passes((3, 1100), 1, False, 0.6, True, True, True)


def test_gradients_of_another_order_in_memory_are_brought_into_the_saved_one() -> None:
    saved = blob((4, 3, 5, 2), True).float()
    grad = blob((4, 3, 5, 2), False).float()
    got = kernels.prepared(grad, saved, None)
    assert torch.equal(got, grad) and got.stride() == saved.stride()
    assert kernels.prepared(torch.ones(()).expand(4, 3, 5, 2), saved, None).stride() == saved.stride()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_channel_that_is_not_finite_is_seen_in_its_results(value: float) -> None:
    x = blob((4, 2, 3, 3), False).float()
    x[0, 0, 0, 0] = value
    moments = kernels.moments(x, 2)
    assert moments[0, 1, 0].isnan() and moments[1].isfinite().all() and moments[:, :, 1].isfinite().all()
    y = kernels.normalize(x, 2, kernels.mix(moments, torch.ones(1), EPS), None, None, relu=True)
    assert y[:, 0].isnan().all() and y[:, 1].isfinite().all()


@pytest.fixture
def chosen(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[torch.dtype], tuple[ModuleType, list[str]]]]:
    """What is chosen for a dtype, twice, as if the CPU were a GPU, and the warnings."""

    def chosen(dtype: torch.dtype) -> tuple[ModuleType, list[str]]:
        first, second = (alignment.gpu_kernels(torch.device("cpu"), dtype) for _ in range(2))
        assert first is second
        return first, [record.getMessage() for record in caplog.records]

    alignment.gpu_kernels.cache_clear()
    yield chosen
    alignment.gpu_kernels.cache_clear()


def test_kernels_that_work_are_taken(chosen: Any) -> None:
    with torch.inference_mode():
        assert chosen(torch.float32) == (kernels, [])


def test_kernels_without_float64_leave_it_to_torch(chosen: Any) -> None:
    assert chosen(torch.float64) == (alignment_torch, [])


@pytest.mark.parametrize("name", ["moments", "mix", "normalize", "grad_sums", "input_grad"])
@pytest.mark.parametrize("wrong", [1.02, float("nan")])
def test_kernels_with_wrong_results_are_not_taken(
    chosen: Any, name: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(alignment_torch, name)

    def spoiled(*arguments: Any, **options: Any) -> Any:
        result = right(*arguments, **options)
        if name == "mix":
            return result._replace(mean=result.mean * wrong)
        return (alignment_torch.stacked(result) if isinstance(result, list) else result) * wrong

    for function in ("moments", "mix", "normalize", "prepared", "grad_sums", "coefficients", "input_grad"):
        monkeypatch.setattr(kernels, function, getattr(alignment_torch, function))  # for their speed
    monkeypatch.setattr(kernels, name, spoiled)
    taken, (warning,) = chosen(torch.float32)
    assert taken is alignment_torch
    assert warning.startswith("DA-layers of torch.float32 on cpu run without Triton's kernels, which fail there: ")

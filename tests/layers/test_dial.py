"""Domain alignment against torch's batch norm, the paper's appendix and numerical gradients."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers import DomainAlignment, EntropyLoss, LayerError, alignment, alignment_torch
from autodial.layers.alignment import align
from autodial.layers.base import TEST


@pytest.fixture(autouse=True, params=["chosen", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is one of the kernels that the CPU is given, and of those that compilers and other devices are."""
    if request.param == "torch":
        monkeypatch.setattr(alignment, "kernels_for", lambda x: alignment_torch)


def batch(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * 3 + 1


def test_alpha_half_with_equal_halves_is_batch_norm_over_the_joint_batch() -> None:
    x = batch(8, 3, 4, 5)
    x[4:] += 2
    layer = DomainAlignment(3, slice_point=4, alpha=0.5).double()
    torch.testing.assert_close(layer(x), F.batch_norm(x, None, None, training=True))


def test_alpha_one_is_a_batch_norm_for_each_domain() -> None:
    x = batch(9, 3, 4, 5)
    layer = DomainAlignment(3, slice_point=6, alpha=1).double()
    expected = torch.cat([F.batch_norm(half, None, None, training=True) for half in (x[:6], x[6:])])
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("shape", [(7, 4), (5, 3, 2, 3)])
@pytest.mark.parametrize("alpha", [0.501, 0.73, 0.999])  # gradcheck moves alpha, which the clip must not notice
def test_gradients_by_input_and_alpha(shape: tuple[int, ...], alpha: float) -> None:
    layer = DomainAlignment(shape[1], slice_point=2).double()
    statistics = dict(layer.named_buffers())

    def forward(x: Tensor, alpha: Tensor) -> Tensor:
        state = {"alpha": alpha, **{name: tensor.clone() for name, tensor in statistics.items()}}
        return torch.func.functional_call(layer, state, (x,))  # type: ignore[no-any-return]

    value = torch.tensor([alpha], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(forward, (batch(*shape).requires_grad_(), value))


def appendix(xs: Tensor, xt: Tensor, alpha: float, eps: float, gs: Tensor, gt: Tensor) -> tuple[Tensor, ...]:
    """The outputs and gradients of the paper's appendix A, line by line, for (n, C) samples."""
    n_s, n_t = len(xs), len(xt)
    mu_st = alpha / n_s * xs.sum(0) + (1 - alpha) / n_t * xt.sum(0)
    mu_ts = (1 - alpha) / n_s * xs.sum(0) + alpha / n_t * xt.sum(0)
    var_st = alpha / n_s * ((xs - mu_st) ** 2).sum(0) + (1 - alpha) / n_t * ((xt - mu_st) ** 2).sum(0)
    var_ts = (1 - alpha) / n_s * ((xs - mu_ts) ** 2).sum(0) + alpha / n_t * ((xt - mu_ts) ** 2).sum(0)
    sd_st, sd_ts = (eps + var_st).sqrt(), (eps + var_ts).sqrt()
    ys, yt = (xs - mu_st) / sd_st, (xt - mu_ts) / sd_ts
    y_st, y_ts = (xs - mu_ts) / sd_ts, (xt - mu_st) / sd_st
    dxs = (gs - alpha / n_s * (gs.sum(0) + ys * (ys * gs).sum(0))) / sd_st - (1 - alpha) / n_s * (
        gt.sum(0) + y_st * (yt * gt).sum(0)
    ) / sd_ts
    dxt = (gt - alpha / n_t * (gt.sum(0) + yt * (yt * gt).sum(0))) / sd_ts - (1 - alpha) / n_t * (
        gs.sum(0) + y_ts * (ys * gs).sum(0)
    ) / sd_st
    dalpha = (
        (y_ts.mean(0) - ys.mean(0)) * gs.sum(0)
        + ((y_ts**2).mean(0) - (ys**2).mean(0)) / 2 * (ys * gs).sum(0)
        + (y_st.mean(0) - yt.mean(0)) * gt.sum(0)
        + ((y_st**2).mean(0) - (yt**2).mean(0)) / 2 * (yt * gt).sum(0)
    )
    return torch.cat([ys, yt]), torch.cat([dxs, dxt]), dalpha.sum().reshape(1)


@pytest.mark.parametrize(("source", "target"), [(117, 139), (1, 6), (6, 1)])
def test_the_closed_forms_of_the_appendix(source: int, target: int) -> None:
    alpha, eps = 0.8, 1e-5
    x = batch(source + target, 5).requires_grad_()
    grad = batch(source + target, 5, seed=1)
    layer = DomainAlignment(5, slice_point=source, alpha=alpha, eps=eps).double()
    layer.alpha.data.fill_(alpha)
    y = layer(x)
    y.backward(grad)
    out, dx, dalpha = appendix(x.detach()[:source], x.detach()[source:], alpha, eps, grad[:source], grad[source:])
    torch.testing.assert_close(y.detach(), out)
    torch.testing.assert_close(x.grad, dx)
    torch.testing.assert_close(layer.alpha.grad, dalpha)


@pytest.mark.parametrize("shape", [(9, 4), (9, 4, 5), (9, 4, 3, 5), (9, 4, 2, 3, 3)])
def test_every_rank_equals_the_appendix(shape: tuple[int, ...]) -> None:
    x, grad = batch(*shape).requires_grad_(), batch(*shape, seed=1)
    layer = DomainAlignment(4, slice_point=4, alpha=0.8).double()
    y = layer(x)
    y.backward(grad)

    def rows(blob: Tensor) -> Tensor:
        return blob.detach().movedim(1, -1).flatten(0, -2)

    parts = (rows(x[:4]), rows(x[4:]), 0.8, 1e-5, rows(grad[:4]), rows(grad[4:]))
    expected, expected_grad, expected_alpha = appendix(*parts)
    torch.testing.assert_close(rows(y), expected)
    assert x.grad is not None and layer.alpha.grad is not None
    torch.testing.assert_close(rows(x.grad), expected_grad)
    torch.testing.assert_close(layer.alpha.grad, expected_alpha)


def test_channels_last_stays_channels_last_and_gives_the_same() -> None:
    grad = batch(6, 8, 5, 5, seed=1)
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = batch(6, 8, 5, 5).to(memory_format=memory_format).requires_grad_()
        y = DomainAlignment(8, slice_point=2, alpha=0.7).double()(x)
        y.backward(grad.to(memory_format=memory_format))
        assert x.grad is not None
        assert y.is_contiguous(memory_format=memory_format) and x.grad.is_contiguous(memory_format=memory_format)
        results.append((y, x.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_gradients_may_have_another_order_in_memory_than_the_input(form: torch.memory_format, relu: bool) -> None:
    other = torch.contiguous_format if form == torch.channels_last else torch.channels_last
    wide = batch(6, 5, 5, 4, seed=1)
    grad = wide[:, 1:4]
    pooled = grad[:, :, :1, :1].expand(6, 3, 5, 4)  # as a mean over positions gives it
    for same, given in (
        (grad, grad.contiguous(memory_format=other)),
        (grad, wide.contiguous(memory_format=other)[:, 1:4]),
        (pooled, pooled),
    ):
        gradients = []
        for g in (same.contiguous(memory_format=form), given):
            x = batch(6, 3, 5, 4).contiguous(memory_format=form).requires_grad_()
            alpha = torch.tensor([0.8], dtype=torch.float64, requires_grad=True)
            y, _, _ = align(x, alpha, 2, 1e-5, relu=relu)
            gradients.append(torch.autograd.grad(y, (x, alpha), g))
        torch.testing.assert_close(gradients[1], gradients[0])


def test_a_large_offset_costs_no_more_than_the_inputs_precision() -> None:
    x = (batch(64, 3, 8, 8) / 3 + 1e4).float()
    y = DomainAlignment(3, slice_point=24, alpha=0.8)(x)
    exact = DomainAlignment(3, slice_point=24, alpha=0.8).double()(x.double())
    # a float32 near 1e4 is known to 5e-4, and so is the mean, which all samples share
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-3)
    assert y[:24].std().item() == pytest.approx(exact[:24].std().item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_float32_statistics(dtype: torch.dtype) -> None:
    x, grad = (batch(32, 3, 8, 8, seed=seed).to(dtype) for seed in (0, 1))
    half, exact = (DomainAlignment(3, slice_point=12, alpha=0.8) for _ in range(2))
    inputs = [x.clone().requires_grad_(), x.float().requires_grad_()]
    y, expected = half(inputs[0]), exact(inputs[1])
    y.backward(grad)
    expected.backward(grad.float())
    assert y.dtype == dtype and half.mean.dtype == torch.float32
    torch.testing.assert_close(half.mean, exact.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(half.variance, exact.variance, rtol=1e-5, atol=1e-5)
    precision = torch.finfo(dtype).eps
    torch.testing.assert_close(y.float(), expected, rtol=precision, atol=precision)
    assert inputs[0].grad is not None and inputs[1].grad is not None
    torch.testing.assert_close(inputs[0].grad.float(), inputs[1].grad, rtol=4 * precision, atol=4 * precision)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_layer_keeps_float32_moving_sums(dtype: torch.dtype) -> None:
    layer, exact = DomainAlignment(3, slice_point=4), DomainAlignment(3, slice_point=4)
    net = torch.nn.Sequential(layer).to(dtype)
    assert layer.alpha.dtype == dtype
    for step in range(300):  # bfloat16's sum of ones, which 0.999 rounds to 1 for, would end at 256
        x = (batch(8, 3, seed=step) + 5).to(dtype)
        net(x)
        exact(x.float())
    assert layer.normalizer.item() == pytest.approx((1 - 0.999**300) / (1 - 0.999), rel=1e-5)
    torch.testing.assert_close(layer.mean, exact.mean)
    torch.testing.assert_close(layer.variance, exact.variance)
    net.eval()
    scale, bias = (torch.tensor(row, dtype=dtype) for row in ([0.5, 1, -2], [0, 1, 2]))
    expected = exact.eval().scaled(x.float(), scale.float(), bias.float())
    precision = torch.finfo(dtype).eps
    torch.testing.assert_close(layer.scaled(x, scale, bias).float(), expected, rtol=precision, atol=precision)


def test_converting_a_layer_keeps_its_state_dict() -> None:
    layer = DomainAlignment(3).double()
    layer(batch(8, 3))
    mean = layer.mean.clone()
    assert mean.dtype == torch.float64 and torch.equal(layer.half().mean, mean)
    assert list(layer.state_dict()) == ["alpha", "mean", "variance", "normalizer"]
    assert torch.equal(layer.float().mean, mean.float())
    assert layer.to("meta").half().mean.is_meta


@pytest.mark.parametrize("shape", [(7, 4), (5, 3, 2, 3)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_with_scale_bias_and_relu(shape: tuple[int, ...], relu: bool, bias: bool) -> None:
    layer = DomainAlignment(shape[1], slice_point=2).double()
    factors = torch.linspace(-1, 1.5, shape[1], dtype=torch.float64).requires_grad_()
    terms = torch.linspace(0.3, -0.4, shape[1], dtype=torch.float64).requires_grad_() if bias else None

    def forward(x: Tensor, alpha: Tensor, factors: Tensor, terms: Tensor | None = None) -> Tensor:
        return align(x, alpha, 2, layer.eps, factors, terms, relu=relu)[0]

    alpha = torch.tensor([0.73], dtype=torch.float64, requires_grad=True)
    inputs = (batch(*shape).requires_grad_(), alpha, factors, *([] if terms is None else [terms]))
    assert torch.autograd.gradcheck(forward, inputs)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scaled_is_alignment_scale_and_relu(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    x, grad = (batch(32, 5, 6, 6, seed=seed).to(dtype).to(memory_format=memory_format) for seed in (0, 1))
    factors, terms = torch.tensor([-2.0, -0.5, 0.0, 0.5, 3.0]), torch.tensor([0.3, -0.3, 0.2, 0.0, -0.1])
    fused, steps = (DomainAlignment(5, slice_point=12, alpha=0.8) for _ in range(2))
    rows = [[row.clone().requires_grad_() for row in (factors, terms)] for _ in range(2)]
    inputs = [x.clone().requires_grad_(), x.float().requires_grad_()]
    y = fused.scaled(inputs[0], *rows[0], relu=True)
    scale, bias = (row.view(1, -1, 1, 1) for row in rows[1])
    expected = F.relu(steps(inputs[1]) * scale + bias)
    y.backward(grad)
    expected.backward(grad.float())
    assert y.dtype == dtype and y.is_contiguous(memory_format=memory_format)
    precision = max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(y.float(), expected, rtol=precision, atol=precision)
    pairs = [(inputs[0].grad, inputs[1].grad), (fused.alpha.grad, steps.alpha.grad)]
    for got, wanted in (*pairs, *((a.grad, b.grad) for a, b in zip(*rows, strict=True))):
        assert got is not None and wanted is not None
        torch.testing.assert_close(
            got.float(), wanted, rtol=4 * precision, atol=4 * precision * grad[:, 0].numel() ** 0.5
        )
    assert torch.equal(fused.variance, steps.variance) or dtype != torch.float32


def test_a_large_offset_costs_the_gradients_with_a_scale_no_more() -> None:
    x, grad = (batch(64, 3, 8, 8) / 3 + 1e4).float(), batch(64, 3, 8, 8, seed=1).float()
    gradients = []
    for inputs, dtype in ((x, torch.float32), (x.double(), torch.float64)):
        inputs = inputs.clone().requires_grad_()
        factors = torch.tensor([0.5, 1.0, 2.0], dtype=dtype, requires_grad=True)
        layer = DomainAlignment(3, slice_point=24, alpha=0.8).to(dtype)
        layer.scaled(inputs, factors).backward(grad.to(dtype))
        assert inputs.grad is not None and layer.alpha.grad is not None and factors.grad is not None
        gradients.append([part.double() for part in (inputs.grad, factors.grad, layer.alpha.grad)])
    # A float32 near 1e4 is known to 5e-4. The mean's error, which all samples share, adds up in the scale's gradient,
    # as it does in torch's batch norm.
    for got, exact, limit in zip(*gradients, (1e-3, 1e-2, 1e-3), strict=True):
        assert (got - exact).abs().max() < limit * exact.abs().max()


def test_with_stored_statistics_scaled_is_the_same_function() -> None:
    layer = DomainAlignment(4, slice_point=2).double()
    layer(batch(5, 4))
    layer.eval()
    factors, terms = torch.rand(2, 4, dtype=torch.float64)
    x = batch(3, 4, seed=5)
    torch.testing.assert_close(layer.scaled(x, factors, terms, relu=True), F.relu(layer(x) * factors + terms))


def gradients_of(net: torch.nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    return list(torch.autograd.grad(net(x).square().sin().sum(), [x, *net.parameters()]))


def test_compiled_training_takes_batches_of_any_size() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), DomainAlignment(5, alpha=0.8))
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for size in (6, 8, 10):
        x = batch(size, 3, 6, 6).float()
        for got, expected in zip(gradients_of(compiled, x), gradients_of(net, x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert DomainAlignment(5).to("meta")(torch.empty(6, 5, 2, 2, device="meta")).shape == (6, 5, 2, 2)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ here")
def test_compiled_gradients_of_few_channels_and_positions() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), DomainAlignment(8, slice_point=5, alpha=0.8), torch.nn.ReLU())
    x = batch(12, 8, 3, 3).float()
    for got, expected in zip(gradients_of(torch.compile(net), x), gradients_of(net, x), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_training_mode_exports() -> None:
    x = batch(7, 3, 4, 4).float()
    program = torch.export.export(DomainAlignment(3, slice_point=3, alpha=0.8), (x,))
    torch.testing.assert_close(program.module()(x), DomainAlignment(3, slice_point=3, alpha=0.8)(x))


@pytest.mark.parametrize("shape", [(7, 3, 4, 4), (7, 3)])
@pytest.mark.parametrize("scaled", [False, True])
def test_training_mode_compiles(shape: tuple[int, ...], scaled: bool) -> None:
    grad = batch(*shape, seed=1).float()
    results = []
    for wrap in (lambda layer: layer, lambda layer: torch.compile(layer, backend="aot_eager")):
        x = batch(*shape).float().requires_grad_()
        scale, bias = torch.full((3,), 0.7, requires_grad=True), torch.full((3,), 0.1, requires_grad=True)
        layer = DomainAlignment(3, slice_point=3, alpha=0.8)
        y = wrap(layer.scaled)(x, scale, bias, relu=True) if scaled else wrap(layer)(x)
        inputs = (x, layer.alpha, scale, bias) if scaled else (x, layer.alpha)
        results.append([y, *torch.autograd.grad(y, inputs, grad)])
    torch.testing.assert_close(results[1], results[0])


def test_there_are_no_second_derivatives() -> None:
    x = batch(6, 3).requires_grad_()
    (grad,) = torch.autograd.grad(DomainAlignment(3, slice_point=3).double()(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(("alpha", "eps"), [(1.0, 0.0), (0.5, 1e-5)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38, 0.0])
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_goes_through_without_a_warning(value: float, alpha: float, eps: float) -> None:
    x = batch(6, 2).float()
    x[:, 0] = value
    x.requires_grad_()
    layer = DomainAlignment(2, slice_point=3, alpha=alpha, eps=eps)
    y = layer.scaled(x, torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True))
    y.sum().backward()
    assert x.grad is not None
    assert y[:, 1].isfinite().all() and x.grad[:, 1].isfinite().all()
    assert y[:, 0].isfinite().all().item() is (value == 0 and eps > 0)


def test_with_alpha_one_a_domain_keeps_variances_that_are_nothing_beside_the_other_s() -> None:
    x = batch(8, 3).float()
    x[:4] *= 1e-5
    x[4:] *= 1e5
    y = DomainAlignment(3, slice_point=4, alpha=1, eps=0)(x)
    expected = torch.cat([(half - half.mean(0)) / half.std(0, correction=0) for half in (x[:4], x[4:])])
    torch.testing.assert_close(y, expected)


def test_feature_maps_count_every_position_as_a_sample() -> None:
    x = batch(5, 3, 2, 4)
    rows = x.movedim(1, -1).reshape(-1, 3)  # sample-major, so the first domain's positions come first
    maps = DomainAlignment(3, slice_point=2, alpha=0.7).double()
    flat = DomainAlignment(3, slice_point=2 * 8, alpha=0.7).double()
    torch.testing.assert_close(maps(x).movedim(1, -1).reshape(-1, 3), flat(rows))
    torch.testing.assert_close(maps.variance, flat.variance)


def test_stored_statistics_are_moving_sums_of_the_mixed_ones() -> None:
    layer = DomainAlignment(2, slice_point=2, alpha=0.75, moving_average_fraction=0.5).double()
    first, second = batch(5, 2), batch(5, 2, seed=1)
    means = []
    for x in (first, second):
        layer(x)
        source, target = x[:2].mean(0), x[2:].mean(0)
        means.append(torch.stack([0.75 * source + 0.25 * target, 0.25 * source + 0.75 * target]))
    torch.testing.assert_close(layer.mean, 0.5 * means[0] + means[1])
    assert layer.normalizer.item() == 1.5
    # a stored variance carries m / (m - 1) with m the elements of the whole batch
    mu = means[1]
    var = torch.stack(
        [
            0.75 * ((second[:2] - mu[0]) ** 2).mean(0) + 0.25 * ((second[2:] - mu[0]) ** 2).mean(0),
            0.25 * ((second[:2] - mu[1]) ** 2).mean(0) + 0.75 * ((second[2:] - mu[1]) ** 2).mean(0),
        ]
    )
    fresh = DomainAlignment(2, slice_point=2, alpha=0.75).double()
    fresh(second)
    torch.testing.assert_close(fresh.variance, var * 5 / 4)


@pytest.mark.parametrize(("stats", "row"), [("target", 1), ("source", 0)])
def test_eval_normalizes_the_whole_batch_with_one_domain(stats: str, row: int) -> None:
    layer = DomainAlignment(2, slice_point=2, test_stats=stats).double()  # type: ignore[arg-type]
    layer(batch(5, 2))
    layer.eval()
    x = batch(4, 2, seed=3)
    expected = F.batch_norm(x, layer.mean[row], layer.variance[row])
    torch.testing.assert_close(layer(x), expected)


def test_alpha_is_clipped_in_place_and_its_gradient_is_not_masked() -> None:
    layer = DomainAlignment(2, slice_point=2, alpha=1.4).double()
    layer(batch(5, 2)).square().sum().backward()
    inside = DomainAlignment(2, slice_point=2, alpha=1.0).double()
    inside(batch(5, 2)).square().sum().backward()
    assert layer.alpha.item() == 1
    torch.testing.assert_close(layer.alpha.grad, inside.alpha.grad)


@pytest.mark.parametrize("slice_point", [5, 7])
def test_a_slice_without_both_domains_is_refused_in_training_only(slice_point: int) -> None:
    layer = DomainAlignment(2, slice_point=slice_point)
    with pytest.raises(LayerError, match=f"slice_point {slice_point} "):
        layer(batch(5, 2).float())
    layer.eval()
    assert layer(batch(5, 2).float()).shape == (5, 2)


def test_prototxt_s_slice_point_may_be_any_in_test(build) -> None:
    for text in ("", "dial_param { slice_point: 0 }", "dial_param { slice_point: -3 }"):
        assert build(f'type: "Dial" {text}', (1, 2), phase=TEST)(torch.ones(1, 2)).shape == (1, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DomainAlignment(2, slice_point=0), "slice_point must be at least 1, or None for half .*, not 0"),
        (lambda: DomainAlignment(2, slice_point=-3), "slice_point must be at least 1"),
        (lambda: DomainAlignment(2, slice_point=5.5), "slice_point must be a whole number, not 5.5"),
        (lambda: DomainAlignment(2, slice_point="5"), "slice_point must be a whole number, not '5'"),
        (lambda: DomainAlignment(2.0), "num_features must be a whole number, not 2.0"),
        (lambda: DomainAlignment(2, test_stats="SOURCE"), 'test_stats must be "source" or "target", not "SOURCE"'),
        (lambda: DomainAlignment(2, alpha=float("nan")), "alpha must be a number, from 0.5 to 1, and is NaN"),
        (lambda: DomainAlignment(2, moving_average_fraction=1.5), "fraction must be from 0 to 1, and is 1.5"),
        (lambda: DomainAlignment(2, moving_average_fraction=float("nan")), "must be from 0 to 1, and is nan"),
        (lambda: DomainAlignment(2)(torch.ones(4, 2, dtype=torch.int64)), "gets torch.int64: convert them"),
        (lambda: DomainAlignment(1)(torch.tensor(1.0)), "normalizes a batch and gets a single number"),
        (lambda: DomainAlignment(2)(torch.ones(4, 3)), r"was built for 2 channels and gets a blob of shape \(4, 3\)"),
        (lambda: DomainAlignment(2).eval()(torch.ones(4, 3, 5)), "was built for 2 channels and gets"),
        (lambda: DomainAlignment(2)(torch.ones(1, 2)), "a batch of 1 can't hold samples of both domains"),
        (lambda: EntropyLoss(normalization="VALID"), 'one of full, valid, batch_size, none, not "VALID"'),
    ],
)
def test_what_torch_users_get_wrong(make, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        make()


def test_repr_says_what_the_layers_are() -> None:
    assert repr(DomainAlignment(3, slice_point=2)).startswith("DomainAlignment(3, slice_point=2, eps=1e-05, ")
    assert repr(EntropyLoss()) == "EntropyLoss(axis=1, normalization=valid)"

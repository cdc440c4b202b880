"""Domain alignment on a GPU: the CPU's numbers in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from autodial.layers import DomainAlignment
from autodial.layers.alignment import align, kernels_for

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(48, 64, 28, 28), (256, 512), (9, 4, 5), (6, 3, 4, 5, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_output_gradients_and_statistics(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> None:
    if channels_last and len(shape) != 4:
        pytest.skip("feature maps only")
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 1).to(dtype)
    grad = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def run(device: str, kind: torch.dtype) -> tuple[Tensor, ...]:
        layer = DomainAlignment(shape[1], slice_point=shape[0] // 3, alpha=0.7).to(device)
        layer = layer.double() if kind == torch.float64 else layer
        inputs = x.to(device, kind).contiguous(memory_format=memory_format).requires_grad_()
        y = layer(inputs)
        y.backward(grad.to(device, kind))
        assert inputs.grad is not None and layer.alpha.grad is not None
        tensors = (y, inputs.grad, layer.alpha.grad, layer.mean, layer.variance)
        return tuple(tensor.detach().cpu().double() for tensor in tensors)

    precision = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-5
    y, grad_x, grad_alpha, mean, variance = run("cuda", dtype)
    exact = run("cpu", torch.float64)
    torch.testing.assert_close(y, exact[0], rtol=precision, atol=precision)
    torch.testing.assert_close(grad_x, exact[1], rtol=precision, atol=precision)
    # a sum over channels whose terms have either sign
    torch.testing.assert_close(grad_alpha, exact[2], rtol=precision, atol=0.1 * precision * shape[0] * shape[1])
    torch.testing.assert_close(mean, exact[3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance, exact[4], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("scaled", "biased", "relu"), list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_scale_bias_and_relu(scaled: bool, biased: bool, relu: bool, dtype: torch.dtype, channels_last: bool) -> None:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(2, 24, 20, 31, 30, generator=generator, dtype=torch.float64) * 3 + 1).to(dtype)
    given = [x.contiguous(memory_format=memory_format), torch.tensor([0.7])]
    given += [torch.linspace(-1, 2, 20)] if scaled else []
    given += [torch.linspace(0.5, -1, 20)] if biased else []

    def run(device: str, exact: bool) -> list[Tensor]:
        leaves = [each.to(device, torch.float64 if exact else each.dtype).requires_grad_() for each in given]
        rows = iter(leaves[2:])
        scale, bias = next(rows) if scaled else None, next(rows) if biased else None
        y, _, _ = align(leaves[0], leaves[1], 9, 1e-5, scale, bias, relu=relu)
        gradients = torch.autograd.grad(y, leaves, grad.to(device, y.dtype))
        return [each.detach().cpu().double() for each in (y, *gradients)]

    precision = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-5
    results = zip(run("cuda", False), run("cpu", True), strict=True)
    for name, (got, exact) in zip(("y", "grad_x", "alpha", "scale", "bias"), results, strict=False):
        if name in ("y", "grad_x"):
            # a value next to a ReLU's bend may be on its other side
            assert ((got - exact).abs() > precision * exact.abs().max()).sum() <= (8 if relu else 0)
        else:
            torch.testing.assert_close(got, exact, rtol=precision, atol=precision * grad.double().norm().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_triton_s_kernels_are_in_use(dtype: torch.dtype) -> None:
    alignment_triton = pytest.importorskip("autodial.layers.alignment_triton", reason="needs Triton")
    assert kernels_for(torch.empty(4, 3, device="cuda", dtype=dtype)) is alignment_triton


@pytest.mark.parametrize("channels_last", [False, True])
def test_more_than_2_31_elements(channels_last: bool) -> None:
    shape = (3, 64, 3400, 3400)
    if torch.cuda.mem_get_info()[0] < 8 * 2 * math.prod(shape):
        pytest.skip("needs 36 GB of GPU memory")
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.zeros(shape, dtype=torch.bfloat16, device="cuda").to(memory_format=memory_format)
    x[2, 63, 1700:] = 2  # behind the 2^31st
    x[:2, :, ::2] = 2
    x.requires_grad_()
    y, mean, variance = align(x, torch.ones(1, device="cuda"), 2, 0.0)
    y.backward(y.detach())
    assert x.grad is not None
    for d, (half, grad) in enumerate(((y[:2, 63], x.grad[:2, 63]), (y[2:, 63], x.grad[2:, 63]))):
        torch.testing.assert_close(mean[d, 63].item(), 1.0)
        torch.testing.assert_close(variance[d, 63].item(), 1.0)
        assert half.abs().eq(1).all() and half.sum().abs() <= 1
        assert grad.abs().max() < 1e-5  # a change of scale, which the normalized values do not follow


def test_training_does_not_wait_for_the_device() -> None:
    layer = DomainAlignment(8, slice_point=2).cuda()
    x = torch.randn(6, 8, 5, 5, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

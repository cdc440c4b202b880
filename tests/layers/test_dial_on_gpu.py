"""Domain alignment on a GPU: the CPU's numbers in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autodial.layers import DomainAlignment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


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


def test_training_does_not_wait_for_the_device() -> None:
    layer = DomainAlignment(8, slice_point=2).cuda()
    x = torch.randn(6, 8, 5, 5, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

"""The linear map of fully connected layers, by oneDNN, against numpy in float64 and torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers import linear as module
from autodial.layers.linear import linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ON_AMD", True)
    monkeypatch.setattr(module, "_WORTHWHILE", 0)


def by_onednn(y: Tensor) -> bool:
    return y.grad_fn is not None and "OneDnn" in y.grad_fn.name()


def arguments(*shape: int, outputs: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (shape, (outputs, shape[-1]), (outputs,))
    x, weight, bias = (torch.randn(size, generator=generator).requires_grad_() for size in sizes)
    return x, weight, bias


@pytest.mark.parametrize("shape", [(5, 9), (1, 9), (3, 4, 9), (0, 9)])
def test_values_and_gradients(shape: tuple[int, ...]) -> None:
    x, weight, bias = arguments(*shape)
    y = linear(x, weight, bias)
    assert by_onednn(y)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(gradient)
    exact = [each.detach().double().numpy() for each in (x, weight, bias, gradient)]
    rows, columns = exact[3].reshape(-1, 7), exact[0].reshape(-1, 9)
    for found, expected in [
        (y.detach(), exact[0] @ exact[1].T + exact[2]),
        (x.grad, exact[3] @ exact[1]),
        (weight.grad, rows.T @ columns),
        (bias.grad, rows.sum(0)),
    ]:
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_a_transposed_weight_without_bias() -> None:
    x, weight, _ = arguments(5, 9)
    stored = weight.detach().t().contiguous()
    np.testing.assert_allclose(linear(x, stored.t(), None).detach(), F.linear(x, weight).detach(), 1e-5, 1e-5)


def test_only_what_needs_a_gradient_has_one() -> None:
    x, weight, bias = arguments(5, 9)
    frozen = weight.detach(), bias.detach()
    (gradient,) = torch.autograd.grad(linear(x, *frozen).sum(), x)
    np.testing.assert_allclose(gradient, frozen[0].sum(0).expand(5, 9), 1e-5, 1e-5)
    assert not linear(x.detach(), *frozen).requires_grad


def test_second_derivatives() -> None:
    def penalty(map_: object) -> tuple[Tensor, ...]:
        x, weight, bias = arguments(5, 9)
        (gradient,) = torch.autograd.grad(map_(x, weight, bias).pow(2).sum(), x, create_graph=True)  # type: ignore[operator]
        return torch.autograd.grad(gradient.pow(2).sum(), (x, weight))

    for found, expected in zip(penalty(linear), penalty(F.linear), strict=True):
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def test_what_onednn_is_not_for() -> None:
    x, weight, bias = arguments(5, 9)
    assert not by_onednn(linear(x.double(), weight.double(), bias.double()))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16
    assert linear(x.to("meta"), weight.to("meta"), bias.to("meta")).is_meta
    rows = torch.func.vmap(linear, (0, None, None))(x, weight, bias)
    np.testing.assert_allclose(rows.detach(), F.linear(x, weight, bias).detach(), 1e-5, 1e-5)


def test_small_maps_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTHWHILE", 5 * 9 * 7 + 1)
    assert not by_onednn(linear(*arguments(5, 9)))


def test_exporters_see_a_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTHWHILE", 1000)

    class Map(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(7, 9))

        def forward(self, x: Tensor) -> Tensor:
            return linear(x, self.weight, None)

    program = torch.export.export(Map(), (torch.ones(5, 9),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert torch.ops.aten.linear.default in [node.target for node in program.graph.nodes]

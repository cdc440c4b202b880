"""Activation functions and other elementary functions against their formulas in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from autodial.layers import LayerError, PReLU

X = np.concatenate([np.random.default_rng(0).standard_normal(40) * 3, [0, -100, 100]])

FORMULAS = [
    ('type: "AbsVal"', np.abs),
    ('type: "Sigmoid" sigmoid_param { engine: CUDNN }', lambda x: np.exp(-np.logaddexp(0, -x))),
    ('type: "TanH" tanh_param { engine: CAFFE }', lambda x: 1 - 2 * np.exp(-np.logaddexp(0, 2 * x))),
    ('type: "BNLL"', lambda x: np.logaddexp(0, x)),
    ('type: "ELU"', lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    ('type: "ELU" elu_param { alpha: 0.25 }', lambda x: np.where(x > 0, x, 0.25 * np.expm1(np.minimum(x, 0)))),
    ('type: "Exp" exp_param { scale: 0.25 }', lambda x: np.exp(0.25 * x)),
    ('type: "Exp" exp_param { base: -1 shift: 2 scale: -0.25 }', lambda x: np.exp(2 - 0.25 * x)),
    ('type: "Exp" exp_param { base: 0.5 shift: -1 }', lambda x: 0.5 ** (x - 1)),
    ('type: "Exp" exp_param { base: 1 shift: 3 }', np.ones_like),
    ('type: "Log" log_param { shift: 200 }', lambda x: np.log(x + 200)),
    ('type: "Log" log_param { base: 2 scale: -0.5 shift: 60 }', lambda x: np.log2(60 - 0.5 * x)),
    ('type: "Threshold"', lambda x: (x > 0).astype(float)),
    ('type: "Threshold" threshold_param { threshold: -1 }', lambda x: (x > -1).astype(float)),
]


@pytest.mark.parametrize(("text", "formula"), FORMULAS)
def test_values(build, text: str, formula) -> None:
    layer = build(text, X.shape).double()
    np.testing.assert_allclose(layer(torch.from_numpy(X)), formula(X), 1e-9, 1e-12)


@pytest.mark.parametrize(("text", "formula"), [case for case in FORMULAS if "Threshold" not in case[0]])
def test_gradients(build, text: str, formula) -> None:
    x = torch.from_numpy(X[np.abs(X) > 0.01])[:12].requires_grad_()
    assert torch.autograd.gradcheck(build(text, X.shape).double(), x)


def test_gradients_in_the_corners(build) -> None:
    x = torch.tensor([-100.0, 0.0, 100.0], requires_grad=True)

    def gradient(text: str) -> list[float]:
        return torch.autograd.grad(build(text, (3,))(x).sum(), x)[0].tolist()

    assert gradient('type: "AbsVal"') == [-1, 0, 1]
    assert gradient('type: "ELU" elu_param { alpha: 0.5 }') == pytest.approx([0, 0.5, 1])
    assert gradient('type: "BNLL"') == pytest.approx([0, 0.5, 1])


def test_threshold_has_no_gradient(build) -> None:
    layer = build('type: "Threshold"', (3,))
    assert layer.no_gradient == (0,)
    assert not layer(torch.ones(3, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('type: "Exp" exp_param { base: 0 }', "base must be positive, or -1 for e, not 0"),
        ('type: "Exp" exp_param { base: -2 }', "not -2"),
        ('type: "Log" log_param { base: -0.5 }', "not -0.5"),
        ('type: "Log" log_param { base: inf }', "not inf"),
        ('type: "Log" log_param { base: 1 }', "no logarithms with base 1"),
    ],
)
def test_refused(build, text: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(text, (3,))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 2), (2, 3, 1, 2, 2)])
@pytest.mark.parametrize("shared", [False, True])
def test_prelu(build, shape: tuple[int, ...], shared: bool) -> None:
    fields = f'channel_shared: {str(shared).lower()} filler {{ type: "uniform" min: -1 max: 1 }}'
    layer = build(f'type: "PReLU" prelu_param {{ {fields} }}', shape).double()
    (slope,) = layer.blobs
    assert slope.shape == (() if shared else (3,))
    assert layer.top_shapes([shape]) == [shape]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    by_channel = slope.detach().numpy().reshape(-1, *(1,) * (len(shape) - 2))
    want = np.maximum(x.numpy(), 0) + by_channel * np.minimum(x.numpy(), 0)
    np.testing.assert_allclose(layer(x).detach(), want)

    def forward(x, slope):
        return torch.func.functional_call(layer, {"slope": slope}, (x,))

    assert torch.autograd.gradcheck(forward, (x.requires_grad_(), slope.detach().requires_grad_()))


def test_prelu_starts_at_a_quarter(build) -> None:
    assert build('type: "PReLU"', (2, 3)).blobs[0].tolist() == [0.25] * 3
    assert build('type: "PReLU" prelu_param { channel_shared: true }', (2, 3)).blobs[0].item() == 0.25
    assert build('type: "PReLU" prelu_param { filler { } }', (2, 3)).blobs[0].tolist() == [0] * 3


def test_prelu_takes_the_slope_at_zero() -> None:
    x = torch.zeros(1, 1, requires_grad=True)
    PReLU(1)(x).backward()
    assert x.grad is not None
    assert math.isclose(x.grad.item(), 0.25)


def test_prelu_refuses(build) -> None:
    with pytest.raises(LayerError, match=r"at least 2 axes .* not \(3,\)"):
        build('type: "PReLU"', (3,))
    with pytest.raises(LayerError, match=r"bottom \(2, 4\) has 4 channels, the layer has 3 slopes"):
        PReLU(3).top_shapes([(2, 4)])
    assert PReLU(None).top_shapes([(2, 4)]) == [(2, 4)]

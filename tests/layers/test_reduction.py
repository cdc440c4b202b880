"""Reduction, ArgMax and MVN against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autodial.layers import MVN, ArgMax, LayerError

OPERATIONS = {
    "SUM": lambda rows: rows.sum(1),
    "ASUM": lambda rows: np.abs(rows).sum(1),
    "SUMSQ": lambda rows: (rows**2).sum(1),
    "MEAN": lambda rows: rows.mean(1),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("axis", "top"), [(0, ()), (1, (2,)), (-1, (2, 3)), (-3, ())])
def test_reduction(build, operation: str, axis: int, top: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    layer = build(f'type: "Reduction" reduction_param {{ operation: {operation} axis: {axis} coeff: -2 }}', x.shape)
    assert layer.top_shapes([x.shape]) == [top]
    want = -2 * OPERATIONS[operation](x.reshape(int(np.prod(top)), -1)).reshape(top)
    np.testing.assert_allclose(layer(torch.from_numpy(x)), want)
    assert torch.autograd.gradcheck(layer, torch.from_numpy(x).requires_grad_())


def test_reduction_defaults_to_the_sum_of_all(build) -> None:
    assert build('type: "Reduction"', (2, 3))(torch.arange(6.0).view(2, 3)).item() == 15


def test_absolute_sum_has_no_slope_at_zero(build) -> None:
    x = torch.tensor([-2.0, 0.0, 3.0], requires_grad=True)
    build('type: "Reduction" reduction_param { operation: ASUM }', (3,))(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1, 0, 1]


def test_reduction_refuses(build) -> None:
    with pytest.raises(LayerError, match="axis 2 is out of range"):
        build('type: "Reduction" reduction_param { axis: 2 }', (2, 3))


def argmax_by_sorting(x, top_k, axis, values):
    """argmax_layer.cpp: pairs (value, index) sorted from the highest."""
    rows = x.reshape(len(x), -1) if axis is None else x
    rows = np.moveaxis(rows, 1 if axis is None else axis, -1)
    found = np.empty((2, *rows.shape[:-1], top_k), x.dtype)
    for place in np.ndindex(*rows.shape[:-1]):
        ranked = sorted(((value, i) for i, value in enumerate(rows[place])), reverse=True)[:top_k]
        found[0][place], found[1][place] = [i for _, i in ranked], [value for value, _ in ranked]
    if axis is not None:
        return np.moveaxis(found[int(values)], -1, axis)
    top = np.stack(found if values else found[:1], 1)
    return top.reshape(*top.shape, *(1,) * (x.ndim - 3))


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 5), (3, 4, 2, 3)])
def test_argmax(build, shape: tuple[int, ...], axis: int | None, top_k: int, values: bool) -> None:
    x = np.random.default_rng(0).integers(0, 4, shape).astype(np.float32)  # full of ties
    axis_field = "" if axis is None else f"axis: {axis}"
    fields = f"top_k: {top_k} out_max_val: {str(values).lower()} {axis_field}"
    layer = build(f'type: "ArgMax" argmax_param {{ {fields} }}', shape)
    want = argmax_by_sorting(x, top_k, axis, values)
    assert layer.top_shapes([shape]) == [want.shape]
    np.testing.assert_array_equal(layer(torch.from_numpy(x)), want)


def test_argmax_has_no_gradient() -> None:
    layer = ArgMax(axis=1, values=True)
    assert layer.no_gradient == (0,)
    assert not layer(torch.ones(2, 3, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("fields", "shape", "message"),
    [
        ("top_k: 0", (2, 6), "top_k must be positive"),
        ("top_k: 7", (2, 3, 2), r"top_k 7 is more than the 6 values that bottom \(2, 3, 2\) has to compare"),
        ("top_k: 3 axis: -1", (2, 3, 2), "more than the 2 values"),
        ("axis: 2", (2, 6), "axis 2 is out of range"),
        ("", (), "at least 1 axis"),
    ],
)
def test_argmax_refuses(build, fields: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "ArgMax" argmax_param {{ {fields} }}', shape)


def mvn_backward(x, gradient, axes, eps):
    """mvn_layer.cpp: the gradient, with y the top, is (dy - mean(dy) - y mean(y dy)) / (deviation + eps)."""
    deviation = x.std(axes, keepdims=True) + eps
    y = (x - x.mean(axes, keepdims=True)) / deviation
    mean = gradient.mean(axes, keepdims=True)
    return y, (gradient - mean - y * (y * gradient).mean(axes, keepdims=True)) / deviation


@pytest.mark.parametrize(("fields", "axes"), [("", (2, 3)), ("across_channels: true", (1, 2, 3))])
@pytest.mark.parametrize("eps", [None, 0.5])
def test_mvn(build, fields: str, axes: tuple[int, ...], eps: float | None) -> None:
    rng = np.random.default_rng(0)
    x, gradient = rng.standard_normal((2, 2, 3, 4, 5))
    x[0, 1] = 3  # a constant channel: the deviation is 0
    fields += "" if eps is None else f" eps: {eps}"
    layer = build(f'type: "MVN" mvn_param {{ {fields} }}', x.shape)
    bottom = torch.from_numpy(x).requires_grad_()
    top = layer(bottom)
    top.backward(torch.from_numpy(gradient))
    want, want_gradient = mvn_backward(x, gradient, axes, np.float32(1e-9) if eps is None else eps)
    np.testing.assert_allclose(top.detach(), want, 1e-9, 1e-9)
    assert bottom.grad is not None
    np.testing.assert_allclose(bottom.grad, want_gradient, 1e-8, 1e-9)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("variance", [False, True])
def test_mvn_gradient(variance: bool, across: bool) -> None:
    x = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(MVN(normalize_variance=variance, across_channels=across), x)


def test_mvn_mean_only(build) -> None:
    x = torch.tensor([[[[1.0, 3.0]], [[5.0, 9.0]]]])
    layer = build('type: "MVN" mvn_param { normalize_variance: false }', (1, 2, 1, 2))
    assert layer(x).tolist() == [[[[-1, 1]], [[-2, 2]]]]


def test_mvn_axes(build) -> None:
    x = torch.tensor([[1.0, 3.0], [5.0, 9.0]])
    layer = build('type: "MVN" mvn_param { across_channels: true }', (2, 2))
    assert layer.top_shapes([(2, 2)]) == [(2, 2, 1, 1)]
    torch.testing.assert_close(layer(x), torch.tensor([[-1.0, 1.0], [-1.0, 1.0]]).view(2, 2, 1, 1))
    with pytest.raises(LayerError, match="at most 4 axes"):
        build('type: "MVN"', (1, 2, 3, 4, 5))

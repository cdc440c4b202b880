"""Pooling against loops over Caffe's formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from caffe_loops import FLT_MAX, max_places, pool

from autodial.layers import LayerError, Pooling


def configurations(count, axes=2):
    """Random (size, kernel, stride, pad) that Caffe accepts."""
    rng = np.random.default_rng(0)
    while count:
        size, kernel, stride = (tuple(map(int, rng.integers(1, high, axes))) for high in (12, 6, 5))
        pad = tuple(int(rng.integers(0, k)) for k in kernel)
        try:
            Pooling("MAX", kernel, stride=stride, pad=pad).top_shapes([(1, 1, *size)])
        except LayerError:
            continue
        count -= 1
        yield size, kernel, stride, pad


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_random_configurations(method: str) -> None:
    rng = np.random.default_rng(1)
    differs_from_torch = 0
    for size, kernel, stride, pad in configurations(150):
        x = rng.standard_normal((2, 3, *size)).astype(np.float32)
        layer = Pooling(method, kernel, stride=stride, pad=pad)
        want = pool(x, method, kernel, stride, pad)
        case = f"{size=} {kernel=} {stride=} {pad=}"
        assert layer.top_shapes([x.shape]) == [want.shape], case
        np.testing.assert_allclose(layer(torch.from_numpy(x)).numpy(), want, 1e-5, 1e-6, err_msg=case)
        floor = [(size[i] + 2 * pad[i] - kernel[i]) // stride[i] + 1 for i in range(2)]
        differs_from_torch += floor != list(want.shape[2:])
    assert differs_from_torch > 30


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_gradient(method: str) -> None:
    rng = np.random.default_rng(2)
    for size, kernel, stride, pad in configurations(20):
        # Distinct values, far enough apart for finite differences of a maximum.
        values = rng.permutation(math.prod(size)).reshape(1, 1, *size)
        x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        layer = Pooling(method, kernel, stride=stride, pad=pad)
        top = layer(x)
        real = torch.isfinite(top) & (top > -FLT_MAX)
        assert torch.autograd.gradcheck(lambda x, layer=layer, real=real: layer(x)[real], x)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_volumes(method: str) -> None:
    rng = np.random.default_rng(4)
    for size, kernel, stride, pad in configurations(30, 3):
        x = rng.integers(-4, 4, (2, 2, *size)).astype(np.float32)
        layer = Pooling(method, kernel, stride=stride, pad=pad, mask=method == "MAX")
        want = pool(x, method, kernel, stride, pad)
        case = f"{size=} {kernel=} {stride=} {pad=}"
        assert layer.top_shapes([x.shape])[0] == want.shape, case
        top = layer(torch.from_numpy(x))
        if method == "MAX":
            top, places = top
            np.testing.assert_array_equal(places, max_places(x, kernel, stride, pad, want.shape[2:]), err_msg=case)
        np.testing.assert_allclose(top, want, 1e-5, 1e-6, err_msg=case)


def test_stochastic_pooling_of_volumes(build) -> None:
    x = torch.arange(54.0).reshape(2, 1, 3, 3, 3)
    layer = build('type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 }', x.shape)
    layer.reseed(0)
    drawn = layer(x)
    assert drawn.shape == (2, 1, 1, 1, 1) and all(drawn[n] in x[n] for n in range(2))
    want = x.square().flatten(1).sum(1) / x.flatten(1).sum(1)
    torch.testing.assert_close(layer.eval()(x).flatten(), want)


def test_second_top_is_the_places_of_the_maxima() -> None:
    rng = np.random.default_rng(3)
    for size, kernel, stride, pad in configurations(60):
        x = rng.integers(0, 4, (2, 2, *size)).astype(np.float32)  # full of ties
        layer = Pooling("MAX", kernel, stride=stride, pad=pad, mask=True)
        bottom = torch.from_numpy(x).requires_grad_()
        top, mask = layer(bottom)
        assert layer.top_shapes([x.shape]) == [tuple(top.shape)] * 2
        np.testing.assert_array_equal(top.detach().numpy(), pool(x, "MAX", kernel, stride, pad))
        np.testing.assert_array_equal(mask.numpy(), max_places(x, kernel, stride, pad, top.shape[2:]))
        # The gradient of each window goes to its place.
        (gradient,) = torch.autograd.grad(top.sum(), bottom)
        count = [torch.bincount(m[m >= 0].long(), minlength=math.prod(size)) for m in mask.flatten(0, 1)]
        assert torch.equal(gradient.view(4, -1), torch.stack(count).float())


def test_places_go_with_maxima_only(build) -> None:
    with pytest.raises(LayerError, match="a second top, the places of the maxima, goes with pool MAX, not with AVE"):
        build('type: "Pooling" pooling_param { pool: AVE kernel_size: 2 }', (2, 3, 9, 9), tops=2)
    places = build('type: "Pooling" pooling_param { global_pooling: true }', (1, 1, 2, 3), tops=2)
    assert places(torch.arange(6.0).view(1, 1, 2, 3))[1].tolist() == [[[[5.0]]]]


def test_window_outside_the_image() -> None:
    # Windows start at 0, 4 and 8 of 8 pixels: the last one holds nothing, and Caffe divides 0 by its size of 0.
    x = torch.arange(8.0).view(1, 1, 1, 8)
    assert Pooling("MAX", (1, 2), stride=(1, 4))(x).tolist() == [[[[1.0, 5.0, -FLT_MAX]]]]
    average = Pooling("AVE", (1, 2), stride=(1, 4))(x)
    assert average[..., :2].tolist() == [[[[0.5, 4.5]]]]
    assert average[..., 2].isnan().all()


def test_first_of_equal_maxima_gets_the_gradient() -> None:
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    Pooling("MAX", None)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[[[1, 0], [0, 0]]]]


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("kernel_size: 3 stride: 2 pad: 1", (2, 3, 5, 5)),
        ("kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1", (2, 3, 8, 5)),
        ("kernel_size: 4 engine: CAFFE", (2, 3, 6, 6)),
        ("pool: AVE global_pooling: true", (2, 3, 1, 1)),
    ],
)
def test_fields(build, fields: str, shape: tuple[int, ...]) -> None:
    layer = build(f'type: "Pooling" pooling_param {{ {fields} }}', (2, 3, 9, 9))
    assert layer.top_shapes([(2, 3, 9, 9)]) == [shape]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("pool: STOCHASTIC kernel_size: 2 pad: 1", "pool STOCHASTIC takes no pad"),
        ("", "needs kernel_size"),
        ("kernel_h: 2", "kernel_h and kernel_w together"),
        ("kernel_size: 2 kernel_h: 2 kernel_w: 2", "both kernel_size and"),
        ("kernel_size: 0", "kernel_size must be positive"),
        ("kernel_size: 2 stride: 0", "stride must be positive"),
        ("kernel_size: 2 stride: 1 stride_h: 1 stride_w: 1", "both stride and"),
        ("kernel_size: 2 pad: 2", "pad 2 x 2 must be smaller"),
        ("kernel_size: 2 pad_h: 1", "pad_h and pad_w together"),
        ("kernel_size: 2 global_pooling: true", "global_pooling takes no kernel_size"),
        ("global_pooling: true stride: 2", "global_pooling takes neither"),
        ("kernel_size: 12 stride: 2", r"does not fit bottom \(2, 3, 9, 9\): .*global_pooling: true"),
        ("kernel_size: 2 stride: 1000000000", r"would have the shape \(2, 3, 1000000002, 1000000002\) and need"),
        ("pool: AVE kernel_size: 2 stride_h: 1000000000 stride_w: 1", r"\(2, 3, 1000000002, 9\) and need 216 GB"),
        ("kernel_size: 1000000 pad: 999999", r"\(2, 3, 2000007, 2000007\) and need 96,001 GB"),
    ],
)
def test_refused(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Pooling" pooling_param {{ {fields} }}', (2, 3, 9, 9)).top_shapes([(2, 3, 9, 9)])


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("kernel_size: 2 stride: 2", (2, 3, 4, 5, 3)),
        ("kernel_size: 3 stride: 2 pad: 1", (2, 3, 4, 5, 4)),
        ("pool: AVE global_pooling: true", (2, 3, 1, 1, 1)),
    ],
)
def test_fields_for_volumes(build, fields: str, shape: tuple[int, ...]) -> None:
    layer = build(f'type: "Pooling" pooling_param {{ {fields} }}', (2, 3, 7, 9, 6))
    assert layer.top_shapes([(2, 3, 7, 9, 6)]) == [shape]


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_pooling_nd(build, method: str) -> None:
    """3D-Caffe's numbers for each axis."""
    x = np.random.default_rng(5).standard_normal((2, 3, 7, 9, 6)).astype(np.float32)
    numbers = "kernel_size: [3, 2, 2] stride: [2, 3, 1] pad: [1, 0, 1]"
    layer = build(f'type: "PoolingND" pooling_nd_param {{ pool: {method} {numbers} }}', x.shape)
    np.testing.assert_allclose(layer(torch.from_numpy(x)), pool(x, method, (3, 2, 2), (2, 3, 1), (1, 0, 1)), 1e-5, 1e-6)
    image = build(f'type: "PoolingND" pooling_nd_param {{ pool: {method} kernel_h: 3 kernel_w: 2 }}', (2, 3, 7, 9))
    want = pool(x[..., 0], method, (3, 2), (1, 1), (0, 0))
    np.testing.assert_allclose(image(torch.from_numpy(x[..., 0])), want, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("fields", "shape", "message"),
    [
        ("", (2, 3, 7, 9, 6), "kernel_size has 0 values, but the bottom has 3 spatial axes"),
        ("kernel_size: [2, 2]", (2, 3, 7, 9, 6), "kernel_size has 2 values"),
        ("kernel_h: 2 kernel_w: 2", (2, 3, 7, 9, 6), r"pooling_nd_param\.kernel_h and kernel_w are for 2 spatial axes"),
        ("kernel_size: 2 global_pooling: true", (2, 3, 7, 9), "global_pooling takes no kernel_size"),
        ("kernel_size: 2 axis: 2", (2, 3, 7, 9), r"pooling_nd_param\.axis 1.* axis 2"),
        ("kernel_size: 2", (2, 3, 7), "not a bottom of 3 axes"),
    ],
)
def test_pooling_nd_refuses(build, fields: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "PoolingND" pooling_nd_param {{ {fields} }}', shape)


def test_volumes_refused(build) -> None:
    with pytest.raises(LayerError, match="kernel_h and kernel_w are for 2 spatial axes, and the bottom has 3"):
        build('type: "Pooling" pooling_param { kernel_h: 2 kernel_w: 2 }', (2, 3, 7, 9, 6))
    with pytest.raises(LayerError, match=r"5 axes \(N, C, D, H, W\), not \(2, 3, 7, 9\)"):
        Pooling("MAX", (2, 2, 2), stride=(1, 1, 1), pad=(0, 0, 0)).top_shapes([(2, 3, 7, 9)])


def test_needs_images(build) -> None:
    with pytest.raises(LayerError, match=r"4 axes .* not \(2, 3\)"):
        build('type: "Pooling" pooling_param { kernel_size: 2 }', (2, 3))


STOCHASTIC = 'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }'


def windows(x):
    """The values of each 3 x 3 window at stride 2, cut off at the image's end."""
    count = -(-(x.shape[2] - 3) // 2) + 1
    for row, column in np.ndindex(count, count):
        rows, columns = slice(2 * row, min(2 * row + 3, x.shape[2])), slice(2 * column, min(2 * column + 3, x.shape[3]))
        yield (row, column), x[:, :, rows, columns]


def test_stochastic_pooling_expects_the_weighted_mean(build) -> None:
    x = np.random.default_rng(0).random((2, 3, 6, 6), dtype=np.float32)
    x[0, 0] = 0
    top = build(STOCHASTIC, x.shape, phase=1)(torch.from_numpy(x)).numpy()
    for (row, column), values in windows(x):
        total = values.sum((2, 3))
        want = np.divide((values**2).sum((2, 3)), total, out=np.zeros_like(total), where=total > 0)
        np.testing.assert_allclose(top[:, :, row, column], want, 1e-5)


def test_stochastic_pooling_draws_by_value(build) -> None:
    x = torch.tensor([[1.0, 2, 0], [3, 0, 0], [0, 0, 4]]).expand(4000, 1, 3, 3).clone().requires_grad_()
    layer = build(STOCHASTIC, x.shape)
    layer.reseed(0)
    top = layer(x)
    values, counts = top.unique(return_counts=True)
    assert values.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(counts / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)
    top.sum().backward()
    assert torch.equal((x * x.grad).sum((2, 3)), top.detach().flatten(1))  # all of it goes to the value that was drawn
    layer.reseed(0)
    assert torch.equal(layer(x), top)
    layer.reseed(1)
    assert not torch.equal(layer(x), top)


def test_stochastic_pooling_stays_inside_the_image(build) -> None:
    x = torch.ones(50, 2, 6, 6, requires_grad=True)
    layer = build(STOCHASTIC, x.shape)
    layer.reseed(0)
    top = layer(x)
    assert top.shape == (50, 2, 3, 3) and (top == 1).all()
    top.sum().backward()
    assert x.grad.sum() == top.numel()

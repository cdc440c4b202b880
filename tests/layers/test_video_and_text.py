"""Layers of nets that read videos, text and segmentations: against torch's own, numpy's indexing and loops."""

from __future__ import annotations

import logging
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autodial.layers.base import LayerError

VIDEO = (2, 3, 7, 9, 8)


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def set_blobs(layer: Any, *blobs: torch.Tensor) -> None:
    with torch.no_grad():
        for mine, given in zip(layer.blobs, blobs, strict=True):
            mine.copy_(given)


@pytest.mark.parametrize("message", ["convolution_param", "convolution3d_param"])
def test_convolution_3d(build: Any, message: str) -> None:
    fields = "num_output: 4 kernel_size: 3 kernel_depth: 2 pad: 1 temporal_pad: 1 stride: 2 temporal_stride: 3"
    layer = build(f'type: "Convolution3D" {message} {{ {fields} }}', VIDEO)
    weight, bias = values(4, 3, 2, 3, 3), values(4, seed=2)
    set_blobs(layer, weight, bias)
    x = values(*VIDEO)
    want = F.conv3d(x, weight, bias, stride=(3, 2, 2), padding=(1, 1, 1))
    torch.testing.assert_close(layer(x), want)
    assert layer.top_shapes([VIDEO]) == [tuple(want.shape)]


def test_convolution_3d_in_groups_and_by_default(build: Any) -> None:
    layer = build('type: "Convolution3D" convolution3d_param { num_output: 6 kernel_size: 1 kernel_depth: 3 '
                  "filter_group: 3 bias_term: false }", VIDEO)  # fmt: skip
    weight = values(6, 1, 3, 1, 1)
    set_blobs(layer, weight)
    x = values(*VIDEO)
    torch.testing.assert_close(layer(x), F.conv3d(x, weight, groups=3))


@pytest.mark.parametrize(
    ("fields", "shape", "problem"),
    [
        ("num_output: 4 kernel_size: 3", VIDEO, "needs kernel_size and kernel_depth"),
        ("num_output: 4 kernel_size: 3 kernel_depth: 1", (2, 3, 7, 9), "needs a bottom of 5 axes"),
    ],
)
def test_convolution_3d_refuses(build: Any, fields: str, shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "Convolution3D" convolution3d_param {{ {fields} }}', shape)


@pytest.mark.parametrize("message", ["pooling_param", "pooling3d_param"])
@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(("kernel", "stride"), [((1, 2, 2), (1, 2, 2)), ((2, 2, 2), (2, 2, 2)), ((3, 4, 4), (2, 3, 3))])
def test_pooling_3d(build: Any, message: str, method: str, kernel: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Each window one by one, cut off where the bottom ends."""
    fields = f"kernel_depth: {kernel[0]} kernel_size: {kernel[1]} temporal_stride: {stride[0]} stride: {stride[1]}"
    layer = build(f'type: "Pooling3D" {message} {{ pool: {method} {fields} }}', VIDEO)
    x = values(*VIDEO) - 5
    counts = [int(np.ceil((n - k) / s)) + 1 for n, k, s in zip(VIDEO[2:], kernel, stride, strict=True)]
    want = np.zeros((*VIDEO[:2], *counts))
    for place in product(*map(range, counts)):
        window = tuple(slice(i * s, i * s + k) for i, s, k in zip(place, stride, kernel, strict=True))
        part = x.numpy()[(slice(None), slice(None), *window)]
        want[(slice(None), slice(None), *place)] = (part.max if method == "MAX" else part.mean)(axis=(2, 3, 4))
    assert layer.top_shapes([VIDEO]) == [want.shape]
    np.testing.assert_allclose(layer(x), want, rtol=1e-5)


def test_pooling_3d_refuses(build: Any) -> None:
    for fields, problem in (
        ("pool: STOCHASTIC kernel_size: 2 kernel_depth: 2", "pool must be MAX or AVE"),
        ("kernel_size: 2", "kernel_size and kernel_depth must be positive"),
        ("kernel_size: 2 kernel_depth: 2 pad: 1", "pad is not supported here"),
        ("kernel_size: 2 kernel_depth: 9", "does not fit bottom"),
    ):
        with pytest.raises(LayerError, match=problem):
            build(f'type: "Pooling3D" pooling3d_param {{ {fields} }}', VIDEO)
    with pytest.raises(LayerError, match=r"pooling_param\.global_pooling is not for Pooling3D"):
        build('type: "Pooling3D" pooling_param { global_pooling: true }', VIDEO)


def test_transpose(build: Any) -> None:
    layer = build('type: "Transpose" transpose_param { dim: 3 dim: 2 dim: 0 dim: 1 }', (2, 3, 4, 5))
    x = values(2, 3, 4, 5)
    np.testing.assert_array_equal(layer(x), x.numpy().transpose(3, 2, 0, 1))
    assert layer.top_shapes([(2, 3, 4, 5)]) == [(5, 4, 2, 3)]
    for dim in ("dim: 1 dim: 0", "dim: 0 dim: 1 dim: 2 dim: 2"):
        with pytest.raises(LayerError, match="must name each axis"):
            build(f'type: "Transpose" transpose_param {{ {dim} }}', (2, 3, 4, 5))


def test_reverse(build: Any) -> None:
    x = values(4, 3, 2)
    for fields, axis in (("", 0), ("reverse_param { axis: 1 }", 1)):
        np.testing.assert_array_equal(build(f'type: "Reverse" {fields}', (4, 3, 2))(x), np.flip(x.numpy(), axis))
    with pytest.raises(LayerError, match="axis 3 is out of range"):
        build('type: "Reverse" reverse_param { axis: 3 }', (4, 3, 2))


def test_lstm_over_whole_sequences(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        layer = build('type: "Lstm" lstm_param { num_output: 5 clipping_threshold: 1 }', (6, 2, 3))
    assert "clipping_threshold, a bound of gradients, is ignored" in caplog.text
    input_weight, hidden_weight, bias = values(20, 3), values(20, 5, seed=2), values(20, seed=3)
    set_blobs(layer, input_weight, hidden_weight, bias)
    module = torch.nn.LSTM(3, 5)
    order = [0, 1, 3, 2]  # torch's gates are i, f, g, o
    with torch.no_grad():
        for mine, blob in (
            (module.weight_ih_l0, input_weight),
            (module.weight_hh_l0, hidden_weight),
            (module.bias_ih_l0, bias),
        ):
            mine.copy_(torch.cat([blob.chunk(4)[i] for i in order]))
        module.bias_hh_l0.zero_()
    x = values(6, 2, 3)
    for _ in range(2):  # the second pass begins anew
        torch.testing.assert_close(layer(x), module(x)[0])
    with pytest.raises(LayerError, match="needs a bottom of 3 axes"):
        layer.top_shapes([(6, 3)])


def test_continuation_indicator(build: Any) -> None:
    layer = build('type: "ContinuationIndicator" continuation_indicator_param { time_step: 3 batch_size: 2 }')
    np.testing.assert_array_equal(layer(), [[0, 0], [1, 1], [1, 1]])
    with pytest.raises(LayerError, match="batch_size must be positive"):
        build('type: "ContinuationIndicator" continuation_indicator_param { time_step: 3 }')


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ("unpool_size: 8", (8, 8)),
        ("unpool_h: 8 unpool_w: 9", (8, 9)),
        ("kernel_size: 3 stride: 2", (9, 11)),
        ("kernel_h: 2 kernel_w: 4 stride_h: 2 stride_w: 1 pad_h: 1", (8, 8)),
    ],
)
def test_unpooling(build: Any, fields: str, size: tuple[int, int]) -> None:
    x = values(2, 3, 4, 5)
    places = torch.stack([torch.randperm(size[0] * size[1])[:20] for _ in range(6)]).reshape(2, 3, 4, 5)
    layer = build(f'type: "Unpooling" unpooling_param {{ {fields} }}', (2, 3, 4, 5), (2, 3, 4, 5))
    want = np.zeros((2, 3, size[0] * size[1]), np.float32)
    for n, c in np.ndindex(2, 3):
        want[n, c, places[n, c].flatten()] = x[n, c].flatten()
    np.testing.assert_array_equal(layer(x, places.float()), want.reshape(2, 3, *size))
    for wrong, problem in (
        ("unpool: TILE", "unpool: TILE is not supported"),
        ("", "needs unpool_size, or kernel_size"),
    ):
        with pytest.raises(LayerError, match=problem):
            build(f'type: "Unpooling" unpooling_param {{ {wrong} }}', (2, 3, 4, 5), (2, 3, 4, 5))


def test_unpooling_with_places_for_more_channels(build: Any) -> None:
    """For one image the fork reads the places of the first channels."""
    x, size = values(1, 2, 2, 2), "unpooling_param { unpool_h: 4 unpool_w: 4 }"
    places = torch.tensor([[0, 3, 8, 11], [5, 6, 9, 10], [1, 1, 1, 1]]).reshape(1, 3, 2, 2).float()
    for name in ("Unpooling", "UnPooling"):
        top = build(f'type: "{name}" {size}', x.shape, places.shape)(x, places)
        want = np.zeros((1, 2, 16), np.float32)
        want[0, 0, [0, 3, 8, 11]], want[0, 1, [5, 6, 9, 10]] = x[0].flatten(1).numpy()
        np.testing.assert_array_equal(top, want.reshape(1, 2, 4, 4))
    with pytest.raises(LayerError, match="must have the same shape"):
        build(f'type: "Unpooling" {size}', (2, 2, 2, 2), (2, 3, 2, 2))
    with pytest.raises(LayerError, match="must have the same shape"):
        build(f'type: "Unpooling" {size}', (1, 3, 2, 2), (1, 2, 2, 2))
    with pytest.raises(LayerError, match="forks compute different things under this name: state unpool_size"):
        build('type: "UnPooling" unpooling_param { kernel_size: 2 stride: 2 }', x.shape, x.shape)


def test_output_decay(build: Any) -> None:
    for fields, want in (
        ("", [2.0, -1.0, 1.0]),
        ('output_decay: 0.5 regularization_type: "L1"', [1.5, 0.5, 1.0]),
    ):
        x = torch.tensor([1.0, -2.0, 0.0], requires_grad=True)
        top = build(f'type: "OutputDecay" output_decay_param {{ {fields} }}', (3,))(x)
        assert torch.equal(top, x)
        top.sum().backward()
        assert x.grad is not None and x.grad.tolist() == want
    with pytest.raises(LayerError, match="regularization_type must be L1 or L2, not L0"):
        build('type: "OutputDecay" output_decay_param { regularization_type: "L0" }', (3,))


def test_crop_center(build: Any) -> None:
    x = values(3, 4, 8, 9)
    fields = "crop_size: 0 crop_size: 1 crop_size: 2 crop_size: 3"
    layer = build(f'type: "CropCenter" crop_center_param {{ {fields} }}', (3, 4, 8, 9))
    np.testing.assert_array_equal(layer(x), x.numpy()[:, 1:-1, 2:-2, 3:-3])
    assert layer.axis is None
    for fields, problem in (("crop_size: 1", "a number for each axis"), ("crop_size: 2 " * 4, "leaves nothing")):
        with pytest.raises(LayerError, match=problem):
            build(f'type: "CropCenter" crop_center_param {{ {fields} }}', (3, 4, 8, 9))


def test_brelu(build: Any) -> None:
    x = values(50)
    layer = build('type: "BReLU" brelu_param { minval: -0.5 maxval: 1 }', (50,))
    np.testing.assert_array_equal(layer(x), np.minimum(np.maximum(x.numpy(), -0.5), 1))
    for fields, problem in (
        ("minval: 0", r"brelu_param\.maxval is missing"),
        ("minval: 2 maxval: 1", "is above maxval"),
    ):
        with pytest.raises(LayerError, match=problem):
            build(f'type: "BReLU" brelu_param {{ {fields} }}', (50,))


def test_axpy_fast(build: Any) -> None:
    a, x, y = values(2, 3), values(2, 3, 4, 5), values(2, 3, 4, 5, seed=2)
    torch.testing.assert_close(
        build('type: "AxpyFast"', (2, 3), (2, 3, 4, 5), (2, 3, 4, 5))(a, x, y), a[:, :, None, None] * x + y
    )


def test_unit_rows(build: Any) -> None:
    """hizhangp/triplet's Python layer, and its gradient as its backward pass has it; a row of zeros stays."""
    layer = build('type: "Python" python_param { module: "triplet.l2norm_layer" layer: "L2NormLayer" }', (3, 4))
    x = values(3, 4)
    x[1] = 0
    x.requires_grad_()
    top = layer(x)
    change = torch.linspace(-1, 2, 12).reshape(3, 4)
    top.backward(change)
    for n in (0, 2):
        row, g = x[n].detach().double().numpy(), change[n].double().numpy()
        norm = np.sqrt((row**2).sum())
        np.testing.assert_allclose(top[n].detach(), row / norm, 1e-6)
        np.testing.assert_allclose(x.grad[n], (g * norm - (row * g).sum() * row / norm) / norm**2, 1e-5, 1e-7)
    assert not top[1].any() and x.grad[1].isfinite().all()
    for shape in ((3, 4, 1, 1), (3,)):
        with pytest.raises(LayerError, match=r"needs a bottom of 2 axes \(N, C\)"):
            build('type: "Python" python_param { module: "triplet.l2norm_layer" layer: "L2NormLayer" }', shape)


@pytest.mark.parametrize(
    ("fields", "eps"),
    [
        ("group_num: 3", 1e-5),
        ("group_num: 2 eps: 0.1", 0.1),
        ("group_ratio: 3 eps: 0.01", 0.01),
        ("group: 2 eps: 0.1", 0.1),
    ],
)
@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (3, 6), (2, 6, 7)])
def test_group_norm(build: Any, fields: str, eps: float, shape: tuple[int, ...]) -> None:
    """The forks' own steps: mean, difference, mean square, root, quotient, over each group's block of memory."""
    groups = int(fields.split()[1])
    layer = build(f'type: "GroupNorm" group_norm_param {{ {fields} }}', shape)
    x = values(*shape)
    blocks = x.numpy().astype(float).reshape(shape[0] * groups, -1)
    blocks = blocks - blocks.mean(1, keepdims=True)
    want = (blocks / np.sqrt((blocks**2).mean(1, keepdims=True) + eps)).reshape(shape)
    assert [tuple(blob.shape) for blob in layer.blobs] == ([(1, 6, 1, 1)] * 2 if "group:" in fields else [])
    if layer.blobs:
        factors = 6, *[1] * (len(shape) - 2)
        for blob, seed in zip(layer.blobs, (2, 3), strict=True):
            blob.data = values(1, 6, 1, 1, seed=seed)
        want = want * layer.scale.detach().numpy().reshape(factors) + layer.shift.detach().numpy().reshape(factors)
    np.testing.assert_allclose(layer(x).detach(), want, rtol=1e-4, atol=1e-5)
    layer.double()
    assert torch.autograd.gradcheck(layer, [x.double().requires_grad_()], fast_mode=True)


@pytest.mark.parametrize(
    ("fields", "shape", "problem"),
    [
        ("", (2, 6, 4, 5), "one of group_num, group_ratio and group"),
        ("group_num: 2 group: 2 eps: 0.1", (2, 6, 4, 5), "one of group_num, group_ratio and group"),
        ("group: 2", (2, 6, 4, 5), "needs eps"),
        ("group_ratio: 2", (2, 6, 4, 5), "needs eps"),
        ("group_num: 0", (2, 6, 4, 5), "must be positive"),
        ("group_num: 4", (2, 6, 4, 5), "6 channels, which 4 groups do not divide"),
        ("group_num: 2 eps: -1", (2, 6, 4, 5), "eps must be a number from 0 on"),
        ("group_num: 2 eps: nan", (2, 6, 4, 5), "eps must be a number from 0 on"),
        ("group_num: 2 bias_filler { value: 1 }", (2, 6, 4, 5), "no scale and no shift"),
        ("group_num: 2", (6,), "at least 2 axes"),
    ],
)
def test_group_norm_refuses(build: Any, fields: str, shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "GroupNorm" group_norm_param {{ {fields} }}', shape)

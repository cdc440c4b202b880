"""Convolution, Deconvolution and Im2col over any number of axes, against scipy, torch and hand-written loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.signal import correlate

from autodial.layers.base import LayerError

FILLED = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'


def make(build, name: str, fields: str, shape: tuple[int, ...]):
    layer = build(f'type: "{name}" convolution_param {{ {FILLED} {fields} }}', shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert layer.top_shapes([shape]) == [tuple(layer(x).shape)]
    return layer, x


def correlated(x, weight, bias, stride, pad):
    """A convolution by scipy, image by image and channel by channel, at stride 1 and then thinned out."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    images = [
        [sum(correlate(x[n, c], weight[o, c], "valid") for c in range(x.shape[1])) + bias[o] for o in range(len(bias))]
        for n in range(len(x))
    ]
    return np.array(images)[(..., *(slice(None, None, s) for s in stride))]


@pytest.mark.parametrize("axes", [1, 2, 3, 4, 5])
def test_convolution_over_any_number_of_axes(build, axes: int) -> None:
    kernel, stride, pad = (2, 3, 2, 3, 2)[:axes], (2, 1, 1, 2, 1)[:axes], (1, 0, 1, 1, 0)[:axes]
    fields = " ".join(f"kernel_size: {k} stride: {s} pad: {p}" for k, s, p in zip(kernel, stride, pad, strict=True))
    layer, x = make(build, "Convolution", f"num_output: 3 {fields}", (2, 2, 5, 4, 3, 4, 3)[: axes + 2])
    weight, bias = (blob.detach().numpy() for blob in layer.blobs)
    assert weight.shape == (3, 2, *kernel)
    want = correlated(x.numpy(), weight, bias, stride, pad)
    np.testing.assert_allclose(layer(x).detach(), want, 1e-4, 1e-5)


@pytest.mark.parametrize("axes", [1, 2, 3, 4, 5])
def test_deconvolution_is_the_transpose_of_convolution(build, axes: int) -> None:
    kernel, stride, pad = (2, 3, 2, 3, 2)[:axes], (2, 1, 2, 1, 1)[:axes], (1, 0, 1, 1, 0)[:axes]
    dilation = (2, 1, 2, 1, 1)[:axes]
    each = zip(kernel, stride, pad, dilation, strict=True)
    fields = " ".join(f"kernel_size: {k} stride: {s} pad: {p} dilation: {d}" for k, s, p, d in each)
    small, x = make(build, "Deconvolution", f"num_output: 4 group: 2 {fields}", (2, 2, 4, 3, 3, 4, 3)[: axes + 2])
    large = small.top_shapes([tuple(x.shape)])[0]
    conv, y = make(build, "Convolution", f"num_output: 2 group: 2 {fields}", large)
    with torch.no_grad():
        conv.blobs[0].copy_(small.blobs[0])
        for layer in (small, conv):
            layer.blobs[1].zero_()
        # <deconvolution(x), y> = <x, convolution(y)>
        torch.testing.assert_close((small(x) * y).sum(), (x * conv(y)).sum(), rtol=1e-4, atol=1e-3)
        small.blobs[1].fill_(2)
        torch.testing.assert_close((small(x) - 2).mul(y).sum(), (x * conv(y)).sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["Convolution", "Deconvolution"])
def test_without_spatial_axes_it_is_a_linear_map(build, name: str) -> None:
    layer, x = make(build, name, "num_output: 3 kernel_size: 1 axis: -1", (5, 4))
    weight, bias = layer.blobs
    torch.testing.assert_close(layer(x), x @ (weight.t() if name == "Convolution" else weight) + bias)


@pytest.mark.parametrize(("axis", "shape"), [(0, (4, 6, 5)), (2, (2, 3, 4, 6, 5)), (-3, (2, 1, 3, 4, 6, 5))])
def test_any_number_of_batch_axes(build, axis: int, shape: tuple[int, ...]) -> None:
    layer, x = make(build, "Convolution", f"num_output: 3 kernel_size: 3 axis: {axis}", shape)
    top = layer(x)
    want = F.conv2d(x.reshape(-1, *shape[-3:]), *layer.blobs)
    torch.testing.assert_close(top, want.reshape(*shape[:-3], *want.shape[1:]))


@pytest.mark.parametrize(
    ("fields", "shape", "margin"),
    [
        ("kernel_size: 5 stride: 2", (2, 3, 4, 6), (0, 0, 0, 1)),
        ("kernel_size: 3 dilation: 3 stride: 4 pad: 1", (2, 3, 3, 4), (0, 1, 0, 2)),
    ],
)
def test_a_kernel_that_is_larger_by_less_than_a_stride(build, fields: str, shape, margin) -> None:
    layer, x = make(build, "Convolution", f"num_output: 2 {fields}", shape)
    windows = layer.windows
    padded = F.pad(x, margin)
    want = F.conv2d(padded, *layer.blobs, windows.stride, windows.pad, windows.dilation)
    assert want.shape[2] == 1
    torch.testing.assert_close(layer(x), want)
    with pytest.raises(LayerError, match="does not fit bottom"):
        layer.top_shapes([(*shape[:2], shape[2] - 2 * windows.stride[0], shape[3])])


def columns(x, kernel, stride, pad, dilation):
    """im2col, a value at a time."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts = [(n - e) // s + 1 for n, e, s in zip(x.shape[2:], extents, stride, strict=True)]
    top = np.empty((len(x), x.shape[1] * np.prod(kernel), *counts), x.dtype)
    for c, place in enumerate(itertools.product(range(x.shape[1]), *map(range, kernel))):
        for out in np.ndindex(*counts):
            at = [o * s + k * d for o, s, k, d in zip(out, stride, place[1:], dilation, strict=True)]
            top[(slice(None), c, *out)] = x[(slice(None), place[0], *at)]
    return top


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_im2col(build, axes: int) -> None:
    kernel, stride, pad, dilation = (2, 3, 2)[:axes], (1, 2, 1)[:axes], (0, 1, 2)[:axes], (2, 1, 1)[:axes]
    each = zip(kernel, stride, pad, dilation, strict=True)
    fields = " ".join(f"kernel_size: {k} stride: {s} pad: {p} dilation: {d}" for k, s, p, d in each)
    shape = (2, 3, 5, 4, 3)[: axes + 2]
    layer = build(f'type: "Im2col" convolution_param {{ {fields} }}', shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    want = columns(x.numpy(), kernel, stride, pad, dilation)
    assert layer.top_shapes([shape]) == [want.shape]
    np.testing.assert_array_equal(layer(x), want)
    double = x.double().requires_grad_()
    assert torch.autograd.gradcheck(layer, double, fast_mode=True)


def test_im2col_beyond_the_image(build) -> None:
    layer = build('type: "Im2col" convolution_param { kernel_size: 4 stride: 3 }', (1, 1, 3, 5))
    x = torch.arange(15.0).view(1, 1, 3, 5)
    torch.testing.assert_close(layer(x), F.unfold(F.pad(x, (0, 0, 0, 1)), 4, stride=3).view(1, 16, 1, 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("kernel_size: 2 num_output: 3", "num_output does nothing"),
        ("kernel_size: 2 group: 3", "group does nothing"),
        ("kernel_size: 2 bias_term: false", "bias_term does nothing"),
        ("", "kernel_size has 0 values"),
        ("kernel_size: 20", "does not fit"),
    ],
)
def test_im2col_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Im2col" convolution_param {{ {fields} }}', (2, 3, 6, 5))

"""Random legal configurations of Convolution, Deconvolution, LRN and Crop against loops over Caffe's formulas.

Pooling's are in test_pooling.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from caffe_loops import convolve, crop, deconvolve, lrn_across, lrn_within

from autodial.layers import LRN

SEED = 0


def kernels(legal, count, seed=SEED):
    """Random (size, kernel, stride, pad, dilation, group, channels, num_output) that `legal` accepts."""
    rng = np.random.default_rng(seed)

    def pair(low, high):
        return tuple(map(int, rng.integers(low, high, 2)))

    while count:
        case = pair(1, 10), pair(1, 5), pair(1, 5), pair(0, 4), pair(1, 4)
        group = int(rng.integers(1, 4))
        channels, num_output = (group * int(n) for n in rng.integers(1, 3, 2))
        if all(legal(*axis) for axis in zip(*case, strict=True)):
            count -= 1
            yield *case, group, channels, num_output


def convolution_is_legal(size, kernel, stride, pad, dilation):
    return dilation * (kernel - 1) + 1 <= size + 2 * pad


def deconvolution_is_legal(size, kernel, stride, pad, dilation):
    return stride * (size - 1) + dilation * (kernel - 1) + 1 > 2 * pad


FORMULAS = {
    "Convolution": (convolve, convolution_is_legal),
    "Deconvolution": (deconvolve, deconvolution_is_legal),
}


def make(build, name, case):
    """The layer of a configuration, in either way of writing its options."""
    size, kernel, stride, pad, dilation, group, channels, num_output = case
    if num_output % 2:
        options = " ".join(
            f"{stem}_{side}: {value}"
            for stem, pair in (("kernel", kernel), ("stride", stride), ("pad", pad))
            for side, value in zip("hw", pair, strict=True)
        )
    else:
        options = " ".join(
            f"{field}: {pair[0]} {field}: {pair[1]}"
            for field, pair in (("kernel_size", kernel), ("stride", stride), ("pad", pad))
        )
    return build(
        f"""type: "{name}" convolution_param {{ num_output: {num_output} group: {group} {options}
        dilation: {dilation[0]} dilation: {dilation[1]}
        weight_filler {{ type: "gaussian" }} bias_filler {{ type: "gaussian" }} }}""",
        (2, channels, *size),
    )


@pytest.mark.parametrize("name", FORMULAS)
def test_convolutions(build, name: str) -> None:
    formula, legal = FORMULAS[name]
    rng = np.random.default_rng(1)
    for case in kernels(legal, 60):
        size, _, stride, pad, dilation, group, channels, _ = case
        layer = make(build, name, case)
        weight, bias = (blob.detach().numpy() for blob in layer.blobs)
        x = rng.standard_normal((2, channels, *size)).astype(np.float32)
        want = formula(x, weight, bias, stride, pad, dilation, group)
        assert layer.top_shapes([x.shape]) == [want.shape], case
        np.testing.assert_allclose(layer(torch.from_numpy(x)).detach(), want, 1e-4, 1e-5, err_msg=str(case))


@pytest.mark.parametrize("name", FORMULAS)
def test_gradient_of_convolutions(build, name: str) -> None:
    for case in kernels(FORMULAS[name][1], 5, seed=2):
        layer = make(build, name, case).double()
        x = torch.randn(1, case[6], *case[0], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        weight, bias = (blob.detach().requires_grad_() for blob in layer.blobs)

        def forward(x, weight, bias, layer=layer):
            return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

        assert torch.autograd.gradcheck(forward, (x.requires_grad_(), weight, bias), fast_mode=True), case


def test_lrn() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(60):
        shape = tuple(map(int, rng.integers(1, 8, 4)))
        size = 2 * int(rng.integers(0, 4)) + 1
        alpha, beta, k = rng.uniform(0.1, 2, 3)
        x = rng.standard_normal(shape)
        across = LRN(shape[1], size, alpha, beta, k).double()
        np.testing.assert_allclose(across(torch.from_numpy(x)), lrn_across(x, size, alpha, beta, k), 1e-6)
        within = LRN(shape[1], size, alpha, beta, k, within_channel=True).double()
        np.testing.assert_allclose(within(torch.from_numpy(x)), lrn_within(x, size, alpha, beta), 1e-6)


def test_crop(build) -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(60):
        shape = tuple(map(int, rng.integers(1, 7, 4)))
        reference = tuple(int(rng.integers(1, n + 1)) for n in shape)
        axis = int(rng.integers(0, 4))
        room = [n - m for n, m in zip(shape, reference, strict=True)][axis:]
        offset = [int(rng.integers(0, n + 1)) for n in room]
        if rng.integers(2):
            offset = [int(rng.integers(0, min(room) + 1))]
        fields = " ".join(f"offset: {n}" for n in offset)
        layer = build(
            f'type: "Crop" crop_param {{ axis: {axis - 4 * int(rng.integers(2))} {fields} }}', shape, reference
        )
        x = rng.standard_normal(shape)
        want = crop(x, reference, axis, offset)
        assert layer.top_shapes([shape, reference]) == [want.shape]
        np.testing.assert_array_equal(layer(torch.from_numpy(x), torch.zeros(reference)), want)


def test_gradient_of_crop(build) -> None:
    layer = build('type: "Crop" crop_param { axis: 1 offset: 1 offset: 0 offset: 2 }', (2, 3, 4, 5), (1, 2, 3, 2))
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, torch.zeros(1, 2, 3, 2)), x)

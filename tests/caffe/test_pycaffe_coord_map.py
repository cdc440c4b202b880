"""coord_map, by hand and by what nets do to an image whose values are its coordinates."""

# ruff: noqa: C408 - dict(...) is how scripts write messages

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autodial.caffe as caffe
from autodial.caffe import layers as L
from autodial.caffe import params as P
from autodial.caffe.coord_map import (
    AxisMismatchException,
    UndefinedMapException,
    compose,
    conv_params,
    coord_map,
    coord_map_from_to,
    crop,
    crop_params,
    inverse,
)

Net = caffe.NetSpec


def down_and_up(
    kernel: Any = 3, stride: Any = 1, pad: Any = 0, pool: int = 2, up: Any = 2, up_pad: int = 0, size: int = 60
) -> Net:
    """Averages over windows, then bilinear interpolation up again."""
    n = Net()
    n.data = L.Input(shape=dict(dim=[1, 1, size, size]))
    n.conv = L.Convolution(n.data, num_output=1, kernel_size=kernel, stride=stride, pad=pad, bias_term=False)
    n.pool = L.Pooling(n.conv, pool=P.Pooling.AVE, kernel_size=pool, stride=pool)
    n.up = L.Deconvolution(
        n.pool,
        convolution_param=dict(
            num_output=1, kernel_size=2 * up, stride=up, pad=up_pad, weight_filler=dict(type="bilinear"),
            bias_term=False,
        ),
    )  # fmt: skip
    return n


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(kernel=5, pad=10, pool=4, up=4),
        dict(kernel=2, stride=2, pool=1),
        dict(kernel=4, stride=2, pad=30, pool=3, up=6, up_pad=2),
    ],
)
def test_a_cropped_ramp_lies_on_the_ramp(settings: dict[str, int], write: Callable[..., str]) -> None:
    n = down_and_up(**settings)
    n.crop = crop(n.up, n.data)
    net = caffe.Net(write(str(n.to_proto())), caffe.TEST)
    kernel = net.params["conv"][0]
    kernel.data[...] = 1 / kernel.count
    y, x = np.mgrid[:60, :60].astype(np.float32)
    for ramp in (x, y):
        cropped = net.forward(data=ramp[None, None])["crop"][0, 0]
        inside = slice(25, 35)  # away from the padding
        np.testing.assert_allclose(cropped[inside, inside], ramp[inside, inside], atol=1e-3)


def test_maps_of_layers_by_hand() -> None:
    n = down_and_up(kernel=[3, 5], stride=[1, 2], pad=[0, 10])
    assert [array.tolist() for array in conv_params(n.conv.fn)[1:]] == [[1, 2], [3, 5], [0, 10]]
    axis, scale, offset = coord_map(n.conv.fn)
    # pixel 0 of the bottom is the centre of the window at -1 of the top, and at 4 in the other direction
    assert axis == 1 and scale.tolist() == [1, 0.5] and offset.tolist() == [-1, 4]
    assert coord_map(n.pool.fn) == (1, 0.5, -0.25)
    assert coord_map(n.up.fn) == (1, 2, 1.5)
    assert coord_map(L.ReLU(n.up).fn) == (None, 1, 0)
    dilated = L.Convolution(n.data, convolution_param=dict(num_output=1, kernel_size=3, dilation=4))
    assert coord_map(dilated.fn) == (1, 1, -4)


def test_composing_and_inverting() -> None:
    there = (1, 2.0, 3.0)
    assert inverse(there) == (1, 0.5, -1.5)
    assert compose(there, inverse(there)) == (1, 1, 0)
    assert compose((None, 1, 0), there) == compose(there, (None, 1, 0)) == there
    with pytest.raises(AxisMismatchException):
        compose(there, (2, 1, 0))


def test_crop_layers_shift() -> None:
    n = down_and_up()
    axis, scale, offset = coord_map_from_to(n.up, n.data)
    n.crop = L.Crop(n.up, n.data, axis=2, offset=3)
    assert crop_params(n.crop.fn) == (2, 3)
    assert coord_map_from_to(n.crop, n.data) == (axis, scale, offset + 3)


def test_all_tops_of_a_layer_are_mapped_alike() -> None:
    n = down_and_up()
    n.aux = L.Input(shape=dict(dim=[1, 1, 20, 20]))
    n.first, n.second = L.Convolution(n.data, n.aux, ntop=2, num_output=1, kernel_size=5, stride=2)
    assert coord_map_from_to(n.first, n.data) == coord_map_from_to(n.second, n.aux) == (1, 2, 2)


def test_more_spatial_axes() -> None:
    n = Net()
    n.data = L.Input(shape=dict(dim=[1, 1, 9, 9, 9]))
    n.conv = L.Convolution(n.data, kernel_size=[3, 3, 3], stride=[1, 1, 1], pad=[0, 1, 2])
    n.pool = L.Pooling(n.conv, kernel_size=2, stride=2)
    n.up = L.Deconvolution(n.pool, kernel_size=4, stride=2)
    axis, scale, offset = coord_map_from_to(n.up, n.data)
    assert axis == 1 and scale.tolist() == [1, 1, 1] and offset.tolist() == [0, -1, -2]


def test_tops_that_no_map_connects() -> None:
    n = down_and_up()
    n.scores = L.InnerProduct(n.up, num_output=2)
    with pytest.raises(RuntimeError, match="to no common blob"):
        coord_map_from_to(n.scores, n.data)
    with pytest.raises(UndefinedMapException, match="InnerProduct"):
        coord_map(n.scores.fn)
    with pytest.raises(UndefinedMapException, match="global_pooling"):
        coord_map(L.Pooling(n.up, global_pooling=True).fn)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(pool=3), "scale"),
        (dict(up_pad=10), "nothing to crop"),
        (dict(kernel=2), "whole number"),
    ],
)
def test_crops_that_do_not_exist(settings: dict[str, int], message: str) -> None:
    n = down_and_up(**settings)
    with pytest.raises(AssertionError, match=message):
        crop(n.up, n.data)


def test_the_old_fields_are_refused() -> None:
    with pytest.raises(AssertionError, match="kernel_size"):
        coord_map(L.Convolution(L.Input(), kernel_h=3, kernel_w=3).fn)

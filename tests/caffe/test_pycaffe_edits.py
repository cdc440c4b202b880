"""What a script changes between forward and backward: the way back reads what Caffe's Backward reads."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import numpy as np
import pytest
import torch

import autodial.caffe as caffe
from autodial.net.net import Net

Write = Callable[..., str]
Build = Callable[[str], caffe.Net]

X, H = np.array([[1.0, -2.0], [3.0, 0.5]]), np.array([[4.0, -1.0], [-3.0, 2.0]])
DY = np.array([[1.0, 10.0], [100.0, 1000.0]])
CHAIN = """
layer { name: "x" type: "Input" top: "x" top: "t" input_param { shape { dim: 2 dim: 2 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "h"
  inner_product_param { num_output: 2 weight_filler { value: 1 } } }
MIDDLE
layer { name: "ip2" type: "InnerProduct" bottom: "h" top: "y"
  inner_product_param { num_output: 2 weight_filler { value: 2 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""


@pytest.fixture
def build(write: Write) -> Build:
    return lambda text: caffe.Net(write(f"force_backward: true {text}"), caffe.TRAIN)


@pytest.fixture
def on(build: Build) -> Callable[..., caffe.Net]:
    """`on(layer)` is a net of one layer from "a", and "b", both (2, 2), to "y"; its forward pass has met X and H."""

    def on(fields: str, bottoms: str = "a") -> caffe.Net:
        inputs = " ".join(f'top: "{name}"' for name in bottoms)
        read = " ".join(f'bottom: "{name}"' for name in bottoms)
        net = build(
            f'layer {{ name: "in" type: "Input" {inputs} input_param {{ shape {{ dim: 2 dim: 2 }} }} }}'
            f'layer {{ name: "layer" {read} top: "y" {fields} }}'
        )
        for name, values in zip(bottoms, (X, H), strict=False):
            net.blobs[name].data[...] = values
        net.forward()
        return net

    return on


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the layers that were run, one after the other."""
    names: list[str] = []
    run = Net.run_layer

    def counted(net: Net, index: int, blobs: MutableMapping[str, torch.Tensor]) -> None:
        names.append(net.param.layer[index].name)
        run(net, index, blobs)

    monkeypatch.setattr(Net, "run_layer", counted)
    return names


@pytest.mark.parametrize("looked_at_before", [False, True])
def test_an_edited_activation(looked_at_before: bool, build: Build) -> None:
    net = build(CHAIN.replace("MIDDLE", ""))
    net.blobs["x"].data[...] = X
    if looked_at_before:
        assert net.blobs["h"].data.shape == (2, 2)
    net.forward()
    # h = (-1, -1), (3.5, 3.5), y = (-4, -4), (14, 14); of N = 2 rows, dy = y / 2
    net.blobs["h"].data[...] = H
    net.backward()
    dy = np.array([[-2, -2], [7, 7]])
    np.testing.assert_array_equal(net.params["ip2"][0].diff, dy.T @ H)
    np.testing.assert_array_equal(net.blobs["h"].diff, dy @ np.full((2, 2), 2))
    np.testing.assert_array_equal(net.params["ip1"][0].diff, net.blobs["h"].diff.T @ X)
    np.testing.assert_array_equal(net.blobs["y"].data, [[-4, -4], [14, 14]])  # nothing is run forward


def test_an_edited_input_of_layers_that_compute_with_it(on: Callable[..., caffe.Net]) -> None:
    net = on('type: "Power" power_param { power: 2 scale: 3 }')
    net.blobs["a"].data[...] = H
    net.backward(y=DY)
    np.testing.assert_array_equal(net.blobs["a"].diff, DY * 18 * H)  # of (3 a)^2


@pytest.mark.parametrize(
    ("fields", "slope"),
    [
        ('type: "ReLU" relu_param { negative_slope: 0.5 }', np.where(H > 0, 1, 0.5)),
        ('type: "PReLU"', np.where(H > 0, 1, 0.25)),
        ('type: "AbsVal"', np.sign(H)),
        ('type: "Log" log_param { shift: 4 }', 1 / (H + 4)),
        ('type: "BNLL"', 1 / (1 + np.exp(-H))),
        ('type: "ELU"', np.where(H > 0, 1, np.exp(H))),
    ],
)
def test_functions_take_their_slope_at_the_edited_bottom(
    fields: str, slope: np.ndarray, on: Callable[..., caffe.Net]
) -> None:
    net = on(fields)
    net.blobs["a"].data[...] = H
    net.backward(y=DY)
    np.testing.assert_allclose(net.blobs["a"].diff, DY * slope, rtol=1e-5)


@pytest.mark.parametrize(
    "fields", ['type: "Eltwise" eltwise_param { operation: PROD }', 'type: "Scale" scale_param { axis: 0 }']
)
def test_each_factor_s_gradient_is_the_other_as_it_is(fields: str, on: Callable[..., caffe.Net]) -> None:
    net = on(fields, "ab")
    net.blobs["b"].data[...] = 7
    net.backward(y=DY)
    np.testing.assert_array_equal(net.blobs["a"].diff, 7 * DY)
    np.testing.assert_array_equal(net.blobs["b"].diff, X * DY)


def test_maxima_masks_statistics_and_tops_are_those_of_the_forward_pass(on: Callable[..., caffe.Net]) -> None:
    largest = on('type: "Eltwise" eltwise_param { operation: MAX }', "ab")
    dropout = on('type: "Dropout"')
    sigmoid = on('type: "Sigmoid"')
    normalized = on('type: "BatchNorm"')
    mask = np.array(dropout.blobs["y"].data / X)  # 0 or 2
    statistics = [blob.data.copy() for blob in normalized.params["layer"]]
    for net in (largest, dropout, sigmoid, normalized):
        net.blobs["a"].data[...] = 5
        net.backward(y=DY)
    np.testing.assert_array_equal(largest.blobs["a"].diff, DY * (X > H))
    np.testing.assert_array_equal(dropout.blobs["a"].diff, DY * mask)
    np.testing.assert_allclose(sigmoid.blobs["a"].diff, DY * np.exp(-X) / (1 + np.exp(-X)) ** 2, rtol=1e-5)
    # of two rows the normalized values are 1 and -1 but for eps, and hardly move with the bottom
    assert np.abs(normalized.blobs["a"].diff).max() < 0.01
    for blob, before in zip(normalized.params["layer"], statistics, strict=True):
        np.testing.assert_array_equal(blob.data, before)


def test_a_loss_takes_the_edited_labels_and_the_probabilities_that_it_had(build: Build) -> None:
    net = build("""
        layer { name: "in" type: "Input" top: "a" top: "label"
          input_param { shape { dim: 2 dim: 2 } shape { dim: 2 } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "a" bottom: "label" top: "loss" }""")
    net.blobs["a"].data[...] = X
    net.forward()
    net.blobs["a"].data[...] = H
    net.blobs["label"].data[...] = [0, 1]
    net.backward()
    p = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    np.testing.assert_allclose(net.blobs["a"].diff, (p - np.eye(2)) / 2, rtol=1e-5)


def test_layers_in_place_keep_what_they_overwrite(build: Build) -> None:
    scale = 'layer { name: "scale" type: "Scale" bottom: "h" top: "h" scale_param { filler { value: 3 } } }'
    relu = 'layer { name: "relu" type: "ReLU" bottom: "h" top: "h" }'
    net = build(CHAIN.replace("MIDDLE", scale + relu))
    net.blobs["x"].data[...] = X
    net.forward()
    # ip1 gives (-1, -1), (3.5, 3.5), the two in place (0, 0), (10.5, 10.5), and ip2 (0, 0), (42, 42)
    net.blobs["h"].data[...] = H
    net.backward()
    dy = np.array([[0, 0], [21, 21]])
    np.testing.assert_array_equal(net.params["ip2"][0].diff, dy.T @ H)
    np.testing.assert_array_equal(net.params["scale"][0].diff, [84 * 3.5, 84 * 3.5])
    np.testing.assert_array_equal(net.blobs["h"].diff, [[0, 0], [3 * 84, 3 * 84]])


def test_all_readers_of_a_split_blob_meet_the_edit(build: Build) -> None:
    twice = "".join(
        f'layer {{ name: "{name}" type: "Power" bottom: "x" top: "{name}" power_param {{ power: 2 scale: {scale} }} }}'
        for name, scale in (("p", 1), ("q", 2))
    )
    net = build('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 2 } } }' + twice)
    net.blobs["x"].data[...] = X
    net.forward()
    net.blobs["x"].data[...] = H
    net.backward(p=DY, q=DY)
    np.testing.assert_array_equal(net.blobs["x"].diff, DY * (2 * H + 8 * H))


def test_what_a_part_of_a_pass_has_computed_since_is_read(build: Build) -> None:
    net = build(CHAIN.replace("MIDDLE", ""))
    net.blobs["x"].data[...] = X
    net.forward()
    net.blobs["x"].data[...] = H
    net.forward(end="ip1")
    net.backward()
    h = np.array([[3, 3], [-1, -1]])
    np.testing.assert_array_equal(net.params["ip2"][0].diff, np.array([[-2, -2], [7, 7]]).T @ h)


def test_layers_are_run_anew_only_where_something_was_edited(build: Build, runs: list[str]) -> None:
    net = build(CHAIN.replace("MIDDLE", 'layer { name: "relu" type: "ReLU" bottom: "h" top: "h" }'))
    for _ in range(2):
        net.forward()
        net.backward()
    assert runs == 2 * ["ip1", "relu", "ip2", "loss"]
    for blob in net.blobs.values():
        assert not blob.data.any()
    runs.clear()
    net.forward()
    net.backward()
    assert runs == ["ip1", "relu", "ip2", "loss"]
    net.blobs["h"].data[0, 0] = 1
    net.backward()
    assert runs[4:] == ["ip2"]
    net.backward()
    assert runs[4:] == ["ip2"]  # its graph is up to date

"""What a script may do with a net of autodial.caffe and its blobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autodial.caffe as caffe
from autodial.errors import InputError

NET = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "h"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } bias_filler { value: 0.5 } } }
layer { name: "double" type: "Power" bottom: "h" top: "h" power_param { scale: 2 } }
layer { name: "relu" type: "ReLU" bottom: "h" top: "y" }
"""


@pytest.fixture
def net(tmp_path: Path) -> caffe.Net:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return caffe.Net(str(path), caffe.TRAIN)


def test_arrays_stay_the_same_arrays(net: caffe.Net) -> None:
    data = net.blobs["y"].data
    net.blobs["x"].data[...] = 1
    net.forward()
    w = net.params["ip"][0].data
    np.testing.assert_allclose(data, np.maximum(2 * (w.sum(1) + 0.5), 0) * np.ones((3, 1)), rtol=1e-5)
    assert data is net.blobs["y"].data


def test_inputs_and_outputs_by_keyword(net: caffe.Net) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    result = net.forward(blobs=["h"], x=x)
    assert sorted(result) == ["h", "y"]
    np.testing.assert_array_equal(net.blobs["x"].data, x)
    with pytest.raises(ValueError, match=r'"x" has shape \(3, 4\), and the array given has \(2, 4\)'):
        net.forward(x=x[:2])


def test_in_place_layers_hand_their_gradient_down_through_one_blob(net: caffe.Net) -> None:
    net.blobs["x"].data[...] = np.random.default_rng(0).normal(size=(3, 4))
    net.forward()
    on = net.blobs["y"].data > 0
    net.backward(y=np.ones((3, 4)))
    # the blob ends with the gradient by its first value, before it was doubled
    np.testing.assert_allclose(net.blobs["h"].diff, 2 * on)
    np.testing.assert_allclose(net.blobs["x"].diff, (2 * on) @ net.params["ip"][0].data, rtol=1e-5)
    np.testing.assert_allclose(net.params["ip"][1].diff, (2 * on).sum(0))


def test_gradients_of_parameters_add_up(net: caffe.Net) -> None:
    net.blobs["x"].data[...] = 1
    net.forward()
    net.backward(y=np.ones((3, 4)))
    once = net.params["ip"][0].diff.copy()
    net.backward()
    np.testing.assert_allclose(net.params["ip"][0].diff, 2 * once)


def test_parts_of_a_pass(net: caffe.Net) -> None:
    net.forward()
    net.blobs["h"].data[...] = -3
    assert net.forward(start="relu")["y"].max() == 0
    net.blobs["h"].data[...] = 3
    result = net.forward(start="double", end="double")
    assert list(result) == ["h"] and (net.blobs["h"].data == 6).all() and net.blobs["y"].data.max() == 0
    net.forward(start="relu")
    net.blobs["y"].diff[...] = 1
    net.backward(start="relu", end="relu")
    assert (net.blobs["h"].diff == 1).all() and net.blobs["x"].diff.max() == 0


def test_what_is_wrong_names_the_layer(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(NET.replace('bottom: "x"', 'bottom: "z"'))
    with pytest.raises(InputError, match='layer "ip"'):
        caffe.Net(str(path), caffe.TEST)

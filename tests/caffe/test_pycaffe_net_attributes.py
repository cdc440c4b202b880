"""Everything that a script may ask a net for, one attribute after the other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import autodial.caffe as caffe
from autodial.errors import InputError
from autodial.proto import read_weights

Write = Callable[..., str]
DEPLOY = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } bias_filler { value: 1 } } }
"""


def rules(*rules: str) -> str:
    """A layer of the name i, with the i-th rule, for each."""
    layers = "".join(
        f'layer {{ name: "{i}" type: "Power" bottom: "data" top: "{i}" {rule} }} ' for i, rule in enumerate(rules)
    )
    return 'layer { name: "data" type: "DummyData" top: "data" dummy_data_param { shape { dim: 2 } } } ' + layers


# --- construction


@pytest.mark.parametrize(("level", "built"), [(0, "01"), (1, "012"), (-1, "0")])
def test_level(level: int, built: str, write: Write) -> None:
    path = write(rules("", "include { min_level: 0 }", "include { min_level: 1 }"))
    net = caffe.Net(path, caffe.TEST, level=level)
    assert [name for name in net.top_names if name in "012"] == list(built)


def test_the_level_replaces_that_of_the_file(write: Write) -> None:
    path = write("state { level: 2 } " + rules("", "include { min_level: 2 }"))
    assert "1" not in caffe.Net(path, caffe.TEST).top_names
    assert "1" in caffe.Net(path, caffe.TEST, level=2).top_names


@pytest.mark.parametrize(("stages", "built"), [(None, "03"), (["a"], "013"), (["b"], "0"), (["a", "b"], "012")])
def test_stages(stages: list[str] | None, built: str, write: Write) -> None:
    path = write(
        rules(
            "",
            'include { stage: "a" }',
            'include { stage: "a" stage: "b" }',
            'include { not_stage: "b" } ',
        )
    )
    net = caffe.Net(path, caffe.TEST, stages=stages)
    assert [name for name in net.top_names if name in "0123"] == list(built)


def test_phase_and_stage_choose_among_layers_of_one_name(write: Write) -> None:
    path = write(
        'layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 dim: 2 } }'
        ' include: { phase: TRAIN stage: "train" } include: { phase: TEST stage: "val" } }'
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } }'
        ' include: { phase: TEST stage: "deploy" } }'
        'layer { name: "out" type: "Softmax" bottom: "x" top: "y" }'
    )
    assert caffe.Net(path, caffe.TRAIN, stages=["train"]).inputs == []
    assert caffe.Net(path, caffe.TEST, stages=["val"]).inputs == []
    net = caffe.Net(path, caffe.TEST, stages=["deploy"])
    assert (net.inputs, net.outputs, list(net.blobs["x"].shape)) == (["x"], ["y"], [1, 2])


def test_weights_by_name_and_in_the_order_of_old_scripts(small: str, tmp_path: Path) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    net.save(tmp_path / "w")
    named = caffe.Net(small, caffe.TRAIN, weights=str(tmp_path / "w"))
    old = caffe.Net(small, str(tmp_path / "w"), caffe.TEST)
    assert old.module.phase == caffe.TEST
    for name, blobs in net.params.items():
        for other in (named, old):
            for ours, theirs in zip(blobs, other.params[name], strict=True):
                np.testing.assert_array_equal(theirs.data, ours.data)


def test_what_is_wrong_names_file_and_layer(write: Write) -> None:
    path = write(DEPLOY.replace('bottom: "x"', 'bottom: "z"'))
    with pytest.raises(InputError, match=f'^{path}: layer "ip"'):
        caffe.Net(path, caffe.TEST)
    with pytest.raises(InputError, match=r"^missing.prototxt does not exist"):
        caffe.Net("missing.prototxt", caffe.TEST)


def test_arrays_outlive_the_net(small: str) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    net.forward()
    net.backward()
    blobs, params = net.blobs, net.params
    expected = [net.params["ip"][0].data.copy(), net.params["ip"][0].diff.copy(), net.blobs["conv"].data.copy()]
    kept = [net.params["ip"][0].data, net.params["ip"][0].diff, net.blobs["conv"].data]
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    for array, value in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(array, value)
    for blob in (*blobs.values(), *(blob for layer in params.values() for blob in layer)):
        assert np.isfinite(blob.data).all() and np.isfinite(blob.diff).all()


# --- structure


def test_names_and_layers(small: str) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    assert list(net.top_names.items()) == [
        ("data", ["data", "label"]),
        ("conv", ["conv"]),
        ("ip", ["scores"]),
        ("loss", ["loss"]),
    ]
    assert list(net.bottom_names.values()) == [[], ["data"], ["conv"], ["scores", "label"]]
    assert (net.inputs, net.outputs) == ([], ["loss"])
    assert list(net.layer_dict) == list(net._layer_names) == ["data", "conv", "ip", "loss"]
    types = ["DummyData", "Convolution", "InnerProduct", "SoftmaxWithLoss"]
    assert [layer.type for layer in net.layers] == [layer.type for layer in net.layer_dict.values()] == types
    assert list(net.blobs) == net._blob_names == ["data", "label", "conv", "scores", "loss"]
    assert list(net.params) == ["conv", "ip"]
    assert [blob.shape for blob in net.layers[1].blobs] == [(3, 2, 2, 2), (3,)]
    assert np.shares_memory(net.layers[1].blobs[0].data, net.params["conv"][0].data)
    assert net._blob_loss_weights == [0, 0, 0, 0, 1] and net.blob_loss_weights["loss"] == 1
    assert (net._inputs, net._outputs, net._top_ids(0), net._bottom_ids(3)) == ([], [4], [0, 1], [3, 1])


def test_layers_that_caffe_inserts_have_names_too(write: Write) -> None:
    net = caffe.Net(write(DEPLOY + 'layer { name: "again" type: "TanH" bottom: "x" top: "z" }'), caffe.TEST)
    assert list(net.top_names) == ["x", "x_x_0_split", "ip", "again"]
    assert net.top_names["x_x_0_split"] == ["x_x_0_split_0", "x_x_0_split_1"] and net.bottom_names["again"] == [
        "x_x_0_split_1"
    ]
    assert net.outputs == ["y", "z"]


def test_blob_shapes(write: Write) -> None:
    net = caffe.Net(write(DEPLOY), caffe.TEST)
    blob = net.blobs["x"]
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (3, 4, 1, 1, 12)
    blob.reshape(2, 1, 3, 4, 5)
    assert tuple(blob.shape) == blob.data.shape == blob.diff.shape == (2, 1, 3, 4, 5) and blob.count == 120
    with pytest.raises(ValueError, match="shape"):
        _ = blob.num
    weight = net.params["ip"][0]
    assert (weight.num, weight.channels, weight.height, weight.count, tuple(weight.shape)) == (2, 4, 1, 8, (2, 4))
    with pytest.raises(ValueError, match="prototxt"):
        weight.reshape(8, 1)


def test_a_blob_that_shrinks_keeps_its_first_values(write: Write) -> None:
    blob = caffe.Net(write(DEPLOY), caffe.TEST).blobs["x"]
    blob.data[...] = np.arange(12).reshape(3, 4)
    blob.reshape(2, 3)
    np.testing.assert_array_equal(blob.data, np.arange(6).reshape(2, 3))


# --- passes


def test_reshape_goes_through_the_net_at_once_or_with_the_next_pass(write: Write) -> None:
    net = caffe.Net(write(DEPLOY), caffe.TEST)
    net.blobs["x"].reshape(5, 4)
    assert net.blobs["y"].shape == (3, 2)
    net.reshape()
    assert net.blobs["y"].shape == net.blobs["y"].data.shape == (5, 2)
    net.blobs["x"].reshape(7, 2, 2)
    x = np.random.default_rng(0).normal(size=(7, 2, 2)).astype(np.float32)
    expected = x.reshape(7, 4) @ net.params["ip"][0].data.T + 1
    np.testing.assert_allclose(net.forward(x=x)["y"], expected, rtol=1e-5)
    net.blobs["x"].reshape(7, 5)
    with pytest.raises(InputError, match=r'layer "ip" \(InnerProduct\)'):
        net.forward()


def test_gradients_follow_the_shapes(small: str) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    net.forward()
    net.backward()
    net.blobs["data"].reshape(2, 2, 5, 6)
    net.blobs["label"].reshape(2)
    net.forward()
    net.backward()
    assert [blob.diff.shape[0] for name, blob in net.blobs.items() if name != "loss"] == [2, 2, 2, 2]
    assert np.abs(net.blobs["data"].diff).min() > 0


def test_constant_dummy_data_is_what_a_script_makes_of_it(small: str) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    np.testing.assert_array_equal(net.blobs["label"].data, 1)
    net.blobs["label"].data[...] = [0, 1, 2, 6]
    net.forward()
    first = net.blobs["data"].data.copy()
    net.forward()
    np.testing.assert_array_equal(net.blobs["label"].data, [0, 1, 2, 6])
    assert (net.blobs["data"].data != first).any()  # this one is drawn again
    scores = torch.from_numpy(net.blobs["scores"].data)
    np.testing.assert_allclose(net.blobs["loss"].data, F.cross_entropy(scores, torch.tensor([0, 1, 2, 6])), rtol=1e-5)


def test_a_part_of_the_way_back_without_a_pass_forward(small: str) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    rng = np.random.default_rng(0)
    net.blobs["conv"].data[...] = conv = rng.normal(size=(4, 3, 4, 5))
    net.blobs["scores"].diff[...] = diff = rng.normal(size=(4, 7))
    result = net.backward(start="ip", end="ip")
    assert list(result) == ["conv"]
    weight = net.params["ip"][0]
    np.testing.assert_allclose(result["conv"], (diff @ weight.data).reshape(4, 3, 4, 5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weight.diff, diff.T @ conv.reshape(4, -1), rtol=1e-4, atol=1e-5)
    assert not net.blobs["scores"].data.any()  # nothing was run forward


def test_the_way_back_leaves_statistics_as_they_are(write: Write) -> None:
    bn = 'layer { name: "bn" type: "BatchNorm" bottom: "y" top: "n" }'
    net = caffe.Net(write("force_backward: true " + DEPLOY + bn), caffe.TRAIN)
    net.blobs["y"].data[...] = np.arange(6).reshape(3, 2) ** 2
    net.backward(n=np.eye(3, 2))
    assert not any(blob.data.any() for blob in net.params["bn"]) and net.blobs["y"].diff.any()


@pytest.mark.parametrize(("force", "expected"), [("", 0), ("force_backward: true ", 4)])
def test_force_backward_goes_before_propagate_down_false(force: str, expected: float, write: Write) -> None:
    net = caffe.Net(
        write(
            force
            + """
            layer { name: "in" type: "Input" top: "a" top: "y" input_param { shape { dim: 1 dim: 1 } } }
            layer { name: "ip" type: "InnerProduct" bottom: "a" top: "h" propagate_down: false
              inner_product_param { num_output: 1 weight_filler { value: 2 } } }
            layer { name: "loss" type: "EuclideanLoss" bottom: "h" bottom: "y" top: "loss" }"""
        ),
        caffe.TRAIN,
    )
    net.blobs["a"].data[...] = 1
    net.forward()
    net.backward()
    assert net.blobs["h"].diff == 2  # h - y
    assert net.blobs["a"].diff == expected  # times the weight
    assert net.params["ip"][0].diff == 2


def test_propagate_down_does_not_say_which_layers_run_backward(write: Write) -> None:
    inputs = (
        'layer { name: "in" type: "Input" top: "x" top: "y" '
        "input_param { shape { dim: 1 dim: 1 } shape { dim: 1 dim: 1 } } }"
    )
    learned = (
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "h" '
        "inner_product_param { num_output: 1 weight_filler { value: 2 } } }"
        'layer { name: "p" type: "Power" bottom: "h" top: "z" propagate_down: false }'
    )
    fixed = 'layer { name: "p" type: "Power" bottom: "x" top: "z" propagate_down: true }'
    loss = 'layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "loss" }'
    for layers, expected in ((learned, {"z": 2, "h": 0}), (fixed, {"z": 0, "x": 0})):
        net = caffe.Net(write(inputs + layers + loss), caffe.TRAIN)
        net.blobs["x"].data[...] = 1
        net.forward()
        net.backward()
        assert {name: net.blobs[name].diff.item() for name in expected} == expected


def test_splits_show_the_blob_that_they_split_and_add_gradients(write: Write) -> None:
    twice = "".join(
        f'layer {{ name: "p{i}" type: "Power" bottom: "y" top: "p{i}" power_param {{ scale: {i} }} }}' for i in (2, 3)
    )
    net = caffe.Net(write("force_backward: true " + DEPLOY + twice), caffe.TEST)
    net.forward()
    net.blobs["y"].data[...] = 5
    result = net.forward(start="p2")
    assert (result["p2"] == 10).all() and (result["p3"] == 15).all()
    net.backward(p2=np.ones((3, 2)), p3=np.full((3, 2), 10))
    assert (net.blobs["y"].diff == 2 + 30).all()


def test_forward_all_takes_any_number_of_rows(write: Write) -> None:
    net = caffe.Net(write("force_backward: true " + DEPLOY), caffe.TEST)
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(8, 2)).astype(np.float32)
    weight = net.params["ip"][0].data
    y = x @ weight.T + 1
    for rows in (1, 3, 6, 8):
        result = net.forward_all(blobs=["x"], x=x[:rows])
        assert sorted(result) == ["x", "y"]
        np.testing.assert_allclose(result["y"], y[:rows], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(result["x"], x[:rows])
    values, gradients = net.forward_backward_all(diffs=["y"], x=x, y=dy)
    np.testing.assert_allclose(values["y"], y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients["x"], dy @ weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(gradients["y"], dy)
    np.testing.assert_allclose(net.params["ip"][0].diff, dy.T @ x, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="same number of rows"):
        net.forward_backward_all(x=x, y=dy[:3])


def test_clear_param_diffs_keeps_the_arrays(small: str) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    net.forward()
    net.backward()
    diff = net.params["conv"][0].diff
    assert diff.any()
    net.clear_param_diffs()
    assert not diff.any() and np.shares_memory(diff, net.params["conv"][0].diff)


def test_memory_data(write: Write) -> None:
    path = write(
        'layer { name: "m" type: "MemoryData" top: "data" top: "label"'
        " memory_data_param { batch_size: 2 channels: 1 height: 2 width: 2 } }"
        'layer { name: "double" type: "Power" bottom: "data" top: "out" power_param { scale: 2 } }'
    )
    net = caffe.Net(path, caffe.TEST)
    data, labels = np.arange(16, dtype=np.float32).reshape(4, 1, 2, 2), np.arange(4, dtype=np.float32)
    with pytest.raises(InputError, match="set_input_arrays"):
        net.forward()
    net.set_input_arrays(data, labels)
    for rows in (slice(0, 2), slice(2, 4), slice(0, 2)):
        result = net.forward(blobs=["label"])
        np.testing.assert_array_equal(result["out"], 2 * data[rows])
        np.testing.assert_array_equal(result["label"].ravel(), labels[rows])
    net.forward(start="double")  # reads no batch
    np.testing.assert_array_equal(net.forward()["out"], 2 * data[2:])
    with pytest.raises(InputError, match="MemoryData"):
        caffe.Net(write(DEPLOY), caffe.TEST).set_input_arrays(data, labels)


def test_layers_that_are_not_there(small: str) -> None:
    net = caffe.Net(small, caffe.TRAIN)
    for run in (net.forward, net.backward):
        with pytest.raises(ValueError, match='no layer "fc9"; it has data, conv, ip, loss'):
            run(end="fc9")


# --- weights


@pytest.mark.parametrize("suffix", ["", ".caffemodel", ".h5"])
def test_save_and_load(suffix: str, small: str, tmp_path: Path) -> None:
    net, other = caffe.Net(small, caffe.TRAIN), caffe.Net(small, caffe.TRAIN)
    assert (net.params["conv"][0].data != other.params["conv"][0].data).any()
    binary, hdf5 = tmp_path / f"binary{suffix}", tmp_path / f"hdf5{suffix}"
    net.save(str(binary))
    net.save_hdf5(str(hdf5))
    assert not h5py.is_hdf5(binary) and h5py.is_hdf5(hdf5)
    for load, path in ((other.load_hdf5, hdf5), (other.copy_from, hdf5), (other.copy_from, binary)):
        other.params["conv"][0].data[...] = 0
        if path == binary and suffix == ".h5":
            continue  # a binary file under that name is no caffemodel
        load(str(path))
        np.testing.assert_array_equal(other.params["conv"][0].data, net.params["conv"][0].data)
    if suffix != ".h5":
        assert [layer.type for layer in read_weights(binary).layers][1:3] == ["Convolution", "InnerProduct"]


def test_share_with_shares_values_and_not_gradients(small: str) -> None:
    net, other = caffe.Net(small, caffe.TRAIN), caffe.Net(small, caffe.TRAIN)
    other.share_with(net)
    net.params["ip"][0].data[...] = 3
    np.testing.assert_array_equal(other.params["ip"][0].data, 3)
    other.forward()
    np.testing.assert_allclose(
        other.blobs["scores"].data, 3 * other.blobs["conv"].data.reshape(4, -1).sum(1, keepdims=True) * np.ones((1, 7)),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    other.backward()
    assert other.params["conv"][0].diff.any() and not net.params["conv"][0].diff.any()


def test_share_with_refuses_other_shapes(small: str, write: Write) -> None:
    other = caffe.Net(write(Path(small).read_text().replace("num_output: 7", "num_output: 8")), caffe.TRAIN)
    before = other.params["conv"][0].data.copy()
    with pytest.raises(InputError, match='layer "ip"'):
        other.share_with(caffe.Net(small, caffe.TRAIN))
    np.testing.assert_array_equal(other.params["conv"][0].data, before)


def test_a_parameter_in_two_shapes_has_one_gradient(write: Write) -> None:
    path = write(
        'force_backward: true input: "x" input_shape { dim: 2 dim: 6 }'
        'layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }'
        ' inner_product_param { num_output: 6 bias_term: false weight_filler { type: "xavier" } } }'
        'layer { name: "r" type: "Reshape" bottom: "a" top: "r" reshape_param { shape { dim: 3 dim: 4 } } }'
        'layer { name: "b" type: "InnerProduct" bottom: "r" top: "b" param { name: "w" share_mode: PERMISSIVE }'
        " inner_product_param { num_output: 9 bias_term: false } }"
    )
    net = caffe.Net(path, caffe.TRAIN)
    a, b = net.params["a"][0], net.params["b"][0]
    b.data[8, 3] = 7
    assert a.data[5, 5] == 7 and (a.shape, b.shape) == ((6, 6), (9, 4))
    x = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    net.forward(x=x)
    net.backward(b=np.ones((3, 9)))
    w = torch.from_numpy(a.data.copy()).requires_grad_()
    F.linear(F.linear(torch.from_numpy(x), w).reshape(3, 4), w.view(9, 4)).sum().backward()
    np.testing.assert_allclose(a.diff, w.grad, rtol=1e-4, atol=1e-5)
    assert np.shares_memory(a.diff, b.diff)


# --- the process


def test_the_seed_makes_fillers_dropout_and_dummy_data_repeat(small: str, write: Write) -> None:
    dropout = write(DEPLOY + 'layer { name: "drop" type: "Dropout" bottom: "y" top: "y" }')

    def run() -> list[np.ndarray]:
        made, masked = caffe.Net(small, caffe.TRAIN), caffe.Net(dropout, caffe.TRAIN)
        made.forward()
        masks = [masked.forward()["y"].copy() for _ in range(8)]
        return [made.params["conv"][0].data, made.blobs["data"].data, np.stack(masks)]

    caffe.set_random_seed(5)
    first, second = run(), run()
    caffe.set_random_seed(5)
    again = run()
    for one, other, same in zip(first, second, again, strict=True):
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()
    net = caffe.Net(small, caffe.TRAIN)
    drawn = []
    for _ in range(2):
        caffe.set_random_seed(6)
        net.forward()
        drawn.append(net.blobs["data"].data.copy())
    np.testing.assert_array_equal(*drawn)


def test_layer_types() -> None:
    types = caffe.layer_type_list()
    assert {"Data", "Convolution", "InnerProduct", "Python", "Dial", "EntropyLoss"} <= set(types)
    assert types == sorted(types)


def test_one_process_is_all_there_is() -> None:
    assert (caffe.solver_count(), caffe.solver_rank(), caffe.has_nccl()) == (1, 0, False)
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    caffe.set_multiprocess(False)
    for refused in (lambda: caffe.set_solver_count(2), lambda: caffe.set_multiprocess(True)):
        with pytest.raises(InputError, match="one process"):
            refused()


def test_log_goes_to_stderr_unless_it_is_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    caffe.log("hidden")
    caffe.init_log(0)
    caffe.log("shown")
    assert capsys.readouterr() == ("", "shown\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_mode_without_a_gpu_says_so_once(small: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        caffe.set_mode_gpu()
        caffe.set_device(0)
        caffe.Net(small, caffe.TRAIN).forward()
    assert caplog.text.count("No GPU here") == 1

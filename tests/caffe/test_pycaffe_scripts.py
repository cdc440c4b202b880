"""NetSpec, io, coord_map and the rest of what pycaffe scripts use."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import autodial.caffe as caffe
from autodial.caffe import layers as L
from autodial.caffe import params as P
from autodial.caffe.coord_map import coord_map_from_to, crop
from autodial.proto import parse_net


def build(spec: Any, folder: Path, phase: int = caffe.TRAIN, **options: Any) -> caffe.Net:
    path = folder / "net.prototxt"
    path.write_text(str(spec))
    return caffe.Net(str(path), phase, **options)


def small_net() -> Any:
    n = caffe.NetSpec()
    n.data, n.label = L.DummyData(
        shape=[{"dim": [4, 2, 6, 6]}, {"dim": [4]}],
        data_filler=[{"type": "gaussian"}, {"type": "constant"}],
        ntop=2,
    )
    n.conv = L.Convolution(
        n.data, num_output=3, kernel_size=3, weight_filler={"type": "xavier"}, param=[{"lr_mult": 2}]
    )
    n.pool = L.Pooling(n.conv, pool=P.Pooling.AVE, kernel_size=2, stride=2)
    n.relu = L.ReLU(n.pool, in_place=True)
    n.ip = L.InnerProduct(n.relu, num_output=5, weight_filler={"type": "xavier"})
    n.loss = L.SoftmaxWithLoss(n.ip, n.label, include={"phase": caffe.TRAIN})
    return n.to_proto()


def test_net_spec_writes_the_net_that_one_would_write_by_hand() -> None:
    by_hand = parse_net("""
        layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
          shape { dim: 4 dim: 2 dim: 6 dim: 6 } shape { dim: 4 }
          data_filler { type: "gaussian" } data_filler { type: "constant" } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 2 }
          convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
        layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
          pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
        layer { name: "relu" type: "ReLU" bottom: "pool" top: "pool" }
        layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
          inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" include { phase: TRAIN } }
    """)
    assert small_net() == by_hand


def test_net_spec_takes_blobs_only() -> None:
    with pytest.raises(TypeError):
        L.ReLU("data")
    with pytest.raises(TypeError):
        L.Silence(L.DummyData(shape={"dim": 3}, ntop=2), ntop=0)


def test_names_and_layers(tmp_path: Path) -> None:
    net = build(small_net(), tmp_path)
    assert (net.inputs, net.outputs) == ([], ["loss"])
    assert net.top_names["data"] == ["data", "label"] and net.bottom_names["loss"] == ["ip", "label"]
    assert isinstance(net.top_names, OrderedDict)
    assert [layer.type for layer in net.layers] == [net.layer_dict[name].type for name in net.layer_dict]
    assert net.layer_dict["conv"].blobs[0].data.shape == (3, 2, 3, 3)
    assert dict(zip(net.blobs, net._blob_loss_weights, strict=True))["loss"] == 1 and sum(net._blob_loss_weights) == 1


def test_blob_shapes(tmp_path: Path) -> None:
    blob = build(small_net(), tmp_path).blobs["data"]
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (4, 2, 6, 6, 288)
    assert list(blob.shape) == [4, 2, 6, 6]


def test_reshape_reaches_the_outputs(tmp_path: Path) -> None:
    n = caffe.NetSpec()
    n.data = L.Input(input_param={"shape": {"dim": [1, 2, 6, 6]}})
    n.conv = L.Convolution(n.data, num_output=3, kernel_size=3, weight_filler={"type": "xavier"})
    net = build(n.to_proto(), tmp_path, caffe.TEST)
    net.blobs["data"].reshape(2, 2, 9, 8)
    net.reshape()
    assert net.blobs["conv"].data.shape == (2, 3, 7, 6)
    x = np.random.default_rng(0).normal(size=(2, 2, 9, 8)).astype(np.float32)
    weight, bias = (torch.from_numpy(blob.data) for blob in net.params["conv"])
    np.testing.assert_allclose(
        net.forward(data=x)["conv"], F.conv2d(torch.from_numpy(x), weight, bias), rtol=1e-5, atol=1e-5
    )


def test_forward_all_runs_batches_of_any_number(tmp_path: Path) -> None:
    n = caffe.NetSpec()
    n.data = L.Input(input_param={"shape": {"dim": [4, 3]}})
    n.ip = L.InnerProduct(n.data, num_output=2, weight_filler={"type": "xavier"})
    net = build(f"force_backward: true {n.to_proto()}", tmp_path)
    x = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    weight = net.params["ip"][0].data
    np.testing.assert_allclose(net.forward_all(data=x)["ip"], x @ weight.T, rtol=1e-5, atol=1e-6)
    outputs, gradients = net.forward_backward_all(data=x[:8], ip=np.ones((8, 2), np.float32))
    np.testing.assert_allclose(outputs["ip"], x[:8] @ weight.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients["data"], np.tile(weight.sum(0), (8, 1)), rtol=1e-5)


def test_save_share_and_clear(tmp_path: Path) -> None:
    net = build(small_net(), tmp_path)
    net.save(str(tmp_path / "binary"))
    net.save_hdf5(str(tmp_path / "hdf5"))
    shared, first, second = (build(small_net(), tmp_path) for _ in range(3))
    for other in (shared, first, second):
        other.params["conv"][0].data[...] = 9
    first.copy_from(str(tmp_path / "binary"))
    second.load_hdf5(str(tmp_path / "hdf5"))
    shared.share_with(net)
    for other in (shared, first, second):
        np.testing.assert_array_equal(other.params["conv"][0].data, net.params["conv"][0].data)
    net.params["conv"][0].data[...] = 7
    assert (shared.params["conv"][0].data == 7).all() and not (first.params["conv"][0].data == 7).any()
    net.forward()
    net.backward()
    gradient = net.params["ip"][0].diff
    assert gradient.any()
    net.clear_param_diffs()
    assert not gradient.any()


def test_memory_data(tmp_path: Path) -> None:
    n = caffe.NetSpec()
    n.data, n.label = L.MemoryData(batch_size=2, channels=1, height=2, width=2, ntop=2)
    net = build(n.to_proto(), tmp_path, caffe.TEST)
    images = np.arange(16, dtype=np.float32).reshape(4, 1, 2, 2)
    net.set_input_arrays(images, np.arange(4, dtype=np.float32))
    for labels in ([0, 1], [2, 3], [0, 1]):
        net.forward()
        assert net.blobs["label"].data.ravel().tolist() == labels
        np.testing.assert_array_equal(net.blobs["data"].data, images[labels])


def test_random_seed_repeats_a_net(tmp_path: Path) -> None:
    weights = []
    for seed in (3, 3, 4):
        caffe.set_random_seed(seed)
        weights.append(build(small_net(), tmp_path).params["ip"][0].data)
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(weights[0], weights[2])


# --- io


def test_transformer_there_and_back(tmp_path: Path) -> None:
    transformer = caffe.io.Transformer({"data": (1, 3, 8, 10)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 1, 0))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.array([104, 117, 123]))
    transformer.set_input_scale("data", 0.5)
    image = np.random.default_rng(0).random((8, 10, 3)).astype(np.float32)
    result = transformer.preprocess("data", image)
    expected = (image[:, :, ::-1].transpose(2, 0, 1) * 255 - np.array([104, 117, 123]).reshape(3, 1, 1)) * 0.5
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(transformer.deprocess("data", result), image, rtol=1e-4, atol=1e-5)


def test_load_image_is_rgb_from_0_to_1(tmp_path: Path) -> None:
    bgr = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), bgr)
    np.testing.assert_allclose(caffe.io.load_image(str(tmp_path / "a.png")), bgr[:, :, ::-1] / 255, rtol=1e-6)
    assert caffe.io.load_image(str(tmp_path / "a.png"), color=False).shape == (5, 7, 1)


def test_oversample_takes_corners_centre_and_mirrors() -> None:
    image = np.arange(48, dtype=np.float32).reshape(4, 4, 3)
    crops = caffe.io.oversample([image], (2, 2))
    assert crops.shape == (10, 2, 2, 3)
    corners = [image[:2, :2], image[:2, 2:], image[2:, :2], image[2:, 2:], image[1:3, 1:3]]
    np.testing.assert_array_equal(crops[:5], corners)
    np.testing.assert_array_equal(crops[5:], [crop[:, ::-1] for crop in corners])


def test_messages_and_arrays() -> None:
    array = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(caffe.io.array_to_blobproto(array)), array)
    text = caffe.io.arraylist_to_blobprotovector_str([array, array[0]])
    for found, given in zip(caffe.io.blobprotovector_str_to_arraylist(text), (array, array[0]), strict=True):
        np.testing.assert_array_equal(found, given)
    for pixels in (np.arange(12, dtype=np.uint8).reshape(3, 2, 2), np.arange(12.0).reshape(3, 2, 2)):
        datum = caffe.io.array_to_datum(pixels, label=7)
        assert datum.label == 7
        np.testing.assert_array_equal(caffe.io.datum_to_array(datum), pixels)
    blob = caffe.proto.caffe_pb2.BlobProto(data=[1, 2, 3])
    blob.shape.dim.extend([2, 2])
    with pytest.raises(ValueError):
        caffe.io.blobproto_to_array(blob)


# --- coord_map


def deconvolved(pad: int) -> Any:
    n = caffe.NetSpec()
    n.data = L.Input(input_param={"shape": {"dim": [1, 1, 20, 20]}})
    n.conv = L.Convolution(n.data, num_output=1, kernel_size=3, pad=pad)
    n.pool = L.Pooling(n.conv, kernel_size=2, stride=2)
    n.up = L.Deconvolution(n.pool, convolution_param={"num_output": 1, "kernel_size": 2, "stride": 2})
    return n


@pytest.mark.parametrize(("pad", "offset"), [(0, 1), (1, 0), (5, -4)])
def test_where_pixels_come_from(pad: int, offset: int) -> None:
    # pool and deconvolution undo each other; a 3x3 convolution starts 1 - pad pixels inside the image
    n = deconvolved(pad)
    axis, scale, shift = coord_map_from_to(n.up, n.data)
    assert (axis, float(np.squeeze(scale)), float(np.squeeze(shift))) == (1, 1.0, float(offset))
    if offset <= 0:
        n.crop = crop(n.up, n.data)
        layer = n.to_proto().layer[-1]
        assert (layer.crop_param.axis, list(layer.crop_param.offset)) == (2, [-offset])
    else:
        with pytest.raises(AssertionError):
            crop(n.up, n.data)


def test_layer_types_and_modes() -> None:
    assert {"Dial", "EntropyLoss", "Python", "Data"} <= set(caffe.layer_type_list())
    caffe.set_mode_cpu()
    caffe.set_device(0)


def test_classifier(tmp_path: Path) -> None:
    n = caffe.NetSpec()
    n.data = L.Input(input_param={"shape": {"dim": [1, 3, 4, 4]}})
    n.ip = L.InnerProduct(n.data, num_output=3, weight_filler={"type": "xavier"})
    n.prob = L.Softmax(n.ip)
    net = build(n.to_proto(), tmp_path, caffe.TEST)
    net.save(str(tmp_path / "w.caffemodel"))
    classifier = caffe.Classifier(
        str(tmp_path / "net.prototxt"), str(tmp_path / "w.caffemodel"), image_dims=(4, 4), channel_swap=(2, 1, 0)
    )
    image = np.random.default_rng(0).random((4, 4, 3)).astype(np.float32)
    found = classifier.predict([image], oversample=False)
    expected = net.forward(data=image[:, :, ::-1].transpose(2, 0, 1)[None])["prob"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)

"""Rows of the target with labels: where they lie in the batch, who normalizes them, and who learns from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autodial.caffe as caffe
from autodial import proto
from autodial.evaluation.domains import data_in_train
from autodial.net.data_checks import label_readers
from autodial.net.net import Net
from autodial.netparam.shipped import shipped_names, shipped_net
from autodial.netparam.variants import apply_variant
from autodial.project.labelled_rows import add_labelled_rows
from autodial.project.net_template import Filling, NetTemplate
from autodial.project.split import Split, labelled_rows
from autodial.proto import messages as pb

pytestmark = pytest.mark.usefixtures("here")

PLAIN = """
layer { name: "s" type: "ImageData" top: "s" top: "label" include { phase: TRAIN }
  image_data_param { source: "source.txt" batch_size: 5 } }
layer { name: "t" type: "ImageData" top: "t" top: "unused" include { phase: TRAIN } transform_param { mirror: true }
  image_data_param { source: "target.txt" batch_size: 6 } }
layer { name: "silence" type: "Silence" bottom: "unused" include { phase: TRAIN } }
layer { name: "join" type: "Concat" bottom: "s" bottom: "t" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  image_data_param { source: "test.txt" batch_size: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.001 } } }
layer { name: "dial" type: "Dial" bottom: "fc" top: "aligned"
  dial_param { slice_point: 5 weight_filler { type: "constant" value: 1 } } }
layer { name: "features" type: "Slice" bottom: "fc" top: "fc-s" top: "fc-t" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 5 } }
layer { name: "gone" type: "Silence" bottom: "fc-s" bottom: "fc-t" include { phase: TRAIN } }
layer { name: "part" type: "Slice" bottom: "aligned" top: "scores" top: "scores-t" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" include { phase: TRAIN } }
layer { name: "entropy" type: "EntropyLoss" bottom: "scores-t" top: "entropy" include { phase: TRAIN } }
layer { name: "accuracy" type: "Accuracy" bottom: "aligned" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
LABELLED = """
layer { name: "s" type: "ImageData" top: "s" top: "label-source" include { phase: TRAIN }
  image_data_param { source: "source.txt" batch_size: 5 } }
layer { name: "t-labelled" type: "ImageData" top: "t-labelled" top: "label-labelled" include { phase: TRAIN }
  transform_param { mirror: true } image_data_param { source: "few.txt" batch_size: 2 } }
layer { name: "t" type: "ImageData" top: "t-unlabelled" top: "unused" include { phase: TRAIN }
  transform_param { mirror: true } image_data_param { source: "target.txt" batch_size: 4 } }
layer { name: "label-concat" type: "Concat" bottom: "label-source" bottom: "label-labelled" top: "label"
  include { phase: TRAIN } concat_param { axis: 0 } }
layer { name: "t-concat" type: "Concat" bottom: "t-labelled" bottom: "t-unlabelled" top: "t" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "silence" type: "Silence" bottom: "unused" include { phase: TRAIN } }
"""
"""What comes in place of the first three layers."""


def labelled() -> pb.NetParameter:
    net = proto.parse_net(PLAIN)
    add_labelled_rows(net, "s", "t", "few.txt", 2)
    return net


def images() -> None:
    """Lists of source, target and labelled target images of 4 x 4 pixels, bright ones in the target."""
    rng = np.random.default_rng(0)
    for name, count, low in (("source", 5, 0), ("few", 2, 100), ("target", 4, 100), ("test", 2, 100)):
        lines = []
        for i in range(count):
            caffe.io.cv2.imwrite(f"{name}{i}.png", rng.integers(low, low + 100, (4, 4, 3), dtype=np.uint8))
            lines.append(f"{name}{i}.png {i % 3}\n")
        Path(f"{name}.txt").write_text("".join(lines))


def test_only_the_slice_in_front_of_labels_is_moved() -> None:
    layers = PLAIN.split('layer { name: "join"')
    expected = LABELLED + 'layer { name: "join"' + layers[1]
    expected = expected.replace('"aligned" top: "scores" top: "scores-t" include { phase: TRAIN }\n', "MOVED\n")
    before, after = expected.split("MOVED\n")
    after = after.replace("slice_point: 5", "slice_point: 7", 1)
    expected = f'{before}"aligned" top: "scores" top: "scores-t" include {{ phase: TRAIN }}\n{after}'
    assert labelled() == proto.parse_net(expected)


def test_labelled_rows_are_normalized_as_target_and_learned_from_as_source() -> None:
    images()
    proto.write_text(labelled(), "net.prototxt")
    net = caffe.Net("net.prototxt", caffe.TRAIN)
    net.forward()
    blob = {name: np.array(net.blobs[name].data) for name in net.blobs}
    assert blob["label"].tolist() == [0, 1, 2, 0, 1, 0, 1]
    fc = blob["fc"]
    source, target = ((part - part.mean(0)) / np.sqrt(part.var(0) + 1e-5) for part in (fc[:5], fc[5:]))
    np.testing.assert_allclose(blob["aligned"], np.concatenate([source, target]), atol=1e-3)
    scores = np.concatenate([source, target[:2]])
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    np.testing.assert_allclose(blob["loss"], -logs[np.arange(7), blob["label"].astype(int)].mean(), rtol=1e-3)
    p = np.exp(target[2:]) / np.exp(target[2:]).sum(1, keepdims=True)
    np.testing.assert_allclose(blob["entropy"], -(p * np.log(p)).sum(1).mean(), rtol=1e-3)


def test_who_reads_what_is_found() -> None:
    images()
    net = labelled()
    found = data_in_train(net)
    assert found is not None
    read = [(data.layer.name, data.blob) for data in (*found.sources, found.target)]
    assert read == [("s", "s"), ("t", "t-unlabelled")]
    readers = [reader[:3] for reader in label_readers(Net(net, pb.TRAIN))]
    assert readers == [("loss", "s", 1), ("loss", "t-labelled", 1)]


def test_source_only_learns_from_all_labels() -> None:
    images()
    net = apply_variant(labelled(), "source-only")
    names = [layer.name for layer in net.layer if layer.type not in ("Silence",)]
    assert names == ["s", "t-labelled", "label-concat", "join", "test", "fc", "loss", "accuracy"]
    proto.write_text(net, "net.prototxt")
    built = caffe.Net("net.prototxt", caffe.TRAIN)
    built.forward()
    data, scores = built.blobs["data"].data, built.blobs["fc"].data
    assert data.shape[0] == 7 and data[:5].max() < 100 and data[5:].min() >= 100
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    np.testing.assert_allclose(built.blobs["loss"].data, -logs[np.arange(7), [0, 1, 2, 0, 1, 0, 1]].mean(), rtol=1e-4)


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_net_takes_labelled_rows(name: str) -> None:
    template = NetTemplate(proto.read_net(shipped_net(name)), name, None)
    filling = Filling(3, Split(5, 6), test_list="test.txt", test_batch=2, labelled=True, size=(28, 30))
    before, _ = template.filled(filling)
    net, _ = template.filled(replace(filling, labelled_rows=2))
    slices = [
        [list(layer.slice_param.slice_point) for layer in one.layer if layer.type == "Slice"] for one in (before, net)
    ]
    assert slices == [[[5]] * len(slices[0]), [[7]] * len(slices[0])]
    assert {layer.dial_param.slice_point for layer in net.layer if layer.type == "Dial"} == {5}
    batches = {
        layer.image_data_param.source: layer.image_data_param.batch_size
        for layer in net.layer
        if layer.type == "ImageData"
    }
    assert batches == {"source.txt": 5, "target_labelled.txt": 2, "target.txt": 4, "test.txt": 2}
    images_of: Any = {layer.image_data_param.source: layer for layer in net.layer if layer.type == "ImageData"}
    few, others = images_of["target_labelled.txt"], images_of["target.txt"]
    assert few.transform_param == others.transform_param and few.image_data_param.shuffle


@pytest.mark.parametrize(
    ("target_rows", "images", "rows"), [(32, 100, 8), (32, 5, 5), (7, 10, 1), (2, 10, 1), (64, 1, 1), (9, 50, 2)]
)
def test_a_quarter_of_the_targets_rows_have_labels(target_rows: int, images: int, rows: int) -> None:
    assert labelled_rows(target_rows, images) == rows

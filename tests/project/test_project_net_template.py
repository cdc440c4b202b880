"""Nets filled in for other data, against the nets that ship, the authors' own, and nets built from the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from originals import RECORDS, shared

from autodial import proto
from autodial.errors import InputError
from autodial.netparam.graph import Graph
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_names, shipped_net
from autodial.project.net_template import Filling, NetTemplate
from autodial.project.split import Split
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb

FILLING = Filling(7, Split(5, 3), test_list="test.txt", test_batch=9, labelled=True, size=(28, 30))

NET = """
name: "small"
layer { name: "s" type: "Data" top: "s" top: "label" include { phase: TRAIN } data_param { source: "a" batch_size: 6 } }
layer { name: "t" type: "Data" top: "t" include { phase: TRAIN } data_param { source: "b" batch_size: 2 } }
layer { name: "join" type: "Concat" bottom: "s" bottom: "t" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" inner_product_param { num_output: 8 } }
layer { name: "dial1" type: "Dial" bottom: "ip1" top: "ip1" }
layer { name: "aux" type: "InnerProduct" bottom: "ip1" top: "aux" inner_product_param { num_output: 10 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param { num_output: 10 } }
layer { name: "dial2" type: "Dial" bottom: "ip2" top: "ip2" }
layer { name: "scale2" type: "Scale" bottom: "ip2" top: "ip2" }
layer { name: "part1" type: "Slice" bottom: "aux" top: "aux-s" top: "aux-t" include { phase: TRAIN }
  slice_param { axis: 0 } }
layer { name: "part2" type: "Slice" bottom: "ip2" top: "ip2-s" top: "ip2-t" include { phase: TRAIN }
  slice_param { axis: 0 } }
layer { name: "gone" type: "Silence" bottom: "aux-t" include { phase: TRAIN } }
layer { name: "loss1" type: "SoftmaxWithLoss" bottom: "aux-s" bottom: "label" include { phase: TRAIN } }
layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "ip2-s" bottom: "label" include { phase: TRAIN } }
layer { name: "entropy" type: "EntropyLoss" bottom: "ip2-t" include { phase: TRAIN } }
layer { name: "top1" type: "Accuracy" bottom: "ip2" bottom: "label" top: "top1" include { phase: TEST } }
layer { name: "top5" type: "Accuracy" bottom: "ip2" bottom: "label" top: "top5" include { phase: TEST }
  accuracy_param { top_k: 5 } }
"""
"""Without data in TEST, and the target without labels."""


def template(text: str = NET) -> NetTemplate:
    return NetTemplate(proto.parse_net(text), "net.prototxt", None)


def filled(net: NetTemplate, filling: Filling = FILLING) -> Any:
    return net.filled(filling)[0]


def layers(net: Any) -> dict[str, Any]:
    return {layer.name: layer for layer in net.layer}


def classes_of(net: Any, template: NetTemplate) -> int:
    (classes,) = {layers(net)[name].inner_product_param.num_output for name in template.classifiers}
    return int(classes)


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_net_filled_with_its_own_numbers_is_itself(name: str) -> None:
    net = proto.read_net(shipped_net(name))
    shipped = NetTemplate(net, name, None)
    filling = Filling(
        classes_of(net, shipped), shipped.split, "target_test.txt", shipped.test_batch, labelled=True, size=(0, 0)
    )
    assert shipped.filled(filling) == (net, [])


@pytest.mark.parametrize("name", shipped_names())
def test_every_number_of_a_shipped_net_follows(name: str) -> None:
    net = filled(NetTemplate(proto.read_net(shipped_net(name)), name, None))
    for layer in net.layer:
        if layer.type == "Dial":
            assert layer.dial_param.slice_point == 5, layer.name
        elif layer.type == "Slice":
            assert list(layer.slice_param.slice_point) == [5]
    found = {layer.name: layer.image_data_param for layer in net.layer if layer.type == "ImageData"}
    assert [(one.source, one.batch_size, one.shuffle) for one in found.values()] == [
        ("source.txt", 5, True),
        ("target.txt", 3, True),
        ("test.txt", 9, False),
    ]


@pytest.mark.parametrize("name", ["alexnet", "inception"])
def test_the_authors_nets(name: str) -> None:
    """Apart from lists and batches, the images' size is stated: they had it on disk."""
    net = proto.read_net(shared(f"reference/autodial/{name}_train_val.prototxt"))
    released = NetTemplate(net, name, None)
    assert released.size == (256, 256) and released.color
    filling = replace(FILLING, classes=classes_of(net, released), split=released.split, test_batch=released.test_batch)
    result, notes = released.filled(filling)
    lists = iter(("source.txt", "target.txt", "test.txt"))
    for layer in net.layer:
        if layer.type == "ImageData":
            options = layer.image_data_param
            options.source = next(lists)
            options.new_height = options.new_width = 256
    options.ClearField("shuffle")  # in TEST it makes no difference
    assert result == net and notes == []


def test_databases_become_lists() -> None:
    path = RECORDS / "digits" / "dial_train_val.prototxt"
    digits = NetTemplate(proto.read_net(path), "digits", path.parent)
    assert digits.split == (64, 64) and digits.size is None and digits.color is None
    net = layers(filled(digits, replace(FILLING, color=False)))
    for name, source in (("ds", "source.txt"), ("dt", "target.txt"), ("dtest", "test.txt")):
        layer = net[name]
        assert layer.type == "ImageData" and not layer.HasField("data_param")
        assert layer.transform_param.scale == 0.00390625
        options = layer.image_data_param
        assert (options.source, options.new_height, options.new_width) == (source, 28, 30) and not options.is_color


def test_a_net_without_test_data_gets_the_targets() -> None:
    result = filled(template(), replace(FILLING, classes=12))
    assert [layer.name for layer in result.layer][:4] == ["s", "t", "join", "data-test"]
    net = layers(result)
    assert list(net["t"].top) == ["t", "label-target"] and list(net["target-silence"].bottom) == ["label-target"]
    assert list(net["data-test"].top) == ["data", "label"]
    assert net["aux"].inner_product_param.num_output == net["ip2"].inner_product_param.num_output == 12
    assert net["ip1"].inner_product_param.num_output == 8
    assert [list(net[name].slice_param.slice_point) for name in ("part1", "part2")] == [[5], [5]]
    for phase in (pb.TRAIN, pb.TEST):
        Graph(filter_net(result, phase).layer)


def test_accuracy_among_more_classes_than_there_are_is_left_out() -> None:
    result, notes = template().filled(replace(FILLING, classes=4))
    assert "top5" not in layers(result) and "top1" in layers(result)
    assert notes == ['Layer "top5" is removed: it measures the top-5 accuracy of only 4 classes']


@pytest.mark.parametrize("net", ["small", *shipped_names()])
def test_without_labels_nothing_is_measured(net: str) -> None:
    """TEST is left with data, the network and its probabilities; `logits` is what export and test look for."""
    source = template() if net == "small" else NetTemplate(proto.read_net(shipped_net(net)), net, None)
    result = filter_net(filled(source, replace(FILLING, labelled=False, test_list="target.txt")), pb.TEST)
    types = [layer.type for layer in result.layer]
    assert not {"Accuracy", "SoftmaxWithLoss", "EntropyLoss"}.intersection(types) and types.count("Softmax") == 1
    graph = Graph(result.layer)
    labels = layers(result)["label-silence"]
    assert graph.names[graph.logits()] in ("ip2", "fc8", "fc4", "fc1", "fc6") and list(labels.bottom) == ["label"]
    unread = {top for layer in result.layer for top in layer.top} - {b for layer in result.layer for b in layer.bottom}
    assert unread - {"aux"} == {"prob"}


def test_labels_are_measured_where_the_net_has_no_accuracy() -> None:
    net = proto.parse_net(NET)
    del net.layer[-2:]
    result = layers(filled(NetTemplate(net, "net.prototxt", None)))
    assert list(result["accuracy"].bottom) == ["ip2", "label"]


def weights(classes: int, *names: str) -> Weights:
    shapes = {"ip1": (8, 20), "aux": (classes, 8), "ip2": (1, 1, classes, 8), "dial2": (1,), "scale2": (classes,)}
    return Weights(
        "w", [LayerWeights(pb.LayerParameter(name=name), [np.zeros(shapes[name], np.float32)]) for name in names]
    )


def test_weights_for_other_classes_find_no_layer_of_their_name() -> None:
    """Caffe refuses a layer of the same name and another shape, and so does `autodial train`."""
    stored = weights(10, "ip1", "aux", "ip2", "dial2", "scale2")
    result, notes = template().filled(replace(FILLING, weights=stored))
    names = [layer.name for layer in result.layer]
    assert {"ip1", "dial1", "aux-new", "ip2-new", "dial2-new", "scale2-new"}.issubset(names)
    assert not {"aux", "ip2", "dial2", "scale2"}.intersection(names)
    assert "ip2 is now ip2-new" in notes[0]
    assert list(layers(result)["ip2-new"].top) == ["ip2"]


@pytest.mark.parametrize("stored", [weights(7, "ip1", "aux", "ip2", "dial2", "scale2"), weights(10, "ip1")])
def test_names_stay_where_weights_fit_or_are_not_there(stored: Weights) -> None:
    result, _ = template().filled(replace(FILLING, weights=stored))
    assert {"aux", "ip2", "dial2", "scale2"}.issubset(layer.name for layer in result.layer)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type: "Dial"', 'type: "ReLU"', "net.prototxt has no Dial layer: .* `autodial dialize`"),
        ("concat_param { axis: 0 }", "", "needs a Concat layer that joins"),
        ("slice_param { axis: 0 }", "slice_param { axis: 1 }", "has no Slice layer that splits source and target"),
        ('top: "ip2-t"', 'top: "ip2-t" top: "more"', r'layer "part2" \(Slice\) splits the batch into 3'),
        ('bottom: "ip2-s" bottom: "label"', 'bottom: "ip2-s" bottom: "labels"', 'TRAIN phase: layer "loss2" reads'),
        (
            'type: "Scale" bottom: "ip2"',
            'type: "Eltwise" bottom: "ip2" bottom: "aux"',
            'scores from "scale2" .Eltwise.',
        ),
        ("SoftmaxWithLoss", "EuclideanLoss", "no SoftmaxWithLoss layer"),
    ],
)
def test_refuses_what_is_no_autodial_net(old: str, new: str, message: str) -> None:
    assert old in NET
    with pytest.raises(InputError, match=message):
        template(NET.replace(old, new))


def test_refuses_labels_that_the_source_does_not_bring() -> None:
    text = NET.replace('top: "s" top: "label"', 'top: "s"').replace('top: "t" include', 'top: "t" top: "label" include')
    with pytest.raises(InputError, match=r'layer "s": the source\'s data layer has no top for labels'):
        template(text)


def test_sizes_that_the_net_does_not_state() -> None:
    for crop, size in ((227, 256), (224, 256), (28, 32), (299, 320)):
        text = NET.replace("data_param { source", f"transform_param {{ crop_size: {crop} }} data_param {{ source")
        assert template(text).size == (size, size)
    assert template().size is None

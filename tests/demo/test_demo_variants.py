"""The variants that the demo makes from one net."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest

from autodial import proto
from autodial.demo.variants import with_fixed_alphas, without_dial, without_entropy
from autodial.overrides import apply_to_nets

ALIGNED = """
name: "n"
layer { name: "s" type: "ImageData" top: "s" top: "label" include { phase: TRAIN } }
layer { name: "t" type: "ImageData" top: "t" top: "unused" include { phase: TRAIN } }
layer { name: "silence" type: "Silence" bottom: "unused" include { phase: TRAIN } }
layer { name: "join" type: "Concat" bottom: "s" bottom: "t" top: "data" concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST } }
layer { name: "own-scale" type: "Scale" bottom: "data" top: "scaled" }
layer { name: "a" type: "InnerProduct" bottom: "scaled" top: "a" }
layer { name: "a-dial" type: "Dial" bottom: "a" top: "a-aligned" }
layer { name: "a-scale" type: "Scale" bottom: "a-aligned" top: "a-scaled" }
layer { name: "relu" type: "ReLU" bottom: "a-scaled" top: "a-scaled" }
layer { name: "b" type: "InnerProduct" bottom: "a-scaled" top: "b" }
layer { name: "b-dial" type: "Dial" bottom: "b" top: "b" }
layer { name: "both" type: "Concat" bottom: "a-scaled" bottom: "b" top: "both" }
layer { name: "part" type: "Slice" bottom: "both" top: "both-s" top: "both-t" slice_param { axis: 0 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "both-s" bottom: "label" top: "loss" }
layer { name: "entropy" type: "EntropyLoss" bottom: "both-t" top: "entropy" loss_weight: 0.1 }
layer { name: "accuracy" type: "Accuracy" bottom: "both" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
PLAIN = """
name: "n"
layer { name: "s" type: "ImageData" top: "data" top: "label" include { phase: TRAIN } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST } }
layer { name: "own-scale" type: "Scale" bottom: "data" top: "scaled" }
layer { name: "a" type: "InnerProduct" bottom: "scaled" top: "a" }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" }
layer { name: "both" type: "Concat" bottom: "a" bottom: "b" top: "both" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "both" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "both" bottom: "label" top: "accuracy" include { phase: TEST } }
"""


@pytest.fixture
def digits() -> Any:
    text = (resources.files("autodial.prototxt") / "digits" / "train_val.prototxt").read_text()
    return proto.parse_net(text)


def test_without_dial_leaves_the_net_of_the_source_alone() -> None:
    net = proto.parse_net(ALIGNED)
    assert without_dial(net) == proto.parse_net(PLAIN)
    assert net == proto.parse_net(ALIGNED)


def test_shipped_net_has_a_dial_and_a_scale_after_every_layer_with_parameters(digits: Any) -> None:
    types = [layer.type for layer in digits.layer]
    places = [i for i, kind in enumerate(types) if kind in ("Convolution", "InnerProduct")]
    assert places
    for i in places:
        assert types[i + 1 : i + 3] == ["Dial", "Scale"]
        assert list(digits.layer[i].top) == list(digits.layer[i + 1].bottom) == list(digits.layer[i + 2].bottom)


def test_without_dial_of_the_shipped_net_keeps_every_other_layer_as_it_is(digits: Any) -> None:
    gone = {"Dial", "Scale", "EntropyLoss", "Concat", "Slice", "Silence"}
    expected = [layer for layer in digits.layer if layer.type not in gone and layer.name != "data-target"]
    plain = without_dial(digits)
    assert [layer.name for layer in plain.layer] == [layer.name for layer in expected]
    for layer, original in zip(plain.layer, expected, strict=True):
        for field in ("param", "convolution_param", "inner_product_param", "image_data_param", "transform_param"):
            assert getattr(layer, field) == getattr(original, field)


def test_settings_fix_alphas_and_drop_the_entropy(digits: Any) -> None:
    apply_to_nets([*with_fixed_alphas(digits), *without_entropy(digits)], [digits])
    dials = [layer for layer in digits.layer if layer.type == "Dial"]
    assert dials
    assert all(layer.param[0].lr_mult == 0 and layer.dial_param.weight_filler.value == 1 for layer in dials)
    assert [list(layer.loss_weight) for layer in digits.layer if layer.type == "EntropyLoss"] == [[0.0]]

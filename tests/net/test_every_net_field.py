"""Every field of nets, layers, their params and rules changes the net that is built, or is named."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net

NET = """
name: "n"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 } } }
layer { name: "a" type: "InnerProduct" bottom: "data" top: "a"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } A }
layer { name: "drop" type: "Dropout" bottom: "a" top: "drop" D }
layer { name: "b" type: "InnerProduct" bottom: "drop" top: "b"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } B }
layer { name: "silence" type: "Silence" bottom: "a" }
"""
STRUCTURE = {
    "NetParameter": {"layer"},
    # "foreign_text" holds options of types that are refused (tests/proto)
    "LayerParameter": {"name", "type", "bottom", "top", "foreign_text"},
    "NetState": {"phase"},  # said by whoever builds the net; a solver's files can change it
    "NetStateRule": set(),
    "ParamSpec": set(),
}
OLD = {"NetParameter": {"input", "input_shape", "input_dim", "layers"}}
"""Fields that are brought up to date as a prototxt is read (tests/proto)."""
WITHOUT_EFFECT = {
    "NetParameter": {
        "engine", "multinode", "reduce_buckets", "default_forward_type", "default_backward_type",
        "default_forward_math", "default_backward_math", "default_conv_algos_override", "default_cudnn_math_override",
    },
    "LayerParameter": {
        "engine", "forward_type", "backward_type", "forward_math", "backward_math", "debug", "cudnn_math_override",
        "reshape_every_iter",
    },
}  # fmt: skip
"""Fields with which forks choose between kernels."""

CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    # what stands in the places of NET: without the field, and with it
    "NetParameter.name": ({}, {"NAME": "other"}),
    "NetParameter.force_backward": ({"A": "param { lr_mult: 0 }"}, {"HEAD": "force_backward: true"}),
    "NetParameter.state": ({"D": 'include { stage: "s" }', "BOTTOM": "a"}, {"HEAD": 'state { stage: "s" }'}),
    "NetParameter.global_grad_scale": ({}, {"HEAD": "global_grad_scale: 2"}),
    "NetParameter.compile_net_state": ({}, {"HEAD": "compile_net_state { bn_scale_merge: true }"}),
    "NetParameter.bn_stats_batch_size": ({}, {"HEAD": "bn_stats_batch_size: 2"}),
    "NetParameter.debug_info": ({}, {"HEAD": "debug_info: true"}),
    "LayerParameter.phase": ({}, {"D": "phase: TEST"}),
    "LayerParameter.loss_weight": ({}, {"B": "loss_weight: 2"}),
    "LayerParameter.param": ({}, {"B": "param { lr_mult: 3 }"}),
    "LayerParameter.blobs": ({}, {"B": "blobs { shape { dim: 3 dim: 3 } }"}),
    "LayerParameter.propagate_down": ({"B": "loss_weight: 1"}, {"D": "propagate_down: false"}),
    "LayerParameter.include": ({"BOTTOM": "a"}, {"D": "include { phase: TEST }"}),
    "LayerParameter.exclude": ({"BOTTOM": "a"}, {"D": "exclude { phase: TRAIN }"}),
    "ParamSpec.name": ({"A": 'param { name: "w" }'}, {"B": 'param { name: "w" }'}),
    "ParamSpec.share_mode": (
        {"A": 'param { name: "w" }', "B": 'param { name: "w" }', "OUTPUTS": "1"},
        {"B": 'param { name: "w" share_mode: PERMISSIVE }'},
    ),
    "ParamSpec.lr_mult": ({}, {"B": "param { lr_mult: 3 }"}),
    "ParamSpec.decay_mult": ({}, {"B": "param { decay_mult: 3 }"}),
    "NetState.level": ({"D": "include { min_level: 1 }", "BOTTOM": "a"}, {"HEAD": "state { level: 1 }"}),
    "NetState.stage": ({"D": 'include { stage: "s" }', "BOTTOM": "a"}, {"HEAD": 'state { stage: "s" }'}),
    "NetStateRule.phase": ({"D": "include { }", "BOTTOM": "a"}, {"D": "include { phase: TEST }"}),
    "NetStateRule.min_level": ({"D": "include { }", "BOTTOM": "a"}, {"D": "include { min_level: 1 }"}),
    "NetStateRule.max_level": ({"D": "include { }", "BOTTOM": "a"}, {"D": "include { max_level: -1 }"}),
    "NetStateRule.stage": ({"D": "include { }", "BOTTOM": "a"}, {"D": 'include { stage: "s" }'}),
    "NetStateRule.not_stage": (
        {"HEAD": 'state { stage: "s" }', "D": "include { }", "BOTTOM": "a"},
        {"D": 'include { not_stage: "s" }'},
    ),
}


def text(places: dict[str, str]) -> str:
    net = NET.replace("} A }", f"}} {places.get('A', '')} }}").replace("} B }", f"}} {places.get('B', '')} }}")
    net = net.replace(" D }", f" {places.get('D', '')} }}").replace('name: "n"', f'name: "{places.get("NAME", "n")}"')
    if "BOTTOM" in places:
        net = net.replace('bottom: "drop"', f'bottom: "{places["BOTTOM"]}"')
    if "OUTPUTS" in places:  # another shape, and as many elements, for the second layer's weights
        net = net.replace("dim: 4 dim: 3", "dim: 4 dim: 1").replace(
            'bottom: "drop" top: "b"', 'bottom: "drop" top: "b"'
        )
        head, _, tail = net.rpartition("num_output: 3")
        net = f"{head}num_output: {places['OUTPUTS']}{tail}"
    return f"{places.get('HEAD', '')} {net}"


def outcome(source: str, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        try:
            net = Net(parse_net(source), pb.TRAIN)
        except InputError as error:
            return f"error {error}"
    net.seed_pass(0)
    blobs = net({"data": torch.ones(4, net.blob_shapes["data"][1])})
    seen: list[Any] = [net.param.name, net.layer_names, net.loss_weights, caplog.messages]
    seen += [(param.lr_mult, param.decay_mult, param.tensor.requires_grad) for param in net.params]
    seen += [blob.tolist() for blob in blobs.values()]
    if net.loss_weights:
        net.loss(blobs).backward()
        seen += [None if param.tensor.grad is None else param.tensor.grad.tolist() for param in net.params]
    return str(seen)


def test_every_field_has_a_case() -> None:
    fields = {
        f"{message}.{field.name}"
        for message in STRUCTURE
        for field in getattr(pb, message).DESCRIPTOR.fields
        if not field.name.endswith("_param")
        and field.name not in STRUCTURE[message] | OLD.get(message, set()) | WITHOUT_EFFECT.get(message, set())
    }
    assert fields == CASES.keys()


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_field_is_honoured_or_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    without, more = CASES[name]
    before, after = outcome(text(without), caplog), outcome(text({**without, **more}), caplog)
    assert not before.startswith("error") or name == "ParamSpec.share_mode"
    assert after != before and (not after.startswith("error") or name.rpartition(".")[2] in after)


def test_options_of_another_layer_type_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Caffe reads them and does nothing; scripts of pycaffe have some."""
    source = text({"B": "pooling_param { kernel_size: 3 } relu_param { }"})
    assert 'layer "b" (InnerProduct): pooling_param does nothing in a layer of this type' in outcome(source, caplog)
    assert "relu_param" not in outcome(source, caplog)  # it says nothing


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("param { lr_mult: nan }", r'layer "b" .*param\.lr_mult must be a finite number, and is nan'),
        ("param { decay_mult: inf }", r"param\.decay_mult must be a finite number, and is inf"),
        ("loss_weight: nan", "loss_weight must be a finite number, and is nan"),
        ("propagate_down: true propagate_down: true", 'propagate_down is true for bottom "label"'),
        ("blobs { }", r'layer "b" .*blobs in a prototxt are not read: give weights as a caffemodel'),
    ],
)
def test_refused(field: str, message: str) -> None:
    source = text({"B": field})
    if "true" in field:
        source = f"""
        layer {{ name: "data" type: "Input" top: "data" top: "label" input_param {{ shape {{ dim: 4 }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" {field} }}"""
    with pytest.raises(InputError, match=message):
        Net(parse_net(source), pb.TRAIN)


def test_loss_weight_of_what_has_no_gradient_is_refused_in_training() -> None:
    source = """
    layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 } } }
    layer { name: "best" type: "ArgMax" bottom: "data" top: "best" loss_weight: 1 }"""
    with pytest.raises(InputError, match=r'layer "best" \(ArgMax\): loss_weight must be 0'):
        Net(parse_net(source), pb.TRAIN)
    assert Net(parse_net(source), pb.TEST).loss_weights == {"best": 1}

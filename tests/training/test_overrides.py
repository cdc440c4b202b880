"""`--set` settings."""

from __future__ import annotations

from typing import Any

import pytest

from autodial.errors import InputError
from autodial.netparam.overrides import apply_to_nets, apply_to_solver, for_nets
from autodial.proto import messages as pb
from autodial.proto import parse_net, parse_solver

TEXT = """
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TRAIN }
  transform_param { mean_value: 1 mean_value: 2 mean_value: 3 } image_data_param { source: "a.txt" } }
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TEST } }
layer { name: "fc6" type: "InnerProduct" bottom: "data" top: "fc6" param { lr_mult: 1 } }
layer { name: "fc6.a/b" type: "Dial" bottom: "fc6" top: "fc6" dial_param { weight_filler { value: 0.5 } } }
layer { name: "pool" type: "Pooling" bottom: "fc6" top: "pool" }
layer { name: "loss" type: "EntropyLoss" bottom: "fc6" top: "loss" loss_weight: 0.1 }
"""


@pytest.mark.parametrize(
    ("setting", "index", "get", "value"),
    [
        ("loss.loss_weight=0.25", 5, lambda layer: list(layer.loss_weight), [0.25]),
        ("fc6.a/b.dial_param.weight_filler.value=1", 3, lambda layer: layer.dial_param.weight_filler.value, 1),
        ("fc6.param[0].lr_mult=0", 2, lambda layer: [p.lr_mult for p in layer.param], [0]),
        ("fc6.param[1].lr_mult=2", 2, lambda layer: [p.lr_mult for p in layer.param], [1, 2]),
        ("fc6.bottom[0]=other", 2, lambda layer: list(layer.bottom), ["other"]),
        ("data.image_data_param.batch_size=7", 1, lambda layer: layer.image_data_param.batch_size, 7),
        ("data.image_data_param.source='b c=d.txt'", 0, lambda layer: layer.image_data_param.source, "b c=d.txt"),
        ("data.image_data_param.shuffle=true", 0, lambda layer: layer.image_data_param.shuffle, True),
        (
            "data.transform_param.mean_value=104,117",
            0,
            lambda layer: list(layer.transform_param.mean_value),
            [104, 117],
        ),
        ("data.transform_param.mean_value=[4, 5]", 0, lambda layer: list(layer.transform_param.mean_value), [4, 5]),
        ("fc6.top[1]=second", 2, lambda layer: list(layer.top), ["fc6", "second"]),
        ("data.transform_param.mean_value=", 0, lambda layer: list(layer.transform_param.mean_value), []),
        ("pool.pooling_param.pool=AVE", 4, lambda layer: layer.pooling_param.pool, pb.PoolingParameter.AVE),
    ],
)
def test_setting(setting: str, index: int, get: Any, value: Any) -> None:
    net = parse_net(TEXT)
    apply_to_nets([setting], [net])
    assert get(net.layer[index]) == value
    changed = net.layer[index].name
    for before, after in zip(parse_net(TEXT).layer, net.layer, strict=True):
        assert before.name == changed or before == after


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("fc6*", {"fc6", "fc6.a/b"}),
        ("*", {"data", "fc6", "fc6.a/b", "pool", "loss"}),
        ("[dp]*", {"data", "pool"}),
        ("fc6.?/*", {"fc6.a/b"}),
    ],
)
def test_pattern_for_several_layers(pattern: str, names: set[str]) -> None:
    net = parse_net(TEXT)
    apply_to_nets([f"{pattern}.loss_weight=9"], [net])
    assert {layer.name for layer in net.layer if list(layer.loss_weight) == [9]} == names


def test_a_name_goes_before_a_pattern() -> None:
    net = parse_net('layer { name: "a*" type: "ReLU" } layer { name: "ab" type: "ReLU" }')
    apply_to_nets(["a*.type=TanH"], [net])
    assert [layer.type for layer in net.layer] == ["TanH", "ReLU"]


def test_solver_settings_are_apart() -> None:
    solver, net = parse_solver("base_lr: 1"), parse_net(TEXT)
    settings = ["solver.base_lr=0.01", "solver.stepvalue=3,5", "solver.solver_mode=CPU", "fc6.type=Convolution"]
    apply_to_solver(settings, solver)
    apply_to_nets(for_nets(settings), [net])
    assert solver == parse_solver("base_lr: 0.01 stepvalue: 3 stepvalue: 5 solver_mode: CPU")
    assert net.layer[2].type == "Convolution"


def test_a_layer_need_be_in_one_net_only() -> None:
    nets = [parse_net(TEXT), parse_net('layer { name: "only" type: "ReLU" }')]
    apply_to_nets(["only.type=Sigmoid"], nets)
    assert nets[0] == parse_net(TEXT)
    assert nets[1].layer[0].type == "Sigmoid"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fc6", "must be LAYER.FIELD=VALUE"),
        ("fc6=3", "must be LAYER.FIELD=VALUE"),
        ("fc7.type=x", r'no layer "fc7"; did you mean "fc6"\?$'),
        ("entropy.type=x", r'no layer "entropy" \(there are data, fc6, fc6.a/b, pool, loss\)$'),
        ("solver.base_lr=1", "only training takes settings of the solver"),
        ("fc7*.type=x", r'no layer "fc7\*"'),
        ("fc6.parm[0].lr_mult=1", r'layer "fc6" has no field "parm\[0\]"; did you mean "param"\?'),
        ("fc6.a/b.slice_point=3", r'has no field "slice_point"; did you mean "dial_param.slice_point"\?'),
        ("fc6.param[0].lr_mul=1", r'param\[0\] has no field "lr_mul"; did you mean "lr_mult"\?'),
        ("fc6.param[2].lr_mult=1", r"param has 1 element; the next is param\[1\]"),
        ("fc6.param.lr_mult=1", r"param is a list; write param\[0\]"),
        ("fc6.inner_product_param=3", "inner_product_param is a message; name one of its fields: num_output"),
        ("fc6.inner_product_param.num_output=-1", 'num_output is a whole number from 0, not "-1"'),
        ("fc6.inner_product_param.num_output=2.5", 'num_output is a whole number from 0, not "2.5"'),
        ("fc6.inner_product_param.bias_term=no", 'bias_term is true or false, not "no"'),
        ("pool.param[0].lr_mult=0", r'^pool\.param\[0\]\.lr_mult=0: layer "pool" \(Pooling\) has no parameters: name'),
        ("*.param[0].lr_mult=0", r'^\*\.param\[0\]\.lr_mult=0: layer "data" \(ImageData\) has no parameters: name'),
        ("fc6.name[0]=x", r"name is not a list; leave out \[0\]"),
        ("fc6.name.x=y", 'name holds a value and has no field "x"'),
        ("loss.loss_weight=much", 'loss_weight is a number, not "much"'),
        ("pool.pooling_param.pool=max", 'pool is one of MAX, AVE, STOCHASTIC, not "max"'),
    ],
)
def test_errors(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_to_nets([setting], [parse_net(TEXT)])


def test_unknown_solver_field() -> None:
    with pytest.raises(InputError, match='the solver has no field "base_rl"; did you mean "base_lr"'):
        apply_to_solver(["solver.base_rl=1"], parse_solver(""))

"""NetSpec: what it writes, held against prototxts written by hand."""

# ruff: noqa: C408 - dict(...) is how scripts write messages

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autodial.caffe as caffe
from autodial.caffe import layers as L
from autodial.caffe import params as P
from autodial.proto import parse_net


def net_of_all_kinds() -> caffe.NetSpec:
    n = caffe.NetSpec()
    n.data, n.label = L.DummyData(
        shape=[dict(dim=[2, 1, 8, 8]), dict(dim=[2])], transform_param=dict(scale=1.0 / 256), ntop=2
    )
    n.conv = L.Convolution(
        n.data, kernel_size=3, num_output=4, pad=[1, 0], weight_filler=dict(type="xavier"),
        param=[dict(lr_mult=1), dict(lr_mult=2, decay_mult=0)],
    )  # fmt: skip
    n.pool = L.Pooling(n.conv, kernel_size=2, stride=2, pool=P.Pooling.AVE)
    n.relu = L.ReLU(n.pool, in_place=True)
    n.scores = L.InnerProduct(n.relu, num_output=np.int64(3))
    n["loss/main"] = L.SoftmaxWithLoss(n.scores, n.label, loss_weight=2, loss_param=dict(ignore_label=2))
    n.silence = L.Silence(n.data, ntop=0, include=dict(phase=caffe.TEST, stage=["a", "b"]))
    return n


BY_HAND = """
layer { name: "data" type: "DummyData" top: "data" top: "label" transform_param { scale: 0.00390625 }
  dummy_data_param { shape { dim: 2 dim: 1 dim: 8 dim: 8 } shape { dim: 2 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 }
  param { lr_mult: 2 decay_mult: 0 }
  convolution_param { kernel_size: 3 num_output: 4 pad: 1 pad: 0 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 pool: AVE } }
layer { name: "relu" type: "ReLU" bottom: "pool" top: "pool" }
layer { name: "scores" type: "InnerProduct" bottom: "pool" top: "scores" inner_product_param { num_output: 3 } }
layer { name: "loss/main" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss/main" loss_weight: 2
  loss_param { ignore_label: 2 } }
layer { name: "silence" type: "Silence" bottom: "data" include { phase: TEST stage: "a" stage: "b" } }
"""


def test_a_net_as_it_is_written_by_hand(write: Callable[..., str]) -> None:
    message = net_of_all_kinds().to_proto()
    assert message == parse_net(BY_HAND)
    net = caffe.Net(write(str(message)), caffe.TEST, stages=["a", "b"])
    assert [layer.type for layer in net.layers if layer.type != "Split"] == [layer.type for layer in message.layer]


def test_layers_without_names_are_called_by_type_and_number() -> None:
    data, label = L.DummyData(ntop=2, shape=dict(dim=3))
    first = L.InnerProduct(data, num_output=3)
    second = L.InnerProduct(L.ReLU(first, in_place=True), num_output=1, name="given")
    expected = parse_net(
        """
        layer { name: "DummyData1" type: "DummyData" top: "DummyData1" top: "DummyData2"
          dummy_data_param { shape { dim: 3 } } }
        layer { name: "InnerProduct1" type: "InnerProduct" bottom: "DummyData1" top: "InnerProduct1"
          inner_product_param { num_output: 3 } }
        layer { name: "ReLU1" type: "ReLU" bottom: "InnerProduct1" top: "InnerProduct1" }
        layer { name: "given" type: "InnerProduct" bottom: "InnerProduct1" top: "InnerProduct2"
          inner_product_param { num_output: 1 } }
        layer { name: "EuclideanLoss1" type: "EuclideanLoss" bottom: "InnerProduct2" bottom: "DummyData2"
          top: "EuclideanLoss1" }
        """
    )
    loss = L.EuclideanLoss(second, label)
    assert caffe.to_proto(loss) == loss.to_proto() == expected
    assert caffe.to_proto(loss, second) == expected  # each layer once


def test_a_net_without_outputs(write: Callable[..., str]) -> None:
    n = caffe.NetSpec()
    n.a, n.b = L.DummyData(shape=dict(dim=3), ntop=2)
    n.silence_a, n.silence_b = L.Silence(n.a, ntop=0), L.Silence(n.b, ntop=0)
    assert caffe.Net(write(str(n.to_proto())), caffe.TEST).forward() == {}
    assert len(n.silence_b.to_proto().layer) == 2


def test_python_layers_and_nested_messages() -> None:
    n = caffe.NetSpec()
    n.x = L.Input(input_param=dict(shape=dict(dim=[1, 2])))
    n.py = L.Python(n.x, module="m", layer="C", param_str="{'a': 1}", loss_weight=1, propagate_down=[True])
    n.rule = L.Power(n.py, exclude=[dict(phase=caffe.TRAIN), dict(min_level=2)])
    assert n.to_proto() == parse_net(
        """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
        layer { name: "py" type: "Python" bottom: "x" top: "py" loss_weight: 1 propagate_down: true
          python_param { module: "m" layer: "C" param_str: "{'a': 1}" } }
        layer { name: "rule" type: "Power" bottom: "py" top: "rule" exclude { phase: TRAIN } exclude { min_level: 2 } }
        """
    )


def test_deep_nets_are_written() -> None:
    top = L.Input(shape=dict(dim=1))
    for _ in range(3000):
        top = L.ReLU(top)
    assert len(top.to_proto().layer) == 3001


def test_names_can_be_listed_taken_away_and_set_at_once() -> None:
    n = caffe.NetSpec()
    n.a = L.Input(shape=dict(dim=1))
    n.update({"b": L.ReLU(n.a), "c": L.ReLU(n.a)})
    assert n.keys() == list(n) == ["a", "b", "c"] and "b" in n and n.vals()[1] is n.b is n["b"]
    del n.b, n["c"]
    assert [layer.name for layer in n.to_proto().layer] == ["a"]
    with pytest.raises(AttributeError, match="'b'"):
        _ = n.b


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: L.Silence(L.DummyData(ntop=2), ntop=0), TypeError, r"^Silence input 0 is not a Top \(type is <class"),
        (lambda: setattr(caffe.NetSpec(), "x", 3), TypeError, "x must be what a layer returns"),
        (lambda: L.Pooling(L.Input(), kernel=2).to_proto(), AttributeError, "layer \"Pooling1\" .* no field 'kernel'"),
        (lambda: L.Pooling(L.Input(), pooling_param=dict(kernel=2)).to_proto(), AttributeError, "PoolingParameter"),
        (lambda: L.Pooling(L.Input(), kernel_size="3").to_proto(), TypeError, "int"),
        (lambda: P.Pooling.MEDIAN, AttributeError, "MEDIAN"),
    ],
)
def test_what_is_refused(wrong: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()

from __future__ import annotations

import pytest

from autodial.errors import InputError
from autodial.netparam.graph import Graph
from autodial.proto import parse_net

BODY = """
layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 1 dim: 3 } shape { dim: 1 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" }
"""


def graph(text: str = "") -> Graph:
    return Graph(parse_net(BODY + text).layer)


def layer(name: str, kind: str, *bottoms: str, top: str) -> str:
    return (
        f'layer {{ name: "{name}" type: "{kind}" ' + "".join(f'bottom: "{b}" ' for b in bottoms) + f'top: "{top}" }}\n'
    )


@pytest.mark.parametrize(
    "readers",
    [
        layer("loss", "SoftmaxWithLoss", "b", "label", top="loss"),
        layer("accuracy", "Accuracy", "b", "label", top="accuracy"),
        layer("loss", "HingeLoss", "b", "label", top="loss"),
        layer("prob", "Softmax", "b", top="prob"),
        layer("prob", "Softmax", "b", top="prob") + layer("accuracy", "Accuracy", "prob", "label", top="accuracy"),
        layer("loss", "SoftmaxWithLoss", "b", "label", top="l") + layer("accuracy", "Accuracy", "b", "label", top="c"),
    ],
)
def test_logits_are_what_the_readers_read(readers: str) -> None:
    g = graph(readers)
    assert g.names[g.logits()] == "b"


def test_logits_in_front_of_an_in_place_softmax() -> None:
    g = graph(layer("prob", "Softmax", "b", top="b"))
    assert g.producer(g.logits()).param.name == "b"
    assert g.producer(g.logits("b")).param.name == "b"


def test_several_candidates_ask_for_a_choice() -> None:
    g = graph(
        layer("loss1", "SoftmaxWithLoss", "a", "label", top="l1")
        + layer("loss2", "SoftmaxWithLoss", "b", "label", top="l2")
    )
    with pytest.raises(InputError, match=r"candidates for the logits \(a, b\): choose one with `logits`"):
        g.logits()
    assert g.names[g.logits("a")] == "a"
    assert g.producer(g.logits("a")).param.name == "relu"


def test_no_candidate_and_no_such_blob() -> None:
    with pytest.raises(InputError, match="no SoftmaxWithLoss, Accuracy or Softmax layer"):
        graph().logits()
    assert graph().names[graph().logits("b")] == "b"
    with pytest.raises(InputError, match=r'no blob "c".*there are x, label, a, b'):
        graph().logits("c")


def test_a_blob_that_no_layer_makes() -> None:
    with pytest.raises(InputError, match='layer "c" reads blob "y"'):
        graph(layer("c", "ReLU", "y", top="c"))


def test_net_holds_what_a_value_depends_on() -> None:
    text = layer("c", "InnerProduct", "a", top="c") + layer("loss", "SoftmaxWithLoss", "b", "label", top="loss")
    g = graph(text)
    g.feed(0, (1, 3))
    net = g.net("cut", g.logits())
    assert [message.name for message in net.layer] == ["in", "a", "relu", "b"]
    assert list(net.layer[0].top) == ["x"]
    assert list(net.layer[0].input_param.shape[0].dim) == [1, 3]


def test_bypass_and_absorb_keep_names_of_in_place_chains() -> None:
    g = graph(
        layer("drop", "Dropout", "b", top="d")
        + layer("scale", "Scale", "d", top="s")
        + layer("r", "ReLU", "s", top="s")
    )
    drop, scale = g.nodes[4], g.nodes[5]
    g.bypass(drop)
    g.absorb(g.nodes[3], scale)
    last = g.last("s")
    assert last is not None
    net = g.net("", last)
    assert [(m.name, list(m.bottom), list(m.top)) for m in net.layer[-2:]] == [("b", ["a"], ["s"]), ("r", ["s"], ["s"])]

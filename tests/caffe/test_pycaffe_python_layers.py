"""Layers that scripts write in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import autodial.caffe as caffe
from autodial.errors import InputError
from autodial.net import Net
from autodial.proto import parse_net

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def text(layer: str = "Times", module: str = "python_layers_for_tests") -> str:
    return (
        "force_backward: true\n"
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'
        f'layer {{ name: "p" type: "Python" bottom: "x" top: "y" '
        f'python_param {{ module: "{module}" layer: "{layer}" param_str: "4" }} }}\n'
    )


@pytest.fixture
def net(tmp_path: Path) -> caffe.Net:
    path = tmp_path / "net.prototxt"
    path.write_text(text())
    return caffe.Net(str(path), caffe.TRAIN)


def test_forward_backward_and_reshape(net: caffe.Net) -> None:
    net.blobs["x"].data[...] = 2
    assert (net.forward()["y"] == 8).all()
    net.blobs["y"].diff[...] = 3
    net.backward()
    assert (net.blobs["x"].diff == 12).all()
    assert (net.params["p"][0].data[0], net.params["p"][0].diff[0]) == (1, 1)
    net.blobs["x"].reshape(5, 1, 2)
    net.forward()
    assert net.blobs["y"].data.shape == (5, 1, 2)


def test_its_blobs_are_saved(net: caffe.Net, tmp_path: Path) -> None:
    net.forward()
    net.save(str(tmp_path / "net.caffemodel"))
    again = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST, weights=str(tmp_path / "net.caffemodel"))
    assert again.params["p"][0].data[0] == 1


def test_in_a_torch_graph() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    Net(parse_net(text()), caffe.TRAIN)({"x": x})["y"].sum().backward()
    np.testing.assert_array_equal(x.grad, np.full((2, 3), 4))


def test_what_it_raises_comes_through(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(text("Broken"))
    with pytest.raises(KeyError, match="a mistake of the user's"):
        caffe.Net(str(path), caffe.TRAIN).forward()


@pytest.mark.parametrize(
    ("layer", "module", "message"),
    [
        ("Times", "no_such_module", 'layer "p" .*no module "no_such_module"'),
        ("Nothing", "python_layers_for_tests", 'layer "p" .*Nothing'),
    ],
)
def test_what_is_missing_is_named(layer: str, module: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Net(parse_net(text(layer, module)), caffe.TRAIN)

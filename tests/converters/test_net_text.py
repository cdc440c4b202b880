"""Nets laid out for reading say what they said."""

from __future__ import annotations

from pathlib import Path

import pytest
from originals import shared_files

from autodial.converters.net_text import WIDTH, net_to_text, write_net
from autodial.proto import parse_net, read_net

NET = """
name: "a \\"net\\": 1.0"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 decay_mult: 0 }
  convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "gaussian" std: 0.01 } bias_term: false
    bias_filler { value: -2 } } }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" dropout_param { dropout_ratio: 0.1 } }
"""
LAID_OUT = """\
# One line
# and another
name: "a \\"net\\": 1.0"

# Data
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }

# The network
layer {
  name: "conv"
  type: "Convolution"
  bottom: "data"
  top: "conv"
  param { lr_mult: 1 decay_mult: 0 }
  convolution_param {
    num_output: 2 bias_term: false kernel_size: 3
    weight_filler { type: "gaussian" std: 0.01 }
    bias_filler { value: -2 }
  }
}
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" dropout_param { dropout_ratio: 0.1 } }
"""


def test_the_layout() -> None:
    text = net_to_text(
        parse_net(NET), header=["One line", "and another"], sections={"data": "Data", "conv": "The network"}
    )
    assert text == LAID_OUT


@pytest.mark.parametrize(
    "path",
    shared_files(
        "reference/autodial/*.prototxt", "reference/bvlc/*.prototxt", keep=lambda path: "solver" not in path.name
    ),
)
def test_nothing_is_lost(path: Path) -> None:
    net = read_net(path)
    text = net_to_text(net, header=["header"])
    assert parse_net(text) == net
    assert max(map(len, text.splitlines())) <= WIDTH


def test_names_of_files_need_not_be_text(tmp_path: Path) -> None:
    net = parse_net(NET)
    text = net_to_text(net, header=["Made from \udcff.prototxt\nand more"])
    write_net(tmp_path / "net.prototxt", text)
    assert read_net(tmp_path / "net.prototxt") == net

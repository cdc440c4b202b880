"""Drawings of nets."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import autodial.caffe as caffe
from autodial.caffe import draw
from autodial.errors import InputError
from autodial.proto import parse_net

NET = parse_net(
    """
    name: "drawn"
    layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 8 dim: 8 } } }
    layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
      convolution_param { num_output: 4 kernel_h: 3 kernel_w: 5 pad: 1 pad: 2 } }
    layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" include { phase: TRAIN } }
    layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
      pooling_param { kernel_size: 2 stride: 2 pool: AVE } }
    layer { name: "ip>=0" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 7 } }
    """
)


def test_labels() -> None:
    _, conv, relu, pool, ip = NET.layer
    assert draw.get_layer_label(conv, "TB") == r'"conv\n(Convolution)\nkernel size: 3x5\nstride: 1\npad: 1x2"'
    assert draw.get_layer_label(pool, "LR") == '"pool (Pooling) AVE pooling kernel size: 2 stride: 2 pad: 0"'
    assert [draw.get_edge_label(layer) for layer in (conv, relu, ip)] == ['"4"', '""', '"7"']


def test_without_pydot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(InputError, match="pip install pydot"):
        draw.draw_net(NET, "LR")


def test_graphs() -> None:
    pytest.importorskip("pydot")
    graph = draw.get_pydot_graph(NET, "LR")
    assert graph.get_rankdir() == "LR"
    # 5 layers, 4 blobs; an arrow for each bottom and top
    assert (len(graph.get_nodes()), len(graph.get_edges())) == (9, 9)
    assert len(draw.get_pydot_graph(NET, "LR", phase=caffe.TEST).get_nodes()) == 8


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydot")
    if shutil.which("dot"):
        assert draw.draw_net(NET, "TB").startswith(b"\x89PNG")
        draw.draw_net_to_file(NET, tmp_path / "net.svg")
        assert "<svg" in (tmp_path / "net.svg").read_text()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="Graphviz"):
        draw.draw_net(NET, "TB")

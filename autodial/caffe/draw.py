"""pycaffe's draw: a net as a graph, with pydot and Graphviz."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autodial.errors import InputError
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb

_BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}
_LAYER_STYLE = {"shape": "box", "style": "filled"}
_COLORS = {"Convolution": "#FF5050", "Deconvolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
_OTHER_COLOR = "#6495ED"


def get_pydot_graph(caffe_net: Any, rankdir: str, label_edges: bool = True, phase: pb.Phase | None = None) -> Any:
    """A net as a pydot.Dot.

    Args:
        caffe_net: NetParameter.
        rankdir: direction of the drawing, LR, TB, BT or RL.
        label_edges: whether what layers hand on is written at the arrows.
        phase: draw the layers of this phase only; all if None.

    Raises:
        InputError: pydot is not installed.
    """
    pydot = _pydot()
    net = caffe_net if phase is None else filter_net(caffe_net, phase)
    graph = pydot.Dot(net.name or "Net", graph_type="digraph", rankdir=rankdir)
    blobs: dict[str, Any] = {}

    def blob(name: str) -> Any:
        if name not in blobs:
            blobs[name] = pydot.Node(_quoted(f"{name}_blob"), label=_quoted(name), **_BLOB_STYLE)
            graph.add_node(blobs[name])
        return blobs[name]

    for i, layer in enumerate(net.layer):
        color = _COLORS.get(layer.type, _OTHER_COLOR)
        # A name that several phases' layers share makes several nodes.
        label = get_layer_label(layer, rankdir)
        node = pydot.Node(_quoted(f"{i}_{layer.name}"), label=label, fillcolor=color, **_LAYER_STYLE)
        graph.add_node(node)
        for name in layer.bottom:
            graph.add_edge(pydot.Edge(blob(name), node))
        for name in layer.top:
            edge_label = {"label": get_edge_label(layer)} if label_edges else {}
            graph.add_edge(pydot.Edge(node, blob(name), **edge_label))
    return graph


def draw_net(caffe_net: Any, rankdir: str, ext: str = "png", phase: pb.Phase | None = None) -> bytes:
    """A net as an image file's content.

    Args:
        caffe_net, rankdir, phase: as in get_pydot_graph.
        ext: format, as Graphviz calls it.

    Raises:
        InputError: pydot or Graphviz is not installed.
    """
    graph = get_pydot_graph(caffe_net, rankdir, phase=phase)
    try:
        image: bytes = graph.create(format=ext)
    except FileNotFoundError as error:
        raise InputError("drawing a net needs Graphviz, whose program dot is not on the PATH: install it") from error
    return image


def draw_net_to_file(
    caffe_net: Any, filename: str | os.PathLike[str], rankdir: str = "LR", phase: pb.Phase | None = None
) -> None:
    """Write the drawing of a net to a file, in the format that its suffix names; arguments and errors as draw_net."""
    path = Path(filename)
    path.write_bytes(draw_net(caffe_net, rankdir, path.suffix[1:], phase))


def get_layer_label(layer: Any, rankdir: str) -> str:
    """What is written on a layer: name, type, and for layers with a kernel its size, stride and pad."""
    lines = [layer.name, f"({layer.type})"]
    if layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
        lines += [
            f"kernel size: {_sizes(param.kernel_size, param, 'kernel', 1)}",
            f"stride: {_sizes(param.stride, param, 'stride', 1)}",
            f"pad: {_sizes(param.pad, param, 'pad', 0)}",
        ]
    elif layer.type == "Pooling":
        param = layer.pooling_param
        lines += [
            f"{pb.PoolingParameter.PoolMethod.Name(param.pool)} pooling",
            f"kernel size: {_sizes([param.kernel_size] if param.HasField('kernel_size') else [], param, 'kernel', 1)}",
            f"stride: {_sizes([param.stride], param, 'stride', 1)}",
            f"pad: {_sizes([param.pad], param, 'pad', 0)}",
        ]
    # Lines below each other take room where the drawing goes from left to right, and spaces where it goes down.
    return _quoted((r"\n" if rankdir in ("TB", "BT") else " ").join(lines))


def get_edge_label(layer: Any) -> str:
    """What is written at the arrow from a layer: batch size or number of outputs, quoted."""
    if layer.type == "Data":
        return _quoted(f"Batch {layer.data_param.batch_size}")
    if layer.type in ("Convolution", "Deconvolution"):
        return _quoted(str(layer.convolution_param.num_output))
    if layer.type == "InnerProduct":
        return _quoted(str(layer.inner_product_param.num_output))
    return '""'


def _sizes(given: Any, param: Any, stem: str, default: int) -> str:
    if param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w"):
        return f"{getattr(param, f'{stem}_h')}x{getattr(param, f'{stem}_w')}"
    return "x".join(map(str, given)) or str(default)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', r"\"") + '"'


def _pydot() -> Any:
    try:
        import pydot  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise InputError("drawing a net needs pydot and Graphviz: pip install pydot, and install graphviz") from error
    return pydot

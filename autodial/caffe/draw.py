"""pycaffe's draw: a net as a graph, with pydot and Graphviz."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from autodial.errors import InputError
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb

_BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}
_LAYER_STYLE = {"shape": "box", "style": "filled"}
_COLORS = {"Convolution": "#FF5050", "Deconvolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
_OTHER_COLOR = "#6495ED"


def get_pydot_graph(
    caffe_net: pb.NetParameter, rankdir: str, label_edges: bool = True, phase: pb.Phase | None = None
) -> Any:
    """A net as a pydot.Dot.

    Args:
        rankdir: direction of the drawing, LR, TB, BT or RL.
        label_edges: whether the arrows are labelled, for example with numbers of outputs.
        phase: draw only the layers of this phase; None draws all.

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
        # Layers of several phases may share a name, so the index makes the nodes' names unique.
        label = get_layer_label(layer, rankdir)
        node = pydot.Node(_quoted(f"{i}_{layer.name}"), label=label, fillcolor=color, **_LAYER_STYLE)
        graph.add_node(node)
        for name in layer.bottom:
            graph.add_edge(pydot.Edge(blob(name), node))
        for name in layer.top:
            edge_label = {"label": get_edge_label(layer)} if label_edges else {}
            graph.add_edge(pydot.Edge(node, blob(name), **edge_label))
    return graph


def draw_net(caffe_net: pb.NetParameter, rankdir: str, ext: str = "png", phase: pb.Phase | None = None) -> bytes:
    """A net as the bytes of an image file.

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
        raise InputError(
            "drawing a net needs Graphviz, and its program dot is not on the PATH: install Graphviz"
        ) from error
    return image


def draw_net_to_file(
    caffe_net: pb.NetParameter, filename: str | os.PathLike[str], rankdir: str = "LR", phase: pb.Phase | None = None
) -> None:
    """Write the drawing of a net to a file, in the format that its suffix names; arguments and errors as draw_net."""
    path = Path(filename)
    path.write_bytes(draw_net(caffe_net, rankdir, path.suffix[1:], phase))


def get_layer_label(layer: pb.LayerParameter, rankdir: str) -> str:
    """The label of a layer: its name and type, and for layers with a kernel the kernel's size, stride and pad."""
    lines = [layer.name, f"({layer.type})"]
    if layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
        lines += [
            f"kernel size: {_sizes(param.kernel_size, param, 'kernel', 1)}",
            f"stride: {_sizes(param.stride, param, 'stride', 1)}",
            f"pad: {_sizes(param.pad, param, 'pad', 0)}",
        ]
    elif layer.type == "Pooling":
        pooling = layer.pooling_param
        kernel = [pooling.kernel_size] if pooling.HasField("kernel_size") else []
        lines += [
            f"{pb.PoolingParameter.PoolMethod.Name(pooling.pool)} pooling",
            f"kernel size: {_sizes(kernel, pooling, 'kernel', 1)}",
            f"stride: {_sizes([pooling.stride], pooling, 'stride', 1)}",
            f"pad: {_sizes([pooling.pad], pooling, 'pad', 0)}",
        ]
    # A drawing from left to right has room for one line, and a drawing downwards for several.
    return _quoted((r"\n" if rankdir in ("TB", "BT") else " ").join(lines))


def get_edge_label(layer: pb.LayerParameter) -> str:
    """The label at the arrow from a layer, quoted: batch size or number of outputs."""
    if layer.type == "Data":
        return _quoted(f"Batch {layer.data_param.batch_size}")
    if layer.type in ("Convolution", "Deconvolution"):
        return _quoted(str(layer.convolution_param.num_output))
    if layer.type == "InnerProduct":
        return _quoted(str(layer.inner_product_param.num_output))
    return '""'


def _sizes(given: Iterable[int], param: Message, stem: str, default: int) -> str:
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

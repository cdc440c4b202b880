"""Converts an exported ONNX graph to float16, and simulates float16 on machines that compute in float32."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Collection, Iterable
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, create_calibrator  # type: ignore[import-untyped]
from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
    DEFAULT_OP_BLOCK_LIST,
    convert_float_to_float16,
)

from autodial.converters.onnx_graph import Calibration, ensemble_nodes, head_nodes

_WIDE = 2.0**14
"""A node with larger values stays float32: a quarter of float16's largest value, because other images may give more."""
_PADDING = 1e38
"""Larger values are no activations but a pooling's padding, which float16's smallest value replaces."""


def to_float16(model: onnx.ModelProto, batches: Iterable[NDArray[Any]]) -> tuple[onnx.ModelProto, list[str]]:
    """A float32 graph with weights and computation in float16.

    The graph's inputs and outputs stay float32, and so do the nodes that prepare the images, the softmax, an ensemble's
    mean, and nodes with values near the end of float16's range, such as the squares in local response normalization.

    Args:
        model: the float32 graph.
        batches: input to measure the values' range on.

    Returns:
        the graph; names of the nodes that stay float32 because of their values.
    """
    exact = [node.name for node in (*head_nodes(model), *ensemble_nodes(model))]
    wide = [name for name in _wide_nodes(model, batches) if name not in exact]
    source = copy.deepcopy(model)
    del source.graph.value_info[:]  # it names constants, too, and the converter would cast constants that stay float32
    converted: onnx.ModelProto = convert_float_to_float16(
        source,
        keep_io_types=True,
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, "Softmax"],
        node_block_list=[*exact, *wide],
    )
    _join_float32(converted.graph, {node.name for node in model.graph.node})
    _sort(converted.graph)
    del converted.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(converted), wide


def rounding_to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """A float32 graph that rounds each value which a float16 graph holds in float16.

    On the CPU, ONNX Runtime computes a float16 graph in float32 without rounding between nodes, which hides the digits
    that a GPU loses and its overflows. Run the result without graph optimizations, which remove the rounding.

    Args:
        model: from `to_float16`.
    """
    rounding = copy.deepcopy(model)
    graph = rounding.graph
    half = {value.name for value in graph.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT16}
    for tensor in graph.initializer:
        _widen(tensor)
    nodes = list(graph.node)
    del graph.node[:], graph.value_info[:]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen(attribute.t)
        rounded = [name for name in node.output if name in half]
        casts = _casts_to(node) == TensorProto.FLOAT16
        suffix = "/half" if casts else "/exact"
        node.output[:] = [name + suffix if name in rounded else name for name in node.output]
        graph.node.append(node)
        for name in rounded:
            if not casts:
                graph.node.append(helper.make_node("Cast", [f"{name}/exact"], [f"{name}/half"], to=TensorProto.FLOAT16))
            graph.node.append(helper.make_node("Cast", [f"{name}/half"], [name], to=TensorProto.FLOAT))
    return rounding


def _wide_nodes(model: onnx.ModelProto, batches: Iterable[NDArray[Any]]) -> list[str]:
    """Names of the nodes that read or write values beyond _WIDE."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        calibrator = create_calibrator(
            path, augmented_model_path=str(path.with_name("augmented.onnx")), calibrate_method=CalibrationMethod.MinMax
        )
        calibrator.collect_data(Calibration(model, batches))
        ranges = calibrator.compute_data()
        del calibrator  # it holds a file of the folder open
    wide = set()
    for name, data in ranges.items():
        ends = np.abs(np.array(data.range_value, np.float64))
        if ((ends > _WIDE) & (ends < _PADDING)).any():
            wide.add(name)
    return [node.name for node in model.graph.node if wide.intersection((*node.input, *node.output))]


def _join_float32(graph: onnx.GraphProto, own: Collection[str]) -> None:
    """Remove the converter's casts to float16 and back between nodes that stay float32, and its duplicate casts.

    Args:
        own: names of the nodes before the conversion.
    """
    outputs = {value.name for value in graph.output}
    added = [node for node in graph.node if node.op_type == "Cast" and node.name not in own]
    halved = {node.output[0]: node.input[0] for node in added if _casts_to(node) == TensorProto.FLOAT16}
    names: dict[str, str] = {}
    made: set[str] = set()
    for node in added:
        if node.output[0] in made:
            graph.node.remove(node)
            continue
        made.add(node.output[0])
        if _casts_to(node) == TensorProto.FLOAT and node.input[0] in halved:
            exact, back = halved[node.input[0]], node.output[0]
            names.update({exact: back} if back in outputs else {back: exact})
            graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [names.get(names.get(name, name), names.get(name, name)) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    read = {name for node in graph.node for name in node.input}
    for node in list(graph.node):
        if node.output[0] in halved and node.output[0] not in read:
            graph.node.remove(node)


def _sort(graph: onnx.GraphProto) -> None:
    """Sort nodes topologically, which ONNX requires and the converter does not do."""
    nodes = list(graph.node)
    makers = {name: i for i, node in enumerate(nodes) for name in node.output}
    read = {i: [makers[name] for name in node.input if name in makers] for i, node in enumerate(nodes)}
    del graph.node[:]
    graph.node.extend(nodes[i] for i in TopologicalSorter(read).static_order())


def _casts_to(node: onnx.NodeProto) -> int | None:
    """The type that a Cast node casts to; None for other nodes."""
    if node.op_type != "Cast":
        return None
    to: int = next(attribute.i for attribute in node.attribute if attribute.name == "to")
    return to


def _widen(tensor: onnx.TensorProto) -> None:
    """Turn a float16 tensor of a graph into float32."""
    if tensor.data_type == TensorProto.FLOAT16:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))

"""Writes an ONNX graph as a file, with a second file for weights that exceed protobuf's 2 GiB."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from autodial.converters.net_graph import NetGraph
from autodial.converters.onnx_file import IR_VERSION, OPSET
from autodial.converters.onnx_layers.writer import tensors
from autodial.converters.onnx_weights import SMALL, weights_path, write_weights
from autodial.converters.prepared import LARGEST
from autodial.errors import WorkError


def write_model(graph: NetGraph, path: Path, producer: str) -> dict[str, int]:
    """Write a graph to a file, and constants of more than 2 GiB to another one, of the same name and `.data`.

    Returns:
        sizes in bytes of the files, by name.

    Raises:
        WorkError: the graph is not valid.
    """
    constants = graph.writer.constants
    files = {}
    if graph.writer.size > LARGEST:
        data = weights_path(path)
        large = {name: array for name, array in constants.items() if array.nbytes > SMALL}
        initializers = tensors({name: array for name, array in constants.items() if name not in large})
        initializers += write_weights(large, data)
        files[data.name] = data.stat().st_size
    else:
        initializers = tensors(constants)
    model = helper.make_model(
        graph.proto(initializers),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name=producer.split()[0],
        producer_version=producer.split()[-1],
    )
    path.write_bytes(model.SerializeToString())
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise WorkError(f"nothing was written: the ONNX graph is not valid: {error}") from error
    return {path.name: path.stat().st_size, **files}

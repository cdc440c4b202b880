"""Writes an ONNX graph as a file, with a second file for weights that exceed protobuf's 2 GiB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from autodial.converters.net_graph import NetGraph
from autodial.converters.onnx_file import IR_VERSION, OPSET
from autodial.converters.onnx_layers.writer import tensors
from autodial.converters.prepared import LARGEST
from autodial.errors import WorkError

SMALL = 1024
"""Bytes up to which a constant stays in the graph, where shape inference finds it."""
_ALIGNMENT = 4096
"""Where tensors begin in the second file, so that runtimes can map them into memory."""


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
        data = path.with_name(f"{path.name}.data")
        large = {name: array for name, array in constants.items() if array.nbytes > SMALL}
        initializers = tensors({name: array for name, array in constants.items() if name not in large})
        initializers += _external(large, data)
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


def _external(constants: dict[str, NDArray[np.generic]], path: Path) -> list[onnx.TensorProto]:
    """Write constants to a file; the initializers that point there."""
    made = []
    with path.open("wb") as file:
        for name, array in constants.items():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            entries = {"location": path.name, "offset": str(file.tell()), "length": str(array.nbytes)}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
            array.tofile(file)
            made.append(tensor)
    return made

"""The second file of an ONNX model, for weights that exceed protobuf's 2 GiB."""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper

from autodial.system.hashing import sha1

SMALL = 1024
"""Bytes up to which a constant stays in the graph, where shape inference finds it."""
_ALIGNMENT = 4096
"""Where tensors begin in the second file, so that runtimes can map them into memory."""


def weights_path(model: Path) -> Path:
    """The second file of the model at a path: beside it, with its name and `.data`."""
    return model.with_name(f"{model.name}.data")


def write_weights(weights: Mapping[str, NDArray[np.generic]], path: Path) -> list[TensorProto]:
    """Write constants to a second file; the initializers that point there, by the file's name alone.

    Each has the file's `checksum`, as ONNX's documents define it, so that a reader can tell that the file is another.
    """
    made = []
    with path.open("wb") as file:
        for name, array in weights.items():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            entries = {"location": path.name, "offset": str(file.tell()), "length": str(array.nbytes)}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
            array.tofile(file)
            made.append(tensor)
    checksum = sha1(path)
    for tensor in made:
        tensor.external_data.add(key="checksum", value=checksum)
    return made


def written_weights(model: Path) -> Path | None:
    """The second file that `write_weights` wrote for the model at a path; None if there is none, or it is another."""
    second = weights_path(model)
    try:
        if not (model.is_file() and second.is_file()):
            return None
        graph = onnx.load(model, load_external_data=False).graph
        entries = [{entry.key: entry.value for entry in tensor.external_data} for tensor in graph.initializer]
        named = {(entry["location"], entry.get("checksum")) for entry in entries if "location" in entry}
        return second if named == {(second.name, sha1(second))} else None
    except (DecodeError, OSError):  # what stands there is no model, or can't be read
        return None


def remove_unused(second: Path | None, files: Container[str]) -> None:
    """Remove what `written_weights` gave before a model was replaced, unless the new model has a file of that name."""
    if second is not None and second.name not in files:
        with suppress(OSError):  # Windows removes no file that a process has mapped
            second.unlink()

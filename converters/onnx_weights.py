"""The second file of an ONNX model, for weights that exceed protobuf's 2 GiB."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

SMALL = 1024
"""Bytes up to which a constant stays in the graph, where shape inference finds it."""
_ALIGNMENT = 4096
"""Where tensors begin in the second file, so that runtimes can map them into memory."""


def weights_path(model: Path) -> Path:
    """The second file of the model at a path: beside it, with its name and `.data`."""
    return model.with_name(f"{model.name}.data")


def write_weights(weights: Mapping[str, NDArray[np.generic]], path: Path) -> list[TensorProto]:
    """Write constants to a second file; the initializers that point there, by the file's name alone."""
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
    return made

"""What the service says about itself and its models, by the Open Inference Protocol and Triton's extensions."""

from __future__ import annotations

from autodial import __version__
from autodial.deploy.metadata import ModelInfo
from autodial.model_file import INPUT, OUTPUTS

EXTENSIONS = ("classification", "model_configuration", "model_repository", "statistics", "binary_tensor_data")
VERSION = "1"
"""The version of every model: a file has just one."""
PLATFORM = "onnxruntime_onnx"


def server() -> dict[str, object]:
    """The answer to GET /v2."""
    return {"name": "autodial", "version": __version__, "extensions": list(EXTENSIONS)}


def model(name: str, info: ModelInfo) -> dict[str, object]:
    """The answer to GET /v2/models/NAME."""
    return {
        "name": name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *info.image_shape]}],
        "outputs": [{"name": output, "datatype": "FP32", "shape": [-1, len(info.classes)]} for output in OUTPUTS],
    }


def config(name: str, info: ModelInfo, batch_size: int) -> dict[str, object]:
    """The answer to GET /v2/models/NAME/config: the parts of Triton's ModelConfig that clients look at."""
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "max_batch_size": batch_size,
        "input": [{"name": INPUT, "data_type": "TYPE_UINT8", "dims": list(info.image_shape)}],
        "output": [
            {"name": output, "data_type": "TYPE_FP32", "dims": [len(info.classes)], "label_filename": ""}
            for output in OUTPUTS
        ],
        "dynamic_batching": {},
    }

"""Small models in the exported form, written with onnx.helper."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = (6, 9)
CLASSES = ("cat", "dog, big", 'the "other"', "Ødegård 猫")


def metadata(**changes: Any) -> dict[str, Any]:
    """A record as `autodial export` writes it, with some fields changed."""
    return {
        "schema": 1,
        "classes": list(CLASSES),
        "size": list(SIZE),
        "resize": "bilinear",
        "crop": None,
        "mean": [],
        "scale": 1.0,
        "channel_order": "BGR",
        "exif": "apply",
        "alpha": "white",
        "statistics": "target",
        "weights_sha256": "0" * 64,
        "version": "0.1.0",
    } | changes


def save_model(path: Path, weights: np.ndarray, record: dict[str, Any] | None, channels: int = 3) -> Path:
    """logits = pixels / 255, flattened, times `weights`; probabilities = softmax of that."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
            helper.make_node("Flatten", ["pixels"], ["flat"], axis=1),
            helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        ],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", *SIZE, channels])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", weights.shape[1]])
            for name in ("logits", "probabilities")
        ],
        [numpy_helper.from_array((weights / 255).astype(np.float32), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    if record is not None:
        helper.set_model_props(model, {"autodial": json.dumps(record)})
    onnx.save(model, path)
    return path


def save_apart(model: Path, path: Path, checksum: bool = True) -> Path:
    """A copy of a model with its weights in a second file, of the same name and `.data`, and that file's checksum."""
    second = f"{path.name}.data"
    onnx.save(onnx.load(model), path, save_as_external_data=True, location=second, size_threshold=0)
    if checksum:
        graph = onnx.load(path, load_external_data=False)
        for tensor in graph.graph.initializer:
            digest = hashlib.sha1(path.with_name(second).read_bytes()).hexdigest()
            tensor.external_data.add(key="checksum", value=digest)
        path.write_bytes(graph.SerializeToString())
    return path

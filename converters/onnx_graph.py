"""What conversions of an exported ONNX graph share: finding its first nodes, and feeding calibration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader  # type: ignore[import-untyped]

from autodial.model_file import LOGITS

_AVERAGING = ("Concat", "Constant", "LogSoftmax", "ReduceLogSumExp", "Sub", "Unsqueeze")
_HEAD = ("Cast", "Gather", "Mul", "Slice", "Sub", "Transpose")


def head_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes between the graph's input and the net's first layer: crop, order of the channels, mean and scale."""
    found: list[onnx.NodeProto] = []
    name = model.graph.input[0].name
    while True:
        readers = [node for node in model.graph.node if name in node.input]
        if len(readers) != 1 or readers[0].op_type not in _HEAD:
            return found
        found.append(readers[0])
        name = readers[0].output[0]


def ensemble_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of an ensemble that average its members' probabilities: from each LogSoftmax to the logits.

    A graph without an ensemble has none.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    found: dict[str, onnx.NodeProto] = {}
    pending = [LOGITS]
    while pending:
        node = makers.get(pending.pop())
        if node is None:  # a constant
            continue
        if node.op_type not in _AVERAGING:
            return []
        found[node.name] = node
        if node.op_type != "LogSoftmax":
            pending += node.input
    return list(found.values())


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Feeds batches to ONNX Runtime's calibration.

    Args:
        model: with one input.
        batches: arrays for this input.
    """

    def __init__(self, model: onnx.ModelProto, batches: Iterable[NDArray[Any]]) -> None:
        self._name = model.graph.input[0].name
        self._batches = iter(batches)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {self._name: batch}

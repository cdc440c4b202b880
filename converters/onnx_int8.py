"""Converts an exported ONNX graph to int8 by static quantization after training."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import (  # type: ignore[import-untyped]
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_static,
)

from autodial.converters.onnx_graph import Calibration, ensemble_nodes, head_nodes
from autodial.model_file import LOGITS

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PASSING = (
    "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "MaxPool", "Relu", "Reshape", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators that are nearly exact on 8-bit values. Pad isn't: in front of a pooling it pads with -inf."""


def to_int8(model: onnx.ModelProto, batches: Iterable[NDArray[Any]]) -> onnx.ModelProto:
    """A float32 graph with QuantizeLinear and DequantizeLinear nodes around its operators, weights in int8.

    Weights have 7 bits and one scale per output channel: processors without VNNI sum products of 8-bit numbers in 16
    bits, which overflow, so accuracy would depend on the machine. Values between layers are uint8, scaled by the range
    that the batches give. The images' transform, the logits, and local response normalization, whose squares span more
    than 8 bits, stay float32.

    Args:
        model: the float32 graph.
        batches: input to calibrate on.
    """
    mean = ensemble_nodes(model)
    excluded = [node.name for node in (*head_nodes(model), *mean)]
    logits = [node.input[0] for node in mean if node.op_type == "LogSoftmax"] or [LOGITS]
    squares = {node.output[0] for node in model.graph.node if node.op_type == "Mul" and len({*node.input}) == 1}
    excluded += [node.name for node in model.graph.node if node.op_type in _WEIGHTED and node.input[0] in squares]
    with tempfile.TemporaryDirectory() as folder:
        shaped, quantized = Path(folder) / "shaped.onnx", Path(folder) / "quantized.onnx"
        plain = Path(folder) / "plain.onnx"  # without symbolic shapes, ONNX Runtime 1.23 reads files alone
        onnx.save(model, plain)
        quant_pre_process(plain, shaped, skip_optimization=True, skip_symbolic_shape=True)
        # It computes scales of all values, even of -inf padding, whose scales it does not use.
        with np.errstate(invalid="ignore"):
            quantize_static(
                shaped,
                quantized,
                Calibration(model, batches),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=[*_WEIGHTED, *_PASSING],
                per_channel=True,
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=excluded,
            )
        result = onnx.load(quantized)
    for name in logits:
        _restore_logits(result.graph, name)
    return result


def _restore_logits(graph: onnx.GraphProto, logits: str) -> None:
    """Remove the quantization of logits, which would leave only 256 different values."""
    makers = {name: node for node in graph.node for name in node.output}
    if makers[logits].op_type == "DequantizeLinear":  # logits that are the graph's output
        back = makers[logits]
        if back.input[0] not in makers:
            return
        forth = makers[back.input[0]]
        layer = makers[forth.input[0]]
        layer.output[list(layer.output).index(forth.input[0])] = logits
    else:  # those of an ensemble's member
        forths = [node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == logits]
        if not forths:
            return
        (forth,) = forths
        (back,) = (node for node in graph.node if node.input[0] == forth.output[0])
        for node in graph.node:
            node.input[:] = [logits if name == back.output[0] else name for name in node.input]
    graph.node.remove(back)
    graph.node.remove(forth)
    read = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)

"""ONNX Runtime on the CPU, for exports to check models before they are written."""

from __future__ import annotations

from typing import Any

import onnxruntime  # type: ignore[import-untyped]

from autodial.system.cpus import available_cpus


def cpu_session(model: bytes | str, *, optimized: bool = True) -> Any:
    """An onnxruntime.InferenceSession on the CPUs that this process may use.

    Args:
        model: a serialized model, or the path of a file.
        optimized: whether ONNX Runtime may rewrite the graph, as it does by default.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = available_cpus()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

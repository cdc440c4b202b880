"""ONNX Runtime on the CPU, as exports try out what they are about to write."""

from __future__ import annotations

from typing import Any

import onnxruntime  # type: ignore[import-untyped]

from autodial.system.cpus import available_cpus


def cpu_session(model: bytes, *, optimized: bool = True) -> Any:
    """An onnxruntime.InferenceSession of a file's bytes, on the CPUs that this process may use.

    Args:
        optimized: whether ONNX Runtime may rewrite the graph, as it does by default.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = available_cpus()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

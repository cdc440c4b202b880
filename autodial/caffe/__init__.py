"""pycaffe's interface: `import autodial.caffe as caffe`.

Names and arguments are Caffe's, so that a script changes only the import. Errors are those of autodial.errors, or
ValueError for arguments that do not fit; exceptions from a layer written in Python pass through unchanged.
"""

import autodial.system._torch  # noqa: F401
from autodial.caffe import classifier, coord_map, draw, io, net_spec, proto
from autodial.caffe.classifier import Classifier, Detector
from autodial.caffe.mode import (
    has_nccl,
    init_log,
    log,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from autodial.caffe.net import Net
from autodial.caffe.net_spec import NetSpec, layers, params, to_proto
from autodial.caffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    get_solver,
)
from autodial.layers import registry
from autodial.layers.user_layer import Layer
from autodial.proto.messages import TEST, TRAIN

__version__ = "1.0.0"
"""The version of Caffe whose pycaffe interface this is."""

__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Classifier",
    "Detector",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "classifier",
    "coord_map",
    "draw",
    "get_solver",
    "has_nccl",
    "init_log",
    "io",
    "layer_type_list",
    "layers",
    "log",
    "net_spec",
    "params",
    "proto",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "to_proto",
]


def layer_type_list() -> list[str]:
    """The names of all supported layer types, in alphabetical order."""
    return sorted(registry)

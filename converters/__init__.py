"""From one form to another: Caffe nets to AutoDIAL nets, torch modules to AutoDIAL modules, trained nets to ONNX files.

    from autodial.converters import AutoDIAL, convert_batchnorm, export_module, parameter_groups, recalibrate

Names load when they are first used, so that importing this package brings neither torch nor onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodial.converters.card import TestScores, TrainedNet, write_card
    from autodial.converters.destinations.triton import TritonModel
    from autodial.converters.net_convert import ConvertReport, convert
    from autodial.converters.torch_export import export_module
    from autodial.converters.torch_modules import AlignedBatchNorm, AlignedBatchNormAct, AutoDIAL, convert_batchnorm
    from autodial.converters.torch_recalibrate import recalibrate
    from autodial.converters.torch_to_caffe import CaffeNet, to_caffe
    from autodial.converters.verification import ExportReport

__all__ = [
    "AlignedBatchNorm",
    "AlignedBatchNormAct",
    "AutoDIAL",
    "CaffeNet",
    "ConvertReport",
    "ExportReport",
    "TestScores",
    "TrainedNet",
    "TritonModel",
    "convert",
    "convert_batchnorm",
    "export_module",
    "parameter_groups",
    "recalibrate",
    "to_caffe",
    "write_card",
]

_HOME = {
    "AlignedBatchNorm": "torch_modules",
    "AlignedBatchNormAct": "torch_modules",
    "AutoDIAL": "torch_modules",
    "CaffeNet": "torch_to_caffe",
    "ConvertReport": "net_convert",
    "ExportReport": "verification",
    "TestScores": "card",
    "TrainedNet": "card",
    "TritonModel": "destinations.triton",
    "convert": "net_convert",
    "convert_batchnorm": "torch_modules",
    "export_module": "torch_export",
    "parameter_groups": "torch_modules",
    "to_caffe": "torch_to_caffe",
    "recalibrate": "torch_recalibrate",
    "write_card": "card",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

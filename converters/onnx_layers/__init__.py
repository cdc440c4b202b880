"""How each layer is written in ONNX: a function per type, in a module per family; adding one touches one module.

A function gets a `GraphWriter`, the layer as autodial.layers builds it, its bottoms and the shapes of its tops. All
operators are of the opset that `autodial.converters.onnx_file` states, from ONNX's own domain.
"""

from __future__ import annotations

import importlib
import pkgutil

from autodial.converters.onnx_layers.registry import writer_of, written_types
from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value

__all__ = ["GraphWriter", "NoOnnxFormError", "Shape", "Value", "writer_of", "written_types"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

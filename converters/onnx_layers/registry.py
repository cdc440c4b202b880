"""The functions that write layers, by the class of the layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value
from autodial.layers import Layer

Writes = Callable[[GraphWriter, Any, Sequence[Value], Sequence[Shape]], Sequence[str]]
"""Writes a layer, given the graph, the layer, its bottoms and the shapes of its tops; returns the names of the tops,
which may be those of bottoms."""

W = TypeVar("W", bound=Writes)

_writers: dict[type[Layer], Writes] = {}
_REFUSED = {
    "Accuracy": "it compares with labels, which are no part of a prediction",
    "HDF5Output": "it writes a file",
    "Python": "an ONNX file can't hold a Python class",
}
"""Why there is no function for a type."""


def writes(*layers: type[Layer]) -> Callable[[W], W]:
    """Decorator: the function writes layers of these classes, and of classes derived from them."""

    def add(function: W) -> W:
        _writers.update(dict.fromkeys(layers, function))
        return function

    return add


def writer_of(layer: Layer) -> Writes:
    """The function that writes a layer; NoOnnxFormError if there is none."""
    for cls in type(layer).__mro__:
        if cls in _writers:
            return _writers[cls]
    if layer.is_loss:
        raise NoOnnxFormError("it is a loss, which is for training")
    raise NoOnnxFormError(_REFUSED.get(layer.type_name, "no form of this type in ONNX is known"))


def written_types() -> list[str]:
    """Names of the layer types that can be written, sorted."""
    return sorted(cls.type_name for cls in _writers if cls.type_name)

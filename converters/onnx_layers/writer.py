"""Writes the nodes and the constants of an ONNX graph, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from autodial.errors import InputError

Shape = tuple[int | None, ...]
"""Lengths of axes; None where the length is only known when the graph runs."""


class NoOnnxFormError(InputError):
    """A layer that no ONNX graph can express as it is; the caller adds the layer's name and type."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    Attributes:
        name: in the graph.
        shape: see Shape.
    """

    name: str
    shape: Shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def length(self, axis: int) -> int:
        """The length of an axis that must be known; NoOnnxFormError otherwise."""
        length = self.shape[axis]
        if length is None:
            raise NoOnnxFormError(f"the length of axis {axis} must be known when the file is written")
        return length

    def lengths(self, start: int = 0, end: int | None = None) -> tuple[int, ...]:
        """The known lengths of several axes; NoOnnxFormError if one is unknown."""
        return tuple(self.length(axis) for axis in range(self.ndim)[start:end])


class GraphWriter:
    """Collects the nodes and constants of a graph.

    Nodes get the name of the layer that is being written. Constants of the same type, shape and values are stored once.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[np.generic]] = {}
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._used: set[str] = set()
        self.layer = ""

    def unused(self, name: str) -> str:
        """`name`, with a number behind it if it is taken; it counts as taken from now on."""
        made, number = name, 0
        while made in self._used:
            number += 1
            made = f"{name}_{number}"
        self._used.add(made)
        return made

    def weight(self, array: NDArray[np.generic], name: str) -> str:
        """A large constant under its own name, which is not compared with the others."""
        made = self.unused(f"{self.layer}.{name}")
        self.constants[made] = np.ascontiguousarray(array)
        return made

    def constant(self, values: ArrayLike, dtype: type[np.generic] = np.float32) -> str:
        """A constant, float32 unless said otherwise."""
        array = np.array(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self.unused(f"{self.layer}.constant")
            self.constants[self._known[key]] = array
        return self._known[key]

    def integers(self, values: Iterable[int] | int) -> str:
        """A constant of int64, a scalar or one axis."""
        return self.constant(values if isinstance(values, int) else list(values), np.int64)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """A node with one output; its name. Attributes that are None are left out."""
        return self.nodes_of(op, inputs, 1, **attributes)[0]

    def nodes_of(self, op: str, inputs: Sequence[str], outputs: int, **attributes: object) -> list[str]:
        """A node with several outputs; their names."""
        made = [self.unused(f"{self.layer}/{op}") for _ in range(outputs)]
        node = helper.make_node(op, inputs, made, name=made[0])
        given = (helper.make_attribute(name, value) for name, value in attributes.items() if value is not None)
        node.attribute.extend(given)
        self.nodes.append(node)
        return made

    # --- shapes that may be known only when the graph runs

    def axis_lengths(self, value: Value, start: int = 0, end: int | None = None) -> str:
        """Lengths of the axes from `start` to before `end`, int64 with one axis: a constant where they are known."""
        lengths = value.shape[start:end]
        if None not in lengths:
            return self.integers([length for length in lengths if length is not None])
        return self.node("Shape", value.name, start=start or None, end=end)

    def reshaped(self, name: str, shape: Shape, *parts: str | Sequence[int]) -> str:
        """A tensor in another shape.

        Args:
            shape: the result's; with one unknown length at most, it is enough.
            parts: the shape, as constants and names of int64 tensors of one axis; needed for several unknown lengths.
        """
        unknown = [length for length in shape if length is None]
        if len(unknown) <= 1 and 0 not in shape:
            return self.node("Reshape", name, self.integers([-1 if length is None else length for length in shape]))
        if not parts:
            raise NoOnnxFormError("several axes have lengths that are known only when the file runs")
        return self.node("Reshape", name, self.joined(*parts))

    def joined(self, *parts: str | Sequence[int]) -> str:
        """Int64 tensors of one axis, constants or names, one after the other."""
        if len(parts) == 1 and not isinstance(parts[0], str):
            return self.integers(parts[0])
        names = [part if isinstance(part, str) else self.integers(part) for part in parts]
        return names[0] if len(names) == 1 else self.node("Concat", *names, axis=0)

    # --- small idioms

    def scaled(self, name: str, scale: float = 1.0, shift: float = 0.0) -> str:
        """scale * x + shift, without the steps that change nothing."""
        if scale != 1:
            name = self.node("Mul", name, self.constant(scale))
        return self.node("Add", name, self.constant(shift)) if shift else name

    def as_integers(self, name: str) -> str:
        """Floats as int64, without their fractions."""
        return self.node("Cast", name, to=TensorProto.INT64)

    def as_floats(self, name: str) -> str:
        return self.node("Cast", name, to=TensorProto.FLOAT)

    def sliced(self, name: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Part of an axis; an end of 2^63 - 1 reaches to the last element."""
        return self.node("Slice", name, *(self.integers([number]) for number in (start, end, axis, step)))

    def picked(self, name: str, index: int | Sequence[int], axis: int = 0) -> str:
        """One element of an axis, which goes, or several, which stay."""
        return self.node("Gather", name, self.integers(index), axis=axis)

    def unsqueezed(self, name: str, *axes: int) -> str:
        return self.node("Unsqueeze", name, self.integers(axes)) if axes else name

    def squeezed(self, name: str, *axes: int) -> str:
        return self.node("Squeeze", name, self.integers(axes))

    def rename(self, old: str, new: str, start: int = 0) -> None:
        """Give a value that a node from number `start` on makes another name."""
        for node in self.nodes[start:]:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]

    def drop_unread(self) -> None:
        """Remove constants that no node reads."""
        read = {name for node in self.nodes for name in node.input}
        self.constants = {name: array for name, array in self.constants.items() if name in read}

    @property
    def size(self) -> int:
        """Bytes of all constants."""
        return sum(array.nbytes for array in self.constants.values())


def tensors(constants: Mapping[str, NDArray[np.generic]]) -> list[onnx.TensorProto]:
    """Constants as a graph's initializers."""
    return [numpy_helper.from_array(array, name) for name, array in constants.items()]

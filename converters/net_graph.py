"""Writes a folded net as an ONNX graph, layer by layer, with the names of the net's layers and blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from autodial.converters.onnx_layers import GraphWriter, NoOnnxFormError, Shape, Value, writer_of
from autodial.errors import InputError
from autodial.layers import Layer
from autodial.net.net import Net

_INPUT_AXES = {0: "batch", 2: "height", 3: "width"}


@dataclass(frozen=True, eq=False)
class NetGraph:
    """The graph of a net.

    Attributes:
        name: the net's.
        writer: with the nodes and the constants.
        inputs, outputs: in order.
    """

    name: str
    writer: GraphWriter
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def proto(self, initializers: Sequence[onnx.TensorProto]) -> onnx.GraphProto:
        """The graph with these constants."""
        batch = any(value.shape[:1] == (None,) for value in self.inputs)
        return helper.make_graph(
            self.writer.nodes,
            self.name or "net",
            [_info(value, _INPUT_AXES) for value in self.inputs],
            [_info(value, {0: "batch"} if batch else {}) for value in self.outputs],
            initializers,
        )


def write_graph(
    net: Net,
    shapes: Sequence[Sequence[Shape]],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, str],
) -> NetGraph:
    """Write a net without BatchNorm and Dial layers.

    Args:
        net: in evaluation.
        shapes: of the layers' tops, from `known_shapes`.
        inputs: shapes by blob.
        outputs: the blobs of the net by the names that the graph gives them.

    Raises:
        InputError: a layer, which is named, has no form in ONNX.
    """
    writer = GraphWriter()
    values = {blob: Value(writer.unused(blob), shape) for blob, shape in inputs.items()}
    ends = tuple(values.values())
    last = {top: i for i, message in enumerate(net.param.layer) for top in message.top}
    for i, (message, layer) in enumerate(zip(net.param.layer, net.layers.values(), strict=True)):
        assert isinstance(layer, Layer)
        if layer.is_data:
            continue
        writer.layer, start = message.name, len(writer.nodes)
        try:
            bottoms = [values[bottom] for bottom in message.bottom]
            names = writer_of(layer)(writer, layer, bottoms, shapes[i])
        except NoOnnxFormError as error:
            raise InputError(f'layer "{message.name}" ({message.type}) can\'t be written to ONNX: {error}') from error
        made = {name for node in writer.nodes[start:] for name in node.output}
        for top, name, shape in zip(message.top, names, shapes[i], strict=True):
            if name in made:  # and not a bottom or a constant, passed on
                final = writer.unused(top if last[top] == i else f"{top}/{message.name}")
                writer.rename(name, final, start)
                name = final
            values[top] = Value(name, shape)
    named = _named(writer, values, ends, outputs)
    writer.drop_unread()
    return NetGraph(net.param.name, writer, ends, named)


def _named(
    writer: GraphWriter, values: Mapping[str, Value], inputs: Sequence[Value], outputs: Mapping[str, str]
) -> tuple[Value, ...]:
    """The outputs under the names that they are to have, but for those of inputs."""
    taken = {value.name for value in inputs} | set(writer.constants)
    writer.layer = "outputs"
    ends = []
    for name, blob in outputs.items():
        value = values[blob]
        final = writer.unused(name) if name in taken else name
        made = writer.node("Identity", value.name) if value.name in taken else value.name
        if made != final:
            writer.rename(made, final)
        taken.add(final)
        ends.append(Value(final, value.shape))
    return tuple(ends)


def _info(value: Value, axes: Mapping[int, str]) -> onnx.ValueInfoProto:
    """A float32 value; unknown lengths get the axes' names, or their place's."""
    lengths = [
        axes.get(axis, f"{value.name}_{axis}") if length is None else length for axis, length in enumerate(value.shape)
    ]
    return helper.make_tensor_value_info(value.name, TensorProto.FLOAT, lengths)

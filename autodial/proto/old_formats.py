"""What Caffe has replaced over the years and still reads."""

from __future__ import annotations

from typing import Any

from autodial.errors import InputError

from . import messages


def refuse_old_format(message: Any, name: str) -> None:
    """Raise an InputError if the net or solver is written in a form that Caffe upgrades before use.

    For a NetParameter: V0 and V1 layers, and `input` with its shapes outside of a layer; for a SolverParameter:
    `solver_type`. `name` is what the error calls it, usually the file's path.
    """
    if message.DESCRIPTOR.name == "SolverParameter":
        if message.HasField("solver_type"):
            word = messages.SolverParameter.SolverType.Name(message.solver_type)
            raise InputError(f"{name}: solver_type: {word} is an old form: write the solver's name in type")
        return
    if message.layers:
        first = message.layers[0]
        version, layer = ("V0", first.layer) if first.HasField("layer") else ("V1", first)
        raise InputError(
            f'{name}: layer "{layer.name}" is in Caffe\'s old {version} format ("layers"), which is not supported yet: '
            "convert the file with upgrade_net_proto_text or upgrade_net_proto_binary of Caffe"
        )
    for field in ("input", "input_dim", "input_shape"):
        if getattr(message, field):
            raise InputError(
                f"{name}: {field} outside of a layer is an old form, which is not supported yet: "
                'write a layer of type "Input" with its shape in input_param'
            )

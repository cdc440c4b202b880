"""Variants of a net or solver: `LAYER.FIELD=VALUE` settings, applied to the messages that a prototxt holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from autodial.errors import InputError
from autodial.netparam.layer_types import PARAMETRIZED
from autodial.proto import messages as pb
from autodial.wording import alternatives, counted, shortened

_STEP = re.compile(r"(\w+)(?:\[(\d{1,9})\])?")
_DEEPEST = 8
"""Most steps in a field's path, so that not all heads of a long path are tried; Caffe's layers have three."""
_LONGEST_PATTERN = 1000
"""Most characters in a pattern; the time for matching grows with their square."""
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def apply_to_solver(settings: Sequence[str], solver: pb.SolverParameter) -> None:
    """Apply the settings that start with `solver.`, such as `solver.base_lr=0.01`, to a SolverParameter, in place.

    Raises:
        InputError: as for `apply_to_nets`.
    """
    for setting in settings:
        path, value = _split(setting)
        owner, _, field = path.partition(".")
        if owner == "solver":
            _assign(setting, solver, "the solver", field, value)


def for_nets(settings: Sequence[str]) -> list[str]:
    """The settings that `apply_to_solver` leaves to `apply_to_nets`."""
    return [setting for setting in settings if not setting.strip().startswith("solver.")]


def apply_to_nets(settings: Sequence[str], nets: Sequence[pb.NetParameter]) -> None:
    """Apply settings to NetParameters, in place.

    `fc6-dial.dial_param.weight_filler.value=1`, `fc6.param[0].lr_mult=0`, `data.transform_param.mean_value=104,117,9`:
    a layer's name, then a field in it. A value for a repeated field replaces all of its elements, an empty one removes
    them; `[i]` chooses one, or appends one where i is their number. All layers of the name are changed, whatever their
    phase. Where no layer has the name, it may be a pattern, as the shell's (`*-dial`, `inception_4?/*`), for several.

    Raises:
        InputError: a setting without "=", one of a solver, a layer or field that does not exist (with the closest that
            do), `param` of a layer without parameters, or a value that the field can't hold. The message begins with
            the setting.
    """
    for setting in settings:
        path, value = _split(setting)
        if path.startswith("solver."):
            raise _error(setting, "only training takes settings of the solver")
        names = list(dict.fromkeys(layer.name for net in nets for layer in net.layer))
        owners, field = _find_layers(path, names)
        if not owners:
            wanted = path.partition(".")[0]
            raise _error(setting, f'no layer "{shortened(wanted)}"{alternatives(wanted, names)}')
        for net in nets:
            for layer in net.layer:
                if layer.name in owners:
                    if field.startswith(("param[", "param.")) and layer.type not in PARAMETRIZED:
                        raise _error(
                            setting,
                            f'layer "{layer.name}" ({layer.type}) has no parameters: name only layers that have some',
                        )
                    _assign(setting, layer, f'layer "{layer.name}"', field, value)


def _find_layers(path: str, names: Sequence[str]) -> tuple[set[str], str]:
    """The layers whose name, or else pattern, the path begins with, and the rest of the path."""
    # layer names may hold dots, so the longest head that fits is the name
    dots = [dot.start() for dot in re.finditer(r"\.", path)][::-1]
    for dot in dots[:_DEEPEST]:
        head = path[:dot]
        owners = {head}.intersection(names)
        if not owners and len(head) <= _LONGEST_PATTERN:
            owners = {name for name in names if fnmatchcase(name, head)}
        if owners:
            return owners, path[dot + 1 :]
    return set(), path


def _error(setting: str, problem: str) -> InputError:
    return InputError(f"{shortened(setting)}: {problem}")


def applies(setting: str, net: pb.NetParameter) -> bool:
    """Whether a NetParameter has what a setting changes; another net that a solver names may have it."""
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    try:
        apply_to_nets([setting], [copy])
    except InputError:
        return False
    return True


def _split(setting: str) -> tuple[str, str]:
    path, equals, value = setting.partition("=")
    if not equals or "." not in path:
        raise _error(setting, "must be LAYER.FIELD=VALUE or solver.FIELD=VALUE")
    return path.strip(), value.strip()


def _assign(setting: str, message: Message, owner: str, path: str, value: str) -> None:
    """Set one field, any number of messages deep."""
    steps = path.split(".")
    for depth, step in enumerate(steps):
        match = _STEP.fullmatch(step)
        fields: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
        if match is None or match[1] not in fields:
            where = ".".join(steps[:depth]) or owner
            inside = [name for name in _messages(message) if step in fields[name].message_type.fields_by_name]
            hint = f'; did you mean "{inside[0]}.{step}"?' if inside else alternatives(step, list(fields))
            raise _error(setting, f'{where} has no field "{shortened(step)}"{hint}')
        field, index = fields[match[1]], None if match[2] is None else int(match[2])
        repeated = _is_repeated(field)
        if index is not None:
            _check_index(setting, message, field, repeated, index)
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            if depth + 1 < len(steps):
                raise _error(setting, f'{match[1]} holds a value and has no field "{steps[depth + 1]}"')
            _assign_value(setting, message, field, repeated, index, value)
            return
        if depth + 1 == len(steps):
            names = ", ".join(field.message_type.fields_by_name)
            raise _error(setting, f"{match[1]} is a message; name one of its fields: {names}")
        if repeated and index is None:
            raise _error(setting, f"{match[1]} is a list; write {match[1]}[0] for its first element")
        child = getattr(message, field.name)
        message = (child.add() if index == len(child) else child[index]) if repeated else child


def _messages(message: Message) -> list[str]:
    """The fields of a message that hold a message, without lists: in a layer, the parameters of its type."""
    return [field.name for field, _ in message.ListFields() if field.message_type and not _is_repeated(field)]


def _assign_value(setting: str, message: Message, field: Any, repeated: bool, index: int | None, value: str) -> None:
    try:
        if not repeated:
            setattr(message, field.name, _convert(field, value))
            return
        current = getattr(message, field.name)
        if index is None:
            new = [_convert(field, item) for item in value.strip("[]").split(",")] if value else []
        else:
            new = [*current[:index], _convert(field, value), *current[index + 1 :]]
        current[:] = new
    except (ValueError, TypeError):
        names = field.enum_type.values_by_name if field.enum_type else ()
        kind = {
            FieldDescriptor.CPPTYPE_BOOL: "true or false",
            FieldDescriptor.CPPTYPE_ENUM: "one of " + ", ".join(names),
            FieldDescriptor.CPPTYPE_FLOAT: "a number",
            FieldDescriptor.CPPTYPE_DOUBLE: "a number",
            FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0",
        }.get(field.cpp_type, "a whole number")
        raise _error(setting, f'{field.name} is {kind}, not "{shortened(value)}"') from None


def _convert(field: Any, text: str) -> Any:
    """A value of a scalar field from its text; ValueError where it is none."""
    text = text.strip()
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if text not in _TRUTH:
            raise ValueError(text)
        return _TRUTH[text]
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        if text not in field.enum_type.values_by_name:
            raise ValueError(text)
        return field.enum_type.values_by_name[text].number
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return float(text)
    return int(text)


def _check_index(setting: str, message: Message, field: Any, repeated: bool, index: int) -> None:
    if not repeated:
        raise _error(setting, f"{field.name} is not a list; leave out [{index}]")
    count = len(getattr(message, field.name))
    if index > count:
        raise _error(setting, f"{field.name} has {counted(count, 'element')}; the next is {field.name}[{count}]")


def _is_repeated(field: Any) -> bool:
    # `label` is deprecated in newer protobuf, `is_repeated` missing in older
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED)

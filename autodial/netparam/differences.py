"""Every setting of a solver and of nets, as `autodial train --set` names it, and which differ between several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from autodial.proto import messages as pb
from autodial.wording import shortened

_UNSET = "not set"
_TYPE = "type"
_NAMED = 3
"""Layers that one difference names."""


class Setting(NamedTuple):
    """A field of a layer, as `autodial train --set` names it; "solver" counts as a layer, and "" is the run itself."""

    layer: str
    field: str


Settings = Mapping[Setting, str]
"""Values of settings."""


class Difference(NamedTuple):
    """A setting that is not the same in all groups, and its value in each."""

    name: str
    values: tuple[str, ...]


def settings_of_solver(solver: pb.SolverParameter, skipped: frozenset[str] = frozenset()) -> dict[Setting, str]:
    """The fields that a solver has set, but for those to skip."""
    return {Setting("solver", path): value for path, value in _fields(solver, skipped)}


def settings_of_nets(nets: Iterable[pb.NetParameter]) -> dict[Setting, str]:
    """The fields that the layers of nets have set; of layers that several nets have, those of the first."""
    settings: dict[Setting, str] = {}
    for net in nets:
        seen: Counter[str] = Counter()
        for layer in net.layer:
            seen[layer.name] += 1
            # a name stands once per phase
            name = layer.name if seen[layer.name] == 1 else f"{layer.name} ({seen[layer.name]})"
            settings.setdefault(Setting(name, _TYPE), layer.type)
            for path, value in _fields(layer, skipped=frozenset(("name", _TYPE))):
                settings.setdefault(Setting(name, path), value)
    return settings


def _fields(message: Message, skipped: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Paths and values of all fields that a message has set."""
    for descriptor, value in message.ListFields():
        name = descriptor.name
        if name in skipped:
            continue
        if descriptor.message_type is None:
            yield name, _value(descriptor, value)
        elif isinstance(value, Message):
            yield from ((f"{name}.{path}", inner) for path, inner in _fields(value))
        else:
            for number, item in enumerate(value):
                yield from ((f"{name}[{number}].{path}", inner) for path, inner in _fields(item))


def _value(descriptor: FieldDescriptor, value: Any) -> str:
    """A field's value as a prototxt has it; several are a list."""
    if isinstance(value, str | bytes | int | float):
        return _scalar(descriptor, value)
    items = [_scalar(descriptor, item) for item in value]
    return items[0] if len(items) == 1 else f"[{', '.join(items)}]"


def _scalar(descriptor: FieldDescriptor, value: Any) -> str:
    if descriptor.enum_type is not None:
        return descriptor.enum_type.values_by_number[value].name
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def differences(settings: Sequence[Settings], *, shortening: Callable[[str], str] = shortened) -> list[Difference]:
    """What is not the same in all of several settings; fields that differ alike in several layers are one difference.

    Args:
        settings: of each of several runs.
        shortening: shortens the names of layers.
    """
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    layers = {setting for of_one in settings for setting in of_one if setting.field == _TYPE}
    for setting in dict.fromkeys(setting for of_one in settings for setting in of_one):
        values = tuple(of_one.get(setting, _UNSET) for of_one in settings)
        whole = Setting(setting.layer, _TYPE)
        # of a layer that some lack, the type says so
        having = [of_one for of_one in settings if setting == whole or whole in of_one or whole not in layers]
        if len({of_one.get(setting, _UNSET) for of_one in having}) > 1:
            rows.setdefault((setting.field, values), []).append(setting.layer)
    return [
        Difference(_named(field, list(map(shortening, layers))), values) for (field, values), layers in rows.items()
    ]


def _named(field: str, layers: Sequence[str]) -> str:
    if len(layers) == 1:
        return f"{layers[0]}.{field}" if layers[0] else field
    more = f" and {len(layers) - _NAMED} more" if len(layers) > _NAMED else ""
    return f"{field} of {', '.join(layers[:_NAMED])}{more}"

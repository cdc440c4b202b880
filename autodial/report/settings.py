"""What several runs were trained with: which settings differ, and which runs differ by their seed alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from autodial.report.run import Run
from autodial.report.style import shortened

_UNLIKE = frozenset(
    (
        *(
            "net",
            "net_param",
            "train_net",
            "train_net_param",
            "test_net",
            "test_net_param",
            "random_seed",
            "debug_info",
        ),
        *("snapshot", "snapshot_prefix", "snapshot_format", "snapshot_diff", "snapshot_after_train", "display"),
        *("test_iter", "test_interval", "test_initialization", "test_compute_loss", "device_id", "solver_mode"),
    )
)
"""Fields of a solver that don't change what a training learns, its seed, and its nets, which are compared by layers."""
_OWN = ("solver.snapshot_prefix=", "solver.random_seed=")
"""Settings that every run has its own of."""
_UNSET = "not set"
_TYPE = "type"
_AS_IT_IS = "as in its prototxts"
"""How a group was started that has nothing of its own."""
_NAMED = 3
"""Layers that one row of the differences names."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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


@dataclass(frozen=True)
class Group:
    """Runs with the same settings but for their seeds.

    Attributes:
        letter: A for the first group.
        about: the variants and settings that these runs were started with and that not all groups have, or else their
            variants.
        runs: numbers of the runs.
    """

    letter: str
    about: str
    runs: tuple[int, ...]

    @property
    def name(self) -> str:
        """What figures and tables call it."""
        return f"{self.letter}: {self.about}"


def settings_of(run: Run) -> dict[Setting, str]:
    """Everything that decides what a training becomes, but for its seed."""
    settings = {Setting("solver", path): value for path, value in _fields(run.solver, skipped=_UNLIKE)}
    for net in (run.train_net, run.test_net):
        seen: Counter[str] = Counter()
        for layer in net.layer:
            seen[layer.name] += 1
            # a name stands once per phase
            name = layer.name if seen[layer.name] == 1 else f"{layer.name} ({seen[layer.name]})"
            settings.setdefault(Setting(name, _TYPE), layer.type)
            for path, value in _fields(layer, skipped=frozenset(("name", _TYPE))):
                settings.setdefault(Setting(name, path), value)
    record, folder = run.record, run.train_folder
    settings[Setting("", "folder of the net")] = "" if folder is None else str(Path(record["folder"]) / folder)
    settings[Setting("", "weights to start from")] = _option(record["command"], "--weights")
    settings[Setting("", "precision")] = record.get("precision", "")
    settings[Setting("", "processes")] = str(record.get("ranks", 1))
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


def _option(command: str, name: str) -> str:
    """The values that a command line gives to an option."""
    try:
        words = shlex.split(command)
    except ValueError:  # of a record that somebody else wrote
        return ""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return ", ".join(
        following if word == name else word.partition("=")[2]
        for word, following in pairs
        if word == name or word.startswith(f"{name}=")
    )


def groups_of(runs: Sequence[Run], settings: Sequence[Settings]) -> list[Group]:
    """The groups of runs whose settings are the same, in the order of their first runs."""
    members: dict[frozenset[tuple[Setting, str]], list[int]] = {}
    for number, of_run in enumerate(settings):
        members.setdefault(frozenset(of_run.items()), []).append(number)
    started = [_started_with(runs[numbers[0]]) for numbers in members.values()]
    common = set(started[0]).intersection(*started[1:])
    groups = []
    for number, (words, numbers) in enumerate(zip(started, members.values(), strict=True)):
        own = [word for word in words if word not in common] or runs[numbers[0]].record["variants"] or [_AS_IT_IS]
        groups.append(Group(_letter(number), ", ".join(own), tuple(numbers)))
    return groups


def _started_with(run: Run) -> list[str]:
    """Variants and settings that a run was started with."""
    return [*run.record["variants"], *(word for word in run.record["settings"] if not word.startswith(_OWN))]


def _letter(number: int) -> str:
    head, tail = divmod(number, len(_LETTERS))
    return f"{_letter(head - 1) if head else ''}{_LETTERS[tail]}"


def differences(settings: Sequence[Settings]) -> list[Difference]:
    """What is not the same in all of several settings; fields that differ alike in several layers share a row."""
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    layers = {setting for of_one in settings for setting in of_one if setting.field == _TYPE}
    for setting in dict.fromkeys(setting for of_one in settings for setting in of_one):
        values = tuple(of_one.get(setting, _UNSET) for of_one in settings)
        whole = Setting(setting.layer, _TYPE)
        # of a layer that some lack, the type says so
        having = [of_one for of_one in settings if setting == whole or whole in of_one or whole not in layers]
        if len({of_one.get(setting, _UNSET) for of_one in having}) > 1:
            rows.setdefault((setting.field, values), []).append(setting.layer)
    return [Difference(_named(field, layers), values) for (field, values), layers in rows.items()]


def _named(field: str, layers: Sequence[str]) -> str:
    if len(layers) == 1:
        return f"{shortened(layers[0])}.{field}" if layers[0] else field
    more = f" and {len(layers) - _NAMED} more" if len(layers) > _NAMED else ""
    return f"{field} of {', '.join(map(shortened, layers[:_NAMED]))}{more}"


def run_names(folders: Sequence[Path]) -> list[str]:
    """A short name for each of several folders: as many of its last parts as tell it apart from the others."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(folder) for folder in folders]

"""The folder of a selection: the inputs that all its results come from, and whether these are still the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from autodial import proto
from autodial.errors import InputError
from autodial.netparam.differences import Difference, differences, settings_of_nets, settings_of_solver
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb
from autodial.system import json_files
from autodial.system.files import entries, replacing

RECORD = "experiment.json"
_FORM = 3
"""Version of the results' format; results of another version are not read."""
_TOLD = 3
"""Changed settings that a message names."""
_NETS = frozenset(("net_param", "train_net_param", "test_net_param"))
"""Fields of a solver that hold nets, which are compared by themselves."""


class Inputs(TypedDict):
    """What must be unchanged for earlier results to count.

    Attributes:
        solver, net: as text; the net has both phases.
        source, target, weights: hashes of the source's list, the target's list and the files of the weights.
        seed: of the first restart and of random draws.
        recalibrate: whether statistics of all images replace training's moving averages.
    """

    solver: str
    net: str
    source: str
    target: str
    weights: str
    seed: int
    recalibrate: bool


class _Record(Inputs):
    form: int


class _AnyRecord(TypedDict):
    """What records of all versions have."""

    form: int


_OTHERS = {"source": "the source's list", "target": "the target's list", "weights": "the weights"}
"""Inputs of which hashes alone are known, in words."""


def enter(folder: Path, inputs: Inputs) -> None:
    """Make the folder, or check that it holds a selection with the same inputs.

    Raises:
        InputError: the folder holds something else; the message says what differs.
    """
    path = folder / RECORD
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or entries(folder)):
            raise InputError(f"{folder} exists, is not empty and holds no selection: name another folder with `folder`")
        folder.mkdir(parents=True, exist_ok=True)
        record: _Record = {"form": _FORM, **inputs}
        with replacing(path) as file:
            file.write(json.dumps(record, indent=2).encode())
        return
    remedy = "name another folder with `folder`"
    if json_files.read(path, _AnyRecord, remedy=remedy)["form"] != _FORM:
        raise InputError(f"{folder} holds a selection of another version of autodial: {remedy}")
    changes = list(_changes(json_files.read(path, _Record, remedy=remedy), inputs, path))
    if changes:
        more = f", and {len(changes) - _TOLD} more differ" if len(changes) > _TOLD else ""
        raise InputError(f"{folder} holds a selection in which {' and '.join(changes[:_TOLD])}{more}: {remedy}")


def _changes(known: _Record, now: Inputs, path: Path) -> Iterator[str]:
    """What differs, a phrase for each."""
    if known["solver"] != now["solver"]:
        solvers = (proto.parse_solver(inputs["solver"], str(path)) for inputs in (known, now))
        yield from _told("the solver", differences([settings_of_solver(solver, _NETS) for solver in solvers]))
    if known["net"] != now["net"]:
        nets = [proto.parse_net(inputs["net"], str(path)) for inputs in (known, now)]
        yield from _told("the net", _net_differences(nets))
    for key, name in _OTHERS.items():
        if known[key] != now[key]:  # type: ignore[literal-required]
            yield f"{name} was another"
    if known["seed"] != now["seed"]:
        yield _told_change("the seed", str(known["seed"]), str(now["seed"]))
    if known["recalibrate"] != now["recalibrate"]:
        yield _told_change("recalibration", *("on" if inputs["recalibrate"] else "off" for inputs in (known, now)))


def _net_differences(nets: Sequence[pb.NetParameter]) -> list[Difference]:
    """What differs in the TRAIN phase or, if nothing does, in the TEST phase, which mostly has the same layers."""
    for phase in (pb.TRAIN, pb.TEST):
        found = differences([settings_of_nets([filter_net(net, phase)]) for net in nets])
        if found:
            return found
    return []


def _told(whole: str, found: list[Difference]) -> Iterator[str]:
    if not found:  # such as the order of layers
        yield f"{whole} was another"
    for difference in found:
        yield _told_change(difference.name, *difference.values)


def _told_change(name: str, was: str, now: str) -> str:
    return f"{name} was {was} and is {now}"

"""What several runs were trained with: which settings differ, and which runs differ by their seed alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autodial.netparam.differences import Setting, Settings, settings_of_nets, settings_of_solver
from autodial.report.run import Run

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
_AS_IT_IS = "as in its prototxts"
"""How a group was started that has nothing of its own."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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
    settings = settings_of_solver(run.solver, skipped=_UNLIKE) | settings_of_nets([run.train_net, run.test_net])
    record, folder = run.record, run.train_folder
    settings[Setting("", "folder of the net")] = "" if folder is None else str(Path(record["folder"]) / folder)
    settings[Setting("", "weights to start from")] = _option(record["command"], "--weights")
    settings[Setting("", "precision")] = record.get("precision", "")
    settings[Setting("", "processes")] = str(record.get("ranks", 1))
    return settings


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


def run_names(folders: Sequence[Path]) -> list[str]:
    """A short name for each of several folders: as many of its last parts as tell it apart from the others."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(folder) for folder in folders]

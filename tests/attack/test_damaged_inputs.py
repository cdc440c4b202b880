"""Damaged files of every kind: each is read, or refused in a sentence, in less than 10 s."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from attack import Tally, Victim, fresh, judge
from kinds import KINDS, PREDICT, REPORT, RESUME, TABLE, TEST, TIME, scoring

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(sys.platform == "win32", reason="these names and files can't be made there"),
]


@pytest.mark.parametrize(
    "arguments",
    [
        *(TIME, REPORT, PREDICT, TABLE, TEST, [*RESUME, "-o", "run"]),
        *(scoring(f"{name}.prototxt") for name in ("mean", "lmdb", "hdf5")),
        ["upgrade", "w.h5", "new.caffemodel"],
        ["dialize", "plain.prototxt", "-o", "dialized.prototxt"],
    ],
    ids=" ".join,
)
def test_what_is_whole_is_accepted(arguments: list[str], victim: Victim, project: tuple[Path, Path]) -> None:
    """Otherwise damage would be refused for another reason than the damage."""
    fresh(*project)
    answer = victim.run(arguments, project[1])
    assert answer["status"] == 0, answer["err"]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged(
    kind: str, rounds: int, seed: int, victim: Victim, project: tuple[Path, Path], table: dict[str, Tally]
) -> None:
    tally = table.setdefault(kind, Tally())
    whole, case = project
    for number in range(rounds):
        name = f"{kind}/{seed}/{number}"
        fresh(whole, case)
        arguments = KINDS[kind](random.Random(name), case)
        judge(tally, name, arguments, victim.run(arguments, case), case)
    assert not tally.findings, "\n".join(tally.findings)

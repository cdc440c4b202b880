"""Damaged files of every kind: each is read, or refused in a sentence, in less than 10 s."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from attack import Figures, Victim, fresh, judge
from kinds import KINDS

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(sys.platform == "win32", reason="these names and files can't be made there"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged(
    kind: str, rounds: int, seed: int, victim: Victim, project: tuple[Path, Path], table: dict[str, Figures]
) -> None:
    figures = table.setdefault(kind, Figures())
    whole, case = project
    for number in range(rounds):
        name = f"{kind}/{seed}/{number}"
        fresh(whole, case)
        arguments = KINDS[kind](random.Random(name), case)
        judge(figures, name, arguments, victim.run(arguments, case), case)
    assert not figures.findings, "\n".join(figures.findings)

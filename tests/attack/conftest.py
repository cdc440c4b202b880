"""The whole project that is damaged or worked on, and the table of what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attack import HEADER, Tally, Victim
from material import make

TABLE = pytest.StashKey[dict[str, Tally]]()


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> dict[str, Tally]:
    """Tallies by kind, which are printed at the end."""
    return request.config.stash.setdefault(TABLE, {})


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A whole project, and the folder that it was made in: its records name that one, and cases are put there."""
    place = tmp_path_factory.mktemp("attack")
    return make(place / "case").rename(place / "whole"), place / "case"


@pytest.fixture(scope="session")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    process = Victim(tmp_path_factory.mktemp("victim") / "log.txt")
    yield process
    process.close()


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--attack-rounds"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--attack-seed"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if table := config.stash.get(TABLE, {}):
        terminalreporter.write_line("\n" + HEADER)
        for kind, tally in table.items():
            terminalreporter.write_line(tally.row(kind))

"""What tests of every part use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autodial.cli import main

sys.path.append(str(Path(__file__).parent))  # for damaged, which pytest's importlib mode would not find


@pytest.fixture
def autodial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`autodial(arguments...)`, as a command line does it, gives exit status, standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["autodial", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run

"""What tests of every part use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autodial.cli import main


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


KILLED = """
import os, sys
from pathlib import Path
left = int(sys.argv[1])
for name in ("replace", "rename"):
    def moving(path, target, move=getattr(Path, name)):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return move(path, target)
    setattr(Path, name, moving)
sys.argv[1:] = sys.argv[2:]
from autodial.cli import main
main()
"""


@pytest.fixture
def killed() -> Callable[..., bool]:
    """`killed(moves, arguments...)` runs `autodial`, which ends as if killed when it is to rename one file more.

    Gives whether it came to that.
    """

    def run(moves: int, *arguments: str | Path) -> bool:
        command = [sys.executable, "-c", KILLED, str(moves), *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode in (0, 9), done.stderr
        return done.returncode == 9

    return run

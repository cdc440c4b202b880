"""Commands killed at random moments, up to three times, and run again: the result is that of a run left alone."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from attack import Tally, fresh
from material import QUICK

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, with torch loaded"),
]
TRAIN = ["train", "--solver", "solver.prototxt", "--set", "solver.snapshot=1", "--set", "solver.snapshot_prefix=new"]
PREDICT = ["predict", "m.onnx", "target", "-o", "new.csv", "--batch-size", "2", "--device", "cpu", "--resume"]
SELECT = ["select", "--solver", "solver.prototxt", "--try", "loss-target.loss_weight=0,0.2", "-o", "chosen"]
NET = ["--net", "net.prototxt", "--weights", "w.caffemodel"]


def newest(folder: Path) -> list[str]:
    """How `train` goes on: from its newest snapshot, if there is one."""
    states = sorted(folder.glob("new_iter_*.solverstate"), key=lambda path: int(path.stem.rpartition("_")[2]))
    return [*TRAIN, *(["--snapshot", states[-1].name] if states else []), *QUICK]


def always(*arguments: str) -> Callable[[Path], list[str]]:
    return lambda folder: list(arguments)


@dataclass
class Command:
    """How a command is run, at first and again, and what may differ between two runs."""

    arguments: Callable[[Path], list[str]]
    changing: tuple[str, ...] = ()


COMMANDS = {
    "train": Command(newest, ("new_run",)),
    "test -o": Command(always("test", *NET, "-o", "new.csv", *QUICK)),
    "recalibrate": Command(always("recalibrate", *NET, "-o", "new.caffemodel", *QUICK)),
    "export": Command(always("export", *NET, "-o", "new.onnx")),
    "export --caffe": Command(always("export", *NET, "--caffe", "new")),
    "upgrade": Command(always("upgrade", "w.h5", "new.caffemodel")),
    "dialize": Command(always("dialize", "plain.prototxt", "-o", "new.prototxt")),
    "init": Command(always("init", "new", "--arch", "digits", "--source", "source", "--target", "target")),
    "report": Command(always("report", "run", *QUICK)),
    "predict": Command(always(*PREDICT)),
    "predict --sort-into": Command(always(*PREDICT, "--sort-into", "sorted")),
    "predict --copy": Command(always(*PREDICT, "--sort-into", "sorted", "--copy")),
    "select": Command(always(*SELECT, *QUICK), ("job.json", "log.txt", "result.json", "/run/")),
}


def contents(folder: Path, changing: tuple[str, ...]) -> dict[str, str]:
    """A hash of every file, and where every link leads, but for those whose paths hold one of some words."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file() and not any(word in f"/{name}" for word in changing):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_killed(
    name: str,
    rounds: int,
    seed: int,
    project: tuple[Path, Path],
    table: dict[str, Tally],
    tmp_path: Path,
) -> None:
    import forked

    forked.preload()
    command, tally = COMMANDS[name], table.setdefault(f"killed: {name}", Tally())
    (whole, case), log = project, tmp_path / "log.txt"

    def left_alone() -> float:
        fresh(whole, case)
        started = time.monotonic()
        assert forked.end(forked.start(command.arguments(case), case, log)) == 0, log.read_text()
        return time.monotonic() - started

    left_alone()
    seconds = left_alone()
    expected = contents(case, command.changing)
    for number in range(max(1, rounds // 10) if name == "select" else rounds):
        rng = random.Random(f"{name}/{seed}/{number}")
        fresh(whole, case)
        tally.cases += 1
        status, kills, wanted = None, 0, rng.randrange(1, 4)
        while status is None and kills < wanted:
            status = forked.kill_after(forked.start(command.arguments(case), case, log), rng.uniform(0, seconds))
            kills += status is None
        if status is None:
            status = forked.end(forked.start(command.arguments(case), case, log))
        problem = "" if status == 0 else f"status {status}: {log.read_text().strip()[-300:]}"
        now = contents(case, command.changing)
        lost = [path for path in expected if now.get(path) != expected[path]]
        left = [path for path in now if path not in expected]
        problem = problem or (f"lost or changed: {lost[:3]}" if lost else f"left behind: {left[:3]}" if left else "")
        if problem:
            tally.others += 1
            tally.findings.append(f"{name}/{seed}/{number}, killed {kills} times: {problem}")
        else:
            tally.accepted += 1
    assert not tally.findings, "\n".join(tally.findings)

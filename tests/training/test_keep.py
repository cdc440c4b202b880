"""How many snapshots stay on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from autodial import proto
from autodial.errors import InputError
from autodial.training.solver import Solver

Run = Callable[..., tuple[int, str, str]]
TRAIN = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu", "--set", "solver.snapshot=2")
EVERY = ("solver.snapshot=2",)


def files() -> list[str]:
    return sorted(path.name for path in Path("snapshots").iterdir() if path.name.startswith("stripes_iter_"))


def pairs(*iterations: int, end: str = "") -> list[str]:
    return sorted(f"stripes_iter_{i}.{kind}{end}" for i in iterations for kind in ("caffemodel", "solverstate"))


def solver(keep: int | None, *overrides: str) -> Solver:
    return Solver.from_file("solver.prototxt", overrides=[*EVERY, *overrides], keep=keep)


@pytest.mark.parametrize(("words", "end"), [((), ""), (("--set", "solver.snapshot_format=HDF5"), ".h5")])
def test_the_newest_stay(autodial: Run, words: tuple[str, ...], end: str) -> None:
    assert autodial(*TRAIN, *words, "--keep", "2")[0] == 0
    assert files() == pairs(6, 8, end=end)
    (start,) = json.loads(Path("snapshots/stripes_run/run.json").read_text())["starts"]
    assert start["keep"] == 2 and start["command"].endswith("--keep 2")


def test_all_stay_unless_told_otherwise(autodial: Run) -> None:
    assert autodial(*TRAIN)[0] == 0
    assert files() == pairs(2, 4, 6, 8)


def test_the_one_resumed_from_stays_and_older_ones_count(autodial: Run) -> None:
    assert autodial(*TRAIN)[0] == 0
    Path("snapshots/stripes_iter_8.caffemodel").unlink()
    Path("snapshots/stripes_iter_8.solverstate").unlink()
    resume = (*TRAIN, "--snapshot", "snapshots/stripes_iter_4.solverstate")
    assert autodial(*resume, "--keep", "1")[0] == 0
    assert files() == pairs(4, 8)
    # now this one is resumed from, and the one before makes room
    resume = (*TRAIN, "--snapshot", "snapshots/stripes_iter_8.solverstate", "--set", "solver.max_iter=12")
    assert autodial(*resume, "--keep", "1")[0] == 0
    assert files() == pairs(8, 12)


def test_snapshots_that_a_training_went_back_from_do_not_count(project: Path) -> None:
    solver(None).solve()
    again = solver(2, "solver.max_iter=6")
    again.restore("snapshots/stripes_iter_2.solverstate")
    again.solve()
    assert files() == pairs(2, 4, 6, 8)  # 8 is newer than the last one written


def test_a_copy_that_is_resumed_from_needs_its_weights(project: Path) -> None:
    solver(None, "solver.max_iter=4").solve()
    shutil.copy("snapshots/stripes_iter_2.solverstate", "copy.solverstate")
    again = solver(1)
    again.restore("copy.solverstate")  # which names snapshots/stripes_iter_2.caffemodel
    again.solve()
    assert files() == pairs(2, 8)


def test_none_goes_before_the_next_one_is_complete(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = solver(1)
    training.step(2)

    def fail(*arguments: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(proto, "write_state", fail)
    training.step(2)
    training.close()
    assert "stripes_iter_4 can't be written: No space left on device" in caplog.text
    assert files() == pairs(2)


def test_other_files_stay(project: Path) -> None:
    others = [
        *("stripes_iter_1.caffemodel", "stripes_iter_02.caffemodel", "stripes_iter_02.solverstate"),
        *("stripes_iter_1_iter_1.caffemodel", "stripes_iter_1_iter_1.solverstate"),
        *("stripes_iter_3.caffemodel.bak", "stripes_iter_3.solverstate"),
        *("stripes2_iter_1.caffemodel", "stripes2_iter_1.solverstate"),
        *("my stripes_iter_1.caffemodel", "my stripes_iter_1.solverstate"),
    ]
    Path("snapshots").mkdir()
    for name in others:
        Path("snapshots", name).write_text(name)
    solver(1).solve()
    assert files() == sorted([*(name for name in others if name.startswith("stripes_iter_")), *pairs(8)])
    assert all(Path("snapshots", name).read_text() == name for name in others)


def test_what_can_not_be_deleted_is_pointed_out(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "stripes_iter_2.solverstate" and path.exists():
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert solver(1).solve()
    assert files() == pairs(2, 8)  # the others are deleted all the same
    assert "can't be deleted: snapshots/stripes_iter_2.solverstate: Permission denied" in caplog.text


def test_at_least_one_stays(autodial: Run, project: Path) -> None:
    with pytest.raises(InputError, match="`keep`, the number of snapshots, must be at least 1, and is 0"):
        solver(0)
    status, _, err = autodial(*TRAIN, "--keep", "0")
    assert status == 2 and "--keep" in err

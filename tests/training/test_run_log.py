"""The run's folder."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from autodial.errors import InputError, WorkError
from autodial.training.console import Lines, describe_output
from autodial.training.monitor import TestRow, TrainRow
from autodial.training.run_log import RunLog
from autodial.training.run_record import read_events, read_log


def train_row(iteration: int, loss: float = 0.5) -> TrainRow:
    return TrainRow(iteration, 0.1, loss, {"a": (loss,), "b": (1.0, math.inf)}, {"a": 1.0}, {"x/dial": 0.75}, None)


def test_rows_are_on_disk_at_once_and_valid_json(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "a/run", {"seed": 3}, iteration=0, resumed=False)
    log.displayed(train_row(0, math.nan))
    log.tested(TestRow(5, 0, {"accuracy": (0.25,)}, {}, {"fc": (3, 8)}, {"fc": (0.5, math.nan)}, {"fc": 0.5}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    lines = (tmp_path / "a/run/log.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    now = datetime.now(UTC)
    assert all(now - timedelta(minutes=1) < datetime.fromisoformat(row.pop("time")) <= now for row in rows)
    assert rows == [
        {"event": "start", "iteration": 0},
        {
            **{"event": "train", "iteration": 0, "lr": 0.1, "loss": None, "outputs": {"a": None, "b": [1.0, None]}},
            **{"loss_weights": {"a": 1.0}, "alphas": {"x/dial": 0.75}, "images_per_s": None, "diversity": {}},
        },
        {
            **{"event": "test", "iteration": 5, "net": 0, "outputs": {"accuracy": 0.25}, "loss_weights": {}},
            **{"not_finite": {"fc": [3, 8]}, "recalls": {"fc": [0.5, None]}, "balanced_accuracy": {"fc": 0.5}},
        },
    ]
    log.close()


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    log = RunLog(tmp_path, {}, iteration=0, resumed=False)
    log.displayed(train_row(10))
    log.tested(TestRow(10, 0, {"accuracy": (0.25,)}, {}))
    log.tested(TestRow(10, 1, {"accuracy": (0.5,)}, {}, balanced_accuracy={"fc": 0.75}))
    log.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    got = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert {tag: values for tag, values in got.items() if tag != "train/lr"} == {
        "train/loss": [(10, 0.5)],
        "train/a": [(10, 0.5)],
        "alpha/x/dial": [(10, 0.75)],
        "test/accuracy": [(10, 0.25)],
        "test1/accuracy": [(10, 0.5)],
        "test1/balanced_accuracy/fc": [(10, 0.75)],
    }
    assert got["train/lr"] == [(10, pytest.approx(0.1))]


def test_resumed_run_appends_and_reads_as_one(tmp_path: Path) -> None:
    log = RunLog(tmp_path, {"start": 1}, iteration=0, resumed=False)
    for i in range(5):
        log.displayed(train_row(i, loss=1.0))
    log.close()
    log = RunLog(tmp_path, {"start": 2}, iteration=3, resumed=True)
    for i in range(3, 6):
        log.displayed(train_row(i, loss=2.0))
    log.close()
    assert [(row["iteration"], row["loss"]) for row in read_log(tmp_path)] == [
        *((0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)),
    ]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2 + 5 + 3
    assert json.loads((tmp_path / "run.json").read_text()) == {"schema": 1, "starts": [{"start": 1}, {"start": 2}]}


def test_snapshots_are_logged_with_their_contents_hash(tmp_path: Path) -> None:
    model, state = tmp_path / "x_iter_0.caffemodel", tmp_path / "x_iter_0.solverstate"
    model.write_bytes(b"weights")
    log = RunLog(tmp_path / "run", {}, iteration=0, resumed=False)
    log.displayed(train_row(0))
    log.saved(model, state)
    log.close()
    RunLog(tmp_path / "run", {}, iteration=0, resumed=True).close()
    # the snapshot that the run went on from stands, the row that is logged again does not
    start, snapshot, again = read_events(tmp_path / "run")
    assert (start["event"], again["event"]) == ("start", "start")
    del snapshot["time"]
    assert snapshot == {
        **{"event": "snapshot", "iteration": 0, "model": str(model), "state": str(state)},
        "sha256": hashlib.sha256(b"weights").hexdigest(),
    }
    assert read_log(tmp_path / "run") == []


def test_a_line_that_was_never_finished_is_left_out_and_not_written_to(tmp_path: Path) -> None:
    log = RunLog(tmp_path, {}, iteration=0, resumed=False)
    log.displayed(train_row(0))
    log.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"event": "train", "iterat')
    assert [row["iteration"] for row in read_log(tmp_path)] == [0]
    log = RunLog(tmp_path, {}, iteration=1, resumed=True)
    log.displayed(train_row(1))
    log.close()
    assert [row["iteration"] for row in read_log(tmp_path)] == [0, 1]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    RunLog(tmp_path, {}, iteration=0, resumed=False).close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write("oops\n")
    with pytest.raises(InputError, match=r"log\.jsonl:2: the line is damaged"):
        read_log(tmp_path)


def test_a_new_run_does_not_overwrite_another(tmp_path: Path) -> None:
    RunLog(tmp_path, {}, iteration=0, resumed=False).close()
    with pytest.raises(InputError, match="already holds a run: name another folder with `folder`"):
        RunLog(tmp_path, {}, iteration=0, resumed=False)


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkError, match=r"the run's folder .*file/run can't be written"):
        RunLog(tmp_path / "file/run", {}, iteration=0, resumed=False)


def test_lines_are_like_caffes() -> None:
    lines: list[str] = []
    Lines(lines.append).displayed(
        TrainRow(100, 0.001, 0.75, {"loss-target": (2.0,)}, {"loss-target": 0.1}, {"a": 0.6, "b": 1.0}, 1234.5)
    )
    Lines(lines.append).tested(TestRow(100, 0, {"per-class": (0.25, 0.75), "accuracy": (0.5,)}, {}))
    assert lines == [
        "Iteration 100, lr = 0.001, loss = 0.75 (1234 images/s)",
        "    Train net output #0: loss-target = 2 (* 0.1 = 0.2 loss)",
        "    alphas are between 0.6000 (a) and 1.0000 (b)",
        "Iteration 100, testing net 0",
        "    Test net output #0: per-class = [0.25, 0.75]",
        "    Test net output #2: accuracy = 0.5",
    ]
    Lines(lines.append).displayed(TrainRow(200, 0.001, 0.75, {}, {}, {"a": 1.0, "b": 1.0}, None))
    assert lines[-1] == "    every alpha is 1.0000"
    assert describe_output("x", (1.0, 2.5), 0) == "x = [1, 2.5]"
    assert describe_output("x", tuple(map(float, range(10))), 0) == "x = [0, 1, 2, 3, 4, 5, 6, 7, ... 10 in all]"

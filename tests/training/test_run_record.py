"""run.json and log.jsonl that someone damaged: a sentence that names the file, the line and the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autodial.errors import InputError
from autodial.training.run_log import RunLog
from autodial.training.run_record import read_events, read_starts

START = {
    **{"command": "autodial train", "folder": "/nowhere", "started": "2024-05-01T10:00:00+00:00", "seed": 0},
    **{"variants": [], "settings": [], "device": "cpu", "versions": {}, "nets": ['name: "n"'], "solver": ""},
}
TRAIN = {
    **{"event": "train", "iteration": 3, "time": "2024-05-01T10:00:00+00:00", "lr": 0.1, "loss": None},
    **{"outputs": {"a": 1, "b": [1, None]}, "loss_weights": {"a": 1.0}, "alphas": {"x": 0.5}},
}
OTHERS = [None, True, 3, -1, 0.5, 1e308, 10**30, "", "\ud800", "a\0b", [], [[]], {}, {"a": {}}]
"""A value of every JSON type, and of kinds that a type alone would let through."""


def write(folder: Path, record: Any, rows: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def refused(read: Callable[[Path], object], folder: Path) -> str:
    with pytest.raises(InputError) as error:
        read(folder)
    return str(error.value)


def test_every_type_in_every_field(tmp_path: Path) -> None:
    """What the type of a field lets through is read, and what it does not is refused in a sentence with its name."""
    count = 0
    for read, whole, name in (
        *((read_starts, START, name) for name in START),
        *((read_events, TRAIN, name) for name in TRAIN),
    ):
        for other in OTHERS:
            changed = {**whole, name: other}
            folder = write(tmp_path / "run", {"schema": 1, "starts": [changed]}, [changed])
            try:
                read(folder)
            except InputError as error:
                assert name in str(error)
                count += 1
    assert count > 150


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (None, "the whole must be an object"),
        ([], "the whole must be an object"),
        ({"starts": [START]}, 'must be an object with "schema"'),
        ({"schema": 2, "starts": [{}]}, "has schema 2, and this AutoDIAL reads 1: use the version that wrote it"),
        ({"schema": 1, "starts": []}, '"starts" must be a list of one or more'),
        ({"schema": 1, "starts": {}}, '"starts" must be a list'),
        ({"schema": 1, "starts": [START, {**START, "nets": [[]]}]}, r'"starts[1].nets[0]" must be a string, not'),
        ({"schema": 1, "starts": [{**START, "started": "today"}]}, '"starts[0].started" must be a time such as'),
        ({"schema": 1, "starts": [{**START, "started": "2024-05-01"}]}, '"starts[0].started" must be a time such as'),
        ({"schema": 1, "starts": [{**START, "net_folders": ["a\0"]}]}, '"starts[0].net_folders[0]" must be a path'),
    ],
)  # fmt: skip
def test_damaged_records(tmp_path: Path, record: Any, problem: str) -> None:
    message = refused(read_starts, write(tmp_path / "run", record, []))
    assert "run.json " in message
    assert problem in message


def test_depth_and_numbers_that_json_lacks(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {}, [TRAIN])
    (folder / "run.json").write_text('{"schema":' * 100_000)
    assert "run.json is damaged, its lists and objects are nested too deeply" in refused(read_starts, folder)
    for line in ("[" * 100_000, json.dumps({**TRAIN, "loss": float("nan")}), "", "3", "[]", '{"event": []}', "\xff"):
        with (folder / "log.jsonl").open("wb") as file:
            file.write(json.dumps(TRAIN).encode() + b"\n" + line.encode("latin-1") + b"\n")
        assert "log.jsonl:2: the line is damaged" in refused(read_events, folder)


def test_iterations_that_go_back(tmp_path: Path) -> None:
    start = {"event": "start", "iteration": 2}
    folder = write(tmp_path / "run", {}, [TRAIN, {**TRAIN, "iteration": 2}])
    assert "log.jsonl:2: the line is damaged, its iteration 2 comes after 3 without a start" in refused(
        read_events, folder
    )
    folder = write(tmp_path / "run", {}, [TRAIN, start, {**TRAIN, "iteration": 2}])
    assert [row["iteration"] for row in read_events(folder)] == [2, 2]


def test_as_many_starts_as_lines_take_linear_time(tmp_path: Path) -> None:
    """A loop over all earlier rows at each start would take minutes."""
    rows = [{"event": "start", "iteration": 5}] * 40_000
    assert len(read_events(write(tmp_path / "run", {}, rows))) == 40_000


def test_a_run_goes_on_only_with_a_record_that_is_whole(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {"schema": 1, "starts": [3]}, [TRAIN])
    before = (folder / "run.json").read_bytes()
    with pytest.raises(InputError, match=r'run\.json is damaged, or of another program, "starts\[0\]" must be an obj'):
        RunLog(folder, START, iteration=3, resumed=True)
    assert (folder / "run.json").read_bytes() == before

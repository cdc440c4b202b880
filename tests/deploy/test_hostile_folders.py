"""Folders as real life has them: every row right, as each file alone shows it, however often the run is killed."""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodial.deploy import PredictOptions, predict_folder

pytest.importorskip("PIL.Image")
if sys.platform == "win32":
    pytest.skip("these names and files can't be made there", allow_module_level=True)

import hostile_files
from memory import RSS_UNIT

SMALL = (200, 90)
LARGE = (2000, 100)
"""Ordinary and hostile files."""


def make(folder: Path, ordinary: int, hostile: int) -> hostile_files.Expected:
    try:
        return hostile_files.ordinary(folder, ordinary) | hostile_files.hostile(folder / "hostile", hostile)
    except OSError as error:
        pytest.skip(f"this file system doesn't take such files: {error}")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        return list(csv.DictReader(file))


def check(model: Any, table: Path, expected: hostile_files.Expected) -> None:
    """Every file has its row, in order, with what the model makes of that file alone."""
    rows = read(table)
    assert [row["path"] for row in rows] == sorted(expected)
    assert {row["path"] for row in rows if row["status"] == "ok"} == {
        p for p, picture in expected.items() if picture is not None
    }
    for row in rows:
        picture = expected[row["path"]]
        if picture is None:
            assert row["status"] == "error" and row["error"] and not row["label_1"] and not row["probability_4"]
            continue
        probabilities = model.probabilities(picture)[0]
        order = np.argsort(-probabilities)
        assert [row[f"label_{rank}"] for rank in range(1, 5)] == [model.classes[i] for i in order]
        found = [float(row[f"probability_{rank}"]) for rank in range(1, 5)]
        np.testing.assert_allclose(found, probabilities[order], rtol=2e-4)
        assert row["error"] == ""


PROGRAM = """
import sys, time
from autodial.deploy import PredictOptions, predictor, predict_folder, writer
writer._SECONDS_BETWEEN_COMMITS = 0.01
run = predictor.Predictor.run
def slow(*arguments):
    time.sleep(float(sys.argv[4]))
    return run(*arguments)
predictor.Predictor.run = slow
model, folder, output = sys.argv[1:4]
print("ready", flush=True)
predict_folder(model, [folder], output, PredictOptions(top_k=4, batch_size=8, workers=2, resume=True))
"""


def kill_and_resume(model: Any, folder: Path, output: Path, kills: int, pause: float, seed: int) -> int:
    """Start a run, kill it at a random moment and go on, `kills` times, then to the end; the rows that kills left."""
    rng = random.Random(seed)
    command = [sys.executable, "-c", PROGRAM, str(model.path), str(folder), str(output), str(pause)]
    partial = output.with_name(f"{output.name}.partial")
    killed = 0
    while killed < kills:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        started = time.monotonic()
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() - started < 60:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        assert not output.exists(), "the run ended before it could be killed: make it slower"
        killed += 1
    left = partial.read_bytes().count(b"\n")
    subprocess.run([*command[:-1], "0"], check=True)
    return left


@pytest.mark.parametrize(
    ("files", "kills", "pause"),
    [(SMALL, 3, 0.05), pytest.param(LARGE, 20, 0.05, marks=pytest.mark.slow)],
    ids=["small", "large"],
)
def test_every_row_is_right_however_often_the_run_is_killed(
    model: Any, tmp_path: Path, files: tuple[int, int], kills: int, pause: float
) -> None:
    expected = make(tmp_path / "images", *files)
    assert sum(picture is None for picture in expected.values()) >= files[1] / 5
    whole, broken = tmp_path / "whole.csv", tmp_path / "broken.csv"
    summary = predict_folder(model.path, [tmp_path / "images"], whole, PredictOptions(top_k=4, batch_size=8))
    check(model, whole, expected)
    assert summary.errors == sum(picture is None for picture in expected.values())
    assert kill_and_resume(model, tmp_path / "images", broken, kills, pause, seed=files[0]) > 0
    assert broken.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("broken.csv.*"))


def test_shards_are_the_whole(model: Any, tmp_path: Path) -> None:
    expected = make(tmp_path / "images", 60, 45)
    for i in (1, 2, 3):
        predict_folder(model.path, [tmp_path / "images"], tmp_path / "out.csv", PredictOptions(top_k=4, shard=(i, 3)))
    parts = [read(tmp_path / f"out-{i}-of-3.csv") for i in (1, 2, 3)]
    assert {len(part) for part in parts} <= {len(expected) // 3, len(expected) // 3 + 1}
    merged = [parts[i % 3][i // 3]["path"] for i in range(len(expected))]
    assert merged == sorted(expected)
    assert not (tmp_path / "out.csv").exists()


def test_files_that_vanish_are_rows(model: Any, tmp_path: Path) -> None:
    """Every third file goes while the run is under way: it is read or it is an error, and no other's result."""
    expected = dict(sorted(make(tmp_path / "images", 120, 0).items()))
    gone = list(expected)[60::3]

    def remove(done: int) -> None:
        while gone:
            Path(gone.pop()).unlink()

    removed = set(gone)
    predict_folder(
        model.path, [tmp_path / "images"], tmp_path / "o.csv", PredictOptions(top_k=4, batch_size=4), progress=remove
    )
    rows = read(tmp_path / "o.csv")
    failed = {row["path"] for row in rows if row["status"] == "error"}
    assert failed and failed <= removed
    assert all("No such file" in row["error"] for row in rows if row["path"] in failed)
    # a folder's names are read before its files are, so that each keeps its row
    left = {path: None if path in failed else picture for path, picture in expected.items()}
    check(model, tmp_path / "o.csv", {path: left[path] for path in (row["path"] for row in rows)})


def test_a_file_that_cannot_be_opened_is_a_row(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make(tmp_path / "images", 12, 0)
    closed = sorted(expected)[3]
    os_open = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        if path == closed:
            raise PermissionError(13, "Permission denied", path)
        return os_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)  # chmod would not keep root out
    predict_folder(model.path, [tmp_path / "images"], tmp_path / "o.csv", PredictOptions(top_k=4))
    check(model, tmp_path / "o.csv", expected | {closed: None})
    assert "Permission denied" in read(tmp_path / "o.csv")[3]["error"]


def test_memory_is_flat_in_the_number_of_files(model: Any, tmp_path: Path) -> None:
    """Twenty times as many rows take no more memory than one batch does."""
    program = """
import resource, sys
from autodial.deploy import PredictOptions, predict_folder
model, folder, few, many = sys.argv[1:]
predict_folder(model, [few], "few.csv", PredictOptions(batch_size=32, workers=2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
predict_folder(model, [many], "many.csv", PredictOptions(batch_size=32, workers=2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    expected = make(tmp_path / "images", 60, 0)
    few, many = tmp_path / "few.txt", tmp_path / "many.txt"
    few.write_text("".join(f"{path}\n" for path in list(expected) * 10))
    many.write_text("".join(f"{path}\n" for path in list(expected) * 200))
    command = [sys.executable, "-c", program, str(model.path), str(tmp_path), str(few), str(many)]
    grown = int(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert grown * RSS_UNIT < 8 * 2**20
    assert len(read(tmp_path / "many.csv")) == 12_000

"""Damaged images that can be decoded get labels and a status of their own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaged import JPEG, damaged_jpeg, encoded, flipped, said_of

from autodial.deploy import PredictOptions, predict_folder
from autodial.errors import WorkError

pytestmark = pytest.mark.skipif(not hasattr(os, "pread"), reason="Windows has no os.pread")
Capture = pytest.CaptureFixture[str]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of 40 images: every fifth is damaged, 3 is no image, 4 lacks its end marker alone."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.jpg").write_bytes(damaged_jpeg(i) if i % 5 == 0 else encoded(".jpg", JPEG, i))
    (folder / "03.jpg").write_bytes(b"no image")
    (folder / "04.jpg").write_bytes(encoded(".jpg", JPEG, 4)[:-2])
    return folder


def statuses(i: int) -> str:
    return "error" if i == 3 else "damaged" if i % 5 == 0 or i == 4 else "ok"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_damaged_images_are_labelled_and_say_so(model: Any, mixed: Path, tmp_path: Path, capfd: Capture) -> None:
    words = {path.name: said_of(path, capfd) for path in mixed.iterdir() if int(path.stem) % 5 == 0}
    command = [sys.executable, "-m", "autodial", "predict", model.path, mixed, "-o", tmp_path / "out.csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "9 damaged" in done.stderr and "1 without labels" in done.stderr
    assert "Corrupt" not in done.stderr
    table = rows(tmp_path / "out.csv")
    assert [row["status"] for row in table] == [statuses(i) for i in range(40)]
    images = sorted(mixed.iterdir())
    decodable = [i for i in range(40) if i != 3]
    assert [table[i]["label_1"] for i in decodable] == model.labels(*(images[i] for i in decodable))
    for i in range(40):
        if i % 5 == 0:
            assert table[i]["error"] == words[images[i].name]
    assert table[4]["error"] == "the end marker of the JPEG is missing"


def test_every_format_of_the_table_has_the_status(autodial: Command, model: Any, mixed: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    for suffix in (".csv", ".jsonl", ".parquet"):
        assert autodial("predict", model.path, mixed, "-o", tmp_path / f"o{suffix}", "--logits")[0] == 0
    expected = rows(tmp_path / "o.csv")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text("utf-8").splitlines()]
    parquet = pyarrow.parquet.read_table(tmp_path / "o.parquet").to_pylist()
    for other in (lines, parquet):
        for column in ("path", "status", "label_1", "error"):
            assert [row[column] or "" for row in other] == [row[column] for row in expected]
        assert [row["logits"] is None for row in other] == [row["status"] == "error" for row in expected]


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_table_does_not_depend_on_threads_nor_on_a_resume(
    autodial: Command, model: Any, mixed: Path, tmp_path: Path, workers: int
) -> None:
    def predict(*more: str) -> int:
        options = ["--batch-size", "6", "--workers", str(workers), *more]
        return autodial("predict", model.path, mixed, "-o", tmp_path / "o.csv", *options)[0]

    assert predict() == 0
    whole = (tmp_path / "o.csv").read_bytes()
    assert (
        autodial("predict", model.path, mixed, "-o", tmp_path / "1.csv", "--batch-size", "6", "--workers", "1")[0] == 0
    )
    assert (tmp_path / "1.csv").read_bytes() == whole


def test_resumed_rows_count_as_damaged(
    autodial: Command, model: Any, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = mixed / "39.jpg"
    content = last.read_bytes()
    last.write_bytes(b"")
    arguments = ["predict", model.path, mixed, "-o", tmp_path / "o.csv", "--batch-size", "6", "--max-failures", "1"]
    assert autodial(*arguments)[0] == 1
    last.write_bytes(content)
    status, _, err = autodial(*arguments, "--resume")
    assert status == 0 and "9 damaged" in err and "more rows from the interrupted run" in err
    assert [row["status"] for row in rows(tmp_path / "o.csv")] == [statuses(i) for i in range(40)]


def test_without_labels_damage_is_a_failure(autodial: Command, model: Any, mixed: Path, tmp_path: Path) -> None:
    arguments = ["predict", model.path, mixed, "-o", tmp_path / "o.csv", "--on-damage", "skip"]
    status, _, err = autodial(*arguments)
    assert status == 0 and "9 damaged" in err and "10 without labels" in err
    table = rows(tmp_path / "o.csv")
    assert [row["status"] for row in table] == [statuses(i) for i in range(40)]
    assert all((row["label_1"] == "") == (row["status"] != "ok") for row in table)
    assert all(row["error"] for row in table if row["status"] == "damaged")

    status, _, err = autodial(*arguments, "--max-failures", "9")
    assert status == 1 and "more than 9 failures" in err
    (mixed / "03.jpg").unlink()
    for path in (tmp_path).glob("o.csv.partial*"):
        path.unlink()
    status, _, err = autodial(*arguments, "--on-error", "fail")
    assert status == 1 and "00.jpg" in err and "Corrupt JPEG data" in err
    status, _, err = autodial("predict", model.path, mixed, "-o", tmp_path / "l.csv", "--on-error", "fail")
    assert status == 0  # damaged images with labels are no failures


def test_the_library_redirects_nothing(model: Any, mixed: Path, tmp_path: Path, capfd: Capture) -> None:
    summary = predict_folder(model.path, [mixed], tmp_path / "o.csv")
    assert (summary.statuses["damaged"], summary.errors) == (
        1,
        1,
    )  # the missing end marker is seen without the decoder's words
    assert "Corrupt JPEG data" in capfd.readouterr().err
    with pytest.raises(WorkError, match="end marker"):
        predict_folder(
            model.path, [mixed / "04.jpg"], tmp_path / "p.csv", PredictOptions(label_damaged=False, max_failures=0)
        )


def test_a_damaged_image_is_sorted_like_any_other(autodial: Command, model: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(damaged_jpeg())
    whole = encoded(".png")
    (tmp_path / "in" / "b.png").write_bytes(flipped(whole, len(whole) // 2))
    arguments = ["predict", model.path, tmp_path / "in", "-o", tmp_path / "o.csv", "--sort-into", tmp_path / "sorted"]
    assert autodial(*arguments)[0] == 0
    assert [path.name for path in (tmp_path / "sorted").rglob("*.*g")] == ["a.jpg"]

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodial.deploy import PredictOptions, predict_folder
from autodial.deploy.rows import FORMATS, Columns, Csv, Format, JsonLines, TableRow, score
from autodial.errors import WorkError

PLAIN = Columns(("cat", "dog, big"), top_k=2)
FULL = Columns(("cat", "dog, big"), top_k=1, entropy=True, logits=True)
NAMES = ['a,"b".png', "line\nfeed.png", "carriage\rreturn.png", " blanks .png", "caf\udce9.png", "猫.png", "tab\t.png"]


def test_csv_in_full() -> None:
    text = Csv(PLAIN).header() + Csv(PLAIN).encode(
        [TableRow('a,"b".png', None, [1, 0], [0.987654321, 1e-9]), TableRow("c.png", "no, really")]
    )
    assert text.decode().split("\n") == [
        "path,status,label_1,probability_1,label_2,probability_2,error",
        '"a,""b"".png",ok,"dog, big",0.987654,cat,1e-09,',
        'c.png,error,,,,,"no, really"',
        "",
    ]
    text = Csv(FULL).header() + Csv(FULL).encode(
        [TableRow("a", None, [0], [1.0], 0.25, [0.1234567891, -2]), TableRow("b", "no")]
    )
    assert text.decode().split("\n") == [
        'path,status,label_1,probability_1,entropy,logit_cat,"logit_dog, big",error',
        "a,ok,cat,1,0.25,0.123456789,-2,",
        "b,error,,,,,,no",
        "",
    ]


def test_every_name_comes_back_from_csv() -> None:
    data = Csv(PLAIN).encode([TableRow(name, "x") for name in NAMES])
    for options in ({}, {"newline": "\n"}):
        file = io.TextIOWrapper(io.BytesIO(data), "utf-8", "surrogateescape", **({"newline": ""} | options))
        assert [row[0] for row in csv.reader(file)] == NAMES
    assert os.fsencode("caf\udce9.png") in data


def test_every_name_comes_back_from_json() -> None:
    data = JsonLines(PLAIN).encode([TableRow(name, "x") for name in NAMES])
    rows = [json.loads(line) for line in data.decode("utf-8").splitlines()]
    assert [row["path"] for row in rows] == NAMES
    assert rows[0] == {
        "path": NAMES[0],
        "status": "error",
        "label_1": None,
        "probability_1": None,
        "label_2": None,
        "probability_2": None,
        "error": "x",
    }
    (row,) = map(json.loads, JsonLines(FULL).encode([TableRow("a", None, [1], [0.5], 0.25, [1, -2.5])]).splitlines())
    assert row == {
        "path": "a",
        "status": "ok",
        "label_1": "dog, big",
        "probability_1": 0.5,
        "entropy": 0.25,
        "logits": [1, -2.5],
        "error": None,
    }


def test_the_best_classes_and_ties() -> None:
    columns = Columns(("a", "b", "c", "d"), top_k=3, entropy=True, logits=True)
    logits = np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])
    probabilities = np.float32([[0.25, 0.25, 0, 0.5], [0, 1, 0, 0]])
    row, certain = score(["x", "y"], logits, probabilities, columns)
    assert (row.path, row.error, row.classes, row.probabilities) == ("x", None, [3, 0, 1], [0.5, 0.25, 0.25])
    assert (row.logits, certain.logits) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert row.entropy == pytest.approx(1.5 * math.log(2))
    assert math.copysign(1, certain.entropy or 0) == 1 and certain.entropy == 0
    assert (certain.path, certain.classes) == ("y", [1, 0, 2])
    (even,) = score(["x"], logits[:1], np.float32([[0.25] * 4]), Columns(columns.classes))
    assert (even.classes, even.probabilities, even.entropy, even.logits) == ([0], [0.25], None, ())
    assert score([], logits[:0], probabilities[:0], columns) == []


def test_what_is_no_number_is_an_error() -> None:
    probabilities = np.float32([[0, 1], [0, np.nan], [1, 0]])
    rows = score(["x", "y", "z"], probabilities, probabilities, PLAIN)
    assert rows[1] == TableRow("y", "the model gives no finite probabilities for it")
    assert [row.classes for row in rows] == [[1, 0], (), [0, 1]]


def test_parquet_holds_the_same_as_csv(model: Any, photos: Path, tmp_path: Path, monkeypatch: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("autodial.deploy.rows.ROW_GROUP", 5)
    (photos / "b.JPG").write_bytes(b"broken")
    for name in ("out.csv", "out.parquet"):
        predict_folder(
            model.path, [photos], tmp_path / name, PredictOptions(top_k=2, entropy=True, logits=True, batch_size=4)
        )
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [5, 5, 2]
    table = parquet.read_table(tmp_path / "out.parquet")
    assert {str(field.type) for field in table.schema} == {"string", "float", "list<element: float>"}
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as text:
        for ours, row in zip(table.to_pylist(), csv.DictReader(text), strict=True):
            for column in ("path", "status", "label_1", "label_2", "error"):
                assert (ours[column] or "") == row[column]
            numbers = [ours[column] for column in ("probability_1", "probability_2", "entropy")] + (
                ours["logits"] or []
            )
            columns = ["probability_1", "probability_2", "entropy", *(f"logit_{name}" for name in model.classes)]
            if row["status"] == "ok":
                np.testing.assert_allclose(numbers, [float(row[column]) for column in columns], rtol=1e-5)
            else:
                assert numbers == [None] * 3 and {row[column] for column in columns} == {""}


def test_a_name_in_another_encoding_is_escaped_in_parquet(model: Any, photos: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "list.txt").write_bytes(b"nowhere/caf\xe9.png\n")
    predict_folder(model.path, [photos, tmp_path / "list.txt"], tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet")["path"].to_pylist()[-1] == r"nowhere/caf\xe9.png"


def test_parquet_without_pyarrow(model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WorkError, match=r"needs pyarrow, which is not installed: pip install \"\.\[parquet\]\""):
        predict_folder(model.path, [photos], tmp_path / "out.parquet")
    predict_folder(model.path, [photos], tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "photos"]


class Paths(Format):
    """A form of one's own: a path per line, in which nothing is quoted, and their number at the end."""

    def header(self) -> bytes:
        return b""

    def encode(self, rows: Sequence[TableRow]) -> bytes:
        return "".join(f"{row.path}\n" for row in rows).encode()

    def finish(self, rows: Path, table: Path) -> None:
        lines = rows.read_bytes()
        rows.write_bytes(lines + b"%d" % lines.count(b"\n"))
        super().finish(rows, table)


def test_one_class_is_all_that_a_form_takes(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, ".paths", Paths)
    summary = predict_folder(model.path, [photos], tmp_path / "out.paths")
    *paths, count = (tmp_path / "out.paths").read_text().splitlines()
    assert int(count) == len(paths) == summary.images > 1
    assert all(photos in Path(path).parents for path in paths)
    assert [path.name for path in tmp_path.glob("out*")] == ["out.paths"]

"""The programs of examples/ for clusters, each against `predict_folder`; run with -m slow where their packages are."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from exported_model import CLASSES, SIZE, metadata, save_model

from autodial.deploy import predict_folder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package"), [("ray", "ray.data"), ("spark", "pyspark"), ("daft", "daft"), ("dask", "dask.dataframe")]
)
def test_the_labels_are_those_of_one_machine(name: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    parquet = pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    model = save_model(tmp_path / "model.onnx", rng.normal(size=(SIZE[0] * SIZE[1] * 3, len(CLASSES))), metadata())
    images = tmp_path / "images"
    images.mkdir()
    for i in range(40):
        cv2.imwrite(str(images / f"{i:02}.png"), rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    (images / "99.png").write_bytes(b"no image")
    table = predict_folder(model, [images], tmp_path / "table.csv").table
    with table.open(encoding="utf-8", newline="") as file:
        expected = {Path(row["path"]).name: (row["status"], row["label_1"] or None) for row in csv.DictReader(file)}
    command = [sys.executable, EXAMPLES / f"label_with_{name}.py", model, images, tmp_path / "labels"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, cwd=tmp_path, capture_output=True, timeout=600)
    rows = parquet.read_table(tmp_path / "labels").to_pylist()
    assert {Path(row["path"]).name: (row["status"], row["label_1"]) for row in rows} == expected
    assert len(rows) == len(expected) == 41

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from autodial.deploy import BatchLabeller
from autodial.errors import InputError


@pytest.fixture
def files(photos: Path) -> list[Path]:
    return sorted(path for path in photos.rglob("*") if path.is_file())


@pytest.mark.parametrize("column", ["path", "bytes"])
@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_columns_of_labels(model: Any, files: list[Path], column: str, batch_size: int) -> None:
    labeller = BatchLabeller(model.path, threads=2, top_k=2, batch_size=batch_size)
    images = [str(path) if column == "path" else path.read_bytes() for path in files]
    found = labeller({"other": list(range(len(files))), column: images})
    assert tuple(found) == labeller.column_names
    assert tuple(found) == ("status", "label_1", "probability_1", "label_2", "probability_2", "error")
    assert found["status"].tolist() == ["ok"] * 12 and found["error"].tolist() == [None] * 12
    expected = model.probabilities(*files)
    order = np.argsort(-expected, axis=1)
    for k in (0, 1):
        assert found[f"label_{k + 1}"].tolist() == [model.classes[i] for i in order[:, k]]
        assert found[f"probability_{k + 1}"].dtype == np.float32
        np.testing.assert_allclose(
            found[f"probability_{k + 1}"], np.take_along_axis(expected, order, 1)[:, k], atol=1e-5
        )


def test_bad_rows_are_rows(model: Any, files: list[Path]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    cut = cv2.imencode(".jpg", pixels)[1].tobytes()[:-2]
    good = files[0].read_bytes()
    found = BatchLabeller(model.path)({"bytes": [good, b"no image", None, cut, float("nan"), good]})
    assert found["status"].tolist() == ["ok", "error", "error", "damaged", "error", "ok"]
    assert [label is None for label in found["label_1"]] == [False, True, True, False, True, False]
    assert np.isnan(found["probability_1"]).tolist() == [False, True, True, False, True, False]
    assert "not an image" in found["error"][1] and "no image in this row" in found["error"][2]
    assert "end marker" in found["error"][3] and found["error"][5] is None
    found = BatchLabeller(model.path)({"path": ["nowhere.png", str(files[0])]})
    assert found["status"].tolist() == ["error", "ok"] and "nowhere.png" in found["error"][0]


def test_an_empty_batch(model: Any) -> None:
    found = BatchLabeller(model.path)({"path": []})
    assert all(len(column) == 0 for column in found.values()) and len(found) == 4


def test_it_pickles_after_its_first_batch_too(model: Any, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.path.parent)
    labeller = BatchLabeller(model.path.name, threads=2)
    batch = {"path": list(map(str, files))}
    expected = labeller(batch)
    there = pickle.loads(pickle.dumps(labeller))
    monkeypatch.chdir("/")
    assert there(batch)["label_1"].tolist() == expected["label_1"].tolist()


def test_its_threads_are_those_that_it_is_given(model: Any, files: list[Path]) -> None:
    before = set(threading.enumerate())  # other tests' labellers may not have ended theirs yet

    def decoding() -> int:
        return sum(thread.name.startswith("decode") for thread in threading.enumerate() if thread not in before)

    labeller = BatchLabeller(model.path, threads=3)
    labeller({"path": list(map(str, files * 10))})
    assert 1 <= decoding() <= 3
    labeller.close()
    assert decoding() == 0
    assert labeller({"path": [str(files[0])]})["status"].tolist() == ["ok"]


def test_what_can_not_be_used_is_said(model: Any) -> None:
    for wrong in ({"threads": 0}, {"top_k": 0}, {"batch_size": 0}):
        with pytest.raises(InputError, match="is 0: give 1 or more"):
            BatchLabeller(model.path, **wrong)
    with pytest.raises(InputError, match=r"needs a column bytes .* or path .*\['image'\]"):
        BatchLabeller(model.path)({"image": [b""]})
    with pytest.raises(InputError, match=r"`top_k` is 9, and .* has 4 classes"):
        BatchLabeller(model.path, top_k=9)({"path": []})

"""`autodial predict --drift` from a model and images to its summary."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from adapted_model import adapted, with_reference, write_images

from autodial.deploy import PredictOptions, predict_folder, writer
from autodial.errors import InputError, WorkError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def target(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with what `autodial export` keeps of 400 images."""
    return adapted(model.path, tmp_path_factory.mktemp("target"))


def summary_of(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def test_images_like_the_lists_pass_and_others_are_warned_of(autodial: Run, target: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "same", 200, seed=1)
    write_images(tmp_path / "dark", 200, seed=2, level=60)
    write_images(tmp_path / "few", 12, seed=3)
    said = {}
    for folder in ("same", "dark", "few"):
        options = ["-o", tmp_path / f"{folder}.csv", "--drift", tmp_path / f"{folder}.json"]
        status, _, said[folder] = autodial("predict", target, tmp_path / folder, *options)
        assert status == 0
    assert "Drift: the images look like the target's that the model was trained on (400 images of train" in said["same"]
    assert "Warning: the images don't look like the target's" in said["dark"]
    assert "  brightness: " in said["dark"] and "would be expected" in said["dark"]
    assert "Drift: nothing beyond chance" in said["few"]
    assert "12 images would show an extreme difference only" in said["few"]

    verdicts = {folder: summary_of(tmp_path / f"{folder}.json")["verdict"] for folder in said}
    assert verdicts == {"same": "alike", "dark": "shifted", "few": "too few images"}
    summary = summary_of(tmp_path / "dark.json")
    assert (summary["images"], summary["errors"]) == (200, 0)
    assert summary["reference"] == {"domain": "target", "list": "train.txt", "listed": 400, "images": 400}
    brightness = next(statistic for statistic in summary["figures"] if statistic["name"] == "brightness")
    grey = [cv2.imread(str(path), cv2.IMREAD_COLOR) for path in sorted((tmp_path / "dark").iterdir())]
    levels = np.array([cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).mean() for image in grey])
    assert brightness["shifted"] and brightness["mean"] == pytest.approx(levels.mean())
    assert brightness["below"] == pytest.approx((levels < brightness["edge"]).mean())
    assert sum(row["images"] for row in summary["classes"]["shares"]) == pytest.approx(1)

    for folder, warned in (("same", False), ("dark", True)):  # a program gets the verdict, and people the warning
        options = ["-o", tmp_path / "x.csv", "--drift", tmp_path / "x.json", "--json", "--quiet"]
        status, out, err = autodial("predict", target, tmp_path / folder, *options)
        assert status == 0 and json.loads(out)["drift"]["verdict"] == verdicts[folder]
        assert summary_of(tmp_path / "x.json").items() >= json.loads(out)["drift"].items()
        assert err.startswith("Warning: the images don't look like the target's") if warned else err == ""


def test_what_has_no_labels_is_not_counted(target: Path, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "images", 60, seed=4)
    whole = predict_folder(
        target, [tmp_path / "images"], tmp_path / "a.csv", PredictOptions(drift=tmp_path / "a.json")
    ).drift
    for path in paths[::7]:
        shutil.copy(path, path.with_name(f"{path.stem}x.png"))
        path.with_name(f"{path.stem}x.png").write_bytes(path.read_bytes()[:60])
    summary = predict_folder(
        target, [tmp_path / "images"], tmp_path / "b.csv", PredictOptions(batch_size=5, drift=tmp_path / "b.json")
    )
    assert (summary.images, summary.errors) == (69, 9)
    assert whole is not None and summary.drift is not None
    assert [statistic.distance for statistic in summary.drift.statistics] == [
        statistic.distance for statistic in whole.statistics
    ]
    one, other = (summary_of(tmp_path / f"{name}.json") for name in "ab")
    assert (one.pop("errors"), other.pop("errors")) == (0, 9)
    for record in (one, other):
        for statistic in record["figures"]:
            del statistic["mean"]  # the same sum, in other batches
    assert one == other

    (tmp_path / "none.png").touch()
    nothing = predict_folder(
        target, [tmp_path / "none.png"], tmp_path / "c.csv", PredictOptions(drift=tmp_path / "c.json")
    ).drift
    assert nothing is not None and (nothing.images, nothing.verdict.value) == (0, "too few images")
    assert summary_of(tmp_path / "c.json")["classes"] is None


@pytest.mark.parametrize("commits", [0, 1e9])
@pytest.mark.parametrize("stop_at", [6, 30, 57, 60])
def test_a_resumed_run_counts_what_an_uninterrupted_one_does(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int, commits: float
) -> None:
    monkeypatch.setattr(writer, "SECONDS_BETWEEN_COMMITS", commits)
    write_images(tmp_path / "images", 60, seed=5)
    (tmp_path / "images" / "0004.png").write_bytes(b"broken")
    options: dict[str, Any] = {"batch_size": 3, "workers": 2}
    predict_folder(
        target, [tmp_path / "images"], tmp_path / "whole.csv", PredictOptions(drift=tmp_path / "whole.json", **options)
    )

    def stop(done: int) -> None:
        if done >= stop_at:
            raise WorkError("Stopped.")

    out, drift = tmp_path / "out.csv", tmp_path / "drift.json"
    with pytest.raises(WorkError, match="Stopped"):
        predict_folder(target, [tmp_path / "images"], out, PredictOptions(drift=drift, **options), progress=stop)
    assert not drift.exists()
    with pytest.raises(InputError, match="`drift` was set and is not set"):
        predict_folder(target, [tmp_path / "images"], out, PredictOptions(resume=True, **options))
    summary = predict_folder(target, [tmp_path / "images"], out, PredictOptions(drift=drift, resume=True, **options))
    assert summary.resumed == stop_at
    assert drift.read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_summary_that_can_not_be_written_leaves_the_rows(target: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 4, seed=6)
    (tmp_path / "drift.json.tmp").mkdir()
    out, drift = tmp_path / "out.csv", tmp_path / "drift.json"
    with pytest.raises(WorkError, match=r"drift\.json: can't write: .* `resume` goes on from there"):
        predict_folder(target, [tmp_path / "images"], out, PredictOptions(drift=drift))
    (tmp_path / "drift.json.tmp").rmdir()
    assert predict_folder(target, [tmp_path / "images"], out, PredictOptions(drift=drift, resume=True)).resumed == 4
    assert out.exists() and drift.exists()


def test_shards_write_summaries_of_their_own(target: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 50, seed=7)
    shares: Counter[str] = Counter()
    for index in (1, 2, 3):
        out, drift = tmp_path / "out.csv", tmp_path / "drift.json"
        predict_folder(target, [tmp_path / "images"], out, PredictOptions(shard=(index, 3), drift=drift))
        part = summary_of(tmp_path / f"drift-{index}-of-3.json")
        assert part["images"] == (17, 17, 16)[index - 1]
        for row in part["classes"]["shares"]:
            shares[row["name"]] += round(row["images"] * part["images"])
    whole = predict_folder(
        target, [tmp_path / "images"], tmp_path / "out.csv", PredictOptions(drift=tmp_path / "drift.json")
    )
    assert shares - Counter() == Counter(whole.counts)


def test_the_table_may_go_to_standard_output(autodial: Run, target: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 3, seed=8)
    status, out, _ = autodial("predict", target, tmp_path / "images", "-o", "-", "--drift", tmp_path / "drift.json")
    assert status == 0 and len(out.splitlines()) == 4
    assert summary_of(tmp_path / "drift.json")["images"] == 3


def test_refused_before_anything_is_written(
    autodial: Run, model: Any, target: Path, photos: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    for used, drift, message in [
        (model.path, "drift.json", "keeps nothing of the images that it was trained on"),
        (
            with_reference(model.path, target.with_name("bad.onnx"), {}),
            "drift.json",
            "can't be read (the whole must be an object with",
        ),
        (target, "drift.csv", "name a file that ends in .json"),
        (target, "nowhere/drift.json", "no folder"),
        (target, "out.csv.partial.json", "what an interrupted run leaves has this name"),
        (target, target, "the same command reads this file"),
    ]:
        status, out, err = autodial("predict", used, photos, "-o", tmp_path / "out.csv", "--drift", tmp_path / drift)
        assert (status, out) == (2, "") and message in err
        assert sorted(tmp_path.iterdir()) == before
    # and without --drift such a file predicts
    assert autodial("predict", target.with_name("bad.onnx"), photos, "-o", tmp_path / "out.csv")[0] == 0

"""autodial.caffe against everything that the original's pycaffe computed, as the judges in tests/records compare it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import check_images
import check_layers
import check_solvers
import numpy as np
import pytest
from judging import difference, judge


@pytest.mark.parametrize("record", check_layers.records(), ids=lambda path: path.stem)
def test_layers_and_nets(record: Path) -> None:
    assert check_layers.check(record) == []


@pytest.mark.parametrize("case", check_images.load().values(), ids=check_images.load())
def test_images(case: dict[str, Any]) -> None:
    assert check_images.check(case) == []


@pytest.mark.parametrize(("run", "start"), check_solvers.starts())
def test_training_runs(run: str, start: int) -> None:
    assert check_solvers.check(check_solvers.FOLDER / run, start) == []


# --- the judges themselves


def test_a_wrong_gradient_is_found(tmp_path: Path) -> None:
    record = dict(np.load(check_layers.FOLDER / "conv_3x3.npz"))
    record["dparam/convolution/1"][2] += 0.01
    np.savez(tmp_path / "conv.npz", **record)
    (found,) = check_layers.check(tmp_path / "conv.npz")
    assert found.startswith("dparam/convolution/1[2]: ") and found.endswith(" (1 of 4 differ)")


def test_a_record_without_results_is_none(tmp_path: Path) -> None:
    record = np.load(check_layers.FOLDER / "relu.npz")
    np.savez(tmp_path / "relu.npz", **{key: record[key] for key in record.files if not key.startswith(("out", "din"))})
    assert check_layers.check(tmp_path / "relu.npz") == ["the record holds nothing to compare"]


def test_a_wrong_label_and_a_wrong_pixel_are_found() -> None:
    case = next(iter(check_images.load().values()))
    data = case["data"].copy()
    data[2, 0, 3, 4] += 0.5
    assert check_images.differences(case, data, case["label"]) == ["image 2 is off by 0.5"]
    (found,) = check_images.differences(case, case["data"], 1 - case["label"])
    assert found.startswith("labels [1.0, 0.0, ")
    assert check_images.differences(case, data[:3], case["label"])[0].startswith("shape (3, ")


def test_a_run_that_goes_astray_is_found() -> None:
    trace = check_solvers.load(check_solvers.FOLDER / "sgd_fixed")

    def found(losses: Any, factor: float) -> list[str]:
        def blob(layer: str, index: int) -> Any:
            return trace[f"iter1/{layer}/{index}"] * (factor if (layer, index) == ("fc8", 0) else 1)

        return check_solvers.differences("sgd_fixed", trace, 1, losses, blob)

    assert found(trace["losses"][0], 1) == []
    (blob,) = found(trace["losses"][0], 1.00001)
    assert blob.startswith("iter1/fc8/0[")
    (losses,) = found(trace["losses"][1], 1)
    assert losses.startswith("losses after iteration 1[0]: ")


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        ([1, 2.0], [1, 2.1], "x[1]: 2, original 2.1 (1 of 2 differ)"),
        ([[1]], [1], "x: shape (1, 1), original (1,)"),
        ([np.nan, 1], [np.nan, 1], None),
        ([np.nan, 1], [0, 1], "x[0]: nan, original 0 (1 of 2 differ)"),
        (100.05, 100, None),  # the absolute tolerance goes with the largest element
    ],
)
def test_differences(ours: Any, theirs: Any, text: str | None) -> None:
    assert difference("x", ours, theirs, rtol=0, atol=1e-3) == text


def test_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> list[str]:
        raise KeyError("blob")

    def checks(**found: Callable[[], list[str]]) -> tuple[int, list[str]]:
        return judge(found), capsys.readouterr().out.splitlines()

    assert checks(a=list, b=list) == (0, ["2 of 2 records agree"])
    lines = ["a: KeyError: 'blob'", "c: is off", "1 of 3 records agree"]
    assert checks(a=broken, b=list, c=lambda: ["is off"]) == (1, lines)
    assert checks() == (1, ["0 of 0 records agree"])

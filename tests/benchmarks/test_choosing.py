"""The tables of benchmarks/choosing.py, from results made by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The script as a module, with a summary of its own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import choosing as module

    monkeypatch.setattr(module, "SUMMARY", tmp_path / "results" / "choosing.json")
    yield module
    for name in ("choosing", "adaptation", "adaptation_images", "demo_seeds"):
        sys.modules.pop(name, None)


def write_group(choosing: ModuleType, results: Path, name: str, seed: int) -> None:
    """A finished group: the run of each setting is right about 80%, 75%, 70% and 65% of 40 images, the same by seed."""
    folder = choosing.folder_of(results, name, seed)
    folder.mkdir(parents=True)
    labels = np.arange(40) % 4
    for i, run in enumerate(choosing.group(seed)):
        wrong = 8 + 2 * (i % 4)
        predicted = np.where(np.arange(40) < wrong, (labels + 1) % 4, labels)
        probabilities = (0.1 + 0.6 * np.eye(4)[predicted]).astype(np.float32)
        accuracy = float((predicted == labels).mean())
        record = {
            **{"variant": run.variant, "lambda": run.lambda_, "seed": run.seed, "alphas": {"conv": 1.0, "fc": 0.5}},
            **{"moving": accuracy, "collapsed_at": None, "error": None, "cpu_seconds": 36.0, "machine": "two CPUs"},
        }
        if run.variant != "source-only":
            record["whole"] = accuracy
        (folder / f"{run.name}.json").write_text(json.dumps(record))
        if run.lambda_ is not None:
            outputs = choosing.Outputs(
                target_logits=np.log(probabilities),
                features=probabilities,
                feature_rows=np.arange(40),
                source_logits=np.log(probabilities),
                held_out_logits=np.log(probabilities)[:20],
                held_out_labels=labels[:20],
                test_probabilities=probabilities,
                test_labels=labels,
            )
            for statistics in choosing.STATISTICS:
                outputs.write(folder / f"{run.name}.{statistics}.npz")


def rows(table: str) -> dict[str, list[str]]:
    """The cells of a Markdown table by the first of each row."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
    return {first: others for first, *others in cells}


def test_a_group_is_16_candidates_and_two_baselines(choosing: ModuleType) -> None:
    runs = choosing.group(101)
    assert len({run.name for run in runs}) == 18
    candidates = [run for run in runs if run.lambda_ is not None]
    assert {(r.variant, r.lambda_, r.seed) for r in candidates} == {
        (variant, lambda_, seed)
        for variant in ("learned", "fixed-alpha")
        for lambda_ in (0.1, 0.4)
        for seed in (101, 102, 103, 104)
    }


def test_tables_of_finished_groups(choosing: ModuleType, tmp_path: Path) -> None:
    write_group(choosing, tmp_path, "demo-dev", 101)
    write_group(choosing, tmp_path, "usps-mnist", 1)
    (choosing.folder_of(tmp_path, "usps-mnist", 1) / "adabn_1.json").unlink()
    waiting: list[Any] = list(choosing.waiting(tmp_path, ["demo-dev", "usps-mnist"], 1))
    assert [(name, seed, run.name) for name, seed, run in waiting] == [("usps-mnist", 1, "adabn_1")]
    summary = choosing.summarize(tmp_path)
    assert {name: list(groups) for name, groups in summary.items()} == {"demo-dev": ["101"]}
    assert choosing.read_summary() == summary  # which is all that later runs need
    # the settings are wrong about the first 8, 10, 12 and 14 images, and their average about the first 10 and, of two
    # classes with equal probabilities, about the twelfth; so the second and the third agree with it equally
    assert rows(choosing.regrets(summary, "whole"))["agreement"] == ["5.0", "5.0 (5.0)"]
    accuracies = rows(choosing.accuracies(summary, "agreement"))
    assert accuracies["the best run"] == ["80.0"]
    assert accuracies["a run by chance"] == ["72.5"]
    assert accuracies["the median run"] == ["72.5"]
    assert accuracies["AdaBN"] == ["80.0"]
    assert accuracies["source only"] == ["75.0"]
    settings = rows(choosing.settings(summary))
    assert settings["learned, lambda 0.1"] == ["80.0 (80.0 to 80.0), ± 0.0"]
    assert settings["fixed-alpha, lambda 0.4"] == ["65.0 (65.0 to 65.0), ± 0.0"]
    assert settings["mean alphas, lambda 0.1"] == ["1.00, 0.50"]
    twice = {"usps-mnist": {"1": summary["demo-dev"]["101"], "5": summary["demo-dev"]["101"]}}
    overview = rows(choosing.overview(twice, "agreement"))
    assert overview["AutoDIAL, learned, lambda 0.4"] == ["75.0 ± 0.0"]
    assert overview["handed over by select (agreement)"] == ["75.0 ± 0.0"]
    assert overview["the best of 16"] == ["80.0 ± 0.0"] and overview["groups"] == ["2"]
    assert choosing.cost(summary) == f"CPU hours: {choosing.TASKS['demo-dev'].title} 0.18; two CPUs."


def test_each_task_is_left_out_in_turn(choosing: ModuleType) -> None:
    """`entropy` costs 0, 10 and 15 points, `density` 10, 5 and 5, the others 15 everywhere."""
    runs = [{"variant": "learned", "lambda": 0.1, "whole": right} for right in (0.8, 0.75, 0.7, 0.65)]
    settings = {"entropy": (0, 2, 3), "density": (2, 1, 1)}
    names = ("demo-dev", "mnist-usps-dev", "letters")
    summary = {}
    for i, name in enumerate(names):
        chosen = {criterion: settings.get(criterion, (3, 3, 3))[i] for criterion in choosing.CRITERIA}
        summary[name] = {"101": {"runs": runs, "whole": {"chosen": chosen, "ensemble": 0.7}}}
    table = rows(choosing.left_out(summary))
    titles = [choosing.TASKS[name].title for name in names]
    # on the two others: 12.5 and 5; 7.5 and 7.5, where the first in the list wins; 5 and 7.5
    assert [table[title] for title in titles] == [["density", "10.0"], ["entropy", "10.0"], ["entropy", "15.0"]]
    assert table["mean"] == ["", "11.7"]

"""`autodial report RUN RUN ...`: scores against scikit-learn's on the tables of `autodial test`, and what differs."""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score

from autodial.netparam.differences import Difference, differences
from autodial.report.comparison_figures import Series, draw_confusions, draw_overlaid, draw_overlaid_alphas
from autodial.report.figures import shown_confusion_of
from autodial.report.run import Curve, Run
from autodial.report.settings import groups_of, run_names, settings_of
from autodial.report.style import NARROW, figure_style, picture

Autodial = Callable[..., tuple[int, str, str]]
OPTIONS = ("--workers", "0", "--device", "cpu")
RUNS = {"plain_5": (5, ()), "plain_6": (6, ()), "adabn_5": (5, ("adabn",)), "adabn_6": (6, ("adabn",))}


@pytest.fixture(scope="module")
def several(trained: Path) -> Path:
    """The project with a run of two seeds for each of two settings, in the folder `runs`."""
    from autodial.training.run import Training

    before = Path.cwd()
    os.chdir(trained)
    try:
        for name, (seed, variants) in RUNS.items():
            settings = [f"solver.snapshot_prefix=runs/{name}/spots"]
            folder = Path("runs") / name
            Training(
                "solver.prototxt",
                device="cpu", workers=0, seed=seed, variants=variants, overrides=settings, folder=folder,
            ).run()  # fmt: skip
    finally:
        os.chdir(before)
    return trained


@pytest.fixture(scope="module")
def scored(several: Path) -> dict[str, tuple[list[int], list[int]]]:
    """Labels and predictions of every run's target images, as `autodial test` has them."""
    from autodial.commands.test import test

    before = Path.cwd()
    os.chdir(several)
    found = {}
    try:
        for name, (_, variants) in RUNS.items():
            table, weights = Path(f"runs/{name}/scores.csv"), f"runs/{name}/spots_iter_8.caffemodel"
            options: dict[str, Any] = {"device": "cpu", "workers": 0, "variants": list(variants)}
            test(net=Path("net.prototxt"), weights=weights, output=table, **options)
            with table.open(newline="") as file:
                rows = list(csv.DictReader(file))
            found[name] = ([int(row["label"]) for row in rows], [int(row["predicted"]) for row in rows])
    finally:
        os.chdir(before)
    return found


def spread(values: list[float]) -> str:
    percents = [100 * value for value in values]
    low, high = min(percents), max(percents)
    return f"{statistics.mean(percents):.1f} ± {statistics.stdev(percents):.1f}% ({low:.1f} to {high:.1f})"


def test_runs_are_compared_by_setting(
    autodial: Autodial,
    read_page: Callable[[Path], Any],
    several: Path,
    scored: dict[str, tuple[list[int], list[int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    class_names: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = autodial("report", *(several / "runs" / name for name in RUNS), *OPTIONS)
    assert status == 0, err
    assert out.startswith("Wrote comparison.html (")
    page = read_page(tmp_path / "comparison.html")

    _, *by_setting = page.tables["By setting: mean ± standard deviation over seeds (lowest to highest)"]
    for row, name, runs in zip(
        by_setting,
        ("A: as in its prototxts", "B: adabn"),
        (("plain_5", "plain_6"), ("adabn_5", "adabn_6")),
        strict=True,
    ):
        assert row[:2] == [name, "2"]
        assert row[2] == spread([accuracy_score(*scored[run]) for run in runs])
        assert row[3] == spread([balanced_accuracy_score(*scored[run]) for run in runs])

    _, *every = page.tables["Every run"]
    for row, (name, (seed, _)) in zip(every, RUNS.items(), strict=True):
        assert row[:4] == [name, name[0].replace("p", "A").replace("a", "B"), str(seed), "8 of 8"]
        assert row[4] == f"{accuracy_score(*scored[name]):.1%}"
        rows = [json.loads(line) for line in (several / "runs" / name / "log.jsonl").read_text().splitlines()]
        assert row[7] == f"{[line['loss'] for line in rows if line['event'] == 'train'][-1]:.4g}"

    settings = {name: values for name, *values in page.tables["Settings"][1:]}
    assert settings["loss-target.loss_weight"] == ["0.1", "0"]
    assert settings["conv/dial.dial_param.weight_filler.value"] == ["0.9", "1"]
    assert "seed" not in " ".join(settings)

    _, *by_class = page.tables["Recall of each class: mean ± standard deviation over seeds (lowest to highest)"]
    for label, row in enumerate(by_class):
        recalls = [recall_score(*scored[run], labels=[label], average=None, zero_division=0)[0] for run in RUNS]
        assert row == [class_names[label], spread(recalls[:2]), spread(recalls[2:])]

    alphas = page.tables["Alpha of each Dial layer: mean ± standard deviation over seeds (lowest to highest)"]
    assert [row[0] for row in alphas[1:]] == ["conv/dial", "fc/dial"]
    assert all(row[2].startswith("1.000 ± 0.000") for row in alphas[1:])
    figures = {path.name for path in tmp_path.glob("comparison-*.png")}
    assert {"comparison-scores.png", "comparison-alphas.png", "comparison-confusions.png"} <= figures


def test_what_is_refused(autodial: Autodial, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    status, _, err = autodial("report", "run", "./run")
    assert status == 2
    assert "run is given twice: name each run once" in err
    status, _, err = autodial("report", "run", "source")
    assert status == 2
    assert "source is not a run's folder" in err


def test_settings_that_change_nothing_do_not_tell_runs_apart(several: Path) -> None:
    runs = [Run.read(several / "runs" / name) for name in RUNS]
    runs[1].solver.display = 7
    runs[1].solver.test_interval = 3
    settings = [settings_of(run) for run in runs]
    assert [group.runs for group in groups_of(runs, settings)] == [(0, 1), (2, 3)]
    runs[1].solver.base_lr = 0.07
    settings = [settings_of(run) for run in runs]
    groups = groups_of(runs, settings)
    assert [group.runs for group in groups] == [(0,), (1,), (2, 3)]
    found = differences([settings[group.runs[0]] for group in groups])
    assert Difference("solver.base_lr", ("0.05", "0.07", "0.05")) in found


def test_weights_to_start_from_tell_runs_apart(several: Path) -> None:
    runs = [Run.read(several / "runs" / name) for name in ("plain_5", "plain_6")]
    for run, command in zip(runs, ("autodial train --weights a.caffemodel", "autodial train"), strict=True):
        run.record["command"] = command
    settings = [settings_of(run) for run in runs]
    assert len(groups_of(runs, settings)) == 2
    assert differences(settings) == [Difference("weights to start from", ("a.caffemodel", ""))]


def test_a_layer_that_one_net_lacks_is_one_difference(several: Path) -> None:
    runs = [Run.read(several / "runs" / name) for name in ("plain_5", "plain_6")]
    for net in (runs[1].train_net, runs[1].test_net):
        kept = [layer for layer in net.layer if layer.name != "fc/dial"]
        del net.layer[:]
        net.layer.extend(kept)
    settings = [settings_of(run) for run in runs]
    assert differences(settings) == [Difference("fc/dial.type", ("Dial", "not set"))]
    # what differs between those that have the layer is told, too
    changed = {setting: "0.7" if setting.layer == "fc/dial" and "value" in setting.field else value
               for setting, value in settings[0].items()}  # fmt: skip
    assert differences([settings[0], changed, settings[1]]) == [
        Difference("fc/dial.type", ("Dial", "Dial", "not set")),
        Difference("fc/dial.dial_param.weight_filler.value", ("0.8", "0.7", "not set")),
    ]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["/w/a/run", "/w/b/run"], ["a/run", "b/run"]),
        (["/w/run_1", "/w/run_2"], ["run_1", "run_2"]),
        (["/run", "/w/run"], ["//run", "w/run"]),
    ],
)
def test_runs_have_names_that_tell_them_apart(folders: list[str], names: list[str]) -> None:
    assert run_names([Path(folder) for folder in folders]) == names


def test_figures_of_many_runs_and_classes() -> None:
    with figure_style():
        curves = [Curve(f"run {i}", "test", iterations=[0, 5, 9], values=[0.1 * i, None, 0.2 * i]) for i in range(9)]
        series = [Series(i // 3, f"setting {i // 3}", curve) for i, curve in enumerate(curves)]
        figure = draw_overlaid(series, ylabel="accuracy", percent=True)
        figure.draw_without_rendering()
        # one label per setting
        labels = [text.get_text() for text in figure.axes[0].texts if isinstance(text, Text)]
        assert sorted(labels) == ["setting 0", "setting 1", "setting 2"]
        layers = [[Curve(f"dial {k}", iterations=[0], values=[0.5 + 0.01 * k]) for k in range(20)] for _ in range(3)]
        alphas = draw_overlaid_alphas(layers, [(i, f"setting {i}") for i in range(3)], width=NARROW)
        assert [len(line.get_xdata()) for line in alphas.axes[0].lines] == [20, 20, 20]
        assert alphas.axes[0].get_yticklabels()[0].get_text() == "joint 0.5"
        differing = draw_overlaid_alphas(layers, [(i, f"setting {i}") for i in range(3)], joint=None)
        assert differing.axes[0].get_yticklabels()[0].get_text() == "0.5"
        rng = np.random.default_rng(0)
        matrices = [rng.poisson(2, (50, 50)) for _ in range(3)]
        shown = shown_confusion_of(matrices)
        assert len({tuple(one.classes) for one in shown}) == 1
        assert [one.counts.sum() for one in shown] == [matrix.sum() for matrix in matrices]
        names = [f"a class of that name {i}" for i in range(50)]
        drawn = picture(lambda *, width: draw_confusions(names, dict(zip("ABC", shown, strict=True)), width))
        assert max(len(drawn.svg), len(drawn.narrow)) < 1_500_000

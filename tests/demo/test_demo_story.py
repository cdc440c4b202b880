"""The whole demo, with very short trainings, and the choice among runs."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forked import commands_are_forked
from rich.console import Console
from scipy.stats import entropy  # type: ignore[import-untyped]
from sklearn.metrics import accuracy_score

from autodial.data.image_list import ImageList
from autodial.demo import steps, story
from autodial.demo.choice import information
from autodial.demo.steps import Steps
from autodial.errors import InputError, WorkError
from autodial.training.run_record import read_log

ITERATIONS = 4
RECIPE = story.Recipe(restarts=2, renderings=(1,) * 10, settings=[f"solver.max_iter={ITERATIONS}", "solver.display=2"])


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off for what it runs in the background
from autodial.cli import main
main()
"""


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_demo_trains_chooses_exports_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    demo = Path("demo")
    console = Console(file=out, width=100, soft_wrap=True)
    with commands_are_forked(steps):
        result = story.run_demo(demo, seed=3, device="cpu", console=console, recipe=RECIPE)

    # the accuracies are those of the tables that `autodial test` would write
    truth = [entry.label for entry in ImageList.read(demo / "target_test.txt")]
    folders = {"source only": "source_only", "AdaBN": "adabn", "AutoDIAL": "autodial"}
    probabilities = {}
    assert [method.title for method in result.methods] == list(folders)
    for method in result.methods:
        assert list(method.accuracies) == [31, 32]
        for seed, accuracy in method.accuracies.items():
            rows = read_table(demo / folders[method.title] / f"seed_{seed}/scores.csv")
            assert [int(row["label"]) for row in rows] == truth
            scores = np.array([[float(row[f"probability_{k}"]) for k in range(10)] for row in rows])
            probabilities[method.title, seed] = scores
            assert accuracy == pytest.approx(accuracy_score(truth, scores.argmax(1)))
        assert f"{np.mean(list(method.accuracies.values())):.1%}" in out.getvalue()

    # learned alphas move, AdaBN's don't, and the source alone has none
    alphas = {name: read_log(demo / name / "seed_31")[-1]["alphas"] for name in folders.values()}
    assert alphas["source_only"] == {}
    assert set(alphas["adabn"].values()) == {1.0}
    assert min(alphas["autodial"].values()) < 1

    # the choice looks at predictions alone
    candidates = {run: p for run, p in probabilities.items() if run[0] != "source only"}
    values = {run: entropy(p.mean(0)) - entropy(p, axis=1).mean() for run, p in candidates.items()}
    assert result.information == pytest.approx(max(values.values()), abs=1e-5)
    assert values[result.chosen] == max(values.values())
    together = np.mean([p for run, p in candidates.items() if run[0] == result.chosen[0]], axis=0)
    assert result.ensemble_accuracy == pytest.approx(accuracy_score(truth, together.argmax(1)))

    # the exported file labels the images as the chosen run does
    names = [Path(entry.path).name for entry in ImageList.read(demo / "target_test.txt")]
    for file, expected in (("target_predictor", candidates[result.chosen]), ("ensemble", together)):
        labels = {Path(row["path"]).name: int(row["label_1"]) for row in read_table(demo / f"{file}.csv")}
        assert [labels[name] for name in names] == expected.argmax(1).tolist()
    assert result.chosen_accuracy == result.methods[list(folders).index(result.chosen[0])].accuracies[result.chosen[1]]

    assert json.loads((demo / "scores.json").read_text())["chosen"] == list(result.chosen)
    assert (demo / "demo.png").read_bytes().startswith(b"\x89PNG")
    # 6 trainings, as many tests, and two exports and predictions
    assert out.getvalue().count("$ autodial ") == (demo / "log.txt").read_text().count("$ autodial ") == 16


def test_information_of_predictions() -> None:
    """As much as labels tell where predictions are certain and evenly spread; nothing where all images get the same."""
    certain = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert information(certain) == pytest.approx(np.log(2))
    assert information(np.array([[1.0, 0.0], [1.0, 0.0]])) == 0
    assert information(np.array([[0.5, 0.5], [0.5, 0.5]])) == 0
    unsure = np.array([[0.9, 0.1], [0.2, 0.8]])
    assert information(unsure) == pytest.approx(entropy([0.55, 0.45]) - (entropy([0.9, 0.1]) + entropy([0.2, 0.8])) / 2)


def test_a_folder_with_something_in_it_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    Path("demo/mine.txt").write_text("keep")
    with pytest.raises(InputError, match="demo exists and is not empty"):
        story.run_demo(Path("demo"))
    assert [path.name for path in Path("demo").iterdir()] == ["mine.txt"]


def test_a_working_directory_whose_list_would_be_read_instead_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("target.txt").write_text("photo.png 0\n")
    with pytest.raises(InputError, match=r"working directory holds target\.txt"):
        story.run_demo(Path("demo"))
    assert not Path("demo").exists()


def test_a_command_that_fails_is_named_with_its_last_line() -> None:
    log = io.StringIO()
    shown = Steps(Console(file=io.StringIO()), log)
    command = "autodial test --net missing.prototxt --weights w.caffemodel"
    with pytest.raises(
        WorkError, match=rf"`{re.escape(command)}` failed with status 2: .*missing\.prototxt does not exist"
    ):
        shown.run_side_by_side([command], processes=1, threads=1)
    assert f"$ {command}" in log.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")
def test_an_interrupted_demo_says_where_its_results_are(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTIBLE, "demo", "-o", "d", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("$ autodial train" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted: d holds what was done so far, and d/log.txt what its steps reported" in err

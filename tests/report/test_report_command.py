"""`autodial report` as a user runs it: the page against log.jsonl, `autodial test` and scikit-learn."""

from __future__ import annotations

import base64
import csv
import errno
import json
import os
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

Autodial = Callable[..., tuple[int, str, str]]
Report = Callable[..., Any]
ReadPage = Callable[[Path], Any]
OPTIONS = ("--workers", "0", "--device", "cpu")
SECTIONS = [
    "What was run",
    "Alpha of the Dial layers",
    "Losses, accuracies and learning rate",
    "Features of source and target, before and after alignment",
    "Class balance",
    "Confusion matrix of the target",
    "Images of source and target",
]


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]


def edit_log(folder: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    (folder / "run/log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in edit(log(folder))))


@pytest.fixture
def report(autodial: Autodial, read_page: ReadPage) -> Report:
    """`report(folder, options...)` makes the report of a project's run, and reads it."""

    def make(folder: Path, *options: str) -> Any:
        status, _, err = autodial("report", folder / "run", *OPTIONS, *options)
        assert status == 0, err
        return read_page(folder / "run/report.html")

    return make


@pytest.fixture
def page(reported: tuple[Path, str], read_page: ReadPage) -> Any:
    """The report of a run that ended."""
    return read_page(reported[0] / "run/report.html")


@pytest.fixture
def scores(autodial: Autodial, project: Path) -> list[dict[str, str]]:
    """What `autodial test` says of every target image."""
    arguments = ("--net", "net.prototxt", "--weights", "spots_iter_8.caffemodel", "-o", "scores.csv", *OPTIONS)
    assert autodial("test", *arguments)[0] == 0
    with Path("scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_stands_alone(reported: tuple[Path, str], page: Any) -> None:
    project, out = reported
    assert out.startswith("Wrote run/report.html (0.")
    assert out.endswith(" MB) and, in its folder, 9 figures, report-*.png\n")
    assert page.headings == SECTIONS
    kinds = [link.partition(",")[0] for link in page.links]
    assert set(kinds) == {"data:image/svg+xml;base64", "data:image/png;base64"}
    assert all(page.alts)
    assert "http" not in (project / "run/report.html").read_text("utf-8").replace("data:image", "")
    for link in page.links:
        kind, _, data = link.partition(",")
        if "svg" in kind:
            drawing = ET.fromstring(base64.b64decode(data))
            targets = [value for node in drawing.iter() for name, value in node.items() if name.endswith("href")]
            assert all(target.startswith(("#", "data:")) for target in targets)
        else:
            assert cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR).shape == (8, 8, 3)
    figures = sorted(path.name for path in (project / "run").glob("*.png"))
    assert figures == [
        *("report-accuracies.png", "report-alpha-by-depth.png", "report-alpha-by-iteration.png"),
        *("report-class-balance.png", "report-confusion.png", "report-features-conv_dial.png"),
        *("report-features-fc_dial.png", "report-learning-rate.png", "report-losses.png"),
    ]


def test_logged_numbers_are_the_logs(page: Any, reported: tuple[Path, str], class_names: list[str]) -> None:
    project, _ = reported
    trains = [row for row in log(project) if row["event"] == "train"]
    tests = [row for row in log(project) if row["event"] == "test"]
    assert [row["iteration"] for row in trains] == [0, 2, 4, 6]
    assert page.tables["Training: logged numbers"] == [
        ["iteration", "lr", "total", "loss-source", "loss-target (weight 0.1)"],
        *(
            [f"{row['iteration']}"] + [f"{value:.6g}" for value in (row["lr"], row["loss"], *row["outputs"].values())]
            for row in trains
        ),
    ]
    assert page.tables["Tests: logged numbers"] == [
        ["iteration", "test: accuracy", "test: balanced accuracy of fc"],
        *(
            [str(row["iteration"]), f"{row['outputs']['accuracy']:.6g}", f"{row['balanced_accuracy']['fc']:.6g}"]
            for row in tests
        ),
    ]
    assert page.tables["Tests: recall of each class by fc"] == [
        ["class", *(f"iteration {row['iteration']}" for row in tests)],
        *([name, *(f"{row['recalls']['fc'][k]:.1%}" for row in tests)] for k, name in enumerate(class_names)),
    ]
    alphas = {name: [row["alphas"][name] for row in trains] for name in ("conv/dial", "fc/dial")}
    assert page.tables["Alpha of each Dial layer"][1:] == [
        [name, str(depth), *(f"{value:.4f}" for value in (values[0], values[-1], min(values), max(values)))]
        for depth, (name, values) in enumerate(alphas.items(), start=1)
    ]
    assert page.facts["Data"] == "source 20, target 14, TEST phase 14 images"
    assert page.facts["Seed"] == "5"
    assert page.facts["Weights"] == f"{project}/spots_iter_8.caffemodel, iteration 8"
    assert "still going" not in page.text


def test_predictions_are_those_of_autodial_test(
    page: Any, project: Path, scores: list[dict[str, str]], class_names: list[str]
) -> None:
    labels, predicted = ([int(row[key]) for row in scores] for key in ("label", "predicted"))
    counts = confusion_matrix(labels, predicted, labels=range(3))
    means = [np.mean([float(row[f"probability_{k}"]) for row in scores]) for k in range(3)]
    source = [line.split()[1] for line in (project / "source.txt").read_text().splitlines()]
    assert page.tables["By class"] == [
        [
            "class",
            "source labels",
            "mean prediction on the target",
            "target labels",
            "target images",
            "recall",
        ],
        *(
            [
                class_names[k],
                f"{source.count(str(k)) / 20:.2%}",
                f"{means[k]:.2%}",
                f"{labels.count(k) / 14:.2%}",
                f"{labels.count(k)}",
                f"{counts[k, k] / counts[k].sum():.1%}",
            ]
            for k in range(3)
        ),
    ]
    assert np.trace(counts) < 14
    wrong = {(t, p): counts[t, p] for t in range(3) for p in range(3) if t != p and counts[t, p]}
    table = page.tables["The most frequent confusions"][1:]
    assert {(row[0], row[1]): int(row[2]) for row in table} == {
        (class_names[t], class_names[p]): count for (t, p), count in wrong.items()
    }
    assert [int(row[2]) for row in table] == sorted(wrong.values(), reverse=True)
    assert f"{accuracy_score(labels, predicted):.1%}accuracy on 14 labelled target images" in page.text
    balanced = balanced_accuracy_score(labels, predicted)
    assert f"{balanced:.1%}balanced accuracy, the classes' mean recall" in page.text
    entropy = -sum(mean * np.log(mean) for mean in means) / np.log(3)
    assert f"Its entropy is {entropy:.1%} of log(classes)" in page.text


def test_most_and_least_certain_images(
    page: Any, project: Path, scores: list[dict[str, str]], class_names: list[str]
) -> None:
    certainty = {row["path"]: max(float(row[f"probability_{k}"]) for k in range(3)) for row in scores}
    order = sorted(certainty, key=lambda path: -certainty[path])
    shown = [alt.partition(": predicted ")[0] for alt in page.alts[-14:]]
    assert shown == [*order[:7], *reversed(order[7:])]
    labels = {row["path"]: int(row["label"]) for row in scores}
    for alt in page.alts[-14:]:
        path = alt.partition(":")[0]
        right = alt.startswith(f"{path}: predicted {class_names[labels[path]]}, ")
        assert alt.endswith("right" if right else f"is {class_names[labels[path]]}")
    # a shown image is what the net gets: the middle 8 x 8 pixels
    whole = cv2.imread(str(project / order[0]))
    first = page.links[-14]
    shown_first = cv2.imdecode(np.frombuffer(base64.b64decode(first.partition(",")[2]), np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(shown_first, whole[1:9, 1:9])


def test_each_class_has_a_source_image_beside_the_targets(
    page: Any, project: Path, scores: list[dict[str, str]], class_names: list[str]
) -> None:
    alts = page.alts[:-14]
    source = [line.split() for line in (project / "source.txt").read_text().splitlines()]
    expected = []
    for label, name in enumerate(class_names):
        expected.append(f"{next(path for path, other in source if int(other) == label)}: source, {name}")
        got = [row for row in scores if int(row["predicted"]) == label]
        if got:
            best = max(got, key=lambda row: float(row[f"probability_{label}"]))
            expected.append(f"{best['path']}: predicted {name}, ")
    shown = alts[-len(expected) :]
    assert all(alt.startswith(start) for alt, start in zip(shown, expected, strict=True)), (shown, expected)
    # a source image is shown as the net gets it in TEST: its middle 8 x 8 pixels
    place = page.alts.index(expected[0]) - len(page.alts)
    data = np.frombuffer(base64.b64decode(page.links[place].partition(",")[2]), np.uint8)
    whole = cv2.imread(str(project / expected[0].partition(":")[0]))
    np.testing.assert_array_equal(cv2.imdecode(data, cv2.IMREAD_COLOR), whole[1:9, 1:9])


def test_another_folder_another_name_chosen_layers_and_fewer_images(
    autodial: Autodial, read_page: ReadPage, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    options = ("-o", "mine.html", "--layers", "fc/dial", "--images", "7")
    assert autodial("report", project / "run", *OPTIONS, *options)[0] == 0
    assert Path.cwd() == elsewhere
    page = read_page(elsewhere / "mine.html")
    assert [row[0] for row in page.tables["How far the domains are apart"]] == ["layer", "fc/dial"]
    assert "7 of the 14 images of test.txt, evenly spaced" in page.text
    shown = {alt.partition(":")[0] for alt in page.alts if ": predicted " in alt}
    assert shown == {f"target/{i}.png" for i in range(0, 14, 2)}
    assert (elsewhere / "mine-features-fc_dial.png").read_bytes().startswith(b"\x89PNG")
    assert not (project / "run/report.html").exists()


def test_a_run_that_has_hardly_begun(report: Report, project: Path) -> None:
    """A first test that has accuracies alone is logged before any loss; before that nothing is."""
    edit_log(project, lambda rows: [next(row for row in rows if row["event"] == "test")])
    only = {"outputs": {"accuracy": 0.25}, "recalls": {}, "balanced_accuracy": {}}
    edit_log(project, lambda rows: [{**rows[0], **only}])
    page = report(project)
    assert [row[1:] for row in page.tables["Tests: logged numbers"]] == [["test: accuracy"], ["0.25"]]
    (project / "run/log.jsonl").write_text("")
    assert "nothing was logged yet" in report(project).text


def test_a_run_that_is_still_going(report: Report, project: Path) -> None:
    edit_log(project, lambda rows: [row for row in rows if row["event"] != "snapshot"][:-2])
    with (project / "run/log.jsonl").open("a") as file:
        file.write('{"event": "train", "itera')
    page = report(project)
    assert page.headings == SECTIONS
    assert "The log ends at iteration 4 of 8: the run is still going, or was interrupted." in page.text
    assert "the run has written no snapshot yet" in page.text
    assert [row[0] for row in page.tables["Training: logged numbers"]] == ["iteration", "0", "2", "4"]
    assert page.facts["Data"] == "source 20, target 14, TEST phase 14 images"
    assert "By class" not in page.tables


def test_a_run_that_has_just_started(report: Report, project: Path) -> None:
    edit_log(project, lambda rows: rows[:1])
    page = report(project)
    assert page.headings == SECTIONS
    assert page.text.count("nothing was logged yet") == 2


def test_losses_that_are_not_finite(report: Report, project: Path) -> None:
    def spoil(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            if row["event"] == "train" and row["iteration"] >= 4:
                row["outputs"]["loss-target"] = row["loss"] = None
        return rows

    edit_log(project, spoil)
    page = report(project)
    assert page.tables["Training: logged numbers"][-1][2] == "not finite"
    assert "Crosses at the top: 4 values not finite (NaN or infinite)." in page.text


@pytest.mark.usefixtures("undrawn")
def test_an_alarm_of_training_is_repeated(report: Report, project: Path) -> None:
    alarm = {
        "event": "collapse",
        "iteration": 6,
        "layer": "loss-target",
        "classes": 3,
        "in_use": 1.02,
        "in_source": 2.9,
    }
    edit_log(project, lambda rows: sorted([*rows, alarm], key=lambda row: row["iteration"]))
    page = report(project)
    assert (
        "At iteration 6, training raised the alarm that the target's predictions had collapsed: in front of layer "
        "loss-target, their mean was spread over 1.02 of 3 classes, the source's labels over 2.9." in page.text
    )


@pytest.mark.usefixtures("undrawn")
@pytest.mark.skipif(sys.platform != "linux", reason="names of other encodings are a thing of Linux")
def test_a_folder_whose_name_is_in_no_encoding(autodial: Autodial, read_page: ReadPage, project: Path) -> None:
    folder = Path(os.fsdecode(b"run-\xff & <i>"))
    Path("run").rename(folder)
    status, out, err = autodial("report", folder, *OPTIONS)
    assert status == 0, err
    assert out.startswith("Wrote run-\\xff & <i>/report.html (")
    page = read_page(folder / "report.html")
    assert page.facts["Run folder"] == f"{project}/run-\ufffd & <i>"


@pytest.mark.usefixtures("undrawn")
def test_a_resumed_run(autodial: Autodial, report: Report, project: Path) -> None:
    arguments = ("--solver", "solver.prototxt", "--snapshot", "spots_iter_4.solverstate", "-o", "run", *OPTIONS)
    assert autodial("train", *arguments)[0] == 0
    page = report(project)
    assert "Resumed from iteration 4; what had been logged beyond that is not shown." in page.text
    assert [row[0] for row in page.tables["Training: logged numbers"]] == ["iteration", "0", "2", "4", "6"]
    assert page.facts["Logged for"].endswith(" in 2 starts")


@pytest.mark.usefixtures("undrawn")
def test_a_snapshot_that_another_run_wrote_over(report: Report, project: Path) -> None:
    shutil.copy("spots_iter_4.caffemodel", "spots_iter_8.caffemodel")
    page = report(project)
    assert page.facts["Weights"].endswith("spots_iter_4.caffemodel, iteration 4")
    assert "those of the snapshot at iteration 4, as the files of later ones are gone or changed." in page.text
    Path("spots_iter_4.caffemodel").write_bytes(b"")
    page = report(project)
    assert "spots_iter_8.caffemodel is no longer the file that this run wrote" in page.text
    assert "Weights" not in page.facts
    assert "By class" not in page.tables


@pytest.mark.usefixtures("undrawn")
def test_images_that_moved(report: Report, project: Path) -> None:
    Path("source").rename("moved")
    page = report(project)
    assert page.headings == SECTIONS
    assert "No features: " in page.text
    assert '"source/0.png" does not exist' in page.text
    assert page.tables["By class"][0][1] == "mean prediction on the target"
    assert page.facts["Data"].startswith("sizes not known: ")
    Path("target").rename("moved-target")
    page = report(project)
    assert "No predictions: " in page.text
    assert '"target/0.png" does not exist' in page.text
    assert "Alpha of each Dial layer" in page.tables


@pytest.mark.usefixtures("undrawn")
def test_a_project_that_moved_as_a_whole(
    report: Report, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "moved"
    project.rename(moved)
    monkeypatch.chdir(moved)
    page = report(moved)
    assert page.facts["Weights"] == f"{moved}/spots_iter_8.caffemodel, iteration 8"
    assert page.facts["Data"] == "source 20, target 14, TEST phase 14 images"
    assert "By class" in page.tables


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("label", "reason"),
    [("0", "every label in test.txt is 0, as in a list of images that nobody has labelled"),
     ("-1", "no label in test.txt is one of the classes")],
)  # fmt: skip
def test_placeholders_are_no_labels(report: Report, project: Path, label: str, reason: str) -> None:
    lines = [f"{line.split()[0]} {label}\n" for line in Path("test.txt").read_text().splitlines()]
    Path("test.txt").write_text("".join(lines))
    page = report(project)
    assert f"No target labels to compare with: {reason}." in page.text
    assert page.tables["By class"][0] == ["class", "source labels", "mean prediction on the target"]
    assert "accuracy on" not in page.text
    assert not (project / "run/report-confusion.png").exists()


def test_a_variant_without_dial_layers(autodial: Autodial, read_page: ReadPage, project: Path) -> None:
    other = ("--set", "solver.snapshot_prefix=plain/spots", "-o", "plain")
    arguments = ("--solver", "solver.prototxt", "--variant", "source-only", *other, *OPTIONS)
    assert autodial("train", *arguments)[0] == 0
    assert autodial("report", "plain", *OPTIONS)[0] == 0
    page = read_page(project / "plain/report.html")
    assert page.facts["Variant"] == "source-only"
    assert "No alphas: the net has no Dial layer." in page.text
    assert "No features: the net has no Dial layer." in page.text
    assert page.tables["By class"][0][1:3] == ["source labels", "mean prediction on the target"]
    status, _, err = autodial("report", "plain", "--layers", "conv", *OPTIONS)
    assert status == 2 and "--layers conv: the net has no Dial layer, whose features the page would show" in err


def test_what_is_refused(autodial: Autodial, project: Path, tmp_path: Path) -> None:
    def error(*arguments: str | Path) -> str:
        status, _, err = autodial("report", *arguments)
        assert status == 2
        return err

    assert "nowhere is not a folder: name the run folder that `autodial train` wrote" in error("nowhere")
    assert "source is not a run's folder, as run.json is missing" in error("source")
    assert 'the net has no Dial layer "fc"; it has conv/dial, fc/dial' in error("run", "--layers", "fc")
    assert "run/log.jsonl: name a file that ends in .html or .htm" in error("run", "-o", "run/log.jsonl")
    assert "there is no folder" in error("run", "-o", "there/report.html")
    assert 'device "gpu" does not exist' in error("run", "--device", "gpu")
    Path("run/log.jsonl").unlink()
    assert "run is not a run's folder, as log.jsonl is missing" in error("run")
    Path("run/log.jsonl").write_text("oops\n")
    assert "log.jsonl:1: the line is damaged" in error("run")
    Path("run/run.json").write_text('{"schema": 1, "starts": []}')
    assert "run.json is damaged, or of another program" in error("run")


def test_an_input_is_not_written_over(autodial: Autodial, project: Path) -> None:
    Path("test.txt").rename("test.html")
    record = Path("run/run.json")
    record.write_text(record.read_text().replace("test.txt", "test.html"))
    status, _, err = autodial("report", "run", "-o", "test.html", *OPTIONS)
    assert status == 2
    assert "the same command reads this file" in err
    assert Path("test.html").read_text().startswith("target/0.png")


@pytest.mark.usefixtures("undrawn")
def test_a_full_disk_leaves_neither_page_nor_figures(
    autodial: Autodial, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the third figure is written."""
    (project / "run/report.html").write_text("the old page")
    written: list[Path] = []

    def write_bytes(path: Path, data: bytes, whole: Callable[[Path, bytes], int] = Path.write_bytes) -> int:
        written.append(path)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(path, data)

    before = sorted(path.name for path in (project / "run").iterdir())
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    status, _, err = autodial("report", "run", *OPTIONS)
    assert status == 1
    assert "run can't be written: No space left on device" in err
    assert len(written) == 3
    assert sorted(path.name for path in (project / "run").iterdir()) == before
    assert (project / "run/report.html").read_text() == "the old page"

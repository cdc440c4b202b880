"""A card that `autodial export` makes of a training's record, and every snippet in it."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import pytest
from cards import Card, read_card, rows
from serving import serving
from shell import run_commands

from autodial.deploy import Predictor
from autodial.proto import read_weights
from autodial.report.run import Run
from autodial.report.trained_net import find_trained_net
from autodial.system.files import AppendedFile

Autodial = Callable[..., tuple[int, str, str]]
EXPORT = ("export", "--net", "net.prototxt", "--weights", "spots_iter_8.caffemodel", "-o", "spots.onnx")


def last_test(project: Path) -> dict[str, Any]:
    return [row for row in log(project) if row["event"] == "test"][-1]


def log(project: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project / "run" / "log.jsonl").read_text().splitlines()]


def test_the_card_has_the_numbers_of_the_last_test(project: Path, autodial: Autodial) -> None:
    status, out, _ = autodial(*EXPORT, "--card", "README.md", "--license", "MIT")
    assert status == 0 and out.splitlines()[-1] == "Wrote README.md: the model's card"
    card, row = read_card(project / "README.md"), last_test(project)
    (entry,) = card.head["model-index"]
    values = {metric["type"]: metric["value"] for metric in entry["results"][0]["metrics"]}
    assert values["accuracy"] == pytest.approx(row["outputs"]["accuracy"], abs=1e-4)
    ((scores, balanced),) = row["balanced_accuracy"].items()
    assert values["balanced_accuracy"] == pytest.approx(balanced, abs=1e-4)
    recalls = row["recalls"][scores]
    assert [line[1] for line in rows(card, "Classes")] == [f"{recall:.1%}" for recall in recalls]
    assert rows(card, "Accuracy")[0][:2] == ["test.txt", "14"]  # 3 batches of 5 read the first one twice
    assert "8 iterations, seed 5; source: `source.txt`; target: `target.txt`." in card.text
    assert str(project) not in (project / "README.md").read_text("utf-8")
    assert (card.head["license"], card.head["library_name"]) == ("mit", "onnx")


def test_recalibrated_weights_are_not_the_ones_that_were_tested(project: Path, autodial: Autodial) -> None:
    status, out, _ = autodial(*EXPORT, "--card", "README.md", "--recalibrate", "--json")
    assert status == 0 and json.loads(out)["card"] == "README.md"
    card = read_card(project / "README.md")
    assert "computed once more, over all training images, and was not scored itself" in card.text
    assert "metrics" not in card.head


def test_the_record_travels_to_recalibrated_weights(project: Path, autodial: Autodial) -> None:
    (project / "more").mkdir()
    shutil.copy(project / "target" / "0.png", project / "more")
    shutil.copy(project / "target" / "1.png", project / "more")
    given = ("--net", "net.prototxt", "--device", "cpu", "--workers", "0")
    status, _, err = autodial("recalibrate", *given, "--weights", "spots_iter_8.caffemodel", "-o", "new.caffemodel")
    assert status == 0, err
    found = find_trained_net("new.caffemodel", "fc")
    assert found is not None and (found.iteration, found.recalibrated_on) == (8, ["source.txt", "target.txt"])
    export = ("export", "--net", "net.prototxt", "--weights", "new.caffemodel", "-o", "spots.onnx")
    status, out, _ = autodial(*export, "--card", "README.md")
    assert status == 0 and out.splitlines()[-1] == "Wrote README.md: the model's card"
    card, row = read_card(project / "README.md"), last_test(project)
    words = " ".join(card.text.split())
    over = "over all images of `source.txt` and `target.txt`"
    assert f"has statistics that were computed once more, {over}, and was not scored itself" in words
    assert f"`autodial recalibrate` then computed the stored statistics {over}. Alpha" in words
    assert rows(card, "Accuracy")[0][2] == f"{row['outputs']['accuracy']:.1%}" and "metrics" not in card.head
    # what is made of recalibrated weights was trained as these were, and normalizes as the last images are
    again = ("--weights", "new.caffemodel", "--target", "more", "-o", "again.caffemodel")
    assert autodial("recalibrate", *given, *again)[0] == 0
    found = find_trained_net("again.caffemodel", "fc")
    assert found is not None and (found.iteration, found.recalibrated_on) == (8, ["source.txt", "more"])
    assert str(project) not in (project / "README.md").read_text("utf-8")


def test_recalibration_changes_nothing_else_of_a_run(project: Path, autodial: Autodial) -> None:
    before = Run.read(Path("run"))
    given = ("--net", "net.prototxt", "--device", "cpu", "--workers", "0", "--weights", "spots_iter_8.caffemodel")
    assert autodial("recalibrate", *given, "-o", "new.caffemodel")[0] == 0
    after = Run.read(Path("run"))
    assert (after.events[:-1], after.seconds, after.reached) == (before.events, before.seconds, before.reached)
    # a run that goes on from there keeps the line
    more = ("--snapshot", "spots_iter_8.solverstate", "--set", "solver.max_iter=10", "-o", "run", "--device", "cpu")
    assert autodial("train", "--solver", "solver.prototxt", *more)[0] == 0
    assert [made.of for made in Run.read(Path("run")).recalibrations] == [before.snapshots[0].sha256]


def test_a_run_that_can_not_be_written_to_only_lacks_the_line(
    project: Path, autodial: Autodial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: AppendedFile, piece: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(AppendedFile, "append", full)
    given = ("--net", "net.prototxt", "--device", "cpu", "--workers", "0", "--weights", "spots_iter_8.caffemodel")
    assert autodial("recalibrate", *given, "-o", "new.caffemodel")[0] == 0
    assert "run can't be written (No space left on device): a model card of new.caffemodel" in caplog.text
    assert find_trained_net("new.caffemodel", "fc") is None


def test_weights_that_no_run_wrote_are_not_known(project: Path, autodial: Autodial) -> None:
    shutil.rmtree(project / "run")
    status, out, _ = autodial(*EXPORT, "--card", "README.md")
    assert status == 0 and "it lacks the accuracy, as the training's record is not beside the weights" in out
    assert "Not known: no record of the training" in read_card(project / "README.md").text


def test_a_run_is_found_by_the_weights_it_wrote(project: Path) -> None:
    shutil.copy(project / "spots_iter_4.caffemodel", project / "run" / "renamed.caffemodel")
    found = find_trained_net(str(project / "run" / "renamed.caffemodel"), "fc")
    assert found is not None and (found.iteration, found.seed, found.statistics) == (4, 5, "target")
    assert find_trained_net("spots_iter_8.caffemodel,spots_iter_4.caffemodel", "fc") is None
    (project / "run" / "run.json").write_text("{")
    assert find_trained_net(str(project / "spots_iter_8.caffemodel"), "fc") is None


def test_the_alphas_are_those_of_the_weights(project: Path) -> None:
    found = find_trained_net("spots_iter_8.caffemodel", "fc")
    stored = {layer.name: layer for layer in read_weights(project / "spots_iter_8.caffemodel").layers}
    assert found is not None and list(found.alphas) == ["conv/dial", "fc/dial"]
    for name, alpha in found.alphas.items():
        (blob,) = stored[name].blobs[0].flat  # type: ignore[union-attr]
        assert alpha == min(1, blob)
    assert found.alphas["fc/dial"] not in [row["alphas"]["fc/dial"] for row in log(project) if row["event"] == "train"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["solver.test_initialization=false", "solver.test_interval=9"],
            r"test_interval \(9\) is larger than max_iter",
        ),
        (["solver.test_interval=9"], None),
    ],
)
def test_a_training_without_a_test_says_why(
    settings: list[str], words: str | None, project: Path, autodial: Autodial
) -> None:
    given = [word for setting in settings for word in ("--set", setting)]
    given += ["--set", "solver.snapshot_prefix=again"]
    status, out, err = autodial("train", "--solver", "solver.prototxt", "--device", "cpu", "-o", "again", *given)
    found = find_trained_net("again_iter_8.caffemodel", "fc")
    assert status == 0 and found is not None, err
    if words is None:
        assert found.scores is not None and found.untested is None and "nothing is tested" not in out
    else:
        assert found.scores is None and re.search(words, str(found.untested))
        assert re.search(f"; nothing is tested, as {words}", out)


def test_a_card_is_refused_before_the_work(project: Path, autodial: Autodial) -> None:
    (project / "README.md").write_text("# mine\n")
    status, _, err = autodial(*EXPORT, "--card", "README.md")
    assert status == 2 and "README.md is there, and no card that an export wrote" in err
    status, _, err = autodial(*EXPORT, "--card", "CARD.md", "--raw-input")
    assert status == 2 and "--card describes an ONNX file that takes images" in err
    status, _, err = autodial(*EXPORT, "--license", "no license")
    assert status == 2 and "--license is a name from https://spdx.org/licenses" in err
    assert not (project / "spots.onnx").exists() and not (project / "CARD.md").exists()


@pytest.fixture
def card(project: Path, autodial: Autodial) -> Card:
    """The card of a file whose name needs quotes, and the pictures that its snippets read."""
    assert autodial(*EXPORT[:-1], "it's spots.onnx", "--card", "README.md")[0] == 0
    (project / "photos").mkdir()
    image = cv2.resize(cv2.imread(str(project / "target" / "0.png")), (31, 23), interpolation=cv2.INTER_CUBIC)
    for name in ("photo.jpg", "photos/a.jpg"):
        assert cv2.imwrite(str(project / name), image)
    return read_card(project / "README.md")


def run(code: str) -> str:
    done = run_commands(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_snippets_of_a_card_run(card: Card, project: Path) -> None:
    (labels,) = Predictor("it's spots.onnx", "cpu").predict(["photo.jpg"]).top(1)
    predict, serve, curl = card.blocks["bash"]
    run(predict)
    assert labels[0].name in (project / "labels.csv").read_text("utf-8")
    for code in card.blocks["python"]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), {})
        name, _, probability = printed.getvalue().strip().rpartition(" ")
        assert name == labels[0].name and float(probability) == pytest.approx(labels[0].probability, abs=1e-6)
    pytest.importorskip("starlette", reason="needs the extra [serve]")
    assert run(f"set -- {serve.strip()}; printf '%s' \"$4\"") == "classifier=it's spots.onnx"
    with serving("--name", "classifier=it's spots.onnx", "--quiet") as service:
        answer = json.loads(run(re.sub(r":8000/", f":{service.port}/", curl)))
    assert answer["results"][0]["label"] == labels[0].name

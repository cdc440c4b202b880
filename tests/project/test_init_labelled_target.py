"""`autodial init --labelled-target`: a few target labels join the training; other commands take such a project."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from autodial.data.image_list import ImageList

pytestmark = pytest.mark.usefixtures("here")

NAMES = ["a box", "círculo", "線"]
Run = Callable[..., tuple[int, str, str]]
CPU = ("--device", "cpu", "--workers", "0")


@pytest.fixture
def domains(images: Any) -> dict[str, list[str]]:
    """source/ and target/ with class folders; gives the target's images by class."""
    for name in NAMES:
        images(f"source/{name}", 8, color=False)
    return {name: images(f"target/{name}", 6, color=False) for name in NAMES}


def init(autodial: Run, *more: str | Path, folder: str = "project") -> str:
    words = ("--arch", "digits", "--source", "source", "--target", "target", "--epochs", "4", "--batch-size", "20")
    status, out, err = autodial("init", folder, *words, *more)
    assert status == 0, err
    return out


def refused(autodial: Run, given: str, *more: str) -> str:
    words = ("--arch", "digits", "--source", "source", "--target", "target", *more)
    status, _, err = autodial("init", "project", *words, "--labelled-target", given)
    assert status == 2 and not Path("project").exists()
    return " ".join(err.split())


def listed(name: str, folder: str = "project") -> list[tuple[str, int]]:
    return [(entry.path, entry.label) for entry in ImageList.read(Path(folder, f"{name}.txt"))]


def few(domains: dict[str, list[str]]) -> list[tuple[str, int]]:
    """One image of each class."""
    return [(domains[name][1], label) for label, name in enumerate(NAMES)]


def test_every_form_makes_the_same_project(autodial: Run, domains: dict[str, list[str]]) -> None:
    chosen = few(domains)
    Path("numbers.txt").write_text("".join(f"{path} {label}\n" for path, label in chosen), encoding="utf-8")
    Path("names.txt").write_text("".join(f"{path} {NAMES[label]}\n" for path, label in chosen), encoding="utf-8")
    rows = "".join(f"{path};{NAMES[label]};a box;0.3\n" for path, label in chosen)
    Path("filled in.csv").write_text(
        f"path;label;label_1;probability_1\n{rows}{domains['線'][4]};;線;0.5\n", encoding="utf-8"
    )
    for path, label in chosen:
        Path("folders", NAMES[label]).mkdir(parents=True)
        Path("folders", NAMES[label], "x.png").symlink_to(path)
    for given in ("numbers.txt", "names.txt", "filled in.csv", "folders"):
        out = init(autodial, "--labelled-target", given, folder=f"project {given}")
        linked = [(str(path), label) for path, label in listed("target_labelled", f"project {given}")]
        assert [(str(Path(path).resolve()), label) for path, label in linked] == chosen
        # 24 source and 18 target images share 20 rows as 11 and 9; a quarter of 9 is 2
        assert "batch        20: 11 source images, then 9 target images, the first 2 of them with labels" in out
        assert ("1 row of filled in.csv without a label is left out" in out) == given.endswith("csv")


def test_they_stay_among_the_unlabelled_and_leave_the_test_set(autodial: Run, domains: dict[str, list[str]]) -> None:
    chosen = few(domains)
    Path("few.txt").write_text("".join(f"{path} {label}\n" for path, label in chosen[:2]), encoding="utf-8")
    # a copy of the third, as people make it who sort images by hand
    Path("copy.png").write_bytes(Path(chosen[2][0]).read_bytes())
    with Path("few.txt").open("a", encoding="utf-8") as file:
        file.write("copy.png 2\n")
    out = init(autodial, "--labelled-target", "few.txt")
    everything = {path for paths in domains.values() for path in paths}
    assert {path for path, _ in listed("target")} == everything
    assert {path for path, _ in listed("test")} == everything - {path for path, _ in chosen}
    assert listed("target_labelled") == [*chosen[:2], (str(Path("copy.png").resolve()), 2)]
    assert "3 labelled target images that the net learns from are left out of the test set, which has 15 images" in out
    assert "not in the target" not in out
    assert [line.split()[-2:] for line in out.splitlines() if line.strip().startswith("all")] == [["3", "15"]]


def test_a_label_for_an_unlabelled_target(autodial: Run, domains: dict[str, list[str]], images: Any) -> None:
    flat = images("flat", 5, color=False)
    Path("few.csv").write_text(f"path,label\n{flat[0]},線\n", encoding="utf-8")
    words = ("--arch", "digits", "--source", "source", "--target", "flat", "--labelled-target", "few.csv")
    status, out, _ = autodial("init", "project", *words)
    assert status == 0 and not Path("project/test.txt").exists()
    assert "The labelled target has no images of 2 of the 3 classes (a box, círculo)" in out


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("source/線/0.png 2\n", "1 of the 1 images in the labelled target (few.txt) are also in the source (source)"),
        (
            "target/線/0.png 2\ntarget/線/../線/0.png 1\n",
            'target/線/0.png has the label "círculo" here, and "線" in line 1: keep the right one',
        ),
        ("target/線/0.png 3\n", 'few.txt:1: the label "3" is not a class'),
        ("target/線/9.png 2\n", 'few.txt:1: "target/線/9.png" does not exist'),
        ("bad.png 2\n", "1 of the 1 images in the labelled target (few.txt) can't be used"),
    ],
)
def test_what_is_refused(autodial: Run, domains: dict[str, list[str]], lines: str, message: str) -> None:
    Path("bad.png").touch()
    Path("few.txt").write_text(lines, encoding="utf-8")
    assert message in refused(autodial, "few.txt")


def test_a_file_in_two_class_folders_is_refused(autodial: Run, domains: dict[str, list[str]]) -> None:
    for name in ("a box", "線"):
        Path("few", name).mkdir(parents=True)
        Path("few", name, "x.png").symlink_to(domains["線"][0])
    folder = Path("few").resolve()
    assert (
        f'few: {folder}/線/x.png has the label "線" here, and "a box" in {folder}/a box: keep the right one'
    ) in refused(autodial, "few")


def test_images_from_elsewhere_get_a_note(autodial: Run, domains: dict[str, list[str]], images: Any) -> None:
    other = images("elsewhere", 2, color=False)
    Path("few.txt").write_text(f"{domains['線'][0]} 2\n{other[0]} 1\n{other[1]} 0\n", encoding="utf-8")
    out = init(autodial, "--labelled-target", "few.txt")
    assert f"2 of the 3 labelled target images are not in the target (target), such as {other[0]}" in out
    Path("few.txt").write_text(f"{domains['線'][0]} 2\n", encoding="utf-8")
    assert "not in the target" not in init(autodial, "--labelled-target", "few.txt", folder="other")


def test_a_test_set_that_is_learned_from_is_refused(autodial: Run, domains: dict[str, list[str]]) -> None:
    assert "every image with which accuracy is measured (target) is also in the labelled target" in refused(
        autodial, "target"
    )
    assert "nowhere: no such file or folder" in refused(autodial, "nowhere")


def test_a_wrong_label_is_found_before_training(autodial: Run, domains: dict[str, list[str]]) -> None:
    Path("few.txt").write_text(f"{domains['線'][0]} 2\n", encoding="utf-8")
    init(autodial, "--labelled-target", "few.txt")
    Path("project/target_labelled.txt").write_text(f"{domains['線'][0]} 7\n", encoding="utf-8")
    status, _, err = autodial("train", "--solver", "project/solver.prototxt", *CPU)
    assert status == 2 and "target_labelled.txt:1: label 7 is not in [0, 3)" in " ".join(err.split())


def stripes() -> None:
    """source/ and target/ of a class with stripes along and a class with stripes across; the target is inverted."""
    random = np.random.default_rng(0)
    for domain, low, high in (("source", 20, 220), ("target", 230, 90)):
        for label, name in enumerate(("across", "along")):
            Path(domain, name).mkdir(parents=True)
            for i in range(20):
                image = np.full((20, 20), low)
                image[random.integers(4) :: 4] = high
                noisy = np.clip((image.T if label else image) + random.normal(0, 15, (20, 20)), 0, 255)
                cv2.imwrite(str(Path(domain, name, f"{i}.png")), noisy.astype(np.uint8))


def last_weights(folder: str) -> Path:
    return max(Path(folder).glob("*.caffemodel"), key=lambda path: int(path.stem.rpartition("_")[2]))


@pytest.fixture
def done(autodial: Run) -> Callable[..., str]:
    """`done(arguments...)` runs a command that ends well, and gives what it printed."""

    def run(*words: str | Path) -> str:
        status, out, err = autodial(*words)
        assert status == 0, err
        return out

    return run


ON_STRIPES = ("--arch", "digits", "--source", "source", "--target", "target", "--epochs", "4")


def test_it_trains_and_leaves_as_any_project(done: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    stripes()
    Path("few.txt").write_text("target/along/3.png along\ntarget/across/4.png across\n")
    done("init", "project", *ON_STRIPES, "--labelled-target", "few.txt")
    net = "project/train_val.prototxt"
    with caplog.at_level(logging.WARNING):
        done("train", "--solver", "project/solver.prototxt", *CPU)
    assert "several rows" not in caplog.text
    done("test", "--net", net, "--weights", last_weights("project"), *CPU, "-o", "scores.csv")
    with Path("scores.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 38
    weights = ("--weights", last_weights("project"))
    printed = done("export", "--recalibrate", "--net", net, *weights, "-o", "target.onnx", "--card", "README.md")
    card = Path("README.md").read_text("utf-8")
    assert "target images with labels: `target_labelled.txt` (2 images)" in card
    assert "40" in printed  # all target images, those with labels too
    done("predict", "target.onnx", "target", "-o", "labels.csv", "--device", "cpu", "-q", "--drift", "drift.json")
    assert json.loads(Path("drift.json").read_text("utf-8"))["verdict"] != "shifted"


def test_a_slice_at_a_wrong_row_is_pointed_out(
    done: Callable[..., str], caplog: pytest.LogCaptureFixture, domains: dict[str, list[str]]
) -> None:
    Path("few.txt").write_text(f"{domains['線'][0]} 2\n", encoding="utf-8")
    done("init", "project", "--arch", "digits", "--source", "source", "--target", "target", "--epochs", "1",
         "--batch-size", "20", "--labelled-target", "few.txt")  # fmt: skip
    wrong = ("--set", "fc3-dial.dial_param.slice_point=12")
    with caplog.at_level(logging.WARNING):
        done("train", "--solver", "project/solver.prototxt", *CPU, *wrong)
    assert 'several rows: 11 by layer "label-concat", 12 by layer "fc3-dial"' in caplog.text


@pytest.mark.slow
def test_the_whole_way(done: Callable[..., str]) -> None:
    """Train without labels, choose what to label, fill in, and train, report and choose with the labels."""
    stripes()
    done("init", "first", *ON_STRIPES)
    done("train", "--solver", "first/solver.prototxt", *CPU)
    weights = last_weights("first")
    done("export", "--net", "first/train_val.prototxt", "--weights", weights, "-o", "first.onnx")
    done("predict", "first.onnx", "target", "--to-label", "6", "-o", "to label.csv", "--device", "cpu", "-q")
    with Path("to label.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[:5]:
        row["label"] = Path(row["path"]).parent.name
    with Path("to label.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)

    done("init", "second", *ON_STRIPES, "--labelled-target", "to label.csv")
    assert len(ImageList.read("second/target_labelled.txt")) == 5
    solver = "second/solver.prototxt"
    done("train", "--solver", solver, *CPU)
    done("report", "second/solver_run")
    for variant in ("source-only", "adabn", "entropy-only"):
        extra = ("--variant", variant, "--set", f"solver.snapshot_prefix={variant}", "-o", f"run {variant}")
        done("train", "--solver", solver, *CPU, *extra)
    done("select", "--solver", solver, "--try", "loss-target.loss_weight=0.1,0.4", *CPU, "--jobs", "1", "-o", "chosen")
    assert len(json.loads(Path("chosen/select.json").read_text("utf-8"))["candidates"]) == 2
    # other labels make another selection
    path = Path("second/target_labelled.txt")
    lines = path.read_text("utf-8").splitlines()
    path.write_text("".join(f"{line[:-1]}{1 - int(line[-1])}\n" for line in lines), encoding="utf-8")
    with pytest.raises(AssertionError, match="the target's list"):
        done("select", "--solver", solver, "--try", "loss-target.loss_weight=0.1,0.4", *CPU, "-o", "chosen")

"""`autodial init`, as a new user types it: what it writes trains, tests, exports and predicts."""

from __future__ import annotations

import csv
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import damaged_jpeg, said_of

from autodial import proto
from autodial.cli import app
from autodial.data.image_list import ImageList
from autodial.errors import InputError, WorkError
from autodial.netparam.shipped import shipped_net, shipped_solver
from autodial.system.files import replacing

pytestmark = pytest.mark.usefixtures("here")

NAMES = ["a box", "círculo", "線"]


def run(*words: str | Path) -> None:
    assert not app([str(word) for word in words], standalone_mode=False)


def domains(images: Any, *, color: bool = True, suffix: str = ".png", counts: tuple[int, int] = (8, 6)) -> None:
    """source/ and target/ with three class folders each, of odd sizes."""
    for domain, count in zip(("source", "target"), counts, strict=True):
        for name in NAMES:
            images(f"{domain}/{name}", count, color=color, suffix=suffix)


def init(*more: str | Path, folder: str = "project", arch: str | Path = "digits", target: str = "target") -> None:
    run("init", folder, "--arch", arch, "--source", "source", "--target", target, *more)


def written(folder: str = "project") -> tuple[Any, Any]:
    net = proto.read_net(Path(folder, "train_val.prototxt"))
    return {layer.name: layer for layer in net.layer}, proto.read_solver(Path(folder, "solver.prototxt"))


def test_the_whole_way_with_colour_photographs(
    images: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    domains(images, suffix=".jpg")
    init("--epochs", "4")
    out = capsys.readouterr().out.strip()
    assert "Training ends with the command that exports the net: autodial export --recalibrate" in out
    command = shlex.split(out.splitlines()[-1])
    assert command == ["autodial", "train", "--solver", "project/solver.prototxt"]
    run(*command[1:], "--device", "cpu", "--workers", "0")
    assert "Test net output #0: accuracy" in capsys.readouterr().out

    Path("elsewhere").mkdir()
    Path("project").rename("moved")
    monkeypatch.chdir("elsewhere")
    net, weights = "../moved/train_val.prototxt", "../moved/solver_iter_4.caffemodel"
    run("test", "--net", net, "--weights", weights, "--device", "cpu", "--workers", "0", "-o", "scores.csv")
    run("export", "--net", net, "--weights", weights, "-o", "target.onnx")
    run("predict", "target.onnx", "../target", "--device", "cpu", "-o", "labels.csv")
    with Path("scores.csv").open(encoding="utf-8") as file:
        scores = {Path(row["path"]): NAMES[int(row["predicted"])] for row in csv.DictReader(file)}
    with Path("labels.csv").open(encoding="utf-8") as file:
        labels = {Path(row["path"]).resolve(): row["label_1"] for row in csv.DictReader(file)}
    assert labels == scores and len(labels) == 18


def test_the_whole_way_without_labels_in_grey(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domains(images, color=False)
    images("flat", 7, color=False)
    init("--epochs", "2", target="flat")
    out = capsys.readouterr().out
    assert "snapshots    every iteration\n" in out and " with 24 source images each: 2 epochs over the source\n" in out
    assert not Path("project/test.txt").exists()
    net, solver = written()
    assert "accuracy" not in net and not solver.test_iter and not solver.HasField("test_interval")
    run("train", "--solver", "project/solver.prototxt", "--device", "cpu", "--workers", "0")
    weights = f"project/solver_iter_{solver.max_iter}.caffemodel"
    net_path = "project/train_val.prototxt"
    run("test", "--net", net_path, "--weights", weights, "--device", "cpu", "--workers", "0", "-o", "scores.csv")
    assert "accuracy" not in capsys.readouterr().out.partition("Training done.")[2]
    with Path("scores.csv").open(encoding="utf-8") as file:
        assert [(row["label"], row["loss"]) for row in csv.DictReader(file)] == [("-1", "")] * 7
    run("export", "--net", net_path, "--weights", weights, "-o", "target.onnx")
    run("predict", "target.onnx", "project/target.txt", "--device", "cpu", "-o", "labels.csv")
    with Path("labels.csv").open(encoding="utf-8") as file:
        assert {row["label_1"] for row in csv.DictReader(file)}.issubset(NAMES)


def test_what_is_written(images: Any) -> None:
    domains(images)
    init("--epochs", "10", "--batch-size", "20")
    net, solver = written()
    assert Path("project/labels.txt").read_text("utf-8").splitlines() == NAMES
    source, target, test = (ImageList.read(f"project/{name}.txt") for name in ("source", "target", "test"))
    assert [entry.label for entry in source] == [0] * 8 + [1] * 8 + [2] * 8
    assert [entry.label for entry in target] == [-1] * 18
    assert [entry.label for entry in test] == [0] * 6 + [1] * 6 + [2] * 6
    assert [entry.path for entry in target] == [entry.path for entry in test]
    assert all(Path(entry.path).is_absolute() and Path(entry.path).is_file() for entry in (*source, *target))
    # 24 and 18 images at 20 make 11.4 and 8.6; 10 passes over 24 images at 11 are 21.8 iterations
    assert (net["data-source"].image_data_param.batch_size, net["data-target"].image_data_param.batch_size) == (11, 9)
    assert net["fc4"].inner_product_param.num_output == 3
    assert solver.max_iter == 22 and solver.gamma * 22 == pytest.approx(10, rel=1e-5)
    assert list(solver.test_iter) == [1] and net["data-test"].image_data_param.batch_size == 18
    assert solver.snapshot == 5 and not solver.HasField("snapshot_prefix")


def test_a_test_list_of_its_own(images: Any) -> None:
    domains(images)
    held_out = images("held out/線", 2)
    Path("test list.txt").write_text(f"{held_out[0]} 2\n{held_out[1]} 0\n", encoding="utf-8")
    init("--test", "test list.txt")
    assert [(entry.path, entry.label) for entry in ImageList.read("project/test.txt")] == [
        (str(Path(held_out[0]).resolve()), 2),
        (str(Path(held_out[1]).resolve()), 0),
    ]


def test_many_epochs_over_few_images(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The digits' schedule is a number of iterations, whatever the number of images."""
    domains(images)
    init(arch="digits")
    said = r"(\d+) iterations are (\d+) epochs over so few images: lower --epochs if the losses stop changing"
    assert (found := re.search(said, capsys.readouterr().out)) and int(found[1]) >= int(found[2]) > 200
    init("--epochs", "20", folder="fewer", arch="digits")
    assert "so few images" not in capsys.readouterr().out


def test_sixty_epochs_of_alexnet(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domains(images)
    init(arch="alexnet")
    net, solver = written()
    # all 42 images make a batch, so that an epoch is an iteration
    assert (solver.max_iter, list(solver.stepvalue)) == (60, [54])
    for layer in ("data-source", "data-target", "data-test"):
        assert (net[layer].image_data_param.new_height, net[layer].image_data_param.new_width) == (256, 256)
    out = capsys.readouterr().out
    assert "The domains have only 42 images, so that a batch has 42 instead of 256" in out
    assert "5 layers of the net can't learn, such as conv1" in out and "with --weights" in out


def test_weights_of_other_classes(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domains(images)
    init("--epochs", "1", folder="first")
    run("train", "--solver", "first/solver.prototxt", "--device", "cpu", "--workers", "0")
    for domain in ("source", "target"):
        images(f"{domain}/one more", 4)
    weights = f"first/solver_iter_{written('first')[1].max_iter}.caffemodel"
    init("--epochs", "1", "--weights", weights, folder="second")
    assert {"fc4-new", "fc4-dial-new", "fc4-scale-new"}.issubset(written("second")[0])
    out = capsys.readouterr().out
    assert "3 of 4 Convolution and InnerProduct layers start from the weights; the others are fc4-new" in out
    run(*shlex.split(out.strip().splitlines()[-1])[1:], "--device", "cpu", "--workers", "0")


def test_a_net_of_ones_own(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domains(images)
    Path("mine").mkdir()
    net = proto.read_net(shipped_net("digits"))
    for layer in net.layer:
        for field in ("new_height", "new_width"):
            layer.image_data_param.ClearField(field)
    proto.write_text(net, "mine/net.prototxt")
    with pytest.raises(InputError, match=r"the net states no image size, and .* has .* pixels, but"):
        init(arch="mine/net.prototxt")
    images("equal/x", 3, size=20)
    images("equal/y", 3, size=20)
    images("other", 3, size=20)
    run("init", "project", "--arch", "mine/net.prototxt", "--source", "equal", "--target", "other")
    assert written()[0]["data-source"].image_data_param.new_height == 20
    assert "There is no solver.prototxt beside mine" in capsys.readouterr().out

    solver = proto.read_solver(shipped_solver("digits"))
    solver.max_iter, solver.gamma = 300, 0.1
    proto.write_text(solver, "mine/solver.prototxt")
    arch = ("--arch", "mine/net.prototxt", "--source", "equal", "--target", "other")
    run("init", "again", *arch)
    assert (written("again")[1].max_iter, written("again")[1].lr_policy) == (300, "inv")


def test_weights_that_the_solver_of_a_net_names(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """As in training: the project starts from them, and its own solver, which lies elsewhere, names none."""
    domains(images)
    init("--epochs", "1", folder="mine")
    run("train", "--solver", "mine/solver.prototxt", "--device", "cpu", "--workers", "0")
    solver = written("mine")[1]
    Path(f"mine/solver_iter_{solver.max_iter}.caffemodel").rename("mine/start.caffemodel")
    solver.weights.append("start.caffemodel")
    proto.write_text(solver, "mine/solver.prototxt")
    capsys.readouterr()
    init("--epochs", "1", arch="mine/train_val.prototxt", folder="second")
    out = capsys.readouterr().out
    assert "mine/solver.prototxt names the weights to start from, mine/start.caffemodel; --weights would" in out
    assert "4 of 4 Convolution and InnerProduct layers start from the weights" in out
    assert not written("second")[1].weights
    assert shlex.split(out.strip().splitlines()[-1])[-2:] == ["--weights", "mine/start.caffemodel"]
    Path("mine/start.caffemodel").unlink()
    with pytest.raises(InputError, match=r'^mine/solver.prototxt: weights: "start.caffemodel" does not exist'):
        init("--epochs", "1", arch="mine/train_val.prototxt", folder="third")


PLAIN = """
name: "plain"
input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
OF_ANY_SIZE = (
    'input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }',
    'layer { name: "data" type: "ImageData" top: "data" top: "label" image_data_param { source: "list" } }',
)


@pytest.mark.parametrize(
    ("net", "option"),
    [
        (PLAIN, "--transform"),
        (PLAIN.replace(*OF_ANY_SIZE), "--resize"),
        (PLAIN + 'layer { name: "other" type: "Softmax" bottom: "data" top: "other" }', "--logits"),
    ],
)
def test_advice_names_the_command_whose_option_it_is(
    images: Any, capsys: pytest.CaptureFixture[str], net: str, option: str
) -> None:
    """`init` has no option of that name."""
    domains(images)
    Path("plain.prototxt").write_text(net)
    told = ""
    try:
        init("--epochs", "2", arch="plain.prototxt")
    except InputError as error:
        told = str(error)
    told += capsys.readouterr().out
    assert f"`autodial dialize`'s {option}" in told
    run("dialize", "--help")
    of_dialize = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    run("init", "--help")
    of_init = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert option in of_dialize - of_init


def test_a_plain_net_is_dialized(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domains(images)
    Path("plain.prototxt").write_text(
        """
        name: "plain"
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 12 dim: 12 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
          inner_product_param { num_output: 9 weight_filler { type: "xavier" } } }
        layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
        """
    )
    init("--epochs", "2", arch="plain.prototxt")
    out = capsys.readouterr().out
    assert "plain.prototxt is a plain net" in out
    run(*shlex.split(out.strip().splitlines()[-1])[1:], "--device", "cpu", "--workers", "0")


def test_a_working_directory_with_another_projects_files(
    images: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in prototxts mean the working directory first, as in Caffe: from there, another net would be trained."""
    domains(images)
    init(folder="my first")
    monkeypatch.chdir("my first")
    run("init", "../my second", "--arch", "digits", "--source", "../source", "--target", "../target")
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == "cd '../my second' && autodial train --solver solver.prototxt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "digitz"], r"no such file, and no net that comes with AutoDIAL \(alexnet, digits, inception_bn"),
        (["--target", "source"], "the source and the target are the same, source"),
        (["--target", "source/線"], r"8 of the 8 images in the target .* are also in the source \(source\), such as"),
        (["--epochs", "0"], r"--epochs 0: choose a number above 0"),
        (["--weights", "nowhere.caffemodel"], "nowhere.caffemodel does not exist"),
        (["--weights", "other.caffemodel"], "the weights have none of the net's layers"),
        (["--test", "flat"], "flat contains 3 images outside of class folders"),
        (
            ["--target", "bad"],
            r"1 of the 3 images in the target \(bad\) can't be used: .*0.png is empty: .* --skip-bad",
        ),
    ],
)
def test_refuses_before_anything_is_written(images: Any, arguments: list[str], message: str) -> None:
    domains(images)
    images("flat", 3)
    images("bad", 3)
    Path("bad/0.png").write_bytes(b"")
    stored = proto.LayerWeights(proto.messages.LayerParameter(name="other"), [np.zeros(3, np.float32)])
    proto.write_weights(proto.Weights("w", [stored]), "other.caffemodel")
    options = {"--arch": "digits", "--source": "source", "--target": "target"}
    options.update(zip(arguments[::2], arguments[1::2], strict=True))
    with pytest.raises(InputError, match=message):
        run("init", "project", *(word for option in options.items() for word in option))
    assert not Path("project").exists()


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("full", "full exists and is not empty: name another folder"),
        ("full/file", "full/file is a file"),
        ("source/project", "source/project lies in source, a folder of images"),
        ("full/file/x", "full/file/x: .*file is not a folder"),
    ],
)
def test_refuses_folders_that_can_not_become_projects(images: Any, folder: str, message: str) -> None:
    domains(images)
    Path("full").mkdir()
    Path("full/file").touch()
    with pytest.raises(InputError, match=message):
        init(folder=folder)


def test_bad_images_can_be_left_out(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domains(images)
    Path("source/線/0.png").write_bytes(b"")
    init("--skip-bad")
    assert len(ImageList.read("project/source.txt")) == 23
    assert "線/0.png is empty" in capsys.readouterr().err
    for path in Path("source/線").iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match='class "線" has no usable image'):
        init("--skip-bad", folder="again")


def test_copies_are_noted(images: Any, capsys: pytest.CaptureFixture[str]) -> None:
    domains(images)
    Path("target/線/copy.png").write_bytes(Path("source/線/3.png").read_bytes())
    init()
    assert "The target has 1 copies of source images, such as" in capsys.readouterr().out


def test_a_failure_leaves_nothing(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    domains(images)

    def failing(path: Path) -> Any:
        if path.name == "solver.prototxt":
            raise WorkError(f"{path} can't be written: no space")
        return replacing(path)

    monkeypatch.setattr("autodial.project.files.replacing", failing)
    with pytest.raises(WorkError, match="no space"):
        init(folder="new/deep/project")
    assert not Path("new").exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="nothing is closed to root")
def test_a_folder_without_leave_to_write(images: Any) -> None:
    domains(images)
    Path("closed").mkdir(0o500)
    with pytest.raises(InputError, match=r"closed/project: can't write to the folder .*closed "):
        init(folder="closed/project")


def test_a_damaged_image_is_named_and_used(images: Any, capfd: pytest.CaptureFixture[str]) -> None:
    domains(images)
    path = Path("source", NAMES[0], "3.jpg").absolute()
    path.write_bytes(damaged_jpeg())
    words = said_of(path, capfd)
    init()
    err = capfd.readouterr().err
    assert f"{path} is damaged; the part that could be decoded is used: {words}" in " ".join(err.split())
    assert err.count("Corrupt") == 1
    assert str(path) in Path("project", "source.txt").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
@pytest.mark.parametrize("there", [False, True])
def test_killed_anywhere_it_leaves_all_or_nothing_and_runs_again(
    images: Any, killed: Callable[..., bool], there: bool
) -> None:
    domains(images, color=False)
    words = ("--arch", "digits", "--source", "source", "--target", "target")
    init(folder="whole")
    whole = files("whole")
    moves = 0
    while True:
        folder = Path(f"in/killed_{moves}")
        if there:
            folder.mkdir(parents=True)
        if not killed(moves, "init", folder, *words):
            break
        assert not (folder / "solver.prototxt").exists()
        assert there or not folder.exists()
        (Path("target") / "a box" / "0.png").touch()
        run("init", str(folder), *words)
        assert files(folder) == whole
        moves += 1
    assert moves == (12 if there else 7)
    assert files(folder) == whole
    assert not list(Path("in").rglob("*.tmp"))


def files(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_what_else_lies_in_a_folder_is_in_the_way_after_a_kill(images: Any, killed: Callable[..., bool]) -> None:
    domains(images, color=False)
    Path("project").mkdir()
    assert killed(8, "init", "project", "--arch", "digits", "--source", "source", "--target", "target")
    Path("project/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="project exists and is not empty"):
        init()
    assert Path("project/notes.txt").read_text() == "mine"

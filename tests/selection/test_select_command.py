"""`autodial select` as users type it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from autodial import proto
from autodial.cli import app
from autodial.data.image_list import ImageList
from autodial.errors import InputError
from autodial.net.feed import sources
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.selection import criteria
from autodial.selection.experiment import locked
from autodial.selection.job import Job
from autodial.training.solver import Solver

TRY = "loss-target.loss_weight=0,0.5"


def select(*arguments: str) -> Result:
    command = ["select", "--solver", "solver.prototxt", "--device", "cpu", "--jobs", "2", "--workers", "0"]
    return CliRunner().invoke(app, [*command, *arguments])


def error(*arguments: str) -> str:
    result = select(*arguments)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def record(folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(folder, "select.json").read_text())
    return loaded


def results(folder: str) -> dict[str, tuple[float, str]]:
    """When each result was written, and what it holds."""
    found = sorted(Path(folder).glob("candidates/*/*/result.json"))
    return {str(path): (path.stat().st_mtime, path.read_text()) for path in found}


def relabel(name: str, label: int) -> None:
    """Give all images of a list one label."""
    lines = Path(name).read_text().splitlines()
    Path(name).write_text("".join(f"{line.rpartition(' ')[0]} {label}\n" for line in lines))


@pytest.fixture(scope="module")
def selected(stripes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder with the stripes and a finished selection in `chosen`."""
    folder = tmp_path_factory.mktemp("selected") / "project"
    shutil.copytree(stripes, folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        return folder, select("--try", TRY, "-o", "chosen", "--target-labels")
    finally:
        os.chdir(before)


@pytest.fixture
def project(selected: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, made the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(selected[0], folder, copy_function=shutil.copy2)
    monkeypatch.chdir(folder)
    return folder


def test_table_and_record(project: Path, selected: tuple[Path, Result]) -> None:
    result = selected[1]
    assert result.exit_code == 0, result.output
    loaded = record("chosen")
    assert [candidate["settings"] for candidate in loaded["candidates"]] == [
        ["loss-target.loss_weight=0"],
        ["loss-target.loss_weight=0.5"],
    ]
    assert [choice["criterion"] for choice in loaded["choices"]] == [
        *("source", "weighted", "alignment", "entropy", "density")
    ]
    for candidate in loaded["candidates"]:
        measures = candidate["measures"]
        assert measures["held_out"] == 12
        assert 0 <= measures["source_accuracy"] <= 1
        assert 0 <= measures["entropy"] <= np.log(3)
        assert measures["target_accuracy"] is not None
    words = shlex.split(loaded["train"])
    assert words[:4] == ["autodial", "train", "--solver", "solver.prototxt"]
    assert words[-2:] == ["--set", *loaded["chosen"]]
    assert result.output.rstrip().endswith(loaded["train"])
    for title in ("source", "weighted", "alignment", "entropy", "density", "target"):
        assert title in result.output
    assert not list(Path("chosen").rglob("*.caffemodel"))
    assert not list(Path("chosen").rglob("*.solverstate"))


def test_measures_are_those_of_a_training_without_the_held_out_images(project: Path) -> None:
    measures = record("chosen")["candidates"][1]["measures"]
    held_out = ImageList.read("chosen/folds/fold_0/held_out.txt")
    solver = Solver.from_file(
        "solver.prototxt",
        overrides=["loss-target.loss_weight=0.5", "source.image_data_param.source=chosen/folds/fold_0/training.txt"],
    )
    solver.step(12)
    solver.close()

    def logits(path: str, statistics: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Of every image of a list, through the TEST phase."""
        net_param = proto.read_net("net.prototxt")
        for layer in net_param.layer:
            layer.dial_param.test_stats = statistics
            if layer.name == "test":
                layer.image_data_param.source = path
                layer.image_data_param.batch_size = len(ImageList.read(path))
        net = Net(net_param, pb.TEST)
        net.share_with(solver.net)
        data, _ = sources(net)["test"].batch(0)
        with torch.no_grad():
            return net.blobs({"data": torch.from_numpy(data), "label": torch.zeros(len(data))}, ["fc"])["fc"].numpy()

    source = logits("chosen/folds/fold_0/held_out.txt", pb.DialParameter.SOURCE)
    target = logits("target.txt", pb.DialParameter.TARGET)
    labels = np.array([entry.label for entry in held_out])
    assert measures["source_accuracy"] == pytest.approx((source.argmax(axis=1) == labels).mean())
    predictions = criteria.softmax(target)
    assert measures["entropy"] == pytest.approx(criteria.mean_entropy(predictions), rel=1e-4)
    assert measures["diversity"] == pytest.approx(criteria.diversity(predictions) / np.log(3), rel=1e-4)
    truth = np.array([entry.label for entry in ImageList.read("test.txt")])
    assert measures["target_accuracy"] == pytest.approx((target.argmax(axis=1) == truth).mean())


def test_finished_candidates_are_not_run_again(project: Path) -> None:
    before = results("chosen")
    assert len(before) == 2
    result = select("--try", TRY, "-o", "chosen", "--target-labels", "--criterion", "entropy", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == record("chosen")
    assert printed["criterion"] == "entropy"
    assert results("chosen") == before


def test_values_are_added_and_a_diverging_one_is_a_row(project: Path) -> None:
    before = results("chosen")
    result = select("--try", TRY.replace("0.5", "0.5,1e38"), "-o", "chosen")
    assert result.exit_code == 0, result.output
    after = results("chosen")
    assert len(after) == 3
    assert before.items() <= after.items()
    *_, failed = record("chosen")["candidates"]
    assert failed["measures"] is None
    assert "training has diverged" in failed["error"]
    assert "failed" in result.output
    assert record("chosen")["chosen"] != failed["settings"]


def test_all_failed(project: Path) -> None:
    result = select("--try", "solver.base_lr=1e30,1e31", "-o", "failed", "--set", "solver.display=1")
    assert result.exit_code != 0
    assert "has nothing to choose from" in str(result.exception)
    assert record("failed")["chosen"] is None


def test_changed_inputs_are_refused(project: Path) -> None:
    assert "in which the seed was another" in error("--try", TRY, "-o", "chosen", "--seed", "9")
    assert "in which the solver was another" in error("--try", TRY, "-o", "chosen", "--set", "solver.base_lr=0.1")
    assert "in which the net was another" in error("--try", TRY, "-o", "chosen", "--variant", "fixed-alpha")
    lines = Path("source.txt").read_text().splitlines(keepends=True)
    Path("source.txt").write_text("".join(lines[:-1]))
    assert "in which the source's list was another" in error("--try", TRY, "-o", "chosen")


def test_new_target_labels_are_compared_with_anew(project: Path) -> None:
    before = results("chosen")
    relabel("test.txt", 0)
    result = select("--try", TRY, "-o", "chosen", "--target-labels")
    assert result.exit_code == 0, result.output
    measures = [candidate["measures"] for candidate in record("chosen")["candidates"]]
    earlier = [json.loads(text)["measures"] for _, text in before.values()]
    assert [m["entropy"] for m in measures] == [m["entropy"] for m in earlier]
    assert [m["target_accuracy"] for m in measures] != [m["target_accuracy"] for m in earlier]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--try", "loss-targe.loss_weight=0,1"], '--try loss-targe.loss_weight=0: no layer "loss-targe"'),
        (["--try", "loss-target.loss_weight=0,x"], "--try loss-target.loss_weight=x: loss_weight is a number"),
        (["--try", "solver.snapshot_prefix=a,b"], "select sets this field itself"),
        (["--try", "source.image_data_param.source=a,b"], "select sets this field itself"),
        (["--try", TRY, "--criterion", "luck"], "no such criterion; there are source, weighted, alignment"),
        (["--try", TRY, "--variant", "source-only"], "the net has no Dial layer"),
        (["--try", TRY, "--weights", "missing.caffemodel"], "missing.caffemodel does not exist"),
        (["--try", TRY, "-o", "chosen/folds"], "exists, is not empty and holds no selection"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(project: Path, arguments: list[str], message: str) -> None:
    assert message in error("-o", "new", *arguments)
    assert not Path("new").exists()


def test_labels_that_are_not_there(project: Path) -> None:
    relabel("test.txt", -1)
    assert "label -1 is not in [0, 3)" in error("--try", TRY, "-o", "new", "--target-labels")


def test_source_that_is_no_list(project: Path) -> None:
    with h5py.File("source.h5", "w") as file:
        file["source"], file["label"] = np.zeros((20, 3, 8, 8), np.float32), np.arange(20, dtype=np.float32) % 3
    Path("source-h5.txt").write_text("source.h5\n")
    text = Path("net.prototxt").read_text()
    head, tail = text.index('type: "ImageData" top: "source"'), text.index('layer { name: "target"')
    hdf5 = """type: "HDF5Data" top: "source" top: "label" include { phase: TRAIN }
      hdf5_data_param { source: "source-h5.txt" batch_size: 8 } }
    """
    Path("net.prototxt").write_text(text[:head] + hdf5 + text[tail:])
    assert 'layer "source" (HDF5Data): select holds out part of the source, and takes a list of images' in error(
        *("--try", TRY, "-o", "new")
    )


def test_target_too_small_and_source_of_one_class(project: Path) -> None:
    every = Path("target.txt").read_text().splitlines(keepends=True)
    Path("target.txt").write_text("".join(every[:9]))
    assert "the target has fewer than 10 images" in error("--try", TRY, "-o", "new")
    Path("target.txt").write_text("".join(every))
    relabel("source.txt", 0)
    assert "source.txt has images of one class only" in error("--try", TRY, "-o", "new")


def test_interrupted_training_goes_on_from_its_snapshot(project: Path, selected: tuple[Path, Result]) -> None:
    before = record("chosen")
    (folder,) = Path("chosen/candidates").glob("*=0.5-*/fold_0")
    path = folder / "job.json"
    path.write_text(path.read_text().replace(str(selected[0]), str(project)))
    job = Job.read(path)
    solver = Solver.from_file("solver.prototxt", seed=job.seed, overrides=job.overrides)
    solver.step(6)
    solver.snapshot()
    solver.close()
    (folder / "result.json").unlink()
    result = select("--try", TRY, "-o", "chosen", "--target-labels")
    assert result.exit_code == 0, result.output
    assert "from iteration 6 to 12" in (folder / "log.txt").read_text()
    after = record("chosen")
    # the first half ran with another number of threads, which add up in another order
    for old, new in zip(before.pop("candidates"), after.pop("candidates"), strict=True):
        assert new.pop("measures") == pytest.approx(old.pop("measures"), rel=1e-4, abs=1e-6)
        assert new == old
    assert after == before


def test_damaged_results_are_named(project: Path) -> None:
    """A selection goes on from its results; one that is damaged is refused before anything is trained."""
    result = next(Path("chosen").glob("candidates/*/*/result.json"))
    whole = json.loads(result.read_text())
    damaged: dict[str, Any] = {
        "it is no JSON": "{",
        "nested too deeply": "[" * 100_000,
        '"the whole" must be an object, not 3': "3",
        '"measures.entropy" must be a number, not "low"': {
            **whole,
            "measures": {**whole["measures"], "entropy": "low"},
        },
        '"measures.source_accuracy" must be from 0 to 1, not -3': {
            **whole,
            "measures": {**whole["measures"], "source_accuracy": -3},
        },
        '"measures" must be an object, not a list': {**whole, "measures": []},
        "it has neither measures nor an error": {**whole, "measures": None},
        "it holds NaN": {**whole, "seconds": float("nan")},
    }
    for problem, content in damaged.items():
        result.write_text(content if isinstance(content, str) else json.dumps(content))
        message = error("--try", TRY, "-o", "chosen")
        assert message.startswith(str(result.absolute())) or message.startswith(str(result))
        assert problem.replace('"the whole"', "the whole") in message
        assert message.endswith("delete it, and the candidate is trained again")
    result.write_text(json.dumps(whole))
    record = Path("chosen/experiment.json")
    for content in ("[]", "{", "[" * 100_000):
        record.write_text(content)
        message = error("--try", TRY, "-o", "chosen")
        assert message.startswith("chosen/experiment.json is damaged")
        assert message.endswith("name another folder with -o")
    record.write_text("{}")
    assert "holds a selection in which" in error("--try", TRY, "-o", "chosen")


def test_folds_are_trained_with_seeds_of_their_own_and_averaged(project: Path) -> None:
    first = record("chosen")["candidates"][0]["measures"]
    result = select("--try", TRY, "-o", "chosen", "--folds", "2")
    assert result.exit_code == 0, result.output
    (folder,) = Path("chosen/candidates").glob("*=0-*")
    loaded = [json.loads((folder / f"fold_{k}/result.json").read_text()) for k in range(2)]
    assert [fold["seed"] for fold in loaded] == [5, 6]
    mean = record("chosen")["candidates"][0]["measures"]
    for name in ("source_accuracy", "entropy", "effective"):
        assert mean[name] == pytest.approx((first[name] + loaded[1]["measures"][name]) / 2)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to a process")
def test_interrupted_selection_leaves_snapshots(project: Path) -> None:
    command = [
        *(sys.executable, "-m", "autodial", "select", "--solver", "solver.prototxt", "--device", "cpu"),
        *("--jobs", "2", "--workers", "0", "--try", TRY, "-o", "new", "--set"),
    ]
    process = subprocess.Popen(
        [*command, "solver.max_iter=100000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    logs = Path("new/candidates")
    deadline = time.monotonic() + 120
    while len([path for path in logs.glob("*/fold_0/log.txt") if "Iteration 8" in path.read_text()]) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    assert "another `autodial select` is at work" in error("--try", TRY, "-o", "new", "--set", "solver.max_iter=100000")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on from there" in output
    states = sorted(logs.glob("*/fold_0/net_iter_*.solverstate"))
    assert len(states) == 2
    assert not Path("new/select.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_one_selection_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InputError, match="another `autodial select` is at work"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_killed_before_it_began_it_runs_again(
    stripes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: Callable[..., bool]
) -> None:
    monkeypatch.chdir(shutil.copytree(stripes, tmp_path / "project"))
    words = ("--try", TRY, "-o", "killed", "--set", "solver.max_iter=2")
    assert killed(0, "select", "--solver", "solver.prototxt", "--device", "cpu", *words)
    (left,) = Path("killed").iterdir()
    assert left.suffix == ".tmp"
    # and a training that was killed between the two files of its first snapshot
    job = Path("killed/candidates")
    assert killed(1, "select", "--solver", "solver.prototxt", "--device", "cpu", *words)
    assert not left.exists() and not job.exists()
    result = select(*words)
    assert result.exit_code == 0, result.output
    assert not list(Path("killed").rglob("*.tmp"))
    for folder in job.glob("*/fold_*"):
        (folder / "result.json").unlink()
        (folder / "net_iter_1.caffemodel").touch()
    result = select(*words)
    assert result.exit_code == 0, result.output
    assert not list(job.rglob("*.caffemodel"))

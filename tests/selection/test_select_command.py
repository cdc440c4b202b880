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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from cards import read_card, rows
from forked import commands_are_forked
from sklearn.metrics import recall_score
from typer.testing import CliRunner, Result

from autodial import proto
from autodial.cli import app
from autodial.data.image_list import ImageList
from autodial.errors import InputError
from autodial.selection import criteria, processes
from autodial.selection.outputs import Outputs
from autodial.selection.training_job import TrainingJob
from autodial.system.outputs import locked
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


@pytest.fixture(scope="module", autouse=True)
def candidates_are_forked() -> Iterator[None]:
    """But for those of commands that a test starts as processes."""
    with commands_are_forked(processes):
        yield


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
    assert [(c["settings"], c["variant"], c["seed"]) for c in loaded["candidates"]] == [
        (["loss-target.loss_weight=0"], None, 5),
        (["loss-target.loss_weight=0.5"], None, 5),
    ]
    assert list(loaded["choices"]) == [name for name, c in criteria.CRITERIA.items() if not c.needs_held_out]
    for candidate in loaded["candidates"]:
        assert 0 <= candidate["values"]["agreement"] <= 1
        assert 0 <= candidate["target_accuracy"] <= 1
        assert Path("chosen", candidate["weights"]).is_file()
    chosen = loaded["candidates"][loaded["chosen"]]
    assert Path("chosen/chosen.caffemodel").read_bytes() == Path("chosen", chosen["weights"]).read_bytes()
    for title in (*loaded["choices"], "diversity", "target accuracy", *loaded["commands"].values()):
        assert title in result.output
    assert not list(Path("chosen").rglob("*.solverstate"))


def test_the_commands_that_it_prints_work_as_they_stand(project: Path) -> None:
    """Also next to the snapshots of an earlier training; what is trained once more is what was chosen."""
    options = ["--solver", "solver.prototxt", "--device", "cpu", "--workers", "0"]
    assert CliRunner().invoke(app, ["train", *options]).exit_code == 0
    commands = record("chosen")["commands"]
    for name, words in (("export", ()), ("train", ("--device", "cpu", "--workers", "0"))):
        _, *typed = shlex.split(commands[name])
        result = CliRunner().invoke(app, [*typed, *words])
        assert result.exit_code == 0, result.output
    assert Path("target_predictor.onnx").is_file()
    chosen, again = (proto.read_weights(f"chosen/{name}.caffemodel") for name in ("chosen", "chosen_iter_12"))
    fc = [next(layer for layer in weights.layers if layer.name == "fc").blobs[0] for weights in (chosen, again)]
    np.testing.assert_allclose(*fc, rtol=1e-5, atol=1e-6)


def test_a_card_finds_what_the_chosen_weights_scored(project: Path) -> None:
    options = ("export", "--net", "net.prototxt", "-o", "model.onnx", "--card", "README.md")
    result = CliRunner().invoke(app, [*options, "--weights", "chosen/chosen.caffemodel"])
    assert result.exit_code == 0, result.output
    card, loaded = read_card(Path("README.md")), record("chosen")
    accuracy = loaded["candidates"][loaded["chosen"]]["target_accuracy"]
    assert rows(card, "Accuracy")[0][:3] == ["test.txt", "40", f"{accuracy:.1%}"]
    assert card.head["metrics"] == ["accuracy", "balanced_accuracy"]
    with np.load(Path("chosen", loaded["candidates"][loaded["chosen"]]["weights"]).with_name("outputs.npz")) as saved:
        predicted, labels = saved["test_probabilities"].argmax(1), saved["test_labels"]
    expected = recall_score(labels, predicted, average=None)
    assert [row[1] for row in rows(card, "Classes")] == [f"{recall:.1%}" for recall in expected]
    assert "The stored statistics were then computed once more" in card.text


def test_outputs_are_those_of_a_training_with_whole_statistics(project: Path) -> None:
    solver = Solver.from_file("solver.prototxt", overrides=["loss-target.loss_weight=0.5"])
    solver.step(12)
    model, _ = solver.snapshot()
    solver.close()
    options = ["--net", "net.prototxt", "--weights", str(model), "-o", "whole.caffemodel", "--device", "cpu"]
    assert CliRunner().invoke(app, ["recalibrate", *options]).exit_code == 0
    test = ["--net", "net.prototxt", "--weights", "whole.caffemodel", "--device", "cpu", "-o", "scores.csv"]
    assert CliRunner().invoke(app, ["test", *test]).exit_code == 0
    rows = [line.split(",") for line in Path("scores.csv").read_text().splitlines()[1:]]
    accuracy = np.mean([row[1] == row[2] for row in rows])
    candidate = record("chosen")["candidates"][1]
    assert candidate["target_accuracy"] == pytest.approx(accuracy)
    (path,) = Path("chosen/candidates").glob("*=0.5-*/seed_5/outputs.npz")
    probabilities = np.array([[float(value) for value in row[4:]] for row in rows])
    np.testing.assert_allclose(Outputs.read(path).test_probabilities, probabilities, rtol=1e-3, atol=1e-5)


def test_restarts_variants_and_the_ensemble(project: Path) -> None:
    words = ("--try", "variant=learned,fixed-alpha", "--restarts", "2")
    short = ("--set", "solver.max_iter=2")
    result = select(*words, *short, "-o", "many", "--ensemble", "--target-labels")
    assert result.exit_code == 0, result.output
    loaded = record("many")
    assert [(c["settings"], c["variant"], c["seed"]) for c in loaded["candidates"]] == [
        ([], variant, seed) for seed in (5, 6) for variant in ("learned", "fixed-alpha")
    ]
    alphas = []
    for candidate in loaded["candidates"]:
        weights = proto.read_weights(Path("many", candidate["weights"]))
        alphas.append([float(np.ravel(layer.blobs[0])[0]) for layer in weights.layers if layer.type == "Dial"])
    assert alphas[1] == alphas[3] == [1.0]
    assert alphas[0] != [1.0]
    ensemble = loaded["ensemble"]
    members = [
        np.load(Path("many", loaded["candidates"][i]["weights"]).with_name("outputs.npz")) for i in ensemble["members"]
    ]
    mean = np.mean([member["test_probabilities"] for member in members], axis=0)
    assert ensemble["target_accuracy"] == pytest.approx((mean.argmax(1) == members[0]["test_labels"]).mean())
    typed = shlex.split(loaded["commands"]["ensemble"])
    assert typed[:3] == ["autodial", "export", "--ensemble"]
    named = [typed[i + 1] for i, word in enumerate(typed) if word == "--weights"]
    assert named == [f"many/{loaded['candidates'][i]['weights']}" for i in ensemble["members"]]
    assert loaded["commands"]["ensemble"] in result.output
    exported = CliRunner().invoke(app, typed[1:])
    assert exported.exit_code == 0, exported.output
    # a third restart leaves the others as they are
    before = results("many")
    result = select(*words[:-1], "3", *short, "-o", "many")
    assert result.exit_code == 0, result.output
    assert before.items() <= results("many").items()
    assert len(results("many")) == 6


def test_an_ensemble_needs_one_net(project: Path) -> None:
    words = ("--try", "fc.inner_product_param.bias_term=true,false", "-o", "new", "--ensemble")
    assert "--ensemble: the candidates' nets differ in the TEST phase" in error(*words)


def test_held_out_source_is_trained_without(project: Path) -> None:
    result = select("--try", TRY, "-o", "chosen", "--criterion", "source", "--no-recalibrate", "--jobs", "1")
    assert "in which recalibration was on and is off" in str(result.exception)
    before = results("chosen")
    result = select("--try", TRY, "-o", "chosen", "--criterion", "source")
    assert result.exit_code == 0, result.output
    assert "To train it on the whole source" in result.output
    assert before.items() <= results("chosen").items()
    loaded = record("chosen")
    assert set(loaded["choices"]) == set(criteria.CRITERIA)
    held_out, training = (ImageList.read(f"chosen/held_out/{name}.txt") for name in ("held_out", "training"))
    assert (len(held_out), len(training)) == (12, 48)
    solver = Solver.from_file(
        "solver.prototxt",
        overrides=["loss-target.loss_weight=0.5", "source.image_data_param.source=chosen/held_out/training.txt"],
    )
    solver.step(12)
    solver.close()
    (path,) = Path("chosen/candidates").glob("*=0.5-*/seed_5_held_out/weights.caffemodel")
    kept = next(layer for layer in proto.read_weights(path).layers if layer.name == "fc").blobs[0]
    assert kept is not None
    weights = solver.net.layer("fc").blobs[0].detach().numpy()
    np.testing.assert_allclose(kept, weights, rtol=1e-4, atol=1e-6)
    # without the held-out part, the first ones count again
    result = select("--try", TRY, "-o", "chosen")
    assert result.exit_code == 0, result.output
    assert "source" not in record("chosen")["choices"]


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
    assert failed["weights"] is None
    assert "training has diverged" in failed["error"]
    assert "failed" in result.output
    assert record("chosen")["chosen"] != 2


def test_all_failed(project: Path) -> None:
    result = select("--try", "solver.base_lr=1e30,1e31", "-o", "failed", "--set", "solver.display=1")
    assert result.exit_code != 0
    assert "has nothing to choose from" in str(result.exception)
    assert record("failed")["chosen"] is None


def test_changed_inputs_are_refused(project: Path) -> None:
    def refused(*arguments: str) -> str:
        return error("--try", TRY, "-o", "chosen", *arguments)

    assert "in which the seed was 5 and is 9: name another folder with -o" in refused("--seed", "9")
    changed = ("--set", "solver.base_lr=0.1", "--set", "solver.weight_decay=0")
    assert "in which solver.base_lr was 0.02 and is 0.1 and solver.weight_decay was 0.001 and is 0:" in refused(
        *changed
    )
    assert "in which fc.param[0].lr_mult was not set and is 7:" in refused("--set", "fc.param[0].lr_mult=7")
    in_test = ("--set", "test.image_data_param.batch_size=3")  # in the TEST phase alone
    assert "in which test.image_data_param.batch_size was 7 and is 3:" in refused(*in_test)
    assert "in which conv/dial.param[0].lr_mult was not set and is 0" in refused("--variant", "fixed-alpha")
    lines = Path("source.txt").read_text().splitlines(keepends=True)
    Path("source.txt").write_text("".join(lines[:-1]))
    assert "in which the source's list was another" in error("--try", TRY, "-o", "chosen")


def test_new_target_labels_need_no_training(project: Path) -> None:
    earlier = record("chosen")["candidates"]
    weights = {path: path.stat().st_mtime for path in Path("chosen/candidates").rglob("weights.caffemodel")}
    relabel("test.txt", 0)
    result = select("--try", TRY, "-o", "chosen", "--target-labels")
    assert result.exit_code == 0, result.output
    found = record("chosen")["candidates"]
    assert [c["values"] for c in found] == [pytest.approx(c["values"], rel=1e-4) for c in earlier]
    assert [c["target_accuracy"] for c in found] != [c["target_accuracy"] for c in earlier]
    assert {path: path.stat().st_mtime for path in weights} == weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--try", "loss-targe.loss_weight=0,1"], '--try loss-targe.loss_weight=0: no layer "loss-targe"'),
        (["--try", "loss-target.loss_weight=0,x"], "--try loss-target.loss_weight=x: loss_weight is a number"),
        (["--try", "solver.snapshot_prefix=a,b"], "select sets this field itself"),
        (
            ["--try", "source.image_data_param.source=a,b", "--hold-out"],
            "select sets this field itself",
        ),
        (["--try", "solver.random_seed=1,2"], "--restarts trains with several seeds"),
        (["--try", "variant=learned,luck"], 'no variant "luck"'),
        (["--try", "variant=learned,source-only"], "--try variant=source-only: this variant has no Dial layers, and"),
        (["--try", "variant=learned,entropy-only"], "--try variant=entropy-only: this variant has no Dial layers, and"),
        ([], "one candidate leaves nothing to choose: give values with --try, or more than one --restarts"),
        (["--try", TRY, "--criterion", "luck"], "no such criterion; there are agreement, entropy"),
        (["--try", TRY, "--criterion", "source", "--no-hold-out"], "looks at held-out source images"),
        (["--try", TRY, "--variant", "source-only"], "--variant source-only: this variant has no Dial layers, and"),
        (
            ["--try", "*.param[0].lr_mult=0,1"],
            '--try *.param[0].lr_mult=0: layer "source" (ImageData) has no parameters',
        ),
        (["--try", TRY, "--set", "relu.param[0].lr_mult=0"], '--set relu.param[0].lr_mult=0: layer "relu" (ReLU) has'),
        (["--try", TRY, "--set", "loss-targe.loss_weight=0"], '--set loss-targe.loss_weight=0: no layer "loss-targe"'),
        (["--try", TRY, "--weights", "missing.caffemodel"], "missing.caffemodel does not exist"),
        (["--try", TRY, "-o", "chosen/source"], "exists, is not empty and holds no selection"),
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
        rng = np.random.default_rng(0)
        file["source"] = rng.normal(0, 1, (20, 3, 8, 8)).astype(np.float32)
        file["label"] = np.arange(20, dtype=np.float32) % 3
    Path("source-h5.txt").write_text("source.h5\n")
    text = Path("net.prototxt").read_text()
    head, tail = text.index('type: "ImageData" top: "source"'), text.index('layer { name: "target"')
    hdf5 = """type: "HDF5Data" top: "source" top: "label" include { phase: TRAIN }
      hdf5_data_param { source: "source-h5.txt" batch_size: 8 } }
    """
    Path("net.prototxt").write_text(text[:head] + hdf5 + text[tail:])
    words = ("--try", TRY, "-o", "new", "--set", "solver.max_iter=2")
    assert 'layer "source" (HDF5Data): only of a list of images a part can be held out' in error(
        *words, "--criterion", "source"
    )
    result = select(*words)
    assert result.exit_code == 0, result.output
    outputs = next(Path("new/candidates").rglob("outputs.npz"))
    assert Outputs.read(outputs).source_logits.shape == (20, 3)


def test_target_too_small_and_source_of_one_class(project: Path) -> None:
    every = Path("target.txt").read_text().splitlines(keepends=True)
    Path("target.txt").write_text("".join(every[:9]))
    assert "the target has fewer than 10 images" in error("--try", TRY, "-o", "new")
    Path("target.txt").write_text("".join(every))
    relabel("source.txt", 0)
    assert "source.txt has images of one class only" in error("--try", TRY, "-o", "new")


def test_interrupted_training_goes_on_from_its_snapshot(project: Path, selected: tuple[Path, Result]) -> None:
    before = record("chosen")
    (folder,) = Path("chosen/candidates").glob("*=0.5-*/seed_5")
    path = folder / "job.json"
    path.write_text(path.read_text().replace(str(selected[0]), str(project)))
    job = TrainingJob.read(path)
    solver = Solver.from_file("solver.prototxt", seed=job.seed, overrides=job.overrides)
    solver.step(6)
    solver.snapshot()
    solver.close()
    for name in ("result.json", "weights.caffemodel", "outputs.npz"):
        (folder / name).unlink()
    result = select("--try", TRY, "-o", "chosen", "--target-labels")
    assert result.exit_code == 0, result.output
    assert "from iteration 6 to 12" in (folder / "log.txt").read_text()
    after = record("chosen")
    # the first half ran with another number of threads, which add up in another order
    for old, new in zip(before.pop("candidates"), after.pop("candidates"), strict=True):
        assert new.pop("values") == pytest.approx(old.pop("values"), rel=1e-3, abs=1e-4)
        assert new == old | {"diversity": pytest.approx(old["diversity"], rel=1e-3)}
    assert after["chosen"] == before["chosen"]


def test_damaged_results_are_named(project: Path) -> None:
    """A selection goes on from its results; one that is damaged is refused before anything is trained."""
    result = next(Path("chosen").glob("candidates/*/*/result.json"))
    whole = json.loads(result.read_text())
    damaged: dict[str, Any] = {
        "it is not JSON": "{",
        "nested too deeply": "[" * 100_000,
        '"the whole" must be an object, not 3': "3",
        '"collapsed_at" must be': {**whole, "collapsed_at": "late"},
        '"error" must be': {**whole, "error": []},
        "it holds NaN": {**whole, "seconds": float("nan")},
    }
    for problem, content in damaged.items():
        result.write_text(content if isinstance(content, str) else json.dumps(content))
        message = error("--try", TRY, "-o", "chosen")
        assert message.startswith(str(result.absolute())) or message.startswith(str(result))
        assert problem.replace('"the whole"', "the whole") in message
        assert message.endswith("delete it, and it is computed again")
    result.write_text(json.dumps(whole))
    outputs = result.with_name("outputs.npz")
    outputs.write_bytes(outputs.read_bytes()[:-99])
    assert "outputs.npz is damaged: delete it" in error("--try", TRY, "-o", "chosen")
    record = Path("chosen/experiment.json")
    for content in ("[]", "{", "{}", "[" * 100_000):
        record.write_text(content)
        message = error("--try", TRY, "-o", "chosen")
        assert message.startswith("chosen/experiment.json is damaged")
        assert message.endswith("name another folder with -o")
    record.write_text(json.dumps({"form": 2, "the solver": "0f"}))
    assert "holds a selection of another version of autodial: name another folder with -o" in error(
        "--try", TRY, "-o", "chosen"
    )


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
    while len([path for path in logs.glob("*/seed_5/log.txt") if "Iteration 8" in path.read_text()]) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    assert "another `autodial select` is at work" in error("--try", TRY, "-o", "new", "--set", "solver.max_iter=100000")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on from there" in output
    states = sorted(logs.glob("*/seed_5/net_iter_*.solverstate"))
    assert len(states) == 2
    assert not Path("new/select.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_one_selection_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    command = "autodial select"
    with (
        locked(tmp_path, command),
        pytest.raises(InputError, match="another `autodial select` is at work"),
        locked(tmp_path, command),
    ):
        pass
    with locked(tmp_path, command):
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
    for folder in job.glob("*/seed_*"):
        (folder / "result.json").unlink()
        (folder / "weights.caffemodel").unlink()
        (folder / "net_iter_1.caffemodel").touch()
    result = select(*words)
    assert result.exit_code == 0, result.output
    assert not list(job.rglob("net_iter_*"))

"""`autodial train` and `autodial test` as a user runs them."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net, read_net, read_weights, write_weights
from autodial.proto import messages as pb
from autodial.training.run_record import read_log
from autodial.training.solver import Solver

Edit = Callable[[str, str, str], None]
TRAIN = ("train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu")
TEST = ("test", "--net", "net.prototxt", "--weights", "snapshots/stripes_iter_8.caffemodel", "--workers", "0")


Run = Callable[..., tuple[int, str, str]]


def test_train_shows_logs_and_records(autodial: Run) -> None:
    status, out, _ = autodial(*TRAIN, "--set", "loss-target.loss_weight=0.25", "--set", "solver.display=4")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "Training net.prototxt on cpu from iteration 0 to 8, logs: snapshots/stripes_run"
    assert any(line.startswith("Iteration 4, lr = 0.025, loss = ") and line.endswith("images/s)") for line in lines)
    assert lines[-5:] == [
        *("Training done.", "To look at the run:", "autodial report snapshots/stripes_run", "To export the net:"),
        "autodial export --recalibrate --net net.prototxt --set loss-target.loss_weight=0.25 "
        "--weights snapshots/stripes_iter_8.caffemodel -o target_predictor.onnx",
    ]
    rows = read_log(Path("snapshots/stripes_run"))
    assert [(row["event"], row["iteration"]) for row in rows] == [
        *(("test", 0), ("train", 0), ("test", 4), ("train", 4), ("test", 8)),
    ]
    assert rows[1]["loss_weights"]["loss-target"] == 0.25
    (start,) = json.loads(Path("snapshots/stripes_run/run.json").read_text())["starts"]
    (net,) = start["nets"]
    assert next(layer for layer in parse_net(net).layer if layer.name == "loss-target").loss_weight == [0.25]
    assert "display: 4" in start["solver"]
    assert start["seed"] == 5
    assert start["command"].endswith("--set loss-target.loss_weight=0.25 --set solver.display=4 --workers 0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "command",
    [
        (*TRAIN[:-2], "--set", "solver.solver_mode=GPU"),
        TEST,
        ("time", "--net", "net.prototxt", "--iterations", "1"),
        ("recalibrate", "--net", "net.prototxt", *TEST[3:], "-o", "whole.caffemodel"),
    ],
    ids=lambda command: command[0],
)
def test_an_error_stands_alone_and_work_without_a_gpu_is_told(
    autodial: Run, command: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    if command[0] in ("test", "recalibrate"):
        autodial(*TRAIN)
    wrong = [("--weights", "nowhere.caffemodel"), ("--set", "no-such-layer.lr_mult=1")]
    if command[0] == "recalibrate":
        wrong.append(("--target", "nowhere.txt"))
    for option in wrong:
        status, out, err = autodial(*command, *option)
        assert status == 2 and not out and len(err.splitlines()) == 1 and not caplog.records, (option, err)
    assert autodial(*command)[0] == 0
    assert [record.message for record in caplog.records].count("No GPU here: running on the CPU") == 1


def test_an_export_without_domains_is_not_recalibrated(autodial: Run) -> None:
    _, out, _ = autodial(*TRAIN, "--variant", "source-only")
    assert out.splitlines()[-1].startswith("autodial export --net net.prototxt --variant source-only ")
    assert autodial(*shlex.split(out.splitlines()[-1])[1:])[0] == 0


def test_the_recalibrated_export_that_training_ends_with_works(autodial: Run) -> None:
    _, out, _ = autodial(*TRAIN)
    status, out, err = autodial(*shlex.split(out.splitlines()[-1])[1:])
    assert status == 0, err
    assert "layer" in out and Path("target_predictor.onnx").exists()


def test_the_commands_that_training_ends_with_work(autodial: Run, edit: Edit) -> None:
    """Also where the solver names two nets and a stage, and where settings are those of only one of them."""
    net = Path("net.prototxt").read_text()
    for name, wanted, other in (("a train.prototxt", "TRAIN", "TEST"), ("a test.prototxt", "TEST", "TRAIN")):
        layers = (layer for layer in net.split("\nlayer {") if f"phase: {other}" not in layer)
        Path(name).write_text("\nlayer {".join(layers).replace(f"include {{ phase: {wanted} }}", ""))
    edit("a test.prototxt", 'name: "fc" type', 'name: "fc" include { stage: "ready" min_level: 2 } type')
    edit("solver.prototxt", 'net: "net.prototxt"', 'train_net: "a train.prototxt" test_net: "a test.prototxt"')
    edit("solver.prototxt", "random_seed", 'test_state { stage: "ready" level: 2 } random_seed')
    settings = ("fc.inner_product_param.num_output=4", "loss-target.loss_weight=0.2", "solver.display=4")
    options = ("--variant", "fixed-alpha", *(word for setting in settings for word in ("--set", setting)))
    status, out, err = autodial(*TRAIN, *options, "-o", "the run")
    assert status == 0, err
    report, export = (line for line in out.splitlines() if line.startswith("autodial "))
    assert report == "autodial report 'the run'"
    assert export == (
        "autodial export --net 'a test.prototxt' --variant fixed-alpha --set fc.inner_product_param.num_output=4 "
        "--level 2 --stage ready --weights snapshots/stripes_iter_8.caffemodel -o target_predictor.onnx"
    )
    status, _, err = autodial(*shlex.split(export)[1:])
    assert status == 0, err
    assert Path("target_predictor.onnx").exists()


def test_without_a_last_snapshot_there_is_nothing_to_export(autodial: Run) -> None:
    without = ("--set", "solver.snapshot=3", "--set", "solver.snapshot_after_train=false")
    status, out, _ = autodial(*TRAIN, *without)
    assert status == 0 and out.splitlines()[-1] == "autodial report snapshots/stripes_run"


def test_snapshots_of_an_earlier_run_are_not_written_over(autodial: Run) -> None:
    autodial(*TRAIN)
    before = {path: path.read_bytes() for path in Path("snapshots").glob("*.caffemodel")}
    status, _, err = autodial(*TRAIN, "--variant", "fixed-alpha", "-o", "again")
    assert status == 2
    assert "stripes_iter_8.solverstate is the newest snapshot" in err and "solver.snapshot_prefix=" in err
    assert {path: path.read_bytes() for path in Path("snapshots").glob("*.caffemodel")} == before
    assert not Path("again").exists()
    assert autodial(*TRAIN, "--set", "solver.snapshot_prefix=snapshots/other")[0] == 0
    assert {path: path.read_bytes() for path in before} == before


def test_started_again_after_an_interruption_it_gives_the_command_that_resumes(autodial: Run) -> None:
    autodial(*TRAIN, "--set", "solver.max_iter=6")
    status, _, err = autodial(*TRAIN, "--seed", "7")
    newest = "snapshots/stripes_iter_6.solverstate"
    assert status == 2 and err.startswith(f"autodial: error: {newest} is the newest snapshot")
    words = shlex.split(err.rpartition(": ")[2])
    assert words == ["autodial", *TRAIN[:3], "--snapshot", newest, "--device", "cpu", "--workers", "0", "--seed", "7"]
    status, out, _ = autodial(*words[1:])
    assert status == 0 and "from iteration 6 to 8" in out


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_a_second_training_at_once_does_not_write_over_the_first_one_s_snapshots(
    autodial: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = Solver.solve
    second = []

    def start_another(solver: Solver) -> bool:
        monkeypatch.setattr(Solver, "solve", solve)
        second.append(autodial(*TRAIN))
        second.append(autodial(*TRAIN, "--set", "solver.snapshot_prefix=snapshots/other"))
        return solve(solver)

    monkeypatch.setattr(Solver, "solve", start_another)
    assert autodial(*TRAIN)[0] == 0
    (refused, _, message), (elsewhere, _, _) = second
    assert (refused, elsewhere) == (2, 0)
    assert "another training writes its snapshots to snapshots/stripes: name another place with" in message
    assert not Path("snapshots/stripes_run2").exists() and Path("snapshots/stripes_iter_8.caffemodel").exists()
    assert not list(Path("snapshots").glob("*.lock"))


def test_runs_get_folders_of_their_own_and_resumed_ones_go_on(autodial: Run) -> None:
    autodial(*TRAIN)
    for snapshot in Path("snapshots").glob("stripes_iter_*"):
        snapshot.unlink()
    autodial(*TRAIN)
    status, out, _ = autodial(*TRAIN, "--snapshot", "snapshots/stripes_iter_4.solverstate")
    assert status == 0
    assert "from iteration 4 to 8, logs: snapshots/stripes_run2" in out
    assert sorted(path.name for path in Path("snapshots").glob("stripes_run*")) == ["stripes_run", "stripes_run2"]
    assert read_log(Path("snapshots/stripes_run")) != []
    first, second = ([row["iteration"] for row in read_log(Path(f"snapshots/stripes_run{n}"))] for n in ("", "2"))
    assert first == second
    other = ("--set", "solver.snapshot_prefix=snapshots/other")
    status, _, err = autodial(*TRAIN, *other, "-o", "snapshots/stripes_run")
    assert status == 2
    assert "snapshots/stripes_run already holds a run" in err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--weights", "no.caffemodel"), 2, "no.caffemodel does not exist"),
        (("--weights", "a", "--snapshot", "b"), 2, "--weights starts a run and --snapshot resumes one"),
        (("--snapshot", "a.caffemodel"), 2, "holds weights and no solver's state"),
        (("--device", "tpu"), 2, 'device "tpu" does not exist'),
        (("--device", "cuda:"), 2, 'device "cuda:" does not exist'),
        (("--set", "fcc.type=x"), 2, 'no layer "fcc"; did you mean "fc"?'),
        (("--set", "target.image_data_param.source=none.txt"), 2, '"none.txt" does not exist'),
        (("--set", "solver.snapshot_prefix=net.prototxt/x"), 2, "snapshots can't be written to net.prototxt"),
        (("--set", "solver.base_lr=nan"), 2, "solver.prototxt: base_lr must be a finite number, and is nan"),
        (("--set", "solver.max_iter=-1"), 2, "solver.prototxt: max_iter must be at least 0, and is -1"),
        (("-o", "net.prototxt/x"), 2, "net.prototxt is not a folder: name another folder to write to"),
        (("-o", "-"), 2, "-: this command writes a folder, not standard output"),
    ],
)
def test_what_train_refuses(autodial: Run, arguments: tuple[str, ...], status: int, message: str) -> None:
    got, out, err = autodial(*TRAIN, *arguments)
    assert (got, out) == (status, "")
    assert message in err
    assert err.startswith("autodial: error: ")
    assert err.count("\n") == 1


def test_resuming_what_is_done_says_so(autodial: Run) -> None:
    assert autodial(*TRAIN)[0] == 0
    before = Path("snapshots/stripes_run/run.json").read_bytes()
    status, out, _ = autodial(*TRAIN, "--snapshot", "snapshots/stripes_iter_8.solverstate")
    assert status == 0
    assert out == (
        "Nothing is left to do: snapshots/stripes_iter_8.solverstate is from iteration 8, and max_iter is 8. "
        "To train longer, add --set solver.max_iter=N\n"
    )
    assert Path("snapshots/stripes_run/run.json").read_bytes() == before


def test_net_of_the_working_directory_that_hides_the_solver_s_own_is_pointed_out(
    autodial: Run, project: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    arguments = ("train", "--solver", "../solver.prototxt", "--workers", "0", "--set", "solver.max_iter=1")
    status, out, _ = autodial(*arguments)
    assert status == 0 and "Training ../net.prototxt on cpu" in out and not caplog.messages
    text = (project / "net.prototxt").read_text()
    (elsewhere / "net.prototxt").write_text(text.replace('source: "', 'source: "../'))
    status, out, _ = autodial(*arguments, "--set", "solver.snapshot_prefix=other")
    assert status == 0 and "Training net.prototxt on cpu" in out
    assert "net: net.prototxt in the working directory is used, as in Caffe, and not ../net.prototxt" in caplog.messages


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpu_that_is_not_there(autodial: Run, edit: Edit) -> None:
    edit("solver.prototxt", "solver_mode: CPU", "solver_mode: GPU max_iter: 1")
    edit("solver.prototxt", "max_iter: 8", "")
    status, _, err = autodial(*TRAIN[:-1], "cuda")
    assert status == 1
    assert "finds no GPU here" in err
    status, out, err = autodial(*TRAIN[:-1], "auto")
    assert status == 0
    assert "Training net.prototxt on cpu" in out


def test_test_scores_every_image_once(autodial: Run) -> None:
    autodial(*TRAIN)
    status, out, _ = autodial(*TEST, "-o", "scores.csv")
    assert status == 0

    net = Net(read_net("net.prototxt"), pb.TEST)
    net.load_weights(read_weights("snapshots/stripes_iter_8.caffemodel"))
    source = net.layer("test").source
    images, labels = (np.concatenate(arrays)[:11] for arrays in zip(*map(source.batch, range(3)), strict=True))
    inputs = {"data": torch.from_numpy(images), "label": torch.from_numpy(labels)}
    with torch.no_grad():
        logits = net.blobs(inputs, ["fc"])["fc"]
    probabilities = logits.softmax(1).numpy()
    losses = torch.nn.functional.cross_entropy(logits, inputs["label"].long(), reduction="none").numpy()

    with Path("scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "label", "predicted", "loss", *(f"probability_{k}" for k in range(3))]
    assert [row["path"] for row in rows] == [f"image {i}.png" for i in range(11)]
    assert [int(row["label"]) for row in rows] == labels.tolist()
    assert [int(row["predicted"]) for row in rows] == probabilities.argmax(1).tolist()
    got = np.array([[float(row[f"probability_{k}"]) for k in range(3)] for row in rows])
    np.testing.assert_allclose(got, probabilities, rtol=1e-5)
    np.testing.assert_allclose([float(row["loss"]) for row in rows], losses, rtol=1e-4, atol=1e-6)

    shown = dict(line.split(" = ")[:2] for line in out.splitlines() if not line.startswith("11 images"))
    accuracy = float((probabilities.argmax(1) == labels).mean())
    assert float(shown["accuracy"]) == pytest.approx(accuracy)
    assert float(shown["loss-test"].split()[0]) == pytest.approx(float(losses.mean()), rel=1e-4)
    assert re.fullmatch(r"11 images in \d+\.\d s", out.splitlines()[-1])

    # printed once; without an Accuracy layer of its own, the rows'
    net_text = Path("net.prototxt").read_text()
    for edited in ("accuracy_param { top_k: 2 } include { phase: TEST } }", 'include { phase: TEST stage: "no" } }'):
        Path("net.prototxt").write_text(f"{edited}\n".join(net_text.rsplit("include { phase: TEST } }\n", 1)))
        out = autodial(*TEST)[1]
        assert float(out.splitlines()[-1].rpartition(" s: accuracy over them = ")[2]) == pytest.approx(accuracy)


def test_without_target_labels_test_says_why_there_is_no_score(autodial: Run) -> None:
    autodial(*TRAIN)
    lines = [line.rpartition(" ") for line in Path("test.txt").read_text().splitlines()]
    Path("test.txt").write_text("".join(f"{path} -1\n" for path, _, _ in lines))
    Path("labelled.txt").write_text("".join(f"{path} {label}\n" for path, _, label in lines))
    net = Path("net.prototxt").read_text()
    net = net.replace('"Accuracy" bottom: "fc" bottom: "label" top: "accuracy"', '"Softmax" bottom: "fc" top: "prob"')
    net = net.replace('"SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss-test"', '"Silence" bottom: "label"')
    Path("net.prototxt").write_text(net)
    status, out, err = autodial(*TEST)
    assert status == 0 and re.fullmatch(r"\d+ images in [\d.]+ s\n", out)
    assert (
        'There is no score: no label that layer "test" (ImageData) reads is one of the 3 classes, from 0 to 2: name '
        "labelled images with --set test.image_data_param.source=LIST\n"
    ) in err
    status, out, err = autodial(*TEST, "--set", "test.image_data_param.source=labelled.txt")
    assert status == 0 and "accuracy over them = " in out and "no score" not in err


def test_test_with_iterations_averages_whole_batches(autodial: Run) -> None:
    autodial(*TRAIN)
    status, out, _ = autodial(*TEST, "--iterations", "4", "-o", "scores.csv")
    assert status == 0
    net = Net(read_net("net.prototxt"), pb.TEST)
    net.load_weights(read_weights("snapshots/stripes_iter_8.caffemodel"))
    batches = [net.layer("test").source.batch(j) for j in range(4)]
    with torch.no_grad():
        outputs = [net({"data": torch.from_numpy(x), "label": torch.from_numpy(y)}) for x, y in batches]
    loss = sum(float(output["loss-test"]) for output in outputs) / 4
    shown = dict(line.split(" = ")[:2] for line in out.splitlines()[:2])
    assert float(shown["loss-test"].split()[0]) == pytest.approx(loss, rel=1e-5)
    assert len(Path("scores.csv").read_text().splitlines()) == 1 + 11


def test_weights_without_any_layer_of_the_net_are_refused(autodial: Run, edit: Edit) -> None:
    autodial(*TRAIN)
    for name in ("conv", "conv/dial", "fc"):
        edit("net.prototxt", f'layer {{ name: "{name}"', f'layer {{ name: "{name}-new"')
    elsewhere = ("--set", "solver.snapshot_prefix=other/stripes")
    status, _, err = autodial(*TRAIN, *elsewhere, "--weights", "snapshots/stripes_iter_8.caffemodel")
    assert status == 2
    assert "no layer in snapshots/stripes_iter_8.caffemodel has the name of a layer of the net: name weights" in err


def test_weights_of_another_net_are_refused(autodial: Run, edit: Edit) -> None:
    autodial(*TRAIN)
    edit("net.prototxt", 'layer { name: "fc"', 'layer { name: "fc-new"')
    status, _, err = autodial(*TEST)
    assert status == 2
    assert "stripes_iter_8.caffemodel has nothing for fc-new: name the weights" in err


@pytest.mark.parametrize("command", ["test", "time", "recalibrate", "export", "convert"])
def test_weights_of_other_shapes_are_refused_with_the_names_of_both_files(
    command: str, autodial: Run, edit: Edit
) -> None:
    net, weights = Net(read_net("net.prototxt"), pb.TEST), "other.caffemodel"
    write_weights(net.weights(), weights)
    edit("net.prototxt", "num_output: 3", "num_output: 4")
    files = ("net.prototxt", weights) if command == "convert" else ("--net", "net.prototxt", "--weights", weights)
    output = {"recalibrate": ("-o", "out.caffemodel"), "export": ("--raw-input", "-o", "x.onnx")}.get(command, ())
    status, _, err = autodial(command, *files, *output)
    assert status == 2
    assert 'layer "fc", blob 0: the net\'s shape is (4, ' in err and f"that of {weights} is (3, " in err
    assert err.endswith(
        "these are another net's weights, or another version's: name weights of net.prototxt, or the net that these "
        "belong to\n"
    )


def test_layers_that_start_at_0_are_pointed_out(autodial: Run, edit: Edit, caplog: pytest.LogCaptureFixture) -> None:
    edit("solver.prototxt", "max_iter: 8", "max_iter: 1")
    assert autodial(*TRAIN)[0] == 0 and "are 0" not in caplog.text
    net = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(net.replace('weight_filler { type: "xavier" }', ""))
    status, _, _ = autodial(*TRAIN, "--set", "solver.snapshot_prefix=other")
    assert status == 0
    assert "All weights of conv, fc are 0, and nothing is learned through them" in caplog.text


def test_what_test_refuses(autodial: Run) -> None:
    autodial(*TRAIN)
    status, _, err = autodial(*TEST, "--logits", "fc9")
    assert status == 2
    assert 'no blob "fc9"' in err
    status, _, err = autodial(*TEST, "--logits", "conv", "-o", "scores.csv")
    assert status == 2
    assert 'blob "conv" has shape (4, 4, 6, 6), not a row of scores per image' in err
    Path("test.txt").write_text("image 0.png 0\nimage 1.png 8\n")
    status, _, err = autodial(*TEST)
    assert status == 2
    assert "test.txt:2: label 8 is not in [0, 3)" in err


@pytest.mark.parametrize("output", ["net.prototxt", "snapshots/stripes_iter_8.caffemodel", "test.txt"])
def test_scores_write_over_nothing_that_is_read(autodial: Run, output: str) -> None:
    assert autodial(*TRAIN)[0] == 0
    before = Path(output).read_bytes()
    words = ["--net", "net.prototxt", "--weights", "snapshots/stripes_iter_8.caffemodel", "--device", "cpu"]
    status, out, err = autodial("test", *words, "-o", output)
    assert status == 2 and not out and "the same command reads this file" in err
    assert Path(output).read_bytes() == before


def test_weights_without_statistics_are_pointed_out(autodial: Run) -> None:
    Solver.from_file("solver.prototxt").snapshot()
    words = ["--net", "net.prototxt", "--weights", "snapshots/stripes_iter_0.caffemodel", "--device", "cpu"]
    status, _, err = autodial("test", *words)
    assert status == 0 and "conv/dial have no statistics stored" in err


def test_domains_split_at_several_rows_are_pointed_out(
    autodial: Run, edit: Callable[[str, str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert autodial(*TRAIN, "-o", "agreeing")[0] == 0
    assert "split into source and target at several rows" not in caplog.text
    edit("net.prototxt", "slice_point: 4 moving", "slice_point: 2 moving")
    assert autodial(*TRAIN, "--set", "solver.snapshot_prefix=other", "-o", "disagreeing")[0] == 0
    assert 'several rows: 4 by layer "data", 2 by layer "conv/dial"' in caplog.text


def test_what_was_learned_before_a_broken_image_is_kept(autodial: Run, project: Path) -> None:
    lines = Path("source.txt").read_text()
    (project / "cut.png").write_bytes((project / "image 0.png").read_bytes()[:120])
    Path("source.txt").write_text(f"{lines * 4}cut.png 0\n")  # the 25th image: in the fourth iteration, two of 4 each
    words = ("--set", "source.image_data_param.shuffle=false", "--set", "solver.snapshot=0")
    status, _, err = autodial(*TRAIN, *words)
    assert status == 2 and "source.txt:25" in err
    (state,) = Path("snapshots").glob("*.solverstate")
    assert state.name == "stripes_iter_3.solverstate"


def write_layer(name: str, weights: NDArray[np.float32]) -> None:
    """w.caffemodel with one layer, whose bias is 0."""
    bias = np.zeros(len(weights), np.float32)
    write_weights(Weights("net", [LayerWeights(pb.LayerParameter(name=name), [weights, bias])]), Path("w.caffemodel"))


def test_a_net_whose_rows_are_no_images_is_tested_as_a_whole(autodial: Run) -> None:
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(5, 2, 3, 3)).astype(np.float32), rng.integers(0, 4, (5, 1, 3, 3)).astype(np.float32)
    with h5py.File("rows.h5", "w") as file:
        file["x"], file["label"] = x, label
    Path("rows.txt").write_text("rows.h5\n")
    net = """
        layer { name: "data" type: "HDF5Data" top: "x" top: "label"
          hdf5_data_param { source: "rows.txt" batch_size: 2 } }
        layer { name: "score" type: "Convolution" bottom: "x" top: "score"
          convolution_param { num_output: 4 kernel_size: 1 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
        layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy" }
    """
    Path("pixels.prototxt").write_text(net)
    weights = rng.normal(size=(4, 2)).astype(np.float32)
    write_layer("score", weights.reshape(4, 2, 1, 1))
    scores = np.einsum("kc,nchw->nkhw", weights, x)
    right = scores.argmax(1) == label[:, 0]
    status, out, err = autodial("test", "--net", "pixels.prototxt", "--weights", "w.caffemodel")
    assert status == 0, err
    assert f"accuracy = {right.mean():.6g}" in out
    status, out, err = autodial("test", "--net", "pixels.prototxt", "--weights", "w.caffemodel", "--iterations", "1")
    assert status == 0, err
    assert f"accuracy = {right[:2].mean():.6g}" in out
    status, _, err = autodial("test", "--net", "pixels.prototxt", "--weights", "w.caffemodel", "-o", "scores.csv")
    assert status == 2 and 'blob "score" has shape (2, 4, 3, 3), not a row of scores per image' in err


def test_a_stage_s_layers_are_tested_where_the_stage_is_named(autodial: Run) -> None:
    autodial(*TRAIN)
    extra = 'layer { name: "more" type: "Accuracy" bottom: "fc" bottom: "label" top: "%s" include { %s } }\n'
    with Path("net.prototxt").open("a") as net:
        net.write(extra % ("staged", 'phase: TEST stage: "check"') + extra % ("leveled", "phase: TEST min_level: 3"))
    assert not [name for name in ("staged", "leveled") if name in autodial(*TEST)[1]]
    status, out, _ = autodial(*TEST, "--stage", "check", "--level", "3")
    assert status == 0 and "staged = " in out and "leveled = " in out


def test_a_net_without_a_list_is_tested_for_a_number_of_iterations(autodial: Run) -> None:
    Path("made.prototxt").write_text("""
        layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
          shape { dim: 2 dim: 3 } shape { dim: 2 } data_filler { value: 1 } data_filler { } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
    """)
    write_layer("ip", np.zeros((4, 3), np.float32))
    command = "test", "--net", "made.prototxt", "--weights", "w.caffemodel"
    status, out, err = autodial(*command, "--iterations", "3")
    assert status == 0, err
    assert f"loss = {np.log(4):.6g}" in out
    status, _, err = autodial(*command)
    assert status == 2 and "made.prototxt: the TEST phase has no image list" in err
    assert "state a number of --iterations" in err
    status, _, err = autodial(*command, "--iterations", "3", "-o", "scores.csv")
    assert status == 2 and "leave out -o" in err

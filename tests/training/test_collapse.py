"""The collapse alarm: raised by trainings that collapse, and by no others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from autodial.cli import app
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net
from autodial.training.collapse import SHARE, CollapseWatch
from autodial.training.monitor import CollapseRow, Monitor, TrainRow
from autodial.training.solver import Solver

NET = """
layer {{ name: "source" type: "HDF5Data" top: "data" top: "label"
  hdf5_data_param {{ source: "source.txt" batch_size: 16 }} }}
layer {{ name: "target" type: "HDF5Data" top: "target"
  hdf5_data_param {{ source: "target.txt" batch_size: 16 }} }}
layer {{ name: "join" type: "Concat" bottom: "data" bottom: "target" top: "both" concat_param {{ axis: 0 }} }}
layer {{ name: "fc" type: "InnerProduct" bottom: "both" top: "fc"
  inner_product_param {{ num_output: {classes} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "split" type: "Slice" bottom: "fc" top: "fc-source" top: "fc-target" slice_param {{ axis: 0 }} }}
layer {{ name: "loss-source" type: "SoftmaxWithLoss" bottom: "fc-source" bottom: "label" top: "loss-source" }}
layer {{ name: "loss-target" type: "EntropyLoss" bottom: "fc-target" top: "loss-target" loss_weight: {weight} }}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: {iterations} display: 20
snapshot_prefix: "net" random_seed: 1 solver_mode: CPU
"""

Rows = NDArray[np.float32]


def clusters(labels: Sequence[int], classes: int, shift: float = 0.0, seed: int = 0) -> Rows:
    """A noisy one-hot vector per label, all moved by `shift`."""
    noise = np.random.default_rng(seed).normal(0, 0.15, (len(labels), classes))
    return np.asarray(np.eye(classes)[list(labels)] + noise + shift, np.float32)


def write(name: str, **datasets: NDArray[np.floating]) -> None:
    with h5py.File(f"{name}.h5", "w") as file:
        for key, value in datasets.items():
            file[key] = value
    Path(f"{name}.txt").write_text(f"{name}.h5\n")


class Alarms(Monitor):
    def __init__(self) -> None:
        self.rows: list[TrainRow] = []
        self.alarms: list[CollapseRow] = []

    def displayed(self, row: TrainRow) -> None:
        self.rows.append(row)

    def collapsed(self, row: CollapseRow) -> None:
        self.alarms.append(row)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Solver, Alarms]]:
    """Train a linear classifier on clusters: `source` and `target` are the labels of each domain's samples."""
    monkeypatch.chdir(tmp_path)

    def run(
        source: Sequence[int],
        target: Sequence[int],
        *,
        classes: int,
        weight: float,
        shift: float = 0.0,
        iterations: int = 300,
    ) -> tuple[Solver, Alarms]:
        write("source", data=clusters(source, classes), label=np.asarray(source, np.float32))
        write("target", target=clusters(target, classes, shift, seed=1))
        Path("net.prototxt").write_text(NET.format(classes=classes, weight=weight))
        Path("solver.prototxt").write_text(SOLVER.format(iterations=iterations))
        solver, alarms = Solver.from_file("solver.prototxt"), Alarms()
        solver.monitors.append(alarms)
        solver.step(iterations)
        return solver, alarms

    return run


def labels(*counts: int) -> list[int]:
    """So many of each class, in random order."""
    every = np.repeat(np.arange(len(counts)), counts)
    return [int(label) for label in np.random.default_rng(2).permutation(every)]


Train = Callable[..., tuple[Solver, Alarms]]


def test_collapse_raises_one_alarm(train: Train) -> None:
    # the target lies between the source's classes, and the entropy loss outweighs the source's
    solver, seen = train(labels(*[100] * 10), labels(*[100] * 10), classes=10, weight=20, shift=3)
    assert seen.rows[-1].diversity["loss-target"] < SHARE
    (alarm,) = seen.alarms
    assert (alarm.layer, alarm.classes, solver.collapses) == ("loss-target", 10, [alarm])
    assert 1 <= alarm.in_use < 10**SHARE
    assert alarm.in_source == pytest.approx(10, abs=0.2)


def test_adaptation_raises_none(train: Train) -> None:
    _, seen = train(labels(*[100] * 10), labels(*[100] * 10), classes=10, weight=0.2)
    assert seen.alarms == []
    assert seen.rows[-1].diversity["loss-target"] == pytest.approx(1, abs=0.03)


def test_rare_target_class_raises_none(train: Train) -> None:
    _, seen = train(labels(500, 500), labels(900, 100), classes=2, weight=0.2)
    assert seen.alarms == []
    # entropy of 0.9 and 0.1, 0.325 nats, over log 2
    assert seen.rows[-1].diversity["loss-target"] == pytest.approx(0.469, abs=0.06)


def test_class_that_is_rare_in_both_domains_raises_none(train: Train) -> None:
    _, seen = train(labels(970, 30), labels(970, 30), classes=2, weight=0.1)
    assert seen.alarms == []
    assert seen.rows[-1].diversity["loss-target"] > 0.7


def test_small_batches_of_many_classes_raise_none(train: Train) -> None:
    _, seen = train(labels(*[40] * 31), labels(*[40] * 31), classes=31, weight=0.2)
    assert seen.alarms == []
    values = [row.diversity for row in seen.rows]
    assert values[:3] == [{}, {}, {}]  # 1,000 samples are 63 batches
    assert min(value["loss-target"] for value in values[4:]) > 0.9


def test_entropy_loss_of_weight_0_is_not_watched(train: Train) -> None:
    _, seen = train(labels(500, 500), labels(500, 500), classes=2, weight=0, iterations=200)
    assert all(row.diversity == {} for row in seen.rows)


def watched(*, labelled: bool = True) -> tuple[Net, CollapseWatch]:
    """A net that is fed scores of 4 classes, 500 target rows at a time, and its watch."""
    text = """
    layer { name: "s" type: "Input" top: "s" top: "label"
      input_param { shape { dim: 500 dim: 4 } shape { dim: 500 } } }
    layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 500 dim: 4 } } }
    layer { name: "entropy" type: "EntropyLoss" bottom: "t" top: "entropy" }
    layer { name: "ip" type: "InnerProduct" bottom: "t" top: "ip" inner_product_param { num_output: 2 } }
    """
    if labelled:
        text += 'layer { name: "softmax" type: "SoftmaxWithLoss" bottom: "s" bottom: "label" top: "softmax" }'
    net = Net(parse_net(text), pb.TRAIN)
    return net, CollapseWatch(net)


def feed(net: Net, predicted: Sequence[float], source: Sequence[int] = (125, 125, 125, 125)) -> None:
    scores = torch.tensor(predicted).log().expand(500, 4)
    given = torch.repeat_interleave(torch.arange(4), torch.tensor(source)).float()
    net({"s": torch.zeros(500, 4), "label": given, "t": scores})


def test_diversity_is_that_of_the_mean_prediction() -> None:
    net, watch = watched()
    feed(net, (0.7, 0.1, 0.1, 0.1), source=(250, 250, 0, 0))
    assert watch.read() == {}  # 500 of the 1,000 samples that it takes
    feed(net, (0.1, 0.7, 0.1, 0.1), source=(250, 250, 0, 0))
    # passes are worth samples / batch = 2: the newest has the share 2 / (2 + 1) of an exponential average that starts
    # from nothing, the one before a third of that
    mean = np.array([0.7 / 4 + 0.1 * 3 / 4, 0.1 / 4 + 0.7 * 3 / 4, 0.1, 0.1])
    expected = -(mean * np.log(mean)).sum() / math.log(2)
    assert watch.read()["entropy"] == pytest.approx(expected, rel=1e-5)


def test_without_source_labels_all_classes_are_expected() -> None:
    net, watch = watched(labelled=False)
    for _ in range(2):
        net({"t": torch.zeros(500, 4), "s": torch.zeros(500, 4), "label": torch.zeros(500)})
    assert watch.read()["entropy"] == pytest.approx(1)


def test_source_of_one_class_tells_nothing() -> None:
    net, watch = watched()
    for _ in range(3):
        feed(net, (1, 0, 0, 0), source=(500, 0, 0, 0))
    assert watch.read() == {}
    assert watch.alarms(3) == []


def test_alarm_is_raised_again_only_after_recovery() -> None:
    net, watch = watched()

    def after(passes: int, *predicted: float) -> int:
        for _ in range(passes):
            feed(net, predicted)
        watch.read()
        return len(watch.alarms(0))

    collapsed, above, diverse = (1, 0, 0, 0), (0.81, 0.19, 0, 0), (0.25, 0.25, 0.25, 0.25)
    entropy = -(0.81 * math.log(0.81) + 0.19 * math.log(0.19)) / math.log(4)
    assert SHARE < entropy < 1.1 * SHARE
    assert [after(20, *p) for p in (diverse, collapsed, above, collapsed, diverse, collapsed)] == [0, 1, 0, 0, 0, 1]


def test_spatial_scores_count_every_position() -> None:
    text = """
    layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 2 dim: 3 dim: 20 dim: 30 } } }
    layer { name: "entropy" type: "EntropyLoss" bottom: "t" top: "entropy" }
    layer { name: "conv" type: "Convolution" bottom: "t" top: "conv"
      convolution_param { num_output: 1 kernel_size: 1 } }
    """
    net = Net(parse_net(text), pb.TRAIN)
    watch = CollapseWatch(net)
    scores = torch.randn(2, 3, 20, 30)
    net({"t": scores})
    mean = scores.softmax(1).mean((0, 2, 3)).double().numpy()
    assert watch.read()["entropy"] == pytest.approx(-(mean * np.log(mean)).sum() / math.log(3), rel=1e-5)


def test_command_says_so_logs_and_sums_up(train: Train) -> None:
    train(labels(*[50] * 10), labels(*[50] * 10), classes=10, weight=20, shift=3, iterations=1)
    Path("solver.prototxt").write_text(SOLVER.format(iterations=300))
    result = CliRunner().invoke(app, ["train", "--solver", "solver.prototxt", "--workers", "0", "-o", "run"])
    assert result.exit_code == 0
    assert result.output.count('Warning: in front of layer "loss-target" the target\'s predictions have collapsed') == 1
    assert "their mean is spread over 1" in result.output
    assert "a smaller loss_weight of that layer" in result.output
    rows = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    (alarm,) = [row for row in rows if row["event"] == "collapse"]
    assert f"Training done.\nThe target's predictions collapsed at iteration {alarm['iteration']}" in result.output
    logged = [row["diversity"] for row in rows if row["event"] == "train" and row["diversity"]]
    assert logged[-1]["loss-target"] < SHARE

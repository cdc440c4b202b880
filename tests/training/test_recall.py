"""Recall and balanced accuracy against scikit-learn's, over tests in several batches and several processes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, recall_score

from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net
from autodial.training.console import Lines
from autodial.training.monitor import TestRow
from autodial.training.recall import RecallWatch, balanced_accuracy, describe_recall, recalls
from autodial.training.run_record import read_log

NET = """
    layer { name: "data" type: "Input" top: "map" top: "label"
      input_param { shape { dim: 4 dim: 5 dim: 2 dim: 3 } shape { dim: 4 dim: 2 dim: 3 } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "map" bottom: "label" top: "loss"
      loss_param { ignore_label: 9 } }
"""
ACCURACY = """
    layer { name: "softmax" type: "Softmax" bottom: "map" top: "p" }
    layer { name: "accuracy" type: "Accuracy" bottom: "p" bottom: "label" top: "accuracy"
      accuracy_param { top_k: 2 ignore_label: 9 } }
"""


def batches(count: int = 3) -> list[dict[str, torch.Tensor]]:
    """Random scores and labels: class 3 never occurs, and some labels are ignored."""
    generator = torch.Generator().manual_seed(0)
    choices = torch.tensor([0.0, 0.0, 1.0, 2.0, 4.0, 9.0])
    return [
        {
            "map": torch.randn(4, 5, 2, 3, generator=generator),
            "label": choices[torch.randint(len(choices), (4, 2, 3), generator=generator)],
        }
        for _ in range(count)
    ]


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize(("more", "blob"), [("", "map"), (ACCURACY, "p")])
def test_recalls_are_scikit_learns(more: str, blob: str) -> None:
    """By the scores of an Accuracy layer, whatever its top_k, or else of a loss."""
    net = Net(parse_net(NET + more), pb.TEST)
    fed = batches()
    with RecallWatch(net) as watch:
        for batch in fed:
            net(batch)
    net(fed[0])  # is not counted any more
    found = recalls(watch.counts())
    assert list(found) == [blob]
    labels = torch.cat([batch["label"].flatten() for batch in fed]).numpy()
    predicted = torch.cat([batch["map"].argmax(1).flatten() for batch in fed]).numpy()
    counted = labels != 9
    expected = recall_score(labels[counted], predicted[counted], labels=range(5), average=None, zero_division=np.nan)
    np.testing.assert_allclose(found[blob], expected)
    assert math.isnan(found[blob][3])
    balanced = balanced_accuracy_score(labels[counted], predicted[counted])
    assert balanced_accuracy(found[blob]) == pytest.approx(balanced)
    assert math.isnan(balanced_accuracy([math.nan, math.nan]))


def test_descriptions_are_short_for_many_classes() -> None:
    assert (
        describe_recall("fc", [0.5, math.nan, 1]) == "balanced accuracy of fc = 0.75, recall by class = [0.5, nan, 1]"
    )
    many = [0.9] * 20 + [0.1, math.nan, 0.2]
    assert "lowest recalls: 0.1 (class 20), 0.2 (class 22), 0.9 (class 0), " in describe_recall("fc", many)


def test_descriptions_have_the_names_of_labels_txt_if_it_fits(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\ncat\n")
    shown = describe_recall("fc", [0.5, math.nan, 1], tmp_path)
    assert shown == "balanced accuracy of fc = 0.75, recall by class = [cat_0: 0.5, dog: nan, cat_2: 1]"
    assert describe_recall("fc", [0.5, 1], tmp_path) == describe_recall("fc", [0.5, 1])  # names of another net
    (tmp_path / "labels.txt").write_text("".join(f"bird {k}\n" for k in range(23)))
    shown = describe_recall("fc", [0.9] * 20 + [0.1, math.nan, 0.2], tmp_path)
    assert "lowest recalls: 0.1 (bird 20), 0.2 (bird 22), 0.9 (bird 0), " in shown


def test_train_and_test_name_the_classes_of_a_project(project: Path, autodial: Callable[..., Any]) -> None:
    (project / "labels.txt").write_text("red\ngreen\nblue\n")
    common = ("--device", "cpu", "--workers", "0")
    _, trained, _ = autodial("train", "--solver", "solver.prototxt", *common, "-o", "run")
    weights = ("--weights", "snapshots/stripes_iter_8.caffemodel")
    _, tested, _ = autodial("test", "--net", "net.prototxt", *common, *weights)
    for shown in (trained, tested):
        assert re.search(
            r"balanced accuracy of fc = \S+, recall by class = \[red: \S+, green: \S+, blue: \S+\]\n", shown
        )


def test_a_test_is_shown_with_balanced_accuracy() -> None:
    lines: list[str] = []
    Lines(lines.append).tested(TestRow(4, 0, {"accuracy": (0.5,)}, {}, {}, {"fc": (0.5, 1.0)}, {"fc": 0.75}))
    assert lines[-1] == "    Test balanced accuracy of fc = 0.75, recall by class = [0.5, 1]"


def right(rows: list[dict[str, Any]]) -> list[float]:
    """Recalls by class from the rows of a CSV of scores."""
    return [
        float(np.mean([row["predicted"] == row["label"] for row in rows if row["label"] == str(k)])) for k in range(3)
    ]


def test_the_log_and_the_command_agree_with_the_scores(project: Path, autodial: Callable[..., Any]) -> None:
    import csv

    train = ("train", "--solver", "solver.prototxt", "--device", "cpu", "--workers", "0", "-o", "run")
    assert autodial(*train)[0] == 0
    test = ("test", "--net", "net.prototxt", "--device", "cpu", "--workers", "0")
    weights = ("--weights", "snapshots/stripes_iter_8.caffemodel")
    status, out, _ = autodial(*test, *weights, "-o", "scores.csv", "--json")
    assert status == 0
    record = json.loads(out)
    with Path("scores.csv").open(newline="") as file:
        expected = right(list(csv.DictReader(file)))
    assert record["recalls"] == {"fc": pytest.approx(expected)}
    assert record["balanced_accuracy"] == {"fc": pytest.approx(np.mean(expected))}
    assert record["outputs"]["accuracy"] == pytest.approx(record["accuracy"])
    assert record["images"] == len(Path("test.txt").read_text().splitlines())
    status, out, _ = autodial(*test, *weights)
    assert f"balanced accuracy of fc = {np.mean(expected):.6g}, recall by class = [" in out
    last = [row for row in read_log(Path("run")) if row["event"] == "test"][-1]
    assert set(last["recalls"]) == {"fc"} and len(last["recalls"]["fc"]) == 3
    known = [value for value in last["recalls"]["fc"] if value is not None]
    assert last["balanced_accuracy"]["fc"] == pytest.approx(np.mean(known))


def test_ranks_count_together(on_ranks: Callable[..., list[tuple[int | None, Any]]]) -> None:
    ((_, (_, alone, _)),) = on_ranks(1, "train")
    for status, (_, tests, _) in on_ranks(2, "train"):
        assert status == 0
        assert [row.recalls for row in tests] == [row.recalls for row in alone]

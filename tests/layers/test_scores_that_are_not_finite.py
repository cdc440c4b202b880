"""What Accuracy, ArgMax and the losses make of NaN, beside the order that Caffe's C++ gives to such scores."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable, Sequence
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch

from autodial.layers import (
    Accuracy,
    ArgMax,
    EntropyLoss,
    HingeLoss,
    InfogainLoss,
    MultinomialLogisticLoss,
    SoftmaxWithLoss,
)

TopClasses = Callable[[Sequence[tuple[int, Sequence[float]]]], list[list[int]]]


@pytest.fixture(scope="module")
def caffe_order(tmp_path_factory: pytest.TempPathFactory) -> TopClasses:
    """The top_k classes of rows (top_k, scores), as a C++ program finds them with Caffe's partial sort."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++, with whose library Caffe was built")
    program = tmp_path_factory.mktemp("accuracy") / "order"
    source = Path(__file__).with_name("accuracy_by_partial_sort.cpp")
    # pairs compare otherwise from C++20 on, which Caffe knows nothing of
    subprocess.run([compiler, "-std=c++11", "-o", program, source], check=True)

    def order(rows: Sequence[tuple[int, Sequence[float]]]) -> list[list[int]]:
        text = "".join(f"{top_k} {' '.join(map(str, row))}\n" for top_k, row in rows)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
        return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]

    return order


def hits(row: Sequence[float], top_k: int) -> list[int]:
    """The labels that Accuracy takes for right, beside scores of one row."""
    classes = len(row)
    _, per_class = Accuracy(top_k, per_class=True)(torch.tensor([row] * classes), torch.arange(classes).float())
    return [k for k in range(classes) if per_class[k]]


@pytest.mark.parametrize(("top_k", "share"), [(1, 0.1), (5, 0.5)])
def test_scores_that_are_all_nan_hit_as_in_caffe(top_k: int, share: float) -> None:
    labels = torch.arange(10).float()
    accuracy, per_class = Accuracy(top_k, per_class=True)(torch.full((10, 10), nan), labels)
    assert accuracy.item() == pytest.approx(share)
    # the C++ program gives 9 8 7 6 5
    assert per_class.tolist() == [0] * (10 - top_k) + [1] * top_k


@pytest.mark.parametrize(
    ("row", "top_k", "right"),
    [
        ((5, nan, 3), 1, []),  # 1 beats 0, 2 beats 1, 0 beats 2
        ((nan, 1, 2), 1, [2]),
        ((1, 2, nan), 1, [2]),
        ((nan, 5, 2), 1, [1]),
        ((1, 2, nan), 2, [1, 2]),
        ((1, inf, 2), 1, [1]),
        ((-inf, -inf, -inf), 1, [2]),
    ],
)
def test_a_row_with_nan_by_hand(row: Sequence[float], top_k: int, right: list[int]) -> None:
    assert hits(row, top_k) == right


def test_nan_at_some_positions_and_labels_that_are_ignored() -> None:
    scores = torch.zeros(1, 3, 1, 4)
    scores[0, 1] = 1  # class 1 everywhere
    scores[0, :, 0, 1:3] = nan
    labels = torch.tensor([[[1.0, 1.0, 2.0, 0.0]]])
    accuracy, per_class = Accuracy(per_class=True)(scores, labels)
    assert (accuracy.item(), per_class.tolist()) == (0.5, [0, 0.5, 1])
    accuracy, per_class = Accuracy(per_class=True, ignore_label=2)(scores, labels)
    assert (accuracy.item(), per_class.tolist()) == (pytest.approx(1 / 3), [0, 0.5, 0])


def test_accuracy_is_caffe_s_order_of_pairs(caffe_order: TopClasses) -> None:
    rows = [
        (top_k, row)
        for classes in (3, 4)
        for row in itertools.product((0.0, 1.0, 2.0, nan), repeat=classes)
        for top_k in range(1, classes + 1)
    ]
    rows += [(top_k, [nan] * 10) for top_k in range(1, 11)]
    agreeing = 0
    for (top_k, row), order in zip(rows, caffe_order(rows), strict=True):
        ours, theirs = hits(row, top_k), sorted(order)
        agreeing += ours == theirs
        if np.isnan(row).all() or not np.isnan(row).any():
            assert ours == theirs, (row, top_k)
        elif top_k == 1:
            assert set(ours) <= set(theirs), row
    assert agreeing > 0.9 * len(rows)


def test_arg_max_of_nan_is_caffe_s(caffe_order: TopClasses) -> None:
    for top_k in (1, 3, 6):
        found = ArgMax(top_k)(torch.full((1, 6), nan)).flatten().tolist()
        assert found == caffe_order([(top_k, [nan] * 6)])[0]


def test_arg_max_shows_a_nan_among_numbers() -> None:
    assert ArgMax(2, axis=1)(torch.tensor([[1, nan, 5, 2]])).tolist() == [[1, 2]]
    assert ArgMax(axis=1, values=True)(torch.tensor([[1, nan, 5, 2]])).isnan().all()


@pytest.mark.parametrize(
    "loss",
    [
        SoftmaxWithLoss(),
        InfogainLoss(torch.eye(3)),
        MultinomialLogisticLoss(),
        HingeLoss(),
        HingeLoss("L2"),
        EntropyLoss(),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_no_loss_hides_a_nan(loss: torch.nn.Module) -> None:
    scores = torch.full((2, 3), 0.2)
    scores[1, 2] = nan
    bottoms = (scores,) if isinstance(loss, EntropyLoss) else (scores, torch.tensor([0.0, 2.0]))
    assert loss(*bottoms).isnan()

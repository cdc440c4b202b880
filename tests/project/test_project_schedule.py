"""Batches and iterations, against the paper's numbers and Caffe's formulas for learning rates."""

from __future__ import annotations

import pytest

from autodial import proto
from autodial.errors import InputError
from autodial.netparam.shipped import shipped_solver
from autodial.project.schedule import describe_epochs, drops, fill_intervals, iterations, stretch
from autodial.project.split import even_batches, halved_batch, split_batch
from autodial.proto import messages as pb
from autodial.training.lr_policy import learning_rate, next_step


@pytest.mark.parametrize(
    ("epochs", "text"),
    [
        (1, "1 epoch"),
        (1.0667, "1.07 epochs"),
        (0.53333, "0.533 epochs"),
        (60, "60 epochs"),
        (426.67, "427 epochs"),
        (100_000, "100000 epochs"),
    ],
)
def test_epochs_are_told_as_a_person_would(epochs: float, text: str) -> None:
    assert describe_epochs(epochs) == text


@pytest.mark.parametrize(
    ("total", "source", "target", "expected"),
    [
        (256, 958, 1123, (117, 139)),  # the split in the file that the paper's authors released
        (48, 2817, 1408, (32, 16)),
        (64, 500, 500, (32, 32)),
        (256, 60, 45, (60, 45)),  # smaller than a batch
        (64, 3, 100_000, (2, 62)),
        (64, 100_000, 3, (62, 2)),
        (256, 2, 2, (2, 2)),
    ],
)
def test_split(total: int, source: int, target: int, expected: tuple[int, int]) -> None:
    assert split_batch(total, source, target) == expected


def test_halved_batch() -> None:
    assert halved_batch(64, 1870, 300) == (32, 32)
    assert halved_batch(65, 1870, 300) == (32, 32)
    assert halved_batch(64, 1870, 20) == (20, 20)


@pytest.mark.parametrize(("images", "batch", "expected"), [(795, 64, (62, 13)), (100, 100, (100, 1)), (7, 64, (7, 1))])
def test_even_batches(images: int, batch: int, expected: tuple[int, int]) -> None:
    assert even_batches(images, batch) == expected


def test_sixty_epochs_with_a_drop_after_54() -> None:
    """958 images at 117 a batch: 60 epochs are 491.3 iterations, 54 are 442.2."""
    solver = proto.read_solver(shipped_solver("alexnet"))
    stretch(solver, iterations(60, 958, 117))
    assert solver.max_iter == 492 and list(solver.stepvalue) == [443] and drops(solver) == [443]


@pytest.mark.parametrize(
    ("policy", "old", "new"),
    [
        ('lr_policy: "inv" gamma: 0.0125 power: 0.75', 800, 90),
        ('lr_policy: "exp" gamma: 0.99', 500, 1000),
        ('lr_policy: "sigmoid" gamma: -0.02 stepsize: 250', 500, 2000),
        ('lr_policy: "poly" power: 2', 500, 100),
        ('lr_policy: "step" gamma: 0.1 stepsize: 100', 500, 5000),
        ('lr_policy: "multistep" gamma: 0.1 stepvalue: 100 stepvalue: 400', 500, 5000),
        ('lr_policy: "fixed"', 10, 20),
    ],
)
def test_the_learning_rate_keeps_its_course(policy: str, old: int, new: int) -> None:
    """At the same share of the training, what Caffe's formula gives is the same."""
    solvers = [proto.parse_solver(f"base_lr: 0.01 max_iter: {old} {policy}") for _ in range(2)]
    stretch(solvers[1], new)
    courses = []
    for solver, length in zip(solvers, (old, new), strict=True):
        step, rates = 0, []
        for i in range(length + 1):
            step = next_step(solver, i, step)
            rates.append(learning_rate(solver, i, step))
        courses.append([rates[round(share * length)] for share in (0, 0.1, 0.5, 0.9, 1)])
    assert courses[1] == pytest.approx(courses[0], rel=1e-4)


def test_intervals_suit_the_length() -> None:
    solver = proto.parse_solver("max_iter: 1000 display: 100 test_iter: 7 test_iter: 8 test_interval: 1 snapshot: 300")
    stretch(solver, 100)
    fill_intervals(solver, 13)
    assert (solver.display, solver.snapshot, list(solver.test_iter), solver.test_interval) == (2, 30, [13], 10)
    fill_intervals(solver, None)
    assert not solver.test_iter and not solver.HasField("test_interval")


def test_refuses_a_schedule_without_a_length() -> None:
    with pytest.raises(InputError, match="max_iter"):
        stretch(pb.SolverParameter(), 10)

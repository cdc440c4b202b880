"""What a solver reports while it works, and to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autodial.proto import messages as pb

BlobValues = tuple[float, ...]
"""The elements of an output blob, in order; most output blobs have one."""
NotFinite = Mapping[str, tuple[int, int]]
"""By blob of scores, in the net's order: the number of rows with scores that are not finite, and of all rows."""
Recalls = Mapping[str, tuple[float, ...]]
"""By blob of scores, in the net's order: each class's share of labels that are predicted; NaN without labels."""


@dataclass(frozen=True)
class TrainRow:
    """One displayed iteration.

    Attributes:
        iteration: number of updates before it.
        lr: the learning rate, before any lr_mult.
        loss: weighted total, averaged over average_loss iterations.
        outputs: output blobs of the iteration's last pass.
        loss_weights: weight in the loss of the outputs that have one.
        alphas: alpha of every Dial layer, clipped to [0.5, 1], by layer name.
        images_per_s: images read per second of training since the last row; None for the first row.
        diversity: the diversity of the target's predictions, by EntropyLoss layer (see `CollapseWatch`), once enough
            samples were seen.
    """

    iteration: int
    lr: float
    loss: float
    outputs: Mapping[str, BlobValues]
    loss_weights: Mapping[str, float]
    alphas: Mapping[str, float]
    images_per_s: float | None
    diversity: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TestRow:
    """One test of one test net.

    Attributes:
        iteration: number of updates before it.
        net: index of the test net.
        outputs: output blobs, averaged over the test's batches.
        loss_weights: weight in the loss of the outputs that have one.
        not_finite: the blobs with scores that are not finite; an accuracy over such scores means nothing.
        recalls: recall per class, over the whole test, for the scores of Accuracy layers, or of losses without these.
        balanced_accuracy: the mean recall of the classes that have labels, by blob; NaN if no class has any.
    """

    __test__ = False  # not a test case, whatever pytest makes of the name

    iteration: int
    net: int
    outputs: Mapping[str, BlobValues]
    loss_weights: Mapping[str, float]
    not_finite: NotFinite = field(default_factory=dict)
    recalls: Recalls = field(default_factory=dict)
    balanced_accuracy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CollapseRow:
    """The alarm that the target's predictions have collapsed into few classes (autodial.training.collapse).

    Attributes:
        iteration: number of updates before it.
        layer: the EntropyLoss layer that reads the predictions.
        classes: their number.
        in_use: over how many classes the mean prediction is spread, exp(its entropy).
        in_source: over how many classes the source's labels are spread.
    """

    iteration: int
    layer: str
    classes: int
    in_use: float
    in_source: float


class RunningSolver(Protocol):
    """The part of a solver that monitors use while it works.

    Attributes:
        param: the SolverParameter message.
        iter: number of updates so far.
    """

    param: pb.SolverParameter
    iter: int

    def smoothed_loss(self) -> float:
        """The loss averaged over the last average_loss iterations."""

    def stop(self) -> None:
        """Ask the solver to end after this iteration."""


class Monitor:
    """Base class for what watches a solver; subclasses override what they need."""

    def displayed(self, row: TrainRow) -> None:
        """Called every `display` iterations."""

    def tested(self, row: TestRow) -> None:
        """Called after each test of each net."""

    def collapsed(self, row: CollapseRow) -> None:
        """Called when the target's predictions have collapsed, and again only after they recovered."""

    def saved(self, model: Path, state: Path) -> None:
        """Called after each snapshot."""

    def iterated(self, solver: RunningSolver) -> None:
        """Called after each iteration; reading from the device here makes training wait."""

"""What a net predicts for the target's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autodial.evaluation.scoring import ScoredImage

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """The TEST phase's images, and their scores.

    Attributes:
        rows: one per image whose scores are finite; labels are None if the net reads none.
        positions: the rows' places in the list, from 0, ascending.
        total: length of the list.
        name: the list or database, as the net names it.
        unlabelled: why there are no labels to compare with; None if there are.
        lost: number of images without a row, as their scores are not finite.
    """

    rows: Sequence[ScoredImage]
    positions: Sequence[int]
    total: int
    name: str
    unlabelled: str | None
    lost: int = 0

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """(images, classes)."""
        return np.stack([row.probabilities for row in self.rows])

    @property
    def mean(self) -> Floats:
        """The mean prediction, (classes,)."""
        mean: Floats = self.probabilities.mean(0, dtype=np.float64)
        return mean

    @property
    def diversity(self) -> float:
        """The entropy of the mean prediction divided by log(classes), in [0, 1]."""
        p = self.mean[self.mean > 0]
        return float(-(p * np.log(p)).sum() / np.log(len(self.mean))) if len(self.mean) > 1 else 0.0

    @property
    def labelled(self) -> list[tuple[int, int]]:
        """Label and predicted class of every image whose label is a class."""
        if self.unlabelled is not None:
            return []
        return [(row.label, row.predicted) for row in self.rows if row.label is not None and row.loss is not None]

    @property
    def accuracy(self) -> float | None:
        """Share of the labelled images whose class is predicted, in [0, 1]; None if there are none."""
        pairs = self.labelled
        return sum(label == predicted for label, predicted in pairs) / len(pairs) if pairs else None

    def confusion(self) -> NDArray[np.int64]:
        """Numbers of labelled images by true class (rows) and predicted class (columns)."""
        counts = np.zeros((len(self.mean),) * 2, np.int64)
        for label, predicted in self.labelled:
            counts[label, predicted] += 1
        return counts

    def recalls(self) -> Floats:
        """Per class, the share of its labelled images that are predicted as this class; NaN without images."""
        return recalls(self.confusion())

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean recall of the classes that have labelled images, in [0, 1]; None if there are none."""
        return balanced_accuracy(self.confusion())

    def most_certain_by_class(self) -> dict[int, int]:
        """For each class that is predicted, the number of the row that got it with the largest probability."""
        order = np.argsort(self.probabilities.max(1), kind="stable")
        return {self.rows[number].predicted: int(number) for number in order}

    def extremes(self, count: int) -> tuple[list[int], list[int]]:
        """Numbers of the most certain rows, and of the least certain other rows, the most extreme first."""
        order = np.argsort(-self.probabilities.max(1), kind="stable").tolist()
        half = min(count, len(order) // 2)
        return order[:half], order[::-1][: min(count, len(order) - half)]


def recalls(confusion: NDArray[np.int64]) -> Floats:
    """Each class's recall from a confusion matrix, (classes,): row i counts class i's images; NaN without images."""
    totals = confusion.sum(1)
    shares: Floats = np.where(totals > 0, np.diag(confusion) / np.maximum(totals, 1), np.nan)
    return shares


def balanced_accuracy(confusion: NDArray[np.int64]) -> float | None:
    """The mean recall of the classes that have images, in [0, 1]; None if no class has any."""
    return float(np.nanmean(recalls(confusion))) if confusion.any() else None


def why_unlabelled(rows: Sequence[ScoredImage], name: str) -> str | None:
    """Why the labels of a list called `name` can't be compared with; None if they can."""
    if all(row.label is None for row in rows):
        return "the TEST phase reads no labels"
    real = {row.label for row in rows if row.loss is not None}
    if not real:
        return f"no label in {name} is one of the classes"
    if len(real) == 1 and len(rows) > 1:
        return f"every label in {name} is {real.pop()}, as in a list of images that nobody has labelled"
    return None

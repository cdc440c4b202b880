"""Whether a folder's images, and a model's answers to them, look like the training list that the model was adapted to.

For each statistic of `autodial.data.image_statistics`, the distance is Kolmogorov's and Smirnov's: the largest
difference between the two cumulative distributions, at quantiles of the training list. Images with another mix of
classes have other statistics without being another domain, so the training list's images are weighted until its
predicted classes are as frequent as the folder's. A statistic has moved if its distance is more than a tolerance, below
which a difference doesn't matter, and an allowance for chance. The allowance is Hoeffding's (1963, theorem 2): the
difference of two shares is a sum of independent terms, of which one image of the folder makes 1/n and one of the list
its weight w, so that chance alone adds more than e with a probability of at most 2 exp(-2 e^2 / (1/n + sum of w^2)),
whatever n is. It holds for all edges of all statistics at once, as their probabilities add up to SIGNIFICANCE.

The predicted classes themselves are compared by total variation, half the sum of the shares' differences. By chance it
is on average at most half the sum of sqrt(p (1 - p) (1/n + 1/m)) over the classes, and (McDiarmid 1989) more than e
beyond that with a probability of at most exp(-2 e^2 / (1/n + 1/m)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.data.image_statistics import OUTPUTS, Float64Array, Reference, binned, statistic_names
from autodial.deploy.metadata import ModelInfo
from autodial.errors import InputError

SIGNIFICANCE = 1e-3
"""Probability of a false alarm, at most, where no true distance exceeds its tolerance."""
OUTPUT_TOLERANCE = 0.3
"""The tolerance for entropy and confidence: the entropy loss makes nets more certain of the target images that they
were trained on than of others. Nets for digits came to a distance of 0.2 after seeing 800 images 30 times, of 0.3 after
100 times, and of 0.03 to 0.08 with 7,000 images."""
IMAGE_TOLERANCE = 0.15
"""The tolerance for the others, which training can't change; two halves of a domain differed by up to 0.08."""
CLASS_TOLERANCE = 0.15
"""The tolerance for the predicted classes' total variation."""
ENOUGH = 0.5
"""The images are enough if a distance of this size would be noticed."""


class Verdict(StrEnum):
    """The result of a comparison."""

    ALIKE = "alike"
    CLASSES = "other class balance"
    """The images look alike class by class, and the classes are in other proportions (label shift)."""
    SHIFTED = "shifted"
    """The images, or the model's answers to them, have changed."""
    TOO_FEW = "too few images"
    """Nothing stands out, but with so few images only an extreme difference would."""


@dataclass(frozen=True)
class StatisticDrift:
    """How far a statistic has moved."""

    name: str
    reference_mean: float
    """The mean over the training list, not weighted."""
    mean: float
    """The mean over the folder."""
    distance: float
    """Largest difference of the cumulative distributions, from 0 to 1; it lies at `edge`."""
    edge: float
    reference_below: float
    """Share of the training list's images with less than `edge`, weighted as the folder's classes."""
    below: float
    """Share of the folder's images with less than `edge`."""
    allowance: float
    tolerance: float

    @property
    def shifted(self) -> bool:
        """Whether the distance is more than chance and what doesn't matter explain."""
        return self.distance > self.tolerance + self.allowance


@dataclass(frozen=True)
class ClassDrift:
    """How far the balance of the predicted classes has moved."""

    names: Sequence[str]
    """(classes,)"""
    reference: Float64Array
    """(classes,): shares of the training list."""
    shares: Float64Array
    """(classes,): shares of the folder."""
    distance: float
    """Total variation of the two, from 0 to 1."""
    allowance: float
    tolerance: float = CLASS_TOLERANCE

    @property
    def shifted(self) -> bool:
        """As for a statistic."""
        return self.distance > self.tolerance + self.allowance

    def moved(self) -> list[tuple[str, float, float]]:
        """Name and both shares of the classes that occur in either, those first whose shares differ most."""
        order = np.argsort(-np.abs(self.reference - self.shares), kind="stable")
        rows = [(self.names[i], float(self.reference[i]), float(self.shares[i])) for i in order]
        return [row for row in rows if any(row[1:])]


@dataclass(frozen=True)
class Drift:
    """A folder compared with a training list."""

    reference: Reference
    images: int
    """The number of the folder's images that got labels."""
    statistics: Sequence[StatisticDrift]
    classes: ClassDrift | None
    """None without images."""

    def record(self) -> dict[str, object]:
        """All of it as values that JSON knows."""
        classes = self.classes
        return {
            "verdict": self.verdict.value,
            "images": self.images,
            "reference": {
                "domain": self.reference.domain,
                "list": self.reference.list_name,
                "listed": self.reference.listed,
                "images": len(self.reference.classes),
            },
            "significance": SIGNIFICANCE,
            "figures": [{**asdict(statistic), "shifted": statistic.shifted} for statistic in self.statistics],
            "classes": None
            if classes is None
            else {
                "distance": classes.distance,
                "allowance": classes.allowance,
                "tolerance": classes.tolerance,
                "shifted": classes.shifted,
                "shares": [
                    {"name": name, "reference": expected, "images": share} for name, expected, share in classes.moved()
                ],
            },
        }

    @property
    def verdict(self) -> Verdict:
        """The result of the comparison."""
        if any(statistic.shifted for statistic in self.statistics):
            return Verdict.SHIFTED
        if self.classes is not None and self.classes.shifted:
            return Verdict.CLASSES
        if all(statistic.tolerance + statistic.allowance > ENOUGH for statistic in self.statistics):
            return Verdict.TOO_FEW
        return Verdict.ALIKE


class Counts:
    """The statistics of any number of images, in the memory of one.

    Args:
        reference: what they are to be compared with.
        names: of the model's classes.
    """

    def __init__(self, reference: Reference, names: Sequence[str]) -> None:
        self.reference = reference
        self.names = names
        self.bins = [np.zeros(len(edges) + 1, np.int64) for edges in reference.edges]
        """Images by bin, for each statistic."""
        self.sums: Float64Array = np.zeros(len(reference.names))
        """The sum of each statistic."""

    def add(self, images: Sequence[Sequence[float]]) -> None:
        """Count images by their statistics."""
        values = np.array(images, np.float64).reshape(-1, len(self.bins))
        for counts, bins in zip(self.bins, binned(values, self.reference.edges), strict=True):
            counts += np.bincount(bins, minlength=len(counts))
        self.sums += values.sum(axis=0)

    def state(self) -> dict[str, Any]:
        """All of it as values that JSON knows."""
        return {"bins": [counts.tolist() for counts in self.bins], "sums": self.sums.tolist()}

    def fits(self, bins: Sequence[Sequence[int]], sums: Sequence[float], images: int) -> bool:
        """Whether a `state` of these can be that of so many images."""
        return (
            len(sums) == len(self.sums)
            and [len(counts) for counts in bins] == [len(counts) for counts in self.bins]
            and all(sum(counts) == images for counts in bins)
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self.bins = [np.array(counts, np.int64) for counts in state["bins"]]
        self.sums = np.array(state["sums"], np.float64)

    def compare(self, predicted: Mapping[int, int]) -> Drift:
        """Hold what was counted against the reference.

        Args:
            predicted: the same images by the index of their predicted class.
        """
        reference = self.reference
        images = sum(predicted.values())
        if images == 0:
            return Drift(reference, 0, (), None)
        shares = np.array([predicted.get(i, 0) for i in range(len(self.names))]) / images
        frequency = np.bincount(reference.classes, minlength=len(self.names))
        weights = _weights(shares, frequency, reference.classes)
        tests = sum(map(len, reference.edges))
        allowance = math.sqrt(math.log(2 * tests / SIGNIFICANCE) / 2 * (1 / images + float(weights @ weights)))
        statistics = []
        for i, (name, edges) in enumerate(zip(reference.names, reference.edges, strict=True)):
            expected = np.cumsum(np.bincount(reference.bins[i], weights, minlength=len(edges) + 1))[:-1]
            found = np.cumsum(self.bins[i])[:-1] / images
            at = int(np.abs(found - expected).argmax())
            statistics.append(
                StatisticDrift(
                    name=name,
                    reference_mean=reference.means[i],
                    mean=float(self.sums[i]) / images,
                    distance=float(abs(found[at] - expected[at])),
                    edge=float(edges[at]),
                    reference_below=float(expected[at]),
                    below=float(found[at]),
                    allowance=allowance,
                    tolerance=OUTPUT_TOLERANCE if name in OUTPUTS else IMAGE_TOLERANCE,
                )
            )
        return Drift(reference, images, statistics, _compare_classes(self.names, frequency, shares, images))


def read_reference(info: ModelInfo, path: str | Path) -> Reference:
    """What the model file at `path` keeps of its training list.

    Raises:
        InputError: it keeps nothing, or what this reader doesn't know.
    """
    if info.reference is None:
        raise InputError(
            f"{path} keeps nothing of the images that it was trained on, so `drift` has nothing to compare with: "
            "export it again where the net's training list and its images are in place, or for a PyTorch network with "
            "target_images"
        )
    try:
        reference = Reference.parse(info.reference)
        if reference.classes.min() < 0 or reference.classes.max() >= len(info.classes):
            raise InputError("its reference has classes that the model doesn't have")
    except InputError as error:
        raise InputError(
            f"{path}: what it keeps of its training list can't be read ({error}); export the model again"
        ) from error
    if reference.names != statistic_names(info.channels):
        raise InputError(
            f"{path} keeps {', '.join(reference.names)} of its training list, and this AutoDIAL compares "
            f"{', '.join(statistic_names(info.channels))}: export the model again"
        )
    return reference


def _weights(shares: Float64Array, frequency: NDArray[np.intp], classes: NDArray[np.intp]) -> Float64Array:
    """Weights (m,) of the reference's images; they add up to 1, and each class has its share of the folder.

    A class that the reference lacks is represented by all images alike.
    """
    known = frequency > 0
    per_image = np.divide(shares, frequency, out=np.zeros_like(shares), where=known)
    weights: Float64Array = per_image[classes] + shares[~known].sum() / len(classes)
    return weights


def _compare_classes(
    names: Sequence[str], frequency: NDArray[np.intp], shares: Float64Array, images: int
) -> ClassDrift:
    listed = int(frequency.sum())
    reference = frequency / listed
    noise = 1 / images + 1 / listed
    pooled = (reference * listed + shares * images) / (listed + images)
    by_chance = np.sqrt(pooled * (1 - pooled) * noise).sum() / 2
    allowance = float(by_chance) + math.sqrt(math.log(1 / SIGNIFICANCE) / 2 * noise)
    return ClassDrift(names, reference, shares, float(np.abs(reference - shares).sum() / 2), allowance)

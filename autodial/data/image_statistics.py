"""The statistics by which images are compared with the list that a model was trained on.

Two are of a model's answer, entropy and confidence; the others are of the image before it. The entropy loss makes a
model as certain of its training images as it can, so that it is less certain of any others, of the same domain too;
what a camera does to an image tells domains apart where the answers don't.

`autodial export` keeps the statistics of a training list in the file, as a `Reference`, and `autodial predict --drift`
counts those of what it labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import cv2
import numpy as np
from numpy.typing import NDArray

from autodial.errors import InputError
from autodial.system.json_files import check

OUTPUTS = ("entropy", "confidence")
"""Of the probabilities: their entropy in nats, and the largest."""
_GREY = ("brightness", "contrast", "sharpness", "evenness")
"""Of grey levels, 0 to 255: their mean, their standard deviation, and the root mean square of their Laplacian. At a
quarter of the size, the Laplacian's mean absolute value divided by its root mean square: from 0 for a few edges on
plain ground to 1 for detail that is everywhere alike, it says of a filter's responses what their kurtosis does."""
_COLOR = ("blue", "red")
"""Of colour images: by how much the channel's mean exceeds the brightness."""

_LEVELS = np.arange(0.05, 0.96, 0.05)
"""Quantiles of the training list at which distributions are compared."""
_STEPS = {"entropy": 1e-3, "confidence": 1e-3, "evenness": 1e-3}
"""Differences that mean nothing; those of grey levels are `_GREY_STEP`."""
_GREY_STEP = 0.1
_FIRST = ord("0")
"""The character that stands for a statistic below all edges."""

Float64Array = NDArray[np.float64]


class _StatisticRecord(TypedDict):
    mean: float
    edges: list[float]
    bins: str


class _ReferenceRecord(TypedDict):
    domain: str
    list: str
    listed: Annotated[int, range(2**53)]
    classes: str
    figures: Mapping[str, _StatisticRecord]


def statistic_names(channels: int) -> tuple[str, ...]:
    """Names of the statistics for images of 1 or 3 channels, in the order of `all_statistics`."""
    return (*OUTPUTS, *_GREY, *(_COLOR if channels == 3 else ()))


def image_statistics(image: NDArray[np.uint8]) -> list[float]:
    """The statistics of one image, uint8 (height, width, channels), BGR or grey, decoded and resized."""
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.shape[2] == 3 else image
    mean, deviation = cv2.meanStdDev(grey)
    brightness = float(mean[0, 0])
    sharpness = cv2.norm(cv2.Laplacian(grey, cv2.CV_16S)) / (grey.shape[0] * grey.shape[1]) ** 0.5
    height, width = (math.ceil(length / 4) for length in grey.shape[:2])
    detail = cv2.Laplacian(cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA), cv2.CV_16S)
    spread = cv2.norm(detail) * (height * width) ** 0.5
    evenness = cv2.norm(detail, cv2.NORM_L1) / spread if spread else 0.0
    blue, _, red, _ = cv2.mean(image) if image.shape[2] == 3 else (0.0,) * 4
    color = [blue - brightness, red - brightness] if image.shape[2] == 3 else []
    return [brightness, float(deviation[0, 0]), sharpness, evenness, *color]


def all_statistics(probabilities: NDArray[np.float32], of_images: Float64Array) -> Float64Array:
    """All statistics of n images, (n, len(statistic_names)).

    Args:
        probabilities: (n, classes).
        of_images: (n, ...), a row of `image_statistics` per image.
    """
    return np.column_stack([entropies(probabilities), probabilities.max(axis=1), of_images])


def entropies(probabilities: NDArray[np.float32]) -> Float64Array:
    """The entropy of each row of (n, classes), in nats: from 0 to the logarithm of the number of classes."""
    exact = probabilities.astype(np.float64)
    logarithms = np.log(exact, out=np.zeros_like(exact), where=exact > 0)
    entropies: Float64Array = 0.0 - (exact * logarithms).sum(axis=1)  # 0 - 0 is 0, and -0 would be -0
    return entropies


@dataclass(frozen=True, eq=False)
class Reference:
    """What is kept of a training list: for each of its images the predicted class, and each statistic's bin.

    Attributes:
        domain: "target" or "source".
        list_name: file name of the list.
        listed: number of its images.
        classes: (n,) predicted for the n images that were measured, as indices.
        names: of the statistics.
        means: their means, in the order of `names`, as the attributes below.
        edges: the ascending edges between a statistic's bins; a value on an edge belongs to the bin above.
        bins: (n,) the images' bins, from 0 to the number of edges.
    """

    domain: str
    list_name: str
    listed: int
    classes: NDArray[np.intp]
    names: tuple[str, ...]
    means: tuple[float, ...]
    edges: tuple[Float64Array, ...]
    bins: tuple[NDArray[np.intp], ...]

    @classmethod
    def measured(
        cls,
        domain: str,
        list_name: str,
        listed: int,
        classes: NDArray[np.intp],
        names: tuple[str, ...],
        values: Float64Array,
    ) -> Reference:
        """Of n >= 1 images: `classes` (n,) and `values` (n, len(names))."""
        edges = tuple(
            _edges(column, _STEPS.get(name, _GREY_STEP)) for name, column in zip(names, values.T, strict=True)
        )
        means = tuple(float(mean) for mean in values.mean(axis=0))
        return cls(domain, list_name, listed, classes, names, means, edges, binned(values, edges))

    def record(self) -> dict[str, Any]:
        """All of it as values that JSON knows: classes as numbers in a text, bins as a character per image."""
        return {
            "domain": self.domain,
            "list": self.list_name,
            "listed": self.listed,
            "images": len(self.classes),
            "classes": " ".join(map(str, self.classes)),
            "figures": {
                name: {
                    "mean": mean,
                    "edges": edges.tolist(),
                    "bins": (bins + _FIRST).astype(np.uint8).tobytes().decode(),
                }
                for name, mean, edges, bins in zip(self.names, self.means, self.edges, self.bins, strict=True)
            },
        }

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Reference:
        """The inverse of `record`; InputError for what `record` never returns, as the end of a sentence."""
        kept = check(record, _ReferenceRecord)
        statistics = kept["figures"]
        try:
            classes = np.array(kept["classes"].split(), np.intp)
        except (ValueError, OverflowError):
            raise InputError("its reference has classes that are no whole numbers") from None
        edges = tuple(np.array(statistic["edges"], np.float64) for statistic in statistics.values())
        bins = tuple(
            np.frombuffer(statistic["bins"].encode("utf-8", "replace"), np.uint8).astype(np.intp) - _FIRST
            for statistic in statistics.values()
        )
        if not len(classes) or {len(classes)} != {len(column) for column in bins}:
            raise InputError("its reference holds more images of one statistic than of another, or none")
        for some, column in zip(edges, bins, strict=True):
            if not len(some) or (some[1:] <= some[:-1]).any() or column.min() < 0 or column.max() > len(some):
                raise InputError("its reference has bins without edges")
        means = tuple(float(statistic["mean"]) for statistic in statistics.values())
        return cls(kept["domain"], kept["list"], kept["listed"], classes, tuple(statistics), means, edges, bins)


def binned(values: Float64Array, edges: tuple[Float64Array, ...]) -> tuple[NDArray[np.intp], ...]:
    """The bins (n,) of each column of `values`, (n, statistics)."""
    return tuple(np.searchsorted(some, column, side="right") for some, column in zip(edges, values.T, strict=True))


def _edges(values: Float64Array, step: float) -> Float64Array:
    """Edges at quantiles of `values`, half a `step` below and above.

    Many values may be equal, as where a model is certain: an edge at such a value would be crossed by what another
    machine computes differently in the last place, and one side alone would not show what moves to the other.
    """
    quantiles = np.rint(np.quantile(values, _LEVELS) / step) * step
    return np.unique(np.concatenate([quantiles - step / 2, quantiles + step / 2]).round(6))

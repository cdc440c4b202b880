"""Whether what a service is sent looks like the model's training list: over the last images, and image by image."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from autodial.data.image_statistics import OUTPUTS, Reference, all_statistics, binned, image_statistics
from autodial.deploy.binding import Scores
from autodial.deploy.drift import Counts, Drift
from autodial.deploy.serve.batching import BatchRecord

_LAST = 2000
"""Images that the distance in the metrics is about."""
_SHARE = 0.5
"""An image is unlike the training list if this share of its statistics lies outside the list's middle nine tenths. Of
four that were independent, two would be outside by chance for one image in twenty; of six, three for one in sixty."""


def compare(
    reference: Reference, names: Sequence[str], rows: Sequence[Sequence[float]], labels: Sequence[int]
) -> Drift:
    """Hold images against a training list.

    Args:
        reference: the list's statistics.
        names: of the model's classes.
        rows: (n, statistics) of the images, as `autodial.data.image_statistics.all_statistics` has them.
        labels: (n,) their predicted classes.
    """
    counts = Counts(reference, names)
    counts.add(rows)
    return counts.compare(Counter(labels))


class DriftWindow:
    """The last images that were measured; one of each batch is, which costs no throughput that could be seen."""

    def __init__(self, reference: Reference, names: Sequence[str]) -> None:
        self._reference = reference
        self._names = names
        self._lock = threading.Lock()
        self._rows: deque[tuple[list[float], int]] = deque(maxlen=_LAST)

    def add(self, batch: BatchRecord) -> None:
        """Measure the first image of a batch."""
        probabilities = batch.probabilities[:1]
        row = all_statistics(probabilities, np.array([image_statistics(batch.pixels[0])]))[0].tolist()
        with self._lock:
            self._rows.append((row, int(probabilities.argmax())))

    def drift(self) -> Drift:
        """The last images compared with the training list."""
        with self._lock:
            rows = list(self._rows)
        return compare(self._reference, self._names, [row for row, _ in rows], [label for _, label in rows])


def unlike(reference: Reference, row: Sequence[float]) -> dict[str, object]:
    """Whether one image is unlike a training list, and in which of its statistics.

    Args:
        reference: the list's statistics.
        row: the image's statistics; those of the model's answer have no say.
    """
    bins = binned(np.array([row]), reference.edges)
    outside = [
        name
        for name, found, edges in zip(reference.names, bins, reference.edges, strict=True)
        if name not in OUTPUTS and int(found[0]) in (0, len(edges))
    ]
    measured = len(reference.names) - len(OUTPUTS)
    return {"unlike": len(outside) >= _SHARE * measured, "outside": outside, "figures": measured}


def verdict(drift: Drift) -> dict[str, object]:
    """A comparison in short, as values that JSON knows."""
    return {
        "verdict": drift.verdict.value,
        "images": drift.images,
        "shifted": [statistic.name for statistic in drift.statistics if statistic.shifted],
    }


def rows_of(probabilities: Scores, of_images: Sequence[Sequence[float]]) -> list[list[float]]:
    """All statistics of n images from the model's answer and `image_statistics` of each."""
    rows: list[list[float]] = all_statistics(probabilities, np.array(of_images)).tolist()
    return rows

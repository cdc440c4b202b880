"""Which of several trainings to trust, without labels: the one that agrees most with the average of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def average(probabilities: Sequence[Floats]) -> Floats:
    """The mean of several nets' probabilities, (images, classes) each: what their ensemble predicts."""
    mean: Floats = np.mean(probabilities, axis=0)
    return mean


def agreements(probabilities: Sequence[Floats]) -> list[float]:
    """For each net, the share of images for which it predicts what the average of all nets predicts, in [0, 1].

    EnsV (Hu et al., "Towards Reliable Model Selection for Unsupervised Domain Adaptation", NeurIPS 2024): the average
    is no worse than the nets on average, whatever the labels are, and stands in for labels.

    Args:
        probabilities: of each net, (images, classes).
    """
    labels = average(probabilities).argmax(1)
    return [float((one.argmax(1) == labels).mean()) for one in probabilities]

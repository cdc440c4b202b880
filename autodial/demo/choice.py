"""Which of several trainings to trust, without labels: the one whose predictions tell most about the images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def average(probabilities: Sequence[Floats]) -> Floats:
    """The mean of several nets' probabilities, (images, classes) each: what their ensemble predicts."""
    mean: Floats = np.mean(probabilities, axis=0)
    return mean


def information(probabilities: Floats) -> float:
    """The mutual information of images and predicted classes, in nats, from 0 to log(classes).

    H(mean p) - mean H(p): large where each prediction is decided and all together are spread over the classes (Bridle
    et al., "Unsupervised Classifiers, Mutual Information and 'Phantom Targets'", NIPS 1991).

    Args:
        probabilities: of a net, (images, classes).
    """
    return float(_entropy(probabilities.mean(0)) - _entropy(probabilities).mean())


def _entropy(p: Floats) -> Floats:
    """-sum p log p along the last axis; 0 log 0 counts as 0."""
    entropy: Floats = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    return entropy

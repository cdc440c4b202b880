"""Which of several trainings to trust, without labels: the one whose predictions tell most about the images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autodial.selection.criteria import diversity, entropies


def information(probabilities: NDArray[np.floating]) -> float:
    """The mutual information of images and predicted classes, in nats, from 0 to log(classes).

    H(mean p) - mean H(p): large where each prediction is decided and all together are spread over the classes (Bridle
    et al., "Unsupervised Classifiers, Mutual Information and 'Phantom Targets'", NIPS 1991).

    Args:
        probabilities: a net's predictions, (images, classes).
    """
    return diversity(probabilities) - float(entropies(probabilities).mean())

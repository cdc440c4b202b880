"""What can be known of a trained net without labels of the target: the formulas, on arrays of logits and features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Labels = NDArray[np.integer]

TEMPERATURE = 0.05
"""Of soft-neighbourhood density; the value that its authors use for all tasks."""

_ROWS = 2000
"""Samples of each domain that the domain classifier is fitted to; more change the weights little."""
_NEIGHBOURS = 10_000
"""Target samples among which neighbourhoods are measured; cost and memory grow with the square."""
_BLOCK = 1024
"""Rows of the similarity matrix that are in memory at once."""
_PENALTIES = 10.0 ** np.arange(-4, 1)
"""Inverse strengths of the domain classifier's L2 penalty, among which cross-validation chooses."""


def softmax(logits: Floats) -> NDArray[np.float64]:
    """Probabilities (N, C) of logits (N, C)."""
    return np.asarray(torch.from_numpy(logits).double().softmax(1))


def entropy(probabilities: Floats, axis: int = -1) -> NDArray[np.float64]:
    """-sum p log p in nats along an axis, 0 log 0 counting as 0."""
    return np.asarray(torch.special.entr(torch.from_numpy(np.asarray(probabilities, np.float64))).sum(axis))


def mean_entropy(probabilities: Floats) -> float:
    """How undecided predictions (N, C) are: the mean of their entropies, in nats, from 0 to log C."""
    return float(entropy(probabilities).mean())


def diversity(probabilities: Floats) -> float:
    """How many classes predictions (N, C) make use of: the entropy of their mean, in nats, from 0 to log C."""
    return float(entropy(probabilities.mean(axis=0)))


def label_diversity(labels: Labels, classes: int) -> float:
    """The entropy of the labels' own distribution, in nats."""
    counts = np.bincount(labels, minlength=classes)
    return float(entropy(counts / counts.sum()))


def soft_neighbourhood_density(probabilities: Floats, device: torch.device, seed: int = 0) -> float:
    """How densely predictions (N, C) lie among each other, in nats; higher is better (Saito et al., ICCV 2021).

    Predictions are scaled to length 1; a row's similarities to all other rows, divided by a temperature of 0.05, become
    a distribution over these by a softmax; the mean of the distributions' entropies is the density. Of more than 10,000
    rows, as many are drawn.

    Raises:
        ValueError: fewer than two rows.
    """
    if len(probabilities) < 2:
        raise ValueError("a neighbourhood takes two samples")
    drawn = probabilities[_draw(len(probabilities), _NEIGHBOURS, seed)]
    rows = torch.nn.functional.normalize(torch.from_numpy(drawn).to(device, torch.float32))
    total = 0.0
    for start in range(0, len(rows), _BLOCK):
        similar = rows[start : start + _BLOCK] @ rows.T / TEMPERATURE
        similar.diagonal(start).fill_(-torch.inf)
        total += float(torch.special.entr(similar.softmax(dim=1)).sum())
    return total / len(rows)


def accuracy_error(accuracy: float, count: float) -> float:
    """The standard error of an accuracy found on `count` samples, with one right and one wrong added to them.

    These keep it from 0 where all were right (Laplace's rule of succession).
    """
    expected = (accuracy * count + 1) / (count + 2)
    return math.sqrt(expected * (1 - expected) / (count + 2))


def log_loss(logits: Floats, labels: Labels) -> NDArray[np.float64]:
    """-log p(label) of each row of logits (N, C), in nats."""
    scores, classes = torch.from_numpy(logits).double(), torch.from_numpy(labels).long()
    return np.asarray(torch.nn.functional.cross_entropy(scores, classes, reduction="none"))


def weighted_mean(values: Floats, weights: Floats) -> tuple[float, float]:
    """The mean of values (N,) with weights (N,), and its standard error."""
    mean = float(np.average(values, weights=weights))
    return mean, float(np.sqrt((weights**2 * (values - mean) ** 2).sum()) / weights.sum())


@dataclass(frozen=True)
class Weights:
    """Importance weights of held-out source samples.

    Attributes:
        values: float64 (N,), at least 0, with mean 1.
        effective: size of an unweighted sample that would tell as much, (sum w)^2 / sum w^2, from 1 to N.
        domain_accuracy: share of samples, in cross-validation, whose domain the domain classifier tells: 0.5 where the
            domains look alike, and 1 where no weight can make one of the other.
        domain_samples: number of these samples.
    """

    values: NDArray[np.float64]
    effective: float
    domain_accuracy: float
    domain_samples: int


def importance_weights(source: Floats, target: Floats, held_out: Floats, seed: int = 0) -> Weights:
    """How much more often than in the source each held-out source sample would be met in the target.

    The ratio p_target(x) / p_source(x) is that of the probabilities that a logistic regression gives to the domains of
    x, fitted to as many samples of each, at most 2,000 (Bickel et al., 2007; on what the net makes of x as in Deep
    Embedded Validation, You et al., ICML 2019). Features are standardized; the L2 penalty is the best of five by the
    log-loss in cross-validation. Weights are scaled to mean 1, which is why there is no control variate here: Deep
    Embedded Validation's is a multiple of (mean of the weights - 1).

    Args:
        source: features (N_s, D), such as logits, of samples that the net was trained on.
        target: of the target's samples, likewise.
        held_out: of source samples that it was not trained on.
        seed: of the draw and of the folds.
    """
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.model_selection import GridSearchCV, StratifiedKFold  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    count = min(len(source), len(target), _ROWS)
    rows = np.concatenate([domain[_draw(len(domain), count, seed)] for domain in (source, target)])
    domains = np.repeat([0, 1], count)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        {"logisticregression__C": _PENALTIES},
        scoring=("neg_log_loss", "accuracy"),
        refit="neg_log_loss",
        cv=StratifiedKFold(min(5, count), shuffle=True, random_state=seed),
    ).fit(rows, domains)
    accuracy = float(search.cv_results_["mean_test_accuracy"][search.best_index_])
    # log p(target | x) - log p(source | x); kept away from overflow
    ratio = np.exp(np.clip(search.decision_function(held_out).astype(np.float64), -30, 30))
    values = ratio / ratio.mean()
    return Weights(values, float(values.sum() ** 2 / (values**2).sum()), accuracy, len(rows))


def _draw(count: int, most: int, seed: int) -> NDArray[np.int64]:
    """`most` of `count` row numbers, in order, or all of them."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))

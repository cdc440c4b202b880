"""The criteria's formulas, against numpy written out, scipy, and distributions whose density ratio is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax as scipy_log_softmax
from scipy.special import softmax as scipy_softmax
from scipy.stats import entropy as scipy_entropy

from autodial.selection import criteria

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (50, 7)).astype(np.float32)
CPU = torch.device("cpu")


def test_entropies_are_scipys() -> None:
    probabilities = criteria.softmax(LOGITS)
    np.testing.assert_allclose(probabilities, scipy_softmax(LOGITS.astype(float), axis=1), rtol=1e-12)
    assert criteria.mean_entropy(probabilities) == pytest.approx(scipy_entropy(probabilities, axis=1).mean())
    assert criteria.diversity(probabilities) == pytest.approx(scipy_entropy(probabilities.mean(axis=0)))
    assert criteria.label_diversity(np.array([0, 0, 1, 3]), 7) == pytest.approx(scipy_entropy([2, 1, 0, 1]))


def test_collapse_and_certainty_are_told_apart() -> None:
    one_class = np.tile([1.0, 0, 0], (9, 1))
    each_class = np.eye(3)[np.arange(9) % 3]
    assert criteria.mean_entropy(one_class) == criteria.mean_entropy(each_class) == 0
    assert criteria.diversity(one_class) == 0
    assert criteria.diversity(each_class) == pytest.approx(math.log(3))


def test_log_loss_is_scipys_also_for_large_logits() -> None:
    labels = RNG.integers(0, 7, 50)
    logits = LOGITS * 300
    expected = -scipy_log_softmax(logits.astype(float), axis=1)[np.arange(50), labels]
    np.testing.assert_allclose(criteria.log_loss(logits, labels), expected, rtol=1e-9, atol=1e-12)


def naive_density(probabilities: NDArray[np.float64]) -> float:
    """Soft-neighbourhood density, row by row."""
    rows = probabilities / np.sqrt((probabilities**2).sum(axis=1, keepdims=True))
    entropies = []
    for i, row in enumerate(rows):
        similarities = np.array([row @ other for j, other in enumerate(rows) if j != i])
        shares = np.exp(similarities / 0.05) / np.exp(similarities / 0.05).sum()
        entropies.append(-(shares * np.log(shares)).sum())
    return float(np.mean(entropies))


def test_density_is_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = criteria.softmax(LOGITS)
    expected = naive_density(probabilities)
    assert criteria.soft_neighbourhood_density(probabilities, CPU) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(criteria, "_BLOCK", 16)  # blocks whose diagonal lies elsewhere, and a last one that is smaller
    assert criteria.soft_neighbourhood_density(probabilities, CPU) == pytest.approx(expected, rel=1e-5)


def test_density_of_tight_clusters_and_of_a_collapse() -> None:
    clusters = np.eye(4)[np.arange(40) % 4]
    # each row's neighbours are the 9 others of its class; the rest are e^-20 as near
    assert criteria.soft_neighbourhood_density(clusters, CPU) == pytest.approx(math.log(9), abs=1e-4)
    collapsed = np.tile(clusters[:1], (40, 1))
    assert criteria.soft_neighbourhood_density(collapsed, CPU) == pytest.approx(math.log(39))
    with pytest.raises(ValueError, match="two samples"):
        criteria.soft_neighbourhood_density(clusters[:1], CPU)


def test_density_of_many_is_that_of_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteria, "_NEIGHBOURS", 20)
    clusters = np.eye(2)[np.arange(200) % 2]
    first = criteria.soft_neighbourhood_density(clusters, CPU)
    assert first == criteria.soft_neighbourhood_density(clusters, CPU)
    assert math.log(7) < first < math.log(13)


def test_weights_are_the_density_ratio() -> None:
    # between normal distributions of one covariance, log p_target / p_source is linear, as in logistic regression
    rng = np.random.default_rng(1)
    shift = np.array([1.0, -0.5, 0.0])
    source, held_out = rng.normal(0, 1, (2, 4000, 3))
    target = rng.normal(0, 1, (3000, 3)) + shift
    weights = criteria.importance_weights(source, target, held_out)
    true = np.exp(held_out @ shift - shift @ shift / 2)
    true /= true.mean()
    assert np.corrcoef(np.log(weights.values), np.log(true))[0, 1] > 0.99
    assert np.polyfit(np.log(true), np.log(weights.values), 1)[0] == pytest.approx(1, abs=0.1)
    assert weights.values.mean() == pytest.approx(1)
    assert weights.effective == pytest.approx(true.sum() ** 2 / (true**2).sum(), rel=0.15)
    # the best classifier's accuracy: Phi(|shift| / 2)
    assert weights.domain_accuracy == pytest.approx(0.712, abs=0.02)


def test_weighted_mean_estimates_the_target() -> None:
    rng = np.random.default_rng(2)
    source, held_out = rng.normal(0, 1, (2, 4000, 1))
    target = rng.normal(0.7, 1, (4000, 1))
    weights = criteria.importance_weights(source, target, held_out)
    mean, error = criteria.weighted_mean(held_out[:, 0] ** 2, weights.values)
    assert mean == pytest.approx(1 + 0.7**2, abs=4 * error)
    assert held_out.var() == pytest.approx(1, abs=0.1)  # which is what no weights would say
    assert 0 < error < 0.1


def test_domains_that_hardly_overlap_leave_few_samples() -> None:
    rng = np.random.default_rng(3)
    weights = criteria.importance_weights(
        rng.normal(0, 1, (300, 2)), rng.normal(2, 1, (300, 2)), rng.normal(0, 1, (300, 2))
    )
    assert weights.domain_accuracy == pytest.approx(0.921, abs=0.03)  # Phi(sqrt(8) / 2)
    assert weights.effective < 30


def test_equal_domains_leave_weights_alone() -> None:
    rng = np.random.default_rng(4)
    weights = criteria.importance_weights(*rng.normal(0, 1, (3, 500, 4)))
    assert weights.effective > 450
    assert weights.domain_accuracy == pytest.approx(0.5, abs=0.06)


def test_error_of_an_unweighted_mean() -> None:
    values = RNG.normal(0, 1, 400)
    mean, error = criteria.weighted_mean(values, np.ones(400))
    assert (mean, error) == (pytest.approx(values.mean()), pytest.approx(values.std() / 20))


def test_error_of_an_accuracy_is_never_0() -> None:
    assert criteria.accuracy_error(1.0, 98) == pytest.approx(math.sqrt(0.99 * 0.01 / 100))
    assert criteria.accuracy_error(0.5, 10_000) == pytest.approx(0.005, rel=1e-3)

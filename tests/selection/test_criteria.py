"""The criteria, against examples worked by hand, numpy in float64, scipy, scikit-learn, and known density ratios."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax as scipy_log_softmax
from scipy.special import softmax as scipy_softmax
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import mutual_info_score

from autodial.commands.select import select
from autodial.selection import criteria
from autodial.selection.outputs import Outputs

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (50, 7)).astype(np.float32)


def test_entropies_are_scipys() -> None:
    probabilities = criteria.softmax(LOGITS)
    np.testing.assert_allclose(probabilities, scipy_softmax(LOGITS.astype(float), axis=1), rtol=1e-12)
    np.testing.assert_allclose(criteria.entropies(probabilities), scipy_entropy(probabilities, axis=1))
    assert criteria.diversity(probabilities) == pytest.approx(scipy_entropy(probabilities.mean(axis=0)))


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


@pytest.mark.parametrize("block", [1024, 16])  # 16: blocks whose diagonal lies elsewhere, and a smaller last one
def test_density_is_the_formula(block: int) -> None:
    found = criteria.neighbourhood_entropies(criteria.softmax(LOGITS), block=block)
    assert found.mean() == pytest.approx(naive_density(criteria.softmax(LOGITS)), rel=1e-5)


def test_density_of_tight_clusters_and_of_a_collapse() -> None:
    tight = np.eye(4)[np.arange(40) % 4]
    # each row's neighbours are the 9 others of its class; the rest are e^-20 as near
    np.testing.assert_allclose(criteria.neighbourhood_entropies(tight), math.log(9), atol=1e-4)
    np.testing.assert_allclose(criteria.neighbourhood_entropies(np.tile(tight[:1], (40, 1))), math.log(39), rtol=1e-6)
    with pytest.raises(ValueError, match="two samples"):
        criteria.neighbourhood_entropies(tight[:1])


def test_density_of_many_is_that_of_a_draw() -> None:
    tight = np.eye(2)[np.arange(200) % 2]
    first = criteria.neighbourhood_entropies(tight, most=20)
    np.testing.assert_array_equal(first, criteria.neighbourhood_entropies(tight, most=20))
    assert len(first) == 20
    assert math.log(7) < first.mean() < math.log(13)


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


# --- criteria, each of all candidates at once


def outputs(
    predictions: Any,
    *,
    features: Any = None,
    source: Any = None,
    held_out: Any = None,
    labels: Any = (),
) -> Outputs:
    """What a net made of the images; probabilities instead of logits, whose logarithm is one that gives them."""

    def logits(values: Any) -> Any:
        return np.log(np.asarray(values, np.float64).reshape(-1, np.shape(predictions)[1]) + 1e-30).astype(np.float32)

    n = len(predictions)
    return Outputs(
        target_logits=logits(predictions),
        features=np.asarray(predictions if features is None else features, np.float32),
        feature_rows=np.arange(n),
        source_logits=logits(predictions if source is None else source),
        held_out_logits=logits(() if held_out is None else held_out),
        held_out_labels=np.array(labels, np.int64),
        test_probabilities=np.zeros((0, 2), np.float32),
        test_labels=np.zeros(0, np.int64),
    )


def test_agreement_by_hand() -> None:
    """Three nets, four images, two classes; the averages are 0.7, 0.6, 0.4 and 0.5333 for class 0."""
    first = outputs([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.6, 0.4]])
    second = outputs([[0.8, 0.2], [0.3, 0.7], [0.2, 0.8], [0.6, 0.4]])
    third = outputs([[0.4, 0.6], [0.7, 0.3], [0.9, 0.1], [0.4, 0.6]])
    ranking = criteria.agreement([first, second, third])
    np.testing.assert_allclose(ranking.values, [1, 0.75, 0.25])
    # against the second, one difference in four: the deviation of 0, 1, 0, 0 over the root of 4
    assert ranking.errors is not None
    np.testing.assert_allclose(ranking.errors, [0, math.sqrt(3) / 4 / 2, math.sqrt(3) / 4 / 2])


def test_agreement_counts_probabilities_and_not_votes() -> None:
    """Two nets that hardly decide are outweighed by one that is sure."""
    unsure, sure = outputs([[0.49, 0.51]] * 3), outputs([[0.99, 0.01]] * 3)
    np.testing.assert_allclose(criteria.agreement([unsure, unsure, sure]).values, [0, 0, 1])


def test_entropy_is_scipys() -> None:
    nets = [outputs(criteria.softmax(LOGITS * scale)) for scale in (0.5, 1, 2)]
    expected = [-scipy_entropy(scipy_softmax(LOGITS.astype(float) * s, axis=1), axis=1).mean() for s in (0.5, 1, 2)]
    np.testing.assert_allclose(criteria.entropy(nets).values, expected, rtol=1e-5)


def test_information_is_sklearns_where_predictions_are_certain() -> None:
    """Of one prediction per image, it is the mutual information of an image's number and its class."""
    classes = np.array([0, 0, 0, 1, 1, 2])
    certain, collapsed = outputs(np.eye(3)[classes]), outputs(np.eye(3)[np.zeros(6, int)])
    undecided = outputs(np.full((6, 3), 1 / 3))
    values = criteria.information([certain, collapsed, undecided]).values
    np.testing.assert_allclose(values, [mutual_info_score(classes, np.arange(6)), 0, 0], atol=1e-6)


def test_information_is_the_difference_of_entropies() -> None:
    p = scipy_softmax(LOGITS.astype(float), axis=1)
    expected = scipy_entropy(p.mean(axis=0)) - scipy_entropy(p, axis=1).mean()
    assert criteria.information([outputs(p)]).values[0] == pytest.approx(expected, rel=1e-5)


def test_consensus_is_the_mean_of_two_ranks() -> None:
    """By agreement, the nets rank 1.5, 1.5 and 3; by information, 2, 1 and 3."""
    classes = [0, 1, 0, 1]
    decided, more_decided, other = (
        outputs(0.5 + (np.eye(2)[predicted] - 0.5) * sure)
        for predicted, sure in ((classes, 0.6), (classes, 0.8), ([0, 1, 0, 0], 0.1))
    )
    assert criteria.agreement([decided, more_decided, other]).values.tolist() == [1, 1, 0.75]
    np.testing.assert_array_equal(criteria.consensus([decided, more_decided, other]).values, [-1.75, -1.25, -3])


def test_nuclear_norm_by_hand() -> None:
    """Certain and even: 1. All in one class: one singular value, sqrt(N). Undecided: sqrt(N / C)."""
    even, collapsed, undecided = np.eye(2)[[0, 1, 0, 1]], np.eye(2)[[0, 0, 0, 0]], np.full((4, 2), 0.5)
    values = criteria.nuclear_norm([outputs(p) for p in (even, collapsed, undecided)]).values
    np.testing.assert_allclose(values, [1, math.sqrt(1 / 2), 0.5], rtol=1e-6)


def test_the_default_does_not_follow_a_mistake_that_most_make() -> None:
    """Nine of twelve nets read every 7 as a 9; each net is wrong about images of its own, one in twenty."""
    truth = np.arange(400) % 10
    rng = np.random.default_rng(7)
    nets, right = [], []
    for number in range(12):
        predicted = np.where((truth == 7) & (number >= 3), 9, truth)
        own = rng.permutation(400)[:20]
        predicted[own] = rng.integers(0, 10, 20)
        nets.append(outputs(0.01 + 0.9 * np.eye(10)[predicted]))
        right.append((predicted == truth).mean())
    chosen = {name: int(criteria.CRITERIA[name].rank(nets).values.argmax()) for name in (criteria.DEFAULT, "agreement")}
    assert right[chosen[criteria.DEFAULT]] > 0.93
    assert right[chosen["agreement"]] < 0.9


def test_nuclear_norm_is_the_sum_of_singular_values() -> None:
    p = scipy_softmax(LOGITS.astype(float), axis=1)
    expected = np.sqrt(np.linalg.eigvalsh(p.T @ p)).sum() / math.sqrt(50 * 7)
    assert criteria.nuclear_norm([outputs(p)]).values[0] == pytest.approx(expected, rel=1e-5)


def test_density_ranks_by_the_mean() -> None:
    nets = [outputs(scipy_softmax(LOGITS.astype(float) * scale, axis=1)) for scale in (0.3, 3)]
    expected = [naive_density(criteria.softmax(net.target_logits)) for net in nets]
    np.testing.assert_allclose(criteria.density(nets).values, expected, rtol=1e-5)


def test_clusters_are_found_whatever_their_numbers() -> None:
    rng = np.random.default_rng(5)
    true = np.arange(90) % 3
    features = np.array([[0, 0], [9, 0], [0, 9]])[true] + rng.normal(0, 0.3, (90, 2))
    matching = outputs(np.eye(3)[(true + 1) % 3], features=features)
    merged = outputs(np.eye(3)[np.minimum(true, 1)], features=features)
    chance = outputs(np.eye(3)[rng.permutation(true)], features=features)
    values = criteria.clusters([matching, merged, chance]).values
    assert values[0] == pytest.approx(1)
    assert 0.5 < values[1] < 0.9
    assert values[2] == pytest.approx(0, abs=0.05)


def test_clusters_take_features_of_a_part_of_the_images() -> None:
    p = np.eye(2)[[0, 1, 0, 1, 0, 1]]
    part = replace(outputs(p), feature_rows=np.array([0, 3]), features=np.array([[0.0], [5.0]], np.float32))
    assert criteria.clusters([part]).values[0] == pytest.approx(1)


def test_source_is_the_accuracy_on_held_out_images() -> None:
    held_out = [[0.9, 0.1]] * 4
    nets = [outputs([[0.5, 0.5]] * 2, held_out=held_out, labels=labels) for labels in ([0, 0, 0, 1], [0, 1, 1, 1])]
    ranking = criteria.source(nets)
    np.testing.assert_allclose(ranking.values, [0.75, 0.25])
    assert ranking.errors is not None
    np.testing.assert_allclose(ranking.errors, criteria.accuracy_error(0.75, 4))


def normal_nets(shift: float) -> list[Outputs]:
    """Two nets whose logits are normal, the target's shifted; the second is wrong where the target mostly is."""
    rng = np.random.default_rng(6)

    def predictions(values: Any) -> Any:
        return scipy_softmax(np.stack([values, -values], axis=1), axis=1)

    source, held_out = rng.normal(0, 1, (2, 1500))
    target = rng.normal(shift, 1, 1500)
    labels = (held_out < 0).astype(int)
    wrong = np.where(held_out > 0.5, 1 - labels, labels)
    return [
        outputs(predictions(target), source=predictions(source), held_out=predictions(held_out), labels=truth)
        for truth in (labels, wrong)
    ]


def test_weights_count_where_the_target_is() -> None:
    unweighted = [float(criteria.log_loss(net.held_out_logits, net.held_out_labels).mean()) for net in normal_nets(1)]
    ranking = criteria.weighted(normal_nets(1))
    assert -ranking.values[1] > 1.5 * unweighted[1]
    assert ranking.values[0] > ranking.values[1]


def test_weights_that_rest_on_few_images_are_not_trusted() -> None:
    """At a shift of 4 deviations, 97.7% of the images tell their domain."""
    ranking = criteria.weighted(normal_nets(4))
    assert np.isnan(ranking.values).all()
    assert ranking.errors is None


def test_alignment_adds_the_sources_error_and_the_domains_distance() -> None:
    near, far = normal_nets(0)[0], normal_nets(2)[0]
    values = criteria.alignment([near, far]).values
    # Phi(1) of the images tell their domain at a shift of 2
    assert values == pytest.approx([0, -(2 * 0.841 - 1)], abs=0.06)
    assert criteria.alignment([normal_nets(0)[1]]).values[0] == pytest.approx(-0.31, abs=0.06)


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_criteria_do_not_look_at_the_targets_labels(name: str) -> None:
    nets = normal_nets(1)
    labelled = [
        replace(net, test_probabilities=np.eye(2, dtype=np.float32), test_labels=np.array([i, i]))
        for i, net in enumerate(nets)
    ]
    rank = criteria.CRITERIA[name].rank
    np.testing.assert_array_equal(rank(labelled).values, rank(nets).values)


def test_the_default_is_that_of_the_command() -> None:
    default = inspect.signature(select).parameters["criterion"].default
    assert default == criteria.DEFAULT
    assert not criteria.CRITERIA[default].needs_held_out

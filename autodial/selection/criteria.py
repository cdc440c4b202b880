"""Criteria that choose among trained candidates without labels of the target.

A criterion is a function of all candidates' outputs. It gives each candidate a value, and the highest value is chosen.
`CRITERIA` has the criteria by name, from simple to involved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from autodial.selection.outputs import Outputs

Floats = NDArray[np.floating]
Labels = NDArray[np.integer]

TEMPERATURE = 0.05
"""Temperature in soft-neighbourhood density; the value that its authors use for all tasks."""
TRUSTED = 1 / 8
"""Share of the held-out images that the weighted ones must be worth for the weights to be trusted."""
APART = 0.95
"""Accuracy of the domain classifier from which on no source image resembles the target, whatever its weight."""

_ROWS = 2000
"""Samples of each domain that the domain classifier is fitted to; more change the weights little."""
_PENALTIES = 10.0 ** np.arange(-4, 1)
"""Inverse strengths of the domain classifier's L2 penalty, among which cross-validation chooses."""
_CLUSTERINGS = 5
"""Runs of k-means; the tightest clustering counts."""


@dataclass(frozen=True)
class Ranking:
    """A criterion's values for K candidates.

    Attributes:
        values: float64 (K,); the highest is chosen. NaN for a candidate that the criterion can't judge.
        errors: float64 (K,), the standard errors of the differences between the highest value and each value; None if
            they are not known.
    """

    values: NDArray[np.float64]
    errors: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Criterion:
    """A way to choose without labels of the target.

    Attributes:
        title: what the criterion looks at.
        rank: the function of all candidates' outputs.
        needs_held_out: whether the criterion looks at held-out source images.
        guarded: whether candidates must pass the class-diversity guard.
        larger_is_better: whether tables show the value as it is; otherwise they change its sign.
    """

    title: str
    rank: Callable[[Sequence[Outputs]], Ranking]
    needs_held_out: bool = False
    guarded: bool = True
    larger_is_better: bool = True


def agreement(candidates: Sequence[Outputs]) -> Ranking:
    """The share of target images on which a candidate predicts what the average of all candidates predicts.

    EnsV (Hu et al., "Towards Reliable Model Selection for Unsupervised Domain Adaptation: An Empirical Study and A
    Certified Baseline", NeurIPS 2024): the average of the candidates' target probabilities is no worse than the average
    candidate, whatever the labels are, and takes their place.
    """
    probabilities = ensemble(softmax(outputs.target_logits) for outputs in candidates)
    labels = probabilities.argmax(axis=1)
    return _mean(np.stack([outputs.target_logits.argmax(axis=1) == labels for outputs in candidates]))


def entropy(candidates: Sequence[Outputs]) -> Ranking:
    """How decided the target's predictions are: minus their mean entropy, in nats.

    As in Morerio et al., "Minimal-Entropy Correlation Alignment for Unsupervised Deep Domain Adaptation", ICLR 2018.
    """
    return _mean(np.stack([-entropies(softmax(outputs.target_logits)) for outputs in candidates]))


def information(candidates: Sequence[Outputs]) -> Ranking:
    """The mutual information of target images and predicted classes, in nats: decided, and spread over the classes.

    The entropy of the mean prediction minus the mean entropy of predictions, H(mean p) - mean H(p), which equals the
    mean Kullback-Leibler divergence of predictions from their mean (Bridle et al., "Unsupervised Classifiers, Mutual
    Information and 'Phantom Targets'", NIPS 1991; Shi and Sha, "Information-Theoretical Learning of Discriminative
    Clusters for Unsupervised Domain Adaptation", ICML 2012).
    """
    divergences = []
    for outputs in candidates:
        p = softmax(outputs.target_logits)
        mean = np.maximum(p.mean(axis=0), np.finfo(np.float64).tiny)
        divergences.append(-entropies(p) - p @ np.log(mean))
    return _mean(np.stack(divergences))


def consensus(candidates: Sequence[Outputs]) -> Ranking:
    """Minus a candidate's mean rank by agreement and by information, 1 for the best.

    Agreement finds restarts in which classes have changed places, but where a whole setting is poor, its restarts agree
    with each other. Information tells settings apart, but not which classes changed places. Ranks are averaged as in a
    Borda count (Goswami et al., "Unsupervised Model Selection for Time-series Anomaly Detection", ICLR 2023, combine
    criteria this way). Equal values share the mean of their ranks.
    """
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    ranks = [rankdata(-rank(candidates).values) for rank in (agreement, information)]
    return Ranking(-np.mean(ranks, axis=0))


def nuclear_norm(candidates: Sequence[Outputs]) -> Ranking:
    """The nuclear norm of the matrix of N target predictions by C classes, as a share of its upper bound.

    BNM (Cui et al., "Towards Discriminability and Diversity: Batch Nuclear-norm Maximization under Label Insufficient
    Situations", CVPR 2020), as a criterion in Musgrave et al., "Three New Validators and a Large-Scale Benchmark
    Ranking for Unsupervised Domain Adaptation", 2022. Under a shift of domains, it follows the accuracy more closely
    than confidence alone does (Deng et al., "Confidence and Dispersity Speak: Characterizing Prediction Matrix for
    Unsupervised Accuracy Estimation", ICML 2023). The bound, sqrt(N * min(N, C)), is reached by certain predictions
    that are spread evenly. A candidate is judged by itself: a mistake that most candidates make has no vote, but
    classes that changed places are not seen.
    """

    def share(p: NDArray[np.float64]) -> float:
        return float(np.linalg.norm(p, "nuc") / math.sqrt(len(p) * min(p.shape)))

    return Ranking(np.array([share(softmax(outputs.target_logits)) for outputs in candidates]))


def density(candidates: Sequence[Outputs]) -> Ranking:
    """Soft-neighbourhood density of the target's predictions, in nats (see `neighbourhood_entropies`)."""
    return _mean(np.stack([neighbourhood_entropies(softmax(outputs.target_logits)) for outputs in candidates]))


def clusters(candidates: Sequence[Outputs]) -> Ranking:
    """How far predicted classes are clusters of the target's features: their adjusted mutual information, at most 1.

    ClassAMI (Musgrave et al., "Three New Validators and a Large-Scale Benchmark Ranking for Unsupervised Domain
    Adaptation", 2022). Features, what the classifier reads, are clustered by k-means into as many clusters as there are
    classes. Adjusted means corrected for chance, under which the value is 0 (Vinh et al., JMLR 2010).
    """
    values = []
    for outputs in candidates:
        logits = outputs.target_logits[outputs.feature_rows]
        values.append(class_ami(outputs.features, logits.argmax(axis=1), logits.shape[1]))
    return Ranking(np.array(values))


def source(candidates: Sequence[Outputs]) -> Ranking:
    """Accuracy on held-out source images: cross-validation as the paper describes it."""
    right = np.stack([outputs.held_out_logits.argmax(axis=1) == outputs.held_out_labels for outputs in candidates])
    best = float(right.mean(axis=1).max())
    # of the best itself: with a handful of errors in all, paired differences would look more certain than they are
    return Ranking(right.mean(axis=1), np.full(len(candidates), accuracy_error(best, right.shape[1])))


def weighted(candidates: Sequence[Outputs]) -> Ranking:
    """Minus the mean loss on held-out source images, each weighted by how much it resembles the target's, in nats.

    Importance-weighted validation (Sugiyama et al., JMLR 2007), with p_target(x) / p_source(x) for weights as in
    transfer cross-validation (Zhong et al., ECML PKDD 2010) and Deep Embedded Validation (You et al., ICML 2019). NaN
    where the domains hardly overlap, or a few images have all the weight.
    """
    means, errors = [], []
    for outputs in candidates:
        weights = _weights_of(outputs)
        losses = log_loss(outputs.held_out_logits, outputs.held_out_labels)
        mean, error = weighted_mean(losses, weights.values)
        trusted = weights.effective >= TRUSTED * len(losses) and weights.domain_accuracy < APART
        means.append(mean if trusted else math.nan)
        errors.append(error)
    return _of_the_best(-np.array(means), errors)


def alignment(candidates: Sequence[Outputs]) -> Ranking:
    """Minus the error on held-out source images, minus how far the domains' logits are apart, each from 0 to 1.

    The sum bounds the target's error but for a constant (Ben-David et al., "A Theory of Learning from Different
    Domains", Machine Learning 2010), with half of the proxy A-distance 2 * (1 - 2 * error of a domain classifier) for
    the distance of the domains. Domains are compared by their logits: by the features in front of the classifier, they
    can be told apart in nets that label both well.
    """
    values, errors = [], []
    for outputs in candidates:
        weights = _weights_of(outputs)
        accuracy = float((outputs.held_out_logits.argmax(axis=1) == outputs.held_out_labels).mean())
        values.append(accuracy - 1 - max(0.0, 2 * weights.domain_accuracy - 1))
        distance_error = 2 * accuracy_error(weights.domain_accuracy, weights.domain_samples)
        errors.append(math.hypot(accuracy_error(accuracy, len(outputs.held_out_labels)), distance_error))
    return _of_the_best(np.array(values), errors)


CRITERIA: Mapping[str, Criterion] = {
    "agreement": Criterion("agreement with the average of all candidates' target predictions", agreement),
    "entropy": Criterion("entropy of the target's predictions", entropy, larger_is_better=False),
    "information": Criterion("mutual information of the target's images and predictions", information),
    "consensus": Criterion("mean rank by agreement and by information", consensus, larger_is_better=False),
    "nuclear-norm": Criterion("nuclear norm of the target's predictions", nuclear_norm),
    "density": Criterion("soft-neighbourhood density of the target's predictions", density),
    "clusters": Criterion("predicted classes as clusters of the target's features", clusters),
    "source": Criterion("accuracy on held-out source", source, needs_held_out=True, guarded=False),
    "weighted": Criterion(
        "importance-weighted loss on held-out source", weighted, needs_held_out=True, larger_is_better=False
    ),
    "alignment": Criterion(
        "error on held-out source + distance of the domains", alignment, needs_held_out=True, larger_is_better=False
    ),
}
"""By name.

The paper chooses lambda by cross-validation on the source after the protocol of RTN, and says no more. Read literally,
that is "source", without a guard. It hardly sees what the entropy loss does to the target: accuracies differ by an
image or two. Entropy and density go on improving with lambda also when whole classes change places, which no guard on
the number of classes can see. How the criteria compare on real pairs of domains is in docs/benchmarks.md.
"""

DEFAULT = "nuclear-norm"
"""The criterion with the least mean regret over the development tasks of benchmarks/choosing.py."""


def _mean(samples: NDArray[np.generic]) -> Ranking:
    """Means of what a criterion finds for each image, (K, N), with the errors of paired differences."""
    values = samples.mean(axis=1, dtype=np.float64)
    best = samples[values.argmax()].astype(np.float64)
    errors = [float(np.std(best - other)) / math.sqrt(len(best)) for other in samples]
    return Ranking(values, np.array(errors))


def _of_the_best(values: NDArray[np.float64], errors: Sequence[float]) -> Ranking:
    """Values with the best one's standard error for that of every difference."""
    known = not np.isnan(values).all()
    return Ranking(values, np.full(len(values), errors[int(np.nanargmax(values))]) if known else None)


@lru_cache(maxsize=256)
def _weights_of(outputs: Outputs) -> ImportanceWeights:
    """The weights of the held-out images, which two criteria share."""
    return importance_weights(outputs.source_logits, outputs.target_logits, outputs.held_out_logits)


# --- formulas, on arrays


def softmax(logits: Floats) -> NDArray[np.float64]:
    """Probabilities (N, C) of logits (N, C)."""
    return np.asarray(torch.from_numpy(logits).double().softmax(1))


def ensemble(probabilities: Iterable[Floats]) -> NDArray[np.float64]:
    """The average of several nets' probabilities, (N, C) each; they need not be in memory at the same time."""
    total, number = np.zeros(()), 0
    for values in probabilities:
        total, number = total + values, number + 1
    return total / number


def entropies(probabilities: Floats) -> NDArray[np.float64]:
    """-sum p log p of each row of (N, C), in nats, from 0 to log C; 0 log 0 counts as 0."""
    return np.asarray(torch.special.entr(torch.from_numpy(np.asarray(probabilities, np.float64))).sum(-1))


def diversity(probabilities: Floats) -> float:
    """How many classes predictions (N, C) make use of: the entropy of their mean, in nats, from 0 to log C."""
    return float(entropies(probabilities.mean(axis=0)))


def neighbourhood_entropies(
    probabilities: Floats, *, most: int = 10_000, block: int = 1024, seed: int = 0
) -> NDArray[np.float64]:
    """How many neighbours each of the predictions (N, C) has: the logarithm of an effective number, in nats.

    Soft-neighbourhood density, the mean of these, is the higher the better (Saito et al., "Tune it the Right Way:
    Unsupervised Validation of Domain Adaptation via Soft Neighborhood Density", ICCV 2021). Predictions are scaled to
    length 1; a row's similarities to all other rows, divided by a temperature of 0.05, become a distribution over these
    by a softmax, whose entropy counts.

    Args:
        probabilities: the predictions.
        most: rows that are drawn where there are more; cost grows with the square.
        block: rows of the similarity matrix that are in memory at once.
        seed: of the draw.

    Raises:
        ValueError: fewer than two rows.
    """
    if len(probabilities) < 2:
        raise ValueError("a neighbourhood takes two samples")
    drawn = probabilities[_draw(len(probabilities), most, seed)]
    rows = torch.nn.functional.normalize(torch.from_numpy(drawn).float())
    found = []
    for start in range(0, len(rows), block):
        similar = rows[start : start + block] @ rows.T / TEMPERATURE
        similar.diagonal(start).fill_(-torch.inf)
        found.append(torch.special.entr(similar.softmax(dim=1)).sum(1))
    return np.asarray(torch.cat(found).double())


def class_ami(features: Floats, predicted: Labels, classes: int, seed: int = 0) -> float:
    """The adjusted mutual information of predicted classes (N,) and clusters of features (N, D) (see `clusters`).

    Args:
        features: what is clustered.
        predicted: the classes.
        classes: number of clusters; more than there are features counts as one for each.
        seed: of k-means.
    """
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]
    from sklearn.metrics import adjusted_mutual_info_score  # type: ignore[import-untyped]

    number = min(classes, len(features))
    found = KMeans(number, n_init=_CLUSTERINGS, random_state=seed).fit_predict(features)
    return float(adjusted_mutual_info_score(predicted, found))


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
class ImportanceWeights:
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


def importance_weights(source: Floats, target: Floats, held_out: Floats, seed: int = 0) -> ImportanceWeights:
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
    return ImportanceWeights(values, float(values.sum() ** 2 / (values**2).sum()), accuracy, len(rows))


def _draw(count: int, most: int, seed: int) -> NDArray[np.int64]:
    """`most` of `count` row numbers, in order, or all of them."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))

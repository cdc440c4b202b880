"""Alignments of two domains' features in closed form: CORAL, subspace alignment, TCA and the geodesic flow kernel.

Each takes float64 features (N_s, D) of the source and (N_t, D) of the target, and returns the maps that bring either
domain's features into the common space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Map: TypeAlias = Callable[[Floats], Floats]

MOST_FEATURES = 8192
"""Most features D for which matrices of all pairs are computed."""
TCA_ROWS = 1000
"""Most features of each domain that transfer components are computed from, as the time grows with their cube."""
_TRADE_OFF = 1.0
"""mu of TCA, as in the experiments of its authors."""
_LEAST_SUBSPACE = 20
_SINE = 1e-7
"""Sine of a principal angle from which on it counts: below, both subspaces have the direction."""


@dataclass(frozen=True)
class Aligned:
    """The maps of an alignment, from (N, D) to (N, d)."""

    source: Map
    target: Map


def subspace_size(features: int, rows: int, classes: int) -> int:
    """Dimensions of the common subspace of `sa`, `tca` and `gfk`: twice the number of classes, at least 20.

    At most half the number of features, where two subspaces can still be apart everywhere, and fewer than rows.

    Args:
        features: number of features D.
        rows: number of features of the smaller domain.
        classes: number of classes.
    """
    return max(1, min(max(_LEAST_SUBSPACE, 2 * classes), features // 2, rows - 1))


def coral(source: Floats, target: Floats, size: int, seed: int, *, ridge: float = 1.0) -> Aligned:
    """CORAL (Sun et al., "Return of Frustratingly Easy Domain Adaptation", AAAI 2016).

    The centred source is whitened and gets the target's covariance: x C_s^(-1/2) C_t^(1/2), with the identity added to
    both covariances as in the paper. The target is centred.

    Args:
        source, target: the features.
        size, seed: not used.
        ridge: what is added to the covariances' diagonals.
    """
    means = source.mean(axis=0), target.mean(axis=0)
    whiten = _power(_covariance(source, ridge), -0.5)
    colour = _power(_covariance(target, ridge), 0.5)
    matrix = whiten @ colour
    return Aligned(lambda x: np.asarray((x - means[0]) @ matrix), lambda x: x - means[1])


def subspace_alignment(source: Floats, target: Floats, size: int, seed: int) -> Aligned:
    """Subspace alignment (Fernando et al., ICCV 2013), by skada.

    Args:
        source, target: the features.
        size: principal components of each domain.
        seed: of the randomized decomposition.

    """
    from skada import SubspaceAlignmentAdapter

    adapter = SubspaceAlignmentAdapter(n_components=size, random_state=seed)
    domains = np.r_[np.full(len(source), 1), np.full(len(target), -2)]  # skada's targets are negative
    adapter.fit(np.concatenate([source, target]), sample_domain=domains)

    def mapped(domain: int) -> Map:
        return lambda x: np.asarray(adapter.transform(x, sample_domain=np.full(len(x), domain), allow_source=True))

    return Aligned(mapped(1), mapped(-2))


def tca(source: Floats, target: Floats, size: int, seed: int) -> Aligned:
    """Transfer component analysis with a linear kernel (Pan et al., IEEE Transactions on Neural Networks 2011).

    With K the kernel of all features, L the matrix of their means' distance and H the one that centres, the components
    W maximize tr(W' K H K W) where W' (K L K + mu I) W = I: generalized eigenvectors of two symmetric matrices.

    Args:
        source, target: the features; of each, 1,000 are drawn where there are more.
        size: number of components.
        seed: of the draw.
    """
    from scipy.linalg import eigh  # type: ignore[import-untyped]

    rng = np.random.default_rng(seed)
    parts = [rows[np.sort(rng.permutation(len(rows))[:TCA_ROWS])] for rows in (source, target)]
    rows = np.concatenate(parts)
    kernel = rows @ rows.T
    weights = np.concatenate([np.full(len(part), sign / len(part)) for part, sign in zip(parts, (1, -1), strict=True)])
    apart = kernel @ weights
    centred = kernel - kernel.mean(axis=0)
    count = len(rows)
    _, vectors = eigh(
        kernel @ centred,
        np.outer(apart, apart) + _TRADE_OFF * np.eye(count),
        subset_by_index=(count - min(size, count), count - 1),
    )
    # the components of a linear kernel are linear in the features
    matrix = rows.T @ vectors[:, ::-1]

    def mapped(x: Floats) -> Floats:
        return np.asarray(x @ matrix)

    return Aligned(mapped, mapped)


def gfk(source: Floats, target: Floats, size: int, seed: int) -> Aligned:
    """The geodesic flow kernel (Gong et al., CVPR 2012, equations 2 to 6), as a map whose inner product it is.

    Args:
        source, target: the features.
        size: principal components of each domain, at most half of the features.
        seed: not used.
    """
    root = flow_root(_components(source, size), _components(target, size))

    def mapped(x: Floats) -> Floats:
        return np.asarray(x @ root)

    return Aligned(mapped, mapped)


def flow_root(source: Floats, target: Floats) -> Floats:
    """A matrix B (D, 2 d) such that B B' is the geodesic flow kernel of two subspaces.

    The kernel is 2 times the integral of Phi(t) Phi(t)' over t from 0 to 1, where Phi runs along the geodesic from the
    source's subspace to the target's.

    Args:
        source, target: orthonormal bases (D, d) of the subspaces.
    """
    rotation, cosines, other = np.linalg.svd(source.T @ target)
    cosines = np.clip(cosines, 0, 1)
    sines = np.sqrt(1 - cosines**2)
    turned = sines > _SINE
    # the directions towards the target that are orthogonal to the source's subspace
    towards = target @ other.T - source @ rotation * cosines
    towards = np.where(turned, towards / np.where(turned, sines, 1), 0)
    angles = np.arctan2(sines, cosines)
    double = np.where(turned, 2 * angles, 1)
    first = 1 + np.where(turned, np.sin(double) / double, 1)
    second = np.where(turned, (1 - np.cos(double)) / double, 0)
    third = 1 - np.where(turned, np.sin(double) / double, 1)
    middle = np.block([[np.diag(first), np.diag(second)], [np.diag(second), np.diag(third)]])
    return np.asarray(np.hstack([source @ rotation, towards]) @ _power(middle, 0.5))


ALIGNMENTS: Mapping[str, Callable[[Floats, Floats, int, int], Aligned]] = {
    "coral": coral,
    "sa": subspace_alignment,
    "tca": tca,
    "gfk": gfk,
}
"""By the method's name."""


def log_probabilities(
    features: Floats, labels: NDArray[np.int64], others: Sequence[Floats], classes: int
) -> list[NDArray[np.float32]]:
    """The classes' log-probabilities (N, C) for features, by a logistic regression on labelled ones.

    Features are standardized by the labelled ones' means and deviations.

    Args:
        features: float64 (N_s, d), labelled.
        labels: int64 (N_s,), of at least two classes.
        others: what to classify, (N, d) each.
        classes: the number of classes C; one that no label names gets the smallest probability.
    """
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(features, labels)
    found = []
    for rows in others:
        values = np.full((len(rows), classes), np.log(np.finfo(np.float32).tiny), np.float32)
        values[:, classifier.classes_] = np.maximum(classifier.predict_log_proba(rows), values[:, classifier.classes_])
        found.append(values)
    return found


def _components(rows: Floats, size: int) -> Floats:
    """The first principal components of rows, as columns (D, size)."""
    _, vectors = np.linalg.eigh(_covariance(rows, 0))
    return np.asarray(vectors[:, ::-1][:, :size])


def _covariance(rows: Floats, ridge: float) -> Floats:
    return np.atleast_2d(np.cov(rows, rowvar=False)) + ridge * np.eye(rows.shape[1])


def _power(matrix: Floats, exponent: float) -> Floats:
    """A power of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0)
    powers = np.zeros_like(values)
    np.power(values, exponent, out=powers, where=values > 0)
    return np.asarray(vectors * powers @ vectors.T)

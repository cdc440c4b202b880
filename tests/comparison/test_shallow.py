"""Alignments of features, against their definitions and against skada."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.linalg import null_space

from autodial.comparison.shallow import coral, flow_root, gfk, log_probabilities, subspace_alignment, subspace_size, tca

Floats = npt.NDArray[np.float64]


@pytest.fixture
def domains() -> tuple[Floats, Floats]:
    """60 and 50 rows of 6 features with other means and covariances."""
    rng = np.random.default_rng(0)
    source, target = (rng.normal(size=(rows, 6)) @ rng.normal(size=(6, 6)) for rows in (60, 50))
    return source, target + 2


@pytest.mark.parametrize("size", [1, 2, 4])
def test_geodesic_flow_kernel_is_the_integral(size: int) -> None:
    """Gong et al., equation 2: subspaces along the geodesic, summed numerically."""
    rng = np.random.default_rng(size)
    source, target = (np.linalg.qr(rng.normal(size=(8, size)))[0] for _ in range(2))
    outside = null_space(source.T)
    rotation, cosines, other = np.linalg.svd(source.T @ target)
    angles = np.arccos(np.clip(cosines, -1, 1))
    towards = outside @ (outside.T @ target @ other.T) / np.sin(angles)
    steps = 2000
    kernel = np.zeros((8, 8))
    for t in (np.arange(steps) + 0.5) / steps:
        flow = source @ rotation * np.cos(t * angles) + towards * np.sin(t * angles)
        kernel += 2 * flow @ flow.T / steps
    root = flow_root(source, target)
    np.testing.assert_allclose(root @ root.T, kernel, atol=1e-6)


def test_geodesic_flow_kernel_of_one_subspace_is_its_projection() -> None:
    basis = np.eye(5)[:, :2]
    root = flow_root(basis, basis @ np.array([[0.6, -0.8], [0.8, 0.6]]))
    np.testing.assert_allclose(root @ root.T, 2 * basis @ basis.T, atol=1e-12)


def test_gfk_maps_both_domains_alike(domains: tuple[Floats, Floats]) -> None:
    aligned = gfk(*domains, 2, 0)
    np.testing.assert_array_equal(aligned.source(domains[0]), aligned.target(domains[0]))
    assert aligned.source(domains[0]).shape == (60, 4)


def test_coral_gives_the_source_the_targets_covariance(domains: tuple[Floats, Floats]) -> None:
    source, target = domains
    aligned = coral(source, target, 0, 0, ridge=0)
    np.testing.assert_allclose(np.cov(aligned.source(source).T), np.cov(target.T), atol=1e-9)
    np.testing.assert_allclose(aligned.source(source).mean(axis=0), 0, atol=1e-12)
    np.testing.assert_array_equal(aligned.target(target), target - target.mean(axis=0))


def test_coral_against_skada(domains: tuple[Floats, Floats]) -> None:
    skada = pytest.importorskip("skada")
    source, target = domains
    which = np.r_[np.full(len(source), 1), np.full(len(target), -2)]
    both = np.concatenate(domains)
    adapter = skada.CORALAdapter(reg=None).fit(both, sample_domain=which)
    expected = adapter.transform(both, sample_domain=which, allow_source=True)
    # skada divides by n where a covariance of a sample has n - 1
    factor = np.sqrt((len(source) / (len(source) - 1)) / (len(target) / (len(target) - 1)))
    ours = coral(source, target, 0, 0, ridge=0)
    np.testing.assert_allclose(ours.source(source), expected[: len(source)] / factor, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(ours.target(target), expected[len(source) :], atol=1e-12)


def test_coral_with_more_features_than_rows(domains: tuple[Floats, Floats]) -> None:
    aligned = coral(domains[0][:4], domains[1][:4], 0, 0)
    assert np.isfinite(aligned.source(domains[0])).all()


def test_transfer_components_solve_the_generalized_eigenproblem(domains: tuple[Floats, Floats]) -> None:
    """Pan et al., equation 8, with an unsymmetric solver: the scatter of each component is its eigenvalue."""
    source, target = domains
    rows = np.concatenate(domains)
    kernel = rows @ rows.T
    weights = np.r_[np.full(60, 1 / 60), np.full(50, -1 / 50)]
    centring = np.eye(110) - 1 / 110
    values = np.linalg.eigvals(
        np.linalg.solve(kernel @ np.outer(weights, weights) @ kernel + np.eye(110), kernel @ centring @ kernel)
    )
    aligned = tca(source, target, 3, 0)
    mapped = aligned.source(rows)
    scatter = mapped.T @ centring @ mapped
    np.testing.assert_allclose(np.diag(scatter), np.sort(values.real)[::-1][:3], rtol=1e-6)
    np.testing.assert_allclose(scatter - np.diag(np.diag(scatter)), 0, atol=1e-6 * scatter.max())


def test_transfer_components_leave_out_what_tells_the_domains_apart() -> None:
    """The second feature, whose variance is the larger one, does nothing but that."""
    rng = np.random.default_rng(0)
    source, target = (np.c_[rng.normal(scale=2, size=100), np.full(100, shift)] for shift in (10.0, -10.0))
    aligned = tca(source, target, 1, 0)
    one = np.ravel(aligned.source(np.eye(2)))
    assert abs(one[1]) < 0.05 * abs(one[0])


def test_subspace_alignment_of_two_lines() -> None:
    """Two lines at 60 degrees: a source point's coordinate shrinks by their cosine, a target point's stays."""
    pytest.importorskip("skada")
    steps = np.linspace(-1, 1, 21)
    turned = np.array([0.5, np.sqrt(0.75)])
    aligned = subspace_alignment(np.outer(steps, [1.0, 0.0]), np.outer(steps, turned), 1, 0)
    np.testing.assert_allclose(np.abs(aligned.source(np.array([[1.0, 0.0]]))), 0.5, atol=1e-12)
    np.testing.assert_allclose(np.abs(aligned.target(turned[None])), 1, atol=1e-12)


def test_size_of_the_subspace() -> None:
    assert subspace_size(4096, 500, 31) == 62
    assert subspace_size(200, 500, 10) == 20
    assert subspace_size(16, 500, 10) == 8
    assert subspace_size(200, 6, 10) == 5


def test_a_class_without_labels_gets_no_probability() -> None:
    features = np.array([[0.0], [0.1], [5.0], [5.1]])
    (found,) = log_probabilities(features, np.array([0, 0, 2, 2]), [np.array([[0.0], [5.0]])], 3)
    assert found.dtype == np.float32 and found.argmax(axis=1).tolist() == [0, 2]
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-6)
    assert np.exp(found[:, 1]).max() < 1e-30

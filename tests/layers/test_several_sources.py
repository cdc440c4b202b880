"""Alignment of several sources against mixtures that autograd differentiates, and the forks' layers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from twins import Twins

from autodial.layers import DomainAlignment, LayerError
from autodial.layers.alignment import align
from autodial.layers.base import TEST
from autodial.layers.multimodal_batch_norm import MultiModalBatchNorm
from autodial.layers.shares import Shares


def batch(*shape: int, seed: int = 0) -> Tensor:
    """Values whose domains differ in mean and deviation."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x * torch.linspace(1, 3, shape[0]).double().view(-1, *[1] * (len(shape) - 1)) + 2


def mixtures(x: Tensor, alpha: Tensor, points: tuple[int, ...], eps: float) -> Tensor:
    """Each domain normalized with the mixture of all that gives its own the weight alpha, the others equal ones."""
    parts = x.tensor_split(points)
    axes, row = [0, *range(2, x.dim())], (1, -1, *[1] * (x.dim() - 2))
    out = []
    for own, part in enumerate(parts):
        weights = [alpha if other == own else (1 - alpha) / (len(parts) - 1) for other in range(len(parts))]
        mean = sum(weight * other.mean(axes) for weight, other in zip(weights, parts, strict=True))
        assert isinstance(mean, Tensor)
        squares = [(other - mean.view(row)).square().mean(axes) for other in parts]
        variance = sum(weight * square for weight, square in zip(weights, squares, strict=True))
        assert isinstance(variance, Tensor)
        out.append((part - mean.view(row)) / (variance + eps).sqrt().view(row))
    return torch.cat(out)


@pytest.mark.parametrize("shape", [(12, 4), (12, 4, 3, 2)])
@pytest.mark.parametrize("points", [(5,), (3, 7), (2, 5, 9)])
@pytest.mark.parametrize("alpha", [0.5, 0.73, 1.0])
@pytest.mark.parametrize("relu", [False, True])
def test_outputs_and_gradients_are_those_of_mixtures(
    shape: tuple[int, ...], points: tuple[int, ...], alpha: float, relu: bool
) -> None:
    x, grad = batch(*shape).requires_grad_(), batch(*shape, seed=1)
    value = torch.tensor([alpha], dtype=torch.float64, requires_grad=True)
    scale = batch(4, seed=2).requires_grad_() if relu else None
    inputs = [x, value, *([] if scale is None else [scale])]
    y, _, _ = align(x, value, points, 1e-5, scale, None, relu=relu)
    expected = mixtures(x, value, points, 1e-5)
    if scale is not None:
        expected = F.relu(expected * scale.view(1, -1, *[1] * (x.dim() - 2)))
    torch.testing.assert_close(y, expected)
    for got, right in zip(
        torch.autograd.grad(y, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_alpha_one_gives_each_domain_its_own_batch_norm_as_multi_modal_batch_norm_does() -> None:
    """With weights of 0 and 1, which say whose a row is, the latent domains' layer is the same."""
    x, points = batch(11, 3, 4), (3, 7)
    layer = DomainAlignment(3, sources=2, slice_point=7, source_slice_point=[3], alpha=1).double()
    expected = torch.cat([F.batch_norm(part, None, None, training=True) for part in x.tensor_split(points)])
    torch.testing.assert_close(layer(x), expected)
    total = torch.zeros_like(x)
    for start, end in pairwise((0, *points, 11)):
        weights = torch.zeros(11, dtype=torch.float64)
        weights[start:end] = 1
        total += MultiModalBatchNorm(3).double()(x, weights)
    torch.testing.assert_close(layer(x), total)


def test_the_least_alpha_with_equal_parts_is_batch_norm_over_the_joint_batch() -> None:
    x = batch(12, 3, 4)
    layer = DomainAlignment(3, sources=3, alpha=0).double()
    torch.testing.assert_close(layer(x), F.batch_norm(x, None, None, training=True))
    assert layer.alpha.item() == layer.mixing == 0.25


def test_a_large_offset_costs_no_more_than_the_inputs_precision() -> None:
    x = batch(12, 2, 50)
    alpha = torch.tensor([0.7], dtype=torch.float64)
    exact = mixtures(x, alpha, (4, 8), 1e-5)
    far, _, _ = align((x + 1000).float(), alpha.float(), (4, 8), 1e-5)
    torch.testing.assert_close(far.double(), exact, rtol=0, atol=2e-3)


def test_statistics_are_kept_for_every_domain_and_the_target_s_serve_in_eval_mode() -> None:
    x = batch(12, 2, 5)
    layer = DomainAlignment(2, sources=2, slice_point=8, source_slice_point=(3,), moving_average_fraction=0.9).double()
    layer(x)
    for domain, part in zip(("source 1", "source 2", "target"), x.tensor_split((3, 8)), strict=True):
        layer.test_stats = domain
        # the stored variance has the factor m / (m - 1) of all 60 values
        mean, variance = part.mean((0, 2)), part.var((0, 2), correction=0) * 60 / 59
        expected = (x - mean.view(1, -1, 1)) / (variance + 1e-5).sqrt().view(1, -1, 1)
        torch.testing.assert_close(layer.eval()(x), expected)
    layer.test_stats = "source"
    with pytest.raises(LayerError, match='test_stats must be "source 1", "source 2" or "target", not "source"'):
        layer(x)
    assert DomainAlignment(2, sources=2).test_stats == "target"


def test_a_prototxt_says_where_sources_begin(build) -> None:  # type: ignore[no-untyped-def]
    text = 'type: "Dial" dial_param { slice_point: 6 source_slice_point: 2 source_slice_point: 5 }'
    layer = build(text, (9, 3))
    assert (layer.sources, layer.points(9)) == (3, (2, 5, 6))
    assert [blob.shape for blob in layer.blobs] == [(1,), (4, 3), (4, 3), (1,)]
    assert build(text, (1, 3), phase=TEST)(torch.ones(1, 3)).shape == (1, 3)
    assert build('type: "Dial" dial_param { source_slice_point: 2 }', (9, 3)).points(9) == (2, 6)
    with pytest.raises(LayerError, match="has 2 sources, and test_stats: SOURCE does not say which"):
        build('type: "Dial" dial_param { source_slice_point: 2 test_stats: SOURCE }', (9, 3))


def test_processes_share_a_batch() -> None:
    results = []
    for points, shares in (((2, 5), None), ((4, 10), Shares(Twins(), (4, 6, 8)))):
        x, alpha = batch(9, 3, 4).requires_grad_(), torch.tensor([0.8], dtype=torch.float64, requires_grad=True)
        outputs = align(x, alpha, points, 1e-5, shares=shares)
        results.append([*outputs, *torch.autograd.grad(outputs[0].pow(3).sum(), (x, alpha))])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": 0}, "sources must be at least 1, and is 0"),
        ({"sources": 1.5}, "sources must be a whole number, not 1.5"),
        ({"sources": 3, "source_slice_point": [2]}, "must have 2 numbers, where the second and later of 3 sources"),
        ({"sources": 2, "source_slice_point": [4], "slice_point": 4}, "ascending numbers from 1, below slice_point 4"),
        ({"sources": 3, "source_slice_point": [3, 2]}, "ascending numbers from 1, and is 3, 2"),
        ({"sources": 2, "test_stats": "source"}, 'test_stats must be "source 1", "source 2" or "target"'),
    ],
)
def test_what_fits_no_sources_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        DomainAlignment(2, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (2, {}, "a batch of 2 can't hold samples of all 3 domains"),
        (6, {"slice_point": 1}, "1 source sample can't be split at 0: each of the 2 sources needs one or more"),
        (6, {"slice_point": 6}, "leaves a batch of 6 without samples of both domains"),
    ],
)
def test_a_batch_without_a_domain_is_refused(samples: int, options: dict[str, int], message: str) -> None:
    layer = DomainAlignment(2, sources=2, **options)  # type: ignore[arg-type]
    with pytest.raises(LayerError, match=message):
        layer(torch.from_numpy(np.ones((samples, 2), np.float32)))

"""BatchNorm against torch's and against the accumulation rule worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autodial.layers import BatchNorm, LayerError


def batch(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 + 1


def test_training_normalizes_like_torch_and_accumulates_like_caffe() -> None:
    layer = BatchNorm(3, eps=1e-3, moving_average_fraction=0.9).double()
    reference = nn.BatchNorm2d(3, eps=1e-3, affine=False).double()
    first, second = batch(4, 3, 2, 2), batch(4, 3, 2, 2, seed=1)
    for x in (first, second):
        torch.testing.assert_close(layer(x), reference(x))
    torch.testing.assert_close(layer.mean, second.mean((0, 2, 3)) + 0.9 * first.mean((0, 2, 3)))
    torch.testing.assert_close(layer.variance, second.var((0, 2, 3)) + 0.9 * first.var((0, 2, 3)))
    assert layer.normalizer.item() == pytest.approx(1.9)

    layer.eval()
    x = batch(2, 3, 5, 1, seed=2)
    mean, variance = ((blob / 1.9)[:, None, None] for blob in (layer.mean, layer.variance))
    torch.testing.assert_close(layer(x), (x - mean) / (variance + 1e-3).sqrt())
    assert layer.normalizer.item() == pytest.approx(1.9)


def test_nothing_stored_means_zero() -> None:
    x = batch(2, 3)
    torch.testing.assert_close(BatchNorm(3, eps=0.25).double().eval()(x), x * 2)


def test_one_axis_is_one_channel() -> None:
    x = batch(6)
    layer = BatchNorm(1, eps=0).double()
    torch.testing.assert_close(layer(x), (x - x.mean()) / x.std(correction=0))
    assert layer.mean.item() == pytest.approx(x.mean().item())


@pytest.mark.parametrize(
    ("stats", "phase", "stored"), [("", 0, False), ("", 1, True), ("true", 0, True), ("false", 1, False)]
)
def test_which_statistics_are_used(build, stats: str, phase: int, stored: bool) -> None:
    field = f"batch_norm_param {{ use_global_stats: {stats} }}" if stats else ""
    layer = build(f'type: "BatchNorm" {field}', (4, 3), phase=phase)
    layer(batch(4, 3).float())
    assert layer.uses_stored is stored
    assert bool(layer.normalizer == 0) is stored


@pytest.mark.parametrize("global_stats", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (3, 2, 2, 3)])
def test_gradient(global_stats: bool, shape: tuple[int, ...]) -> None:
    layer = BatchNorm(shape[1], use_global_stats=global_stats).double()
    for blob in layer.blobs:
        blob.fill_(0.7)
    assert torch.autograd.gradcheck(layer, batch(*shape).requires_grad_())


def test_refused() -> None:
    with pytest.raises(LayerError, match="has 4 channels, the layer expects 3"):
        BatchNorm(3).top_shapes([(2, 4)])
    with pytest.raises(LayerError, match="one value per channel"):
        BatchNorm(3).top_shapes([(1, 3, 1, 1)])
    assert BatchNorm(3).eval().top_shapes([(1, 3, 1, 1)]) == [(1, 3, 1, 1)]

"""Fillers against the distributions that their formulas promise."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from google.protobuf import text_format

from autodial.layers import LayerError
from autodial.layers.fillers import fill
from autodial.proto import messages as pb


def filled(text: str, *shape: int, seed: int = 0) -> torch.Tensor:
    tensor = torch.full(shape, torch.nan)
    fill(tensor, text_format.Parse(text, pb.FillerParameter()), torch.Generator().manual_seed(seed))
    return tensor


def test_default_is_zero() -> None:
    assert torch.equal(filled("", 3, 4), torch.zeros(3, 4))
    assert torch.equal(filled("value: 2.5", 3), torch.full((3,), 2.5))


def test_uniform() -> None:
    x = filled('type: "uniform" min: -2 max: 3', 100, 100)
    assert -2 <= x.min() < -1.99
    assert 2.99 < x.max() <= 3
    assert x.mean().item() == pytest.approx(0.5, abs=0.05)


def test_gaussian() -> None:
    x = filled('type: "gaussian" mean: 1 std: 0.1', 100, 100)
    assert x.mean().item() == pytest.approx(1, abs=0.005)
    assert x.std().item() == pytest.approx(0.1, rel=0.03)


def test_sparse_gaussian_keeps_so_many_of_the_outputs() -> None:
    x = filled('type: "gaussian" sparse: 15', 100, 1000)
    assert (x != 0).sum(0).float().mean().item() == pytest.approx(15, rel=0.03)


@pytest.mark.parametrize("kind", ["xavier", "msra"])
@pytest.mark.parametrize(("norm", "n"), [("", 12 * 9), ("FAN_IN", 12 * 9), ("FAN_OUT", 40 * 9), ("AVERAGE", 26 * 9)])
def test_xavier_and_msra(kind: str, norm: str, n: int) -> None:
    x = filled(f'type: "{kind}"' + (f" variance_norm: {norm}" if norm else ""), 40, 12, 3, 3)
    if kind == "xavier":
        assert x.abs().max().item() == pytest.approx(math.sqrt(3 / n), rel=0.01)
        assert x.std().item() == pytest.approx(math.sqrt(1 / n), rel=0.03)
    else:
        assert x.std().item() == pytest.approx(math.sqrt(2 / n), rel=0.03)
        assert x.abs().max().item() > 3 * math.sqrt(2 / n)


def test_fan_of_inner_product_and_bias() -> None:
    assert filled('type: "xavier"', 50, 300).abs().max().item() == pytest.approx(math.sqrt(3 / 300), rel=0.01)
    # A blob of one axis has one input per output.
    assert filled('type: "xavier"', 1000).abs().max().item() == pytest.approx(math.sqrt(3), rel=0.01)


def test_positive_unitball() -> None:
    x = filled('type: "positive_unitball"', 5, 3, 2, 2)
    assert x.min() > 0
    torch.testing.assert_close(x.sum((1, 2, 3)), torch.ones(5))


@pytest.mark.parametrize("factor", [2, 4])
def test_bilinear_kernel_upsamples(factor: int) -> None:
    image = torch.randn(1, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    kernel = filled('type: "bilinear"', 1, 1, 2 * factor, 2 * factor)
    top = F.conv_transpose2d(image, kernel, stride=factor, padding=factor // 2)
    want = F.interpolate(image, scale_factor=factor, mode="bilinear")
    inside = slice(factor, -factor)
    torch.testing.assert_close(top[..., inside, inside], want[..., inside, inside])


def test_same_generator_same_values() -> None:
    text = 'type: "gaussian" sparse: 2'
    assert torch.equal(filled(text, 5, 5, seed=3), filled(text, 5, 5, seed=3))
    assert not torch.equal(filled(text, 5, 5, seed=3), filled(text, 5, 5, seed=4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('type: "orthogonal"', 'filler type "orthogonal" is not one of bilinear, constant'),
        ("sparse: 3", '"constant" does not support sparse'),
        ('type: "xavier" sparse: 3', '"xavier" does not support sparse'),
        ('type: "uniform" min: 2 max: 1', "min 2 and max 1"),
        ('type: "gaussian" std: 0', "positive std"),
        ('type: "gaussian" sparse: -2', "sparse >= 0"),
        ('type: "gaussian" sparse: 9', "sparse 9 of 2 outputs"),
        ('type: "bilinear"', r"square kernel of 4 axes, not \(2, 3\)"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        filled(text, 2, 3)


@pytest.mark.parametrize(("stated", "shape"), [([2.0, 3.0], (2, 3, 1, 1)), ([2.0], (3, 3, 3, 5)), ([], (4, 3))])
def test_diagonal(stated: list[float], shape: tuple[int, ...]) -> None:
    """FlowNet's DiagonalFiller: the mean over the kernel from a channel to the output of its number, times a value."""
    x = filled('type: "diagonal"' + "".join(f" diag_val: {value}" for value in stated), *shape)
    want = torch.zeros(shape)
    for i, value in enumerate([*stated, 1.0, 1.0, 1.0][: min(shape[:2])]):
        want[i, i] = value / math.prod(shape[2:])
    torch.testing.assert_close(x, want)


def test_diagonal_refuses() -> None:
    with pytest.raises(LayerError, match='a filler of type "xavier" has no diag_val'):
        filled('type: "xavier" diag_val: 1', 2, 2)
    with pytest.raises(LayerError, match="at least 2 axes"):
        filled('type: "diagonal"', 2)

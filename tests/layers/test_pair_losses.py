"""EuclideanLoss, SigmoidCrossEntropyLoss and ContrastiveLoss against torch and loops over Caffe's formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autodial.layers import ContrastiveLoss, EuclideanLoss, LayerError, SigmoidCrossEntropyLoss


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4, 3, 2), (4, 6), (4, 6, 1, 1)])
def test_euclidean(build, shape: tuple[int, ...]) -> None:
    a, b = data(4, 3, 2).requires_grad_(), data(*shape, seed=1).requires_grad_()
    layer = build('type: "EuclideanLoss"', tuple(a.shape), shape)
    torch.testing.assert_close(layer(a, b), F.mse_loss(a, b.view(4, 3, 2), reduction="sum") / 8)
    assert layer.no_gradient == ()
    assert torch.autograd.gradcheck(layer, (a, b))


@pytest.mark.parametrize("name", ["EuclideanLoss", "SigmoidCrossEntropyLoss"])
def test_sizes(build, name: str) -> None:
    for other in [(4, 5), (6, 4), ()]:
        with pytest.raises(
            LayerError, match=r"bottoms \(4, 6\) and .* must have the same number of rows and of elements"
        ):
            build(f'type: "{name}"', (4, 6), other)


@pytest.mark.parametrize(
    ("fields", "divisor"),
    [
        ("", 4),
        ("normalization: BATCH_SIZE", 4),
        ("normalization: VALID", 21),
        ("normalization: FULL", 24),
        ("normalization: NONE", 1),
        ("normalize: true", 21),
        ("normalize: false", 4),
    ],
)
def test_sigmoid_cross_entropy(build, fields: str, divisor: int) -> None:
    x, targets = data(4, 3, 2).requires_grad_(), data(4, 6, seed=1).sigmoid()
    targets[0, 0] = targets[1, 3] = -1
    targets[3, 5] = -1.7  # an integer after cutting, as in Caffe
    layer = build(f'type: "SigmoidCrossEntropyLoss" loss_param {{ ignore_label: -1 {fields} }}', (4, 3, 2), (4, 6))
    p = x.sigmoid().view(4, 6)
    each = -targets * p.log() - (1 - targets) * (1 - p).log()
    loss = layer(x, targets)
    torch.testing.assert_close(loss, each[targets > -1].sum() / divisor)
    assert torch.autograd.gradcheck(lambda x: layer(x, targets), x)
    targets.requires_grad_()
    assert torch.autograd.grad(layer(x, targets), targets, allow_unused=True) == (None,)


def test_sigmoid_cross_entropy_does_not_overflow() -> None:
    x = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = SigmoidCrossEntropyLoss()(x, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert loss.item() == 2e4
    assert x.grad is not None
    assert x.grad.tolist() == [[1, -1]]


def test_all_ignored_divides_by_one() -> None:
    assert SigmoidCrossEntropyLoss(ignore_label=1, normalization="VALID")(data(2, 3), torch.ones(2, 3)).item() == 0


def contrastive(a, b, similar, margin, legacy):
    """contrastive_loss_layer.cpp: the loss and the gradient by a; that by b is its negative."""
    loss, gradient = 0.0, np.zeros_like(a)
    for n, difference in enumerate(a - b):
        square = (difference**2).sum()
        distance = np.sqrt(square)
        if int(similar[n]):
            loss += square
            gradient[n] = difference
        elif legacy:
            loss += max(margin - square, 0)
            gradient[n] = -difference if margin > square else 0
        else:
            loss += max(margin - distance, 0) ** 2
            gradient[n] = -difference * max(margin - distance, 0) / (distance + 1e-4)
    return loss / len(a) / 2, gradient / len(a)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("shapes", [((6, 3), (6, 3), (6,)), ((6, 3, 1, 1), (6, 3), (6, 1))])
def test_contrastive(build, shapes, legacy: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 6, 3))
    b[0] = a[0]  # no distance: Caffe's gradient is 0
    similar = np.array([0, 1, 0, 1, 0.9, 2.0])  # a fraction is cut off
    margin = 2.5
    fields = f"margin: {margin} legacy_version: {str(legacy).lower()}"
    layer = build(f'type: "ContrastiveLoss" contrastive_loss_param {{ {fields} }}', *shapes)
    bottoms = [torch.from_numpy(blob).view(shape) for blob, shape in zip((a, b, similar), shapes, strict=True)]
    for bottom in bottoms[:2]:
        bottom.requires_grad_()
    loss = layer(*bottoms)
    gradients = torch.autograd.grad(loss, bottoms[:2])
    want, gradient = contrastive(a, b, similar, margin, legacy)
    assert loss.item() == pytest.approx(want, rel=1e-9)
    np.testing.assert_allclose(gradients[0].view(6, 3), gradient, 1e-9, 1e-12)
    np.testing.assert_allclose(gradients[1].view(6, 3), -gradient, 1e-9, 1e-12)
    assert layer.no_gradient == (2,)


def test_contrastive_gradcheck() -> None:
    similar = torch.tensor([0.0, 1, 0, 1])
    layer = ContrastiveLoss(3, legacy_version=True)
    assert torch.autograd.gradcheck(
        lambda a, b: layer(a, b, similar), (data(4, 2).requires_grad_(), data(4, 2, seed=1).requires_grad_())
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(4, 3), (4, 2), (4,)], "the same number of rows and of elements"),
        ([(4, 3, 2), (4, 6), (4,)], "must be rows of features"),
        ([(4, 3), (4, 3), (4, 3)], r"must say of each of 4 pairs whether it is similar, and has the shape \(4, 3\)"),
    ],
)
def test_contrastive_refuses(build, shapes, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build('type: "ContrastiveLoss"', *shapes)


@pytest.mark.parametrize(
    ("name", "bottoms"),
    [("EuclideanLoss", 2), ("ContrastiveLoss", 3), ("HingeLoss", 2), ("MultinomialLogisticLoss", 2)],
)
def test_loss_param_is_refused_where_it_does_nothing(build, name: str, bottoms: int) -> None:
    with pytest.raises(LayerError, match=f"loss_param.ignore_label does nothing in a {name} layer: remove it"):
        build(f'type: "{name}" loss_param {{ ignore_label: 3 }}', *[(2, 3)] * bottoms)
    build(f'type: "{name}" loss_param {{ }}', *[(2, 1)] * bottoms)


def test_a_loss_counts_unless_its_weight_says_otherwise() -> None:
    assert EuclideanLoss.is_loss and SigmoidCrossEntropyLoss.is_loss and ContrastiveLoss.is_loss

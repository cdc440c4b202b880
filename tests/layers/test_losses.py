"""SoftmaxWithLoss and Accuracy against torch's cross-entropy, sorting, and worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autodial.layers import Accuracy, LayerError, SoftmaxWithLoss


def scores(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_loss_is_torchs_cross_entropy(shape: tuple[int, ...]) -> None:
    x, labels = scores(6, 5).requires_grad_(), torch.tensor([0, 4, 2, 1, 1, 3.0])
    loss = SoftmaxWithLoss()(x, labels.view(shape))
    (gradient,) = torch.autograd.grad(loss, x)
    want = F.cross_entropy(x, labels.long())
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(gradient, torch.autograd.grad(want, x)[0])


@pytest.mark.parametrize("label_shape", [(2, 3, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize(
    ("fields", "divisor"),
    [
        ("", 20),
        ("normalization: VALID", 20),
        ("normalization: FULL", 24),
        ("normalization: BATCH_SIZE", 2),
        ("normalization: NONE", 1),
        ("normalize: true", 20),
        ("normalize: false", 2),
    ],
)
def test_normalization(build, fields: str, divisor: int, label_shape: tuple[int, ...]) -> None:
    x = scores(2, 5, 3, 4)
    labels = torch.arange(24.0).view(label_shape) % 5
    labels.view(-1)[[0, 5, 11, 23]] = 255
    text = f'type: "SoftmaxWithLoss" loss_param {{ ignore_label: 255 {fields} }}'
    loss = build(text, tuple(x.shape), label_shape)(x, labels)
    total = F.cross_entropy(x, labels.view(2, 3, 4).long(), ignore_index=255, reduction="sum")
    torch.testing.assert_close(loss, total / divisor)


def test_all_ignored_divides_by_one() -> None:
    loss = SoftmaxWithLoss(ignore_label=2)(scores(3, 4), torch.full((3,), 2.0))
    assert loss.item() == 0


@pytest.mark.parametrize("axis", [2, -1])
def test_class_axis(build, axis: int) -> None:
    x, labels = scores(2, 3, 5), torch.arange(6.0).view(2, 3) % 5
    layer = build(f'type: "SoftmaxWithLoss" softmax_param {{ axis: {axis} }}', (2, 3, 5), (2, 3))
    torch.testing.assert_close(layer(x, labels), F.cross_entropy(x.view(6, 5), labels.view(6).long()))


def test_probability_is_floored_and_its_gradient_is_not() -> None:
    x = torch.tensor([[0.0, 200.0]], requires_grad=True)
    loss = SoftmaxWithLoss()(x, torch.zeros(1))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(np.finfo(np.float32).tiny))
    assert x.grad is not None
    assert x.grad.tolist() == [[-1, 1]]


def test_second_top_is_the_probabilities(build) -> None:
    layer = build('type: "SoftmaxWithLoss"', (4, 3), (4,), tops=2)
    x = scores(4, 3).requires_grad_()
    _, probabilities = layer(x, torch.zeros(4))
    assert layer.top_shapes([(4, 3), (4,)]) == [(), (4, 3)]
    torch.testing.assert_close(probabilities, F.softmax(x, 1).detach())
    assert not probabilities.requires_grad


@pytest.mark.parametrize("cls", [SoftmaxWithLoss, Accuracy])
@pytest.mark.parametrize("label", [5, -1])
def test_label_out_of_range(cls, label: int) -> None:
    labels = torch.tensor([0, 1, float(label)])
    with pytest.raises(LayerError, match=rf"label {label} is out of range for 5 classes \(0 to 4\)"):
        cls()(scores(3, 5), labels)
    cls(ignore_label=label)(scores(3, 5), labels)


@pytest.mark.parametrize("name", ["SoftmaxWithLoss", "Accuracy"])
def test_label_shape(build, name: str) -> None:
    with pytest.raises(LayerError, match=r"need 24 labels, the label blob has shape \(2, 3\)"):
        build(f'type: "{name}"', (2, 5, 3, 4), (2, 3))


def test_normalize_and_normalization(build) -> None:
    with pytest.raises(LayerError, match="both normalization and the old normalize"):
        build('type: "SoftmaxWithLoss" loss_param { normalize: true normalization: FULL }', (2, 3), (2,))


def accuracy_by_sorting(x: np.ndarray, labels: np.ndarray, top_k: int, ignore: int | None) -> list[tuple[int, bool]]:
    """(label, hit) of every label that counts; accuracy_layer.cpp sorts (score, class) from the highest."""
    result = []
    for row, label in zip(x.reshape(*x.shape[:2], -1), labels.reshape(len(x), -1), strict=True):
        for place, wanted in enumerate(label):
            ranked = sorted(((score, k) for k, score in enumerate(row[:, place])), reverse=True)
            if wanted != ignore:
                result.append((int(wanted), int(wanted) in [k for _, k in ranked[:top_k]]))
    return result


@pytest.mark.parametrize("ignore", [None, 1])
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("shape", [(40, 4), (5, 4, 3, 2)])
def test_accuracy_sorts_like_caffe(build, shape: tuple[int, ...], top_k: int, ignore: int | None) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, shape).astype(np.float32)  # full of ties
    labels = rng.integers(0, 3, (shape[0], *shape[2:])).astype(np.float32)  # class 3 never appears
    field = "" if ignore is None else f"ignore_label: {ignore}"
    layer = build(f'type: "Accuracy" accuracy_param {{ top_k: {top_k} {field} }}', shape, labels.shape, tops=2)
    accuracy, per_class = layer(torch.from_numpy(x), torch.from_numpy(labels))
    hits = accuracy_by_sorting(x, labels, top_k, ignore)
    assert accuracy.item() == pytest.approx(np.mean([hit for _, hit in hits]))
    by_class = [[hit for label, hit in hits if label == k] for k in range(4)]
    assert per_class.tolist() == pytest.approx([np.mean(h) if h else 0 for h in by_class])
    torch.testing.assert_close(Accuracy(top_k, ignore_label=ignore)(torch.tensor(x), torch.tensor(labels)), accuracy)


def test_accuracy_without_valid_labels_is_nan() -> None:
    assert Accuracy(ignore_label=0)(scores(3, 4), torch.zeros(3)).isnan()


def test_accuracy_class_axis(build) -> None:
    x, labels = scores(2, 3, 5), torch.arange(6.0).view(2, 3) % 5
    layer = build('type: "Accuracy" accuracy_param { axis: -1 }', (2, 3, 5), (2, 3))
    torch.testing.assert_close(layer(x, labels), (x.argmax(2) == labels).float().mean())


def test_top_k_refused(build) -> None:
    with pytest.raises(LayerError, match="top_k 6 is more than the 5 classes"):
        build('type: "Accuracy" accuracy_param { top_k: 6 }', (2, 5), (2,))
    with pytest.raises(LayerError, match="top_k must be positive"):
        build('type: "Accuracy" accuracy_param { top_k: 0 }', (2, 5), (2,))

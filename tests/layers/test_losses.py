"""The losses with class labels, and Accuracy, against torch's, sorting, loops and worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autodial.layers import (
    Accuracy,
    EntropyLoss,
    HingeLoss,
    InfogainLoss,
    LayerError,
    MultinomialLogisticLoss,
    SoftmaxWithLoss,
)
from autodial.proto import messages as pb


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


def infogain_by_hand(x, labels, matrix, ignore):
    """infogain_loss_layer.cpp on scores (N, C, ...): the sum of the losses, and its gradient."""
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    loss, gradient = 0.0, np.zeros_like(x)
    for n, *place in np.ndindex(x.shape[0], *x.shape[2:]):
        label = int(labels[(n, *place)])
        if label != ignore:
            at = (n, slice(None), *place)
            loss -= (matrix[label] * np.log(np.maximum(p[at], 1e-20))).sum()
            gradient[at] = p[at] * matrix[label].sum() - matrix[label]
    return loss, gradient


@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize(
    ("fields", "divisor"),
    [
        ("", 21),
        ("normalization: VALID", 21),
        ("normalization: FULL", 24),
        ("normalization: BATCH_SIZE", 2),
        ("normalization: NONE", 1),
    ],
)
def test_infogain(build, tmp_path, fields: str, divisor: int, third: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 3, 4))
    x[0, 1, 0] = -60  # a probability below the floor
    labels = rng.integers(0, 5, (2, 3, 4)).astype(np.float64)
    labels.reshape(-1)[[0, 5, 11]] = 7
    matrix = rng.standard_normal((5, 5)).astype(np.float32)
    source = tmp_path / "matrix.binaryproto"
    blob = pb.BlobProto(data=matrix.ravel().tolist(), num=1, channels=1, height=5, width=5)
    source.write_bytes(blob.SerializeToString())

    shapes = [x.shape, labels.shape] + [(1, 1, 5, 5)] * third
    options = (
        f"loss_param {{ ignore_label: 7 {fields} }} infogain_loss_param {{ axis: -3 {'' if third else 'SOURCE'} }}"
    )
    options = options.replace("SOURCE", f'source: "{source}"')
    layer = build(f'type: "InfogainLoss" {options}', *shapes, tops=2).double()
    assert layer.no_gradient == (1, 2)
    assert layer.top_shapes(shapes) == [(), x.shape]
    bottoms = [torch.from_numpy(x).requires_grad_(), torch.from_numpy(labels)]
    if third:
        bottoms.append(torch.from_numpy(matrix.astype(np.float64)).view(1, 1, 5, 5).requires_grad_())
    loss, probabilities = layer(*bottoms)
    want, gradient = infogain_by_hand(x, labels, matrix.astype(np.float64), 7)
    assert loss.item() == pytest.approx(want / divisor)
    np.testing.assert_allclose(torch.autograd.grad(loss, bottoms[0])[0], gradient / divisor, 1e-6, 1e-9)
    torch.testing.assert_close(probabilities, F.softmax(bottoms[0].detach(), 1))
    assert not probabilities.requires_grad


def test_infogain_with_the_unit_matrix_is_softmax_loss() -> None:
    x, labels = scores(6, 5), torch.tensor([0, 4, 2, 1, 1, 3.0])
    torch.testing.assert_close(InfogainLoss(torch.eye(5))(x, labels), SoftmaxWithLoss()(x, labels))
    assert InfogainLoss(torch.eye(5)).state_dict() == {}


@pytest.mark.parametrize(
    ("fields", "shapes", "message"),
    [
        ("", [(2, 3), (2,)], "either the file infogain_loss_param.source or the third bottom"),
        ('infogain_loss_param { source: "x" }', [(2, 3), (2,), (3, 3)], "either the file"),
        ("", [(2, 3), (2,), (3, 2)], r"matrix of shape \(3, 2\) must have 3 x 3 values"),
        ("", [(2, 3), (3,), (3, 3)], "need 2 labels"),
        ("softmax_param { axis: 1 }", [(2, 3), (2,), (3, 3)], "set infogain_loss_param.axis"),
        ("loss_param { normalize: true }", [(2, 3), (2,), (3, 3)], "normalize is the old name"),
    ],
)
def test_infogain_refuses(build, fields: str, shapes: list, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "InfogainLoss" {fields}', *shapes)
    with pytest.raises(LayerError, match=r'infogain_loss_param.source: "no.such" does not exist'):
        build('type: "InfogainLoss" infogain_loss_param { source: "no.such" }', (2, 3), (2,))


@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 2), (4, 6, 1, 1)])
def test_multinomial_logistic(build, shape: tuple[int, ...]) -> None:
    p = scores(4, 6).softmax(1).double()
    p[1, 3] = 0
    p.requires_grad_()
    labels = torch.tensor([5, 3, 0, 0.0])
    loss = build('type: "MultinomialLogisticLoss"', shape, (4,))(p.view(shape), labels)
    own = p.detach()[range(4), labels.long()].clamp(min=1e-20)
    torch.testing.assert_close(loss, -own.log().mean())
    # As in Caffe, a probability below the floor has the floor's gradient.
    want = torch.zeros_like(p)
    want[range(4), labels.long()] = -1 / own / 4
    torch.testing.assert_close(torch.autograd.grad(loss, p)[0], want)


def hinge_by_hand(x, labels, norm):
    """hinge_loss_layer.cpp: the loss and its gradient."""
    sign = np.ones_like(x)
    sign[range(len(x)), labels] = -1
    margins = np.maximum(0, 1 + sign * x)
    if norm == "L1":
        return margins.sum() / len(x), sign * np.sign(margins) / len(x)
    return (margins**2).sum() / len(x), 2 * sign * margins / len(x)


@pytest.mark.parametrize("norm", ["L1", "L2"])
@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 2)])
def test_hinge(build, norm: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4)) * 2
    x[0, 2] = -1  # exactly at the margin: no gradient
    labels = np.array([0, 3, 2, 1, 1])
    layer = build(f'type: "HingeLoss" hinge_loss_param {{ norm: {norm} }}', shape, (5, 1))
    bottom = torch.from_numpy(x).view(shape).requires_grad_()
    loss = layer(bottom, torch.from_numpy(labels).double())
    want, gradient = hinge_by_hand(x, labels, norm)
    assert loss.item() == pytest.approx(want)
    np.testing.assert_allclose(torch.autograd.grad(loss, bottom)[0].view(5, 4), gradient, 1e-12)


@pytest.mark.parametrize("cls", [HingeLoss, MultinomialLogisticLoss])
def test_row_labels(build, cls) -> None:
    with pytest.raises(LayerError, match="need 3 labels"):
        build(f'type: "{cls.type_name}"', (3, 2, 2), (3, 2))
    with pytest.raises(LayerError, match="at least 1 axis"):
        build(f'type: "{cls.type_name}"', (), (1,))
    with pytest.raises(LayerError, match=r"label 4 is out of range for 4 classes \(0 to 3\)"):
        cls()(torch.ones(1, 2, 2), torch.tensor([4.0]))


@pytest.mark.parametrize("layer", [HingeLoss("L1"), HingeLoss("L2"), MultinomialLogisticLoss(), SoftmaxWithLoss()])
def test_gradcheck(layer) -> None:
    x = scores(3, 4).double().softmax(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, torch.tensor([1, 0, 3.0])), x)


@pytest.mark.parametrize(
    ("loss", "x", "labels"),
    [
        (SoftmaxWithLoss(), [[200.0, 0.0]], [0.0]),
        (InfogainLoss(torch.eye(2)), [[200.0, 0.0]], [0.0]),
        (MultinomialLogisticLoss(), [[1.0, 0.0]], [0.0]),
        (EntropyLoss(), [[200.0, 0.0]], None),
    ],
)
def test_a_loss_of_nothing_is_not_minus_zero(loss, x: list, labels: list | None) -> None:
    value = loss(*(torch.tensor(blob) for blob in (x, labels) if blob is not None))
    assert value == 0 and not torch.signbit(value)

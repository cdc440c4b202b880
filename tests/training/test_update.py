"""SGD's step against steps worked out by hand and against torch.optim.SGD."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from autodial.errors import InputError
from autodial.proto import parse_solver
from autodial.training.update import SGD, update_class


@dataclass
class Blob:
    tensor: Tensor
    lr_mult: float = 1
    decay_mult: float = 1


def blob(values: list[float], gradient: list[float] | None = None, **multipliers: float) -> Blob:
    tensor = torch.tensor(values, requires_grad=True)
    tensor.grad = None if gradient is None else torch.tensor(gradient)
    return Blob(tensor, **multipliers)


def test_rate_is_inside_the_velocity() -> None:
    w = blob([1.0])
    sgd = SGD(parse_solver("momentum: 0.5"), [w])
    for rate, velocity, value in ((0.1, 0.2, 0.8), (0.01, 0.12, 0.68), (0.01, 0.08, 0.6)):
        w.tensor.grad = torch.tensor([2.0])
        sgd.step(rate, 0)  # v = 0.5 v + 2 rate, w = w - v
        torch.testing.assert_close(sgd.history[0], torch.tensor([velocity]))
        torch.testing.assert_close(w.tensor.detach(), torch.tensor([value]))


def test_order_of_a_step() -> None:
    # sums over iter_size 2: (6, 8) and (0) have norm 10; clipped to 5: (3, 4); halved: (1.5, 2)
    # + weight decay 0.1 * decay_mult * w: (1.5 + 0.1 * 10, 2 + 0.1 * -20) = (2.5, 0), and 0 + 0.3 * 1 = 0.3
    # * rate 0.1 * lr_mult: (0.25, 0) and 0.06
    a = blob([10.0, -20.0], [6.0, 8.0])
    b = blob([1.0], [0.0], lr_mult=2, decay_mult=3)
    sgd = SGD(parse_solver("weight_decay: 0.1 iter_size: 2 clip_gradients: 5"), [a, b])
    sgd.step(0.1, 0)
    torch.testing.assert_close(a.tensor.detach(), torch.tensor([9.75, -20.0]))
    torch.testing.assert_close(b.tensor.detach(), torch.tensor([0.94]))


def test_small_gradients_are_not_clipped() -> None:
    w = blob([1.0, 1.0], [0.3, 0.4])
    SGD(parse_solver("clip_gradients: 0.6"), [w]).step(1.0, 0)
    torch.testing.assert_close(w.tensor.detach(), torch.tensor([0.7, 0.6]))
    w.tensor.grad = torch.zeros(2)
    for limit in (0.6, 0):
        SGD(parse_solver(f"clip_gradients: {limit}"), [w]).step(1.0, 0)
    torch.testing.assert_close(w.tensor.detach(), torch.tensor([0.7, 0.6]))


def test_gradients_of_fixed_blobs_count_in_the_norm() -> None:
    w, fixed = blob([1.0], [0.3]), blob([5.0], [0.4], lr_mult=0)
    SGD(parse_solver("clip_gradients: 0.25"), [w, fixed]).step(1.0, 0)  # the norm is 0.5
    torch.testing.assert_close(w.tensor.detach(), torch.tensor([0.85]))
    assert fixed.tensor.item() == 5


def test_l1() -> None:
    w = blob([2.0, -3.0, 0.0], [0.0, 0.0, 0.0], decay_mult=2)
    SGD(parse_solver("weight_decay: 0.05 regularization_type: 'L1'"), [w]).step(1.0, 0)
    torch.testing.assert_close(w.tensor.detach(), torch.tensor([1.9, -2.9, 0.0]))


def test_frozen_blobs_keep_their_place_and_value() -> None:
    frozen, learned = blob([1.0, 2.0], [9.0, 9.0], lr_mult=0), blob([1.0], [1.0])
    statistics = Blob(torch.tensor([5.0]), lr_mult=0)
    sgd = SGD(parse_solver("momentum: 0.9 weight_decay: 1 clip_gradients: 20"), [frozen, learned, statistics])
    sgd.step(0.5, 0)
    assert [history.tolist() for history in sgd.history] == [[0, 0], [1.0], [0]]  # 0.5 * (1 + 1 * 1)
    assert frozen.tensor.tolist() == [1, 2]
    assert statistics.tensor.tolist() == [5]
    assert learned.tensor.tolist() == [0]


def test_unreached_blob_decays_and_glides() -> None:
    w = blob([1.0])
    sgd = SGD(parse_solver("momentum: 0.5 weight_decay: 0.1"), [w])
    sgd.step(1.0, 0)  # v = 0.1
    w.tensor.grad = None
    sgd.step(1.0, 0)  # v = 0.05 + 0.09
    torch.testing.assert_close(w.tensor.detach(), torch.tensor([0.76]))


@pytest.mark.parametrize("clip", [-1, 0.5])
def test_equals_torch_at_a_constant_rate(clip: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((4, 3), (4,), (2, 4))]
    ours, theirs = ([value.clone().requires_grad_() for value in start] for _ in range(2))
    blobs = [Blob(ours[0]), Blob(ours[1], lr_mult=2, decay_mult=0), Blob(ours[2])]
    sgd = SGD(parse_solver(f"momentum: 0.9 weight_decay: 0.01 clip_gradients: {clip}"), blobs)
    optimizer = torch.optim.SGD(
        [{"params": [theirs[0], theirs[2]]}, {"params": [theirs[1]], "lr": 0.1, "weight_decay": 0}],
        lr=0.05,
        momentum=0.9,
        weight_decay=0.01,
    )
    for _ in range(20):
        x = torch.randn(5, 3, generator=generator)
        for w1, b1, w2 in (ours, theirs):
            for w in (w1, b1, w2):
                w.grad = None
            (torch.tanh(x @ w1.T + b1) @ w2.T).square().sum().backward()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        sgd.step(0.05, 0)
        optimizer.step()
    for a, b, first in zip(ours, theirs, start, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(a, first, atol=1e-2)


@pytest.mark.parametrize(
    ("text", "optimizer", "options"),
    [
        ("type: 'Nesterov' momentum: 0.9", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        ("type: 'AdaGrad' delta: 0.01", torch.optim.Adagrad, {"eps": 0.01}),
        ("type: 'RMSProp' delta: 0.01 rms_decay: 0.8", torch.optim.RMSprop, {"eps": 0.01, "alpha": 0.8}),
        ("type: 'AdaDelta' delta: 0.01 momentum: 0.9", torch.optim.Adadelta, {"eps": 0.01, "rho": 0.9}),
        # torch adds eps behind the bias correction, so it is kept small
        ("type: 'Adam' delta: 1e-12 momentum: 0.8", torch.optim.Adam, {"eps": 1e-12, "betas": (0.8, 0.999)}),
    ],
)
def test_at_a_constant_rate_types_are_torchs(
    text: str, optimizer: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, generator=generator, dtype=torch.float64)
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    param = parse_solver(text + " weight_decay: 0.01")
    update = update_class(param.type)(param, [Blob(ours)])
    reference = optimizer([theirs], lr=0.05, weight_decay=param.weight_decay, **options)
    for iteration in range(10):
        gradient = torch.randn(5, generator=generator, dtype=torch.float64)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        update.step(0.05, iteration)
        reference.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)  # the message's fields are float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: 'AdaGrad' momentum: 0.9", "momentum can't be used with AdaGrad"),
        ("type: 'RMSProp' momentum: 0.9", "momentum can't be used with RMSProp"),
        ("type: 'RMSProp' rms_decay: 1", "rms_decay must lie in"),
        ("type: 'Adam' momentum2: 1", "momentum2 must lie in"),
    ],
)
def test_fields_that_a_type_cannot_take(text: str, message: str) -> None:
    param = parse_solver(text)
    with pytest.raises(InputError, match=message):
        update_class(param.type).check(param)


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(
        InputError, match='type "Lion" is not supported; supported solver types: SGD, Nesterov, AdaGrad'
    ):
        update_class("Lion")

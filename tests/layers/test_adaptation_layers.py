"""The layers of other domain adaptation forks, against what those forks compute, and against the papers' formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import check_layers
import check_solvers
import numpy as np
import pytest
import torch
from torch import Tensor

from autodial.errors import InputError
from autodial.layers import LayerError
from autodial.layers.coral import CORALLoss
from autodial.layers.gradient_scaler import GradientScaler
from autodial.layers.mmd import JMMDLoss, MMDLoss, Quadruples, bandwidth, draw_quadruples, jmmd_sum, mmd_sum
from autodial.layers.multimodal_batch_norm import MultiModalBatchNorm
from autodial.layers.outer_product import OuterProduct
from autodial.net.net import Net
from autodial.netparam.entropies import settle_entropies
from autodial.proto import messages as pb
from autodial.proto import parse_net

FORKS = Path(check_layers.__file__).parent / "forks"


@pytest.mark.parametrize("path", check_layers.records(FORKS / "layers"), ids=lambda path: path.stem)
def test_record(path: Path) -> None:
    assert check_layers.check(path) == []


# --- random pairs


def random_record(name: str) -> dict[str, Any]:
    with np.load(FORKS / "random" / f"{name}.npz") as archive:
        return dict(archive)


def quadruples(record: dict[str, Any], key: str) -> Quadruples:
    return Quadruples(*torch.from_numpy(record[f"pairs/{key}"].astype(np.int64)).unbind(1))


def rows(record: dict[str, Any], *names: str) -> list[Tensor]:
    return [torch.from_numpy(record[f"in/{name}"]).flatten(1).requires_grad_() for name in names]


def assert_gradients(record: dict[str, Any], loss: Tensor, weight: float, **blobs: Tensor) -> None:
    for (name, blob), gradient in zip(blobs.items(), torch.autograd.grad(loss, list(blobs.values())), strict=True):
        expected = record[f"gdin/{name}"].reshape(len(blob), -1)
        np.testing.assert_allclose(weight * gradient, expected, rtol=1e-3, atol=1e-5, err_msg=name)


def kernel_gammas(gamma: Tensor, number: int, factor: float) -> list[Tensor]:
    return [gamma * factor ** (i - number // 2) for i in range(number)]


@pytest.mark.parametrize(
    ("name", "number", "factor", "weight"),
    [("mmd_random", 5, 2, 0.3), ("mmd_random_4d", 1, 2, 2), ("mmd_random_even", 4, 3, 1), ("mmd_fix_gamma", 5, 2, 1)],
)
def test_mmd_of_given_pairs(name: str, number: int, factor: float, weight: float) -> None:
    record = random_record(name)
    x, t = rows(record, "x", "t")
    seen = [torch.from_numpy(record[f"first/{blob}"]) for blob in "xt"] if name == "mmd_fix_gamma" else [x, t]
    gammas = kernel_gammas(bandwidth(torch.cat(seen).detach()), number, factor)
    printed = mmd_sum(x, t, quadruples(record, "forward"), gammas)
    np.testing.assert_allclose(printed.item(), record["gout/y"], rtol=1e-4)
    drawn = quadruples(record, "backward")
    assert_gradients(record, mmd_sum(x, t, drawn, gammas) / len(drawn.s1), weight, x=x, t=t)


@pytest.mark.parametrize(
    ("name", "number", "weight", "sigma", "factors"),
    [
        ("jmmd_random", 5, 0.3, 1.68, [1]),
        ("jmmd_random_three_label_kernels", 3, 1, 0.5, [1 / 4, 1, 4]),
        ("jmmd_auto_sigma", 5, 1, None, [1]),
    ],
)
def test_jmmd_of_given_pairs(name: str, number: int, weight: float, sigma: float | None, factors: list[float]) -> None:
    record = random_record(name)
    x, t, ps, pt = rows(record, "x", "t", "ps", "pt")
    gammas = kernel_gammas(bandwidth(torch.cat((x, t)).detach()), number, 2)
    drawn = quadruples(record, "backward")
    total = jmmd_sum((x, ps), (t, pt), drawn, gammas, sigma or float(record["sigma"]), factors)
    assert_gradients(record, total / len(drawn.s1), weight, x=x, t=t, ps=ps, pt=pt)


@pytest.mark.parametrize("name", ["mmd_random", "jmmd_random"])
def test_passes_average_to_the_exact_expectation(name: str) -> None:
    record, passes = random_record(name), 300
    bottoms = rows(record, *(key[3:] for key in record if key.startswith("in/")))
    layer = MMDLoss() if name == "mmd_random" else JMMDLoss(sigma=1.68, label_kernel_num=1)
    layer.reseed(5)
    gradients = [torch.autograd.grad(0.3 * layer(*bottoms), bottoms) for _ in range(passes)]
    names = [key[3:] for key in record if key.startswith("in/")]
    for blob, values in zip(names, zip(*gradients, strict=True), strict=True):
        mean = torch.stack(values).mean(0).numpy()
        assert (np.abs(mean - record[f"edin/{blob}"]) <= 5 * record[f"sdin/{blob}"] / passes**0.5 + 1e-7).all(), blob


def test_a_row_meets_its_successor_twice_as_often() -> None:
    drawn = draw_quadruples(4, 60_000, torch.Generator().manual_seed(1))
    steps = torch.bincount((drawn.s2 - drawn.s1) % 4, minlength=4) / 60_000
    np.testing.assert_allclose(steps, [0, 0.5, 0.25, 0.25], atol=0.01)
    assert drawn.t1.max() < 60_000 and len(drawn.t2) == 60_000


def test_pairs_follow_from_the_seed_and_change_from_pass_to_pass() -> None:
    x, t = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    layer = MMDLoss()
    layer.reseed(3)
    first, second = layer(x, t), layer(x, t)
    layer.reseed(3)
    assert layer(x, t) == first != second


def test_bandwidth_is_one_over_the_mean_squared_distance_of_different_rows() -> None:
    rows = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1000
    expected = 1 / torch.pdist(rows).square().mean()
    assert bandwidth(rows) == pytest.approx(expected.item(), rel=1e-9)


# --- formulas


def test_coral_is_the_distance_of_the_covariances() -> None:
    random = np.random.default_rng(0)
    source, target = random.normal(3, 1, (8, 5)), random.normal(-2, 2, (8, 5))
    expected = np.square(np.cov(source.T) - np.cov(target.T)).sum() / (4 * 5**2)
    assert CORALLoss()(torch.from_numpy(source), torch.from_numpy(target)).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (CORALLoss(), [(4, 3), (4, 3)]),
        (OuterProduct(), [(3, 2), (3, 4)]),
        (MultiModalBatchNorm(3, eps=0.1), [(4, 3, 2), (4,)]),
        (MultiModalBatchNorm(3, use_global_stats=True), [(4, 3), (4, 1)]),
    ],
    ids=["CORALLoss", "OuterProduct", "MultiModalBatchNorm", "stored statistics"],
)
def test_gradients_are_those_of_the_top(layer: torch.nn.Module, shapes: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    bottoms = [torch.rand(shape, dtype=torch.float64).add(0.1).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(layer.double(), bottoms)


def test_weights_of_one_are_batch_normalization() -> None:
    x = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    top = MultiModalBatchNorm(3)(x, torch.ones(6))
    torch.testing.assert_close(top, torch.nn.functional.batch_norm(x, None, None, training=True))


def test_a_domain_to_which_no_row_belongs_gives_zeros() -> None:
    layer = MultiModalBatchNorm(3)
    x, weights = torch.randn(6, 3, requires_grad=True), torch.zeros(6, requires_grad=True)
    top = layer(x, weights)
    top.sum().backward()
    assert not top.any() and x.grad is not None and not x.grad.any()
    assert weights.grad is not None and weights.grad.isfinite().all()
    layer(x, torch.ones(6))
    assert all(blob.isfinite().all() for blob in layer.blobs)


HALF, END = 0.25 + 0.5 * np.tanh(2.5), 0.25 + 0.5 * np.tanh(5)


@pytest.mark.parametrize(("iteration", "expected"), [(0, 0.25), (50, HALF), (100, END), (900, END)])
def test_the_gradient_is_reversed_by_the_schedule(iteration: int, expected: float) -> None:
    layer = GradientScaler(lower_bound=0.25, upper_bound=0.75, alpha=10, max_iter=100)
    x = torch.ones(2, requires_grad=True)
    layer.begin_iteration(iteration)
    layer(x).sum().backward()
    np.testing.assert_allclose(x.grad, -expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lower_bound": 2}, "lower_bound 2 must not be above"),
        ({"alpha": -1}, "alpha must not be negative"),
        ({"max_iter": 0}, "max_iter must be at least 1"),
    ],
)
def test_a_schedule_that_is_none(options: dict[str, float], said: str) -> None:
    with pytest.raises(LayerError, match=said):
        GradientScaler(**options)


# --- whose EntropyLoss

ENTROPY = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 4 dim: 3 }} }} }}
layer {{ name: "p" type: "{before}" bottom: "x" top: "p" }}
layer {{ name: "cut" type: "Slice" bottom: "p" top: "a" top: "b" slice_param {{ axis: 0 }} }}
layer {{ name: "h" type: "EntropyLoss" bottom: "a" top: "h" {options} }}
"""


@pytest.mark.parametrize(
    ("before", "options", "sign"),
    [
        ("Softmax", "", -1),
        ("Softmax", "softmax_param { }", 1),
        ("Softmax", "loss_param { }", 1),
        ("Sigmoid", "", 1),
        ("Sigmoid", "entropy_param { }", -1),
    ],
)
def test_entropy_of_probabilities_or_of_scores(before: str, options: str, sign: int) -> None:
    net = Net(parse_net(ENTROPY.format(before=before, options=options)), pb.TRAIN)
    # Xlearn's prints minus the entropy; AutoDIAL's prints it as it is.
    assert np.sign(net({"x": torch.zeros(4, 3)})["h"].item()) == sign


def test_entropy_with_the_options_of_both() -> None:
    net = parse_net(ENTROPY.format(before="ReLU", options="entropy_param { } loss_param { }"))
    with pytest.raises(InputError, match=r'layer "h" \(EntropyLoss\): entropy_param is for probabilities'):
        settle_entropies(net)


# --- training runs


@pytest.mark.parametrize(("run", "start"), check_solvers.starts(FORKS / "solvers"))
def test_training_runs(run: str, start: int) -> None:
    assert check_solvers.check(FORKS / "solvers" / run, start) == []

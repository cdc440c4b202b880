"""Learning-rate policies against tables worked out by hand from Caffe's formulas."""

from __future__ import annotations

import pytest

from autodial.errors import InputError
from autodial.proto import parse_solver
from autodial.training.lr_policy import check_policy, learning_rate, next_step

TABLES = {
    "lr_policy: 'fixed'": {0: 0.5, 1000: 0.5},
    "lr_policy: 'step' gamma: 0.1 stepsize: 3": {0: 0.5, 2: 0.5, 3: 0.05, 5: 0.05, 6: 0.005},
    "lr_policy: 'exp' gamma: 0.5": {0: 0.5, 1: 0.25, 4: 0.03125},
    "lr_policy: 'inv' gamma: 3 power: 0.5": {0: 0.5, 1: 0.25, 5: 0.125},
    "lr_policy: 'multistep' gamma: 0.5 stepvalue: 2 stepvalue: 5": {
        0: 0.5,
        1: 0.5,
        2: 0.25,
        4: 0.25,
        5: 0.125,
        9: 0.125,
    },
    "lr_policy: 'poly' power: 2 max_iter: 10": {0: 0.5, 5: 0.125, 8: 0.02, 10: 0.0, 11: 0.0},
    "lr_policy: 'poly' power: 0.5 max_iter: 4": {0: 0.5, 3: 0.25, 4: 0.0, 5: 0.0},
    # 1 / (1 + exp(0.2 * (i - 20))): a half at stepsize; 1 / (1 + e^-2), 1 / (1 + e^2)
    "lr_policy: 'sigmoid' gamma: -0.2 stepsize: 20": {10: 0.4403985, 20: 0.25, 30: 0.0596015, 10**6: 0.0},
}


@pytest.mark.parametrize("text", TABLES)
def test_table(text: str) -> None:
    param = parse_solver(f"base_lr: 0.5 {text}")
    check_policy(param)
    step, rates = 0, {}
    for i in range(40):
        step = next_step(param, i, step)
        rates[i] = learning_rate(param, i, step)
    for i, rate in TABLES[text].items():
        got = rates[i] if i in rates else learning_rate(param, i, next_step(param, i, step))
        assert got == pytest.approx(rate, rel=1e-6, abs=1e-12), i


def test_multistep_takes_one_step_per_iteration() -> None:
    param = parse_solver("base_lr: 1 lr_policy: 'multistep' gamma: 0.5 stepvalue: 2 stepvalue: 2 stepvalue: 3")
    step, rates = 0, []
    for i in range(6):
        step = next_step(param, i, step)
        rates.append(learning_rate(param, i, step))
    assert rates == [1, 1, 0.5, 0.25, 0.125, 0.125]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr_policy: 'fixed'", "base_lr is missing"),
        ("base_lr: 1", "lr_policy is missing; the policies are fixed, step,"),
        ("base_lr: 1 lr_policy: 'cosine'", 'lr_policy "cosine" does not exist; the policies are fixed, step,'),
        ("base_lr: 1 lr_policy: 'step' gamma: 0.1", 'lr_policy "step" needs stepsize'),
        ("base_lr: 1 lr_policy: 'step' stepsize: 5", 'lr_policy "step" needs gamma'),
        ("base_lr: 1 lr_policy: 'step' gamma: 0.1 stepsize: 0", "stepsize must be at least 1, not 0"),
        ("base_lr: 1 lr_policy: 'exp'", 'lr_policy "exp" needs gamma'),
        ("base_lr: 1 lr_policy: 'inv' gamma: 1", 'lr_policy "inv" needs power'),
        ("base_lr: 1 lr_policy: 'inv' gamma: -1 power: 1", "gamma must not be negative"),
        ("base_lr: 1 lr_policy: 'multistep' gamma: 0.1", 'lr_policy "multistep" needs stepvalue'),
        ("base_lr: 1 lr_policy: 'poly' power: 1", 'lr_policy "poly" needs max_iter'),
        ("base_lr: 1 lr_policy: 'sigmoid' gamma: 1", 'lr_policy "sigmoid" needs stepsize'),
    ],
)
def test_what_is_missing_is_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_policy(parse_solver(text))

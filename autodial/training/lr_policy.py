"""Caffe's learning-rate policies (SGDSolver::GetLearningRate) as pure functions of the iteration."""

from __future__ import annotations

import math

from autodial.errors import InputError
from autodial.proto import messages as pb

REQUIRED: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma", "stepvalue"),
    "poly": ("power", "max_iter"),
    "sigmoid": ("gamma", "stepsize"),
}
"""The SolverParameter fields that each policy reads besides base_lr."""


def check_policy(param: pb.SolverParameter) -> None:
    """Refuse a learning rate that can't be computed.

    Raises:
        InputError: base_lr or a field of the policy is missing, the policy does not exist, or a value is out of range.
    """
    if not param.HasField("base_lr"):
        raise InputError("base_lr is missing")
    if param.lr_policy not in REQUIRED:
        given = f'lr_policy "{param.lr_policy}" does not exist' if param.lr_policy else "lr_policy is missing"
        raise InputError(f"{given}; the policies are {', '.join(REQUIRED)}")
    for field in REQUIRED[param.lr_policy]:
        if not (param.stepvalue if field == "stepvalue" else param.HasField(field)):
            raise InputError(f'lr_policy "{param.lr_policy}" needs {field}')
    if param.lr_policy == "step" and param.stepsize < 1:
        raise InputError(f"stepsize must be at least 1, not {param.stepsize}")
    if param.lr_policy == "inv" and param.gamma < 0:
        raise InputError(f'gamma must not be negative under lr_policy "inv", and is {param.gamma:g}')
    if param.lr_policy == "poly" and param.max_iter < 1:
        raise InputError(f"max_iter must be at least 1, not {param.max_iter}")


def next_step(param: pb.SolverParameter, iteration: int, current_step: int) -> int:
    """The number of steps by which the rate has come down at an iteration; snapshots hold it as current_step.

    Args:
        param: a SolverParameter that `check_policy` accepts.
        iteration: counted from 0.
        current_step: the number at the iteration before (0 at the first). Under "multistep" it rises by one at most,
            so that several steps at one iteration are taken one by one, as in Caffe.
    """
    if param.lr_policy == "step":
        return int(iteration // param.stepsize)
    if param.lr_policy == "multistep":
        due = current_step < len(param.stepvalue) and iteration >= param.stepvalue[current_step]
        return current_step + due
    return current_step


def learning_rate(param: pb.SolverParameter, iteration: int, current_step: int) -> float:
    """The learning rate of an iteration, before any blob's lr_mult.

    Caffe's formulas, with b = base_lr, g = gamma, i = iteration and s = current_step:
    fixed b; step and multistep b·g^s; exp b·g^i; inv b·(1 + g·i)^-power; poly b·(1 - i/max_iter)^power;
    sigmoid b / (1 + exp(-g·(i - stepsize))). Beyond max_iter, "poly" stays at 0 (Caffe: NaN or rising again).

    Args:
        param: a SolverParameter that `check_policy` accepts.
        iteration: counted from 0.
        current_step: what `next_step` gives for this iteration.
    """
    base, gamma = param.base_lr, param.gamma
    if param.lr_policy in ("step", "multistep"):
        return float(base * gamma**current_step)
    if param.lr_policy == "exp":
        return float(base * gamma**iteration)
    if param.lr_policy == "inv":
        return float(base * (1 + gamma * iteration) ** -param.power)
    if param.lr_policy == "poly":
        return float(base * max(0.0, 1 - iteration / param.max_iter) ** param.power)
    if param.lr_policy == "sigmoid":
        # the logistic function through tanh, which can't overflow
        return float(base * 0.5 * (1 + math.tanh(0.5 * gamma * (iteration - param.stepsize))))
    return float(base)

"""A solver's schedule, stretched to the epochs that a data set is to be trained for."""

from __future__ import annotations

from math import ceil
from typing import Any

from autodial.errors import InputError

EPOCHS = {"alexnet": 60, "svhn_mnist": 25}
"""Passes over the source that shipped nets are trained for, where the paper counts in epochs (section 4.1, appendix B);
for the others it states iterations."""

_DISPLAYS = 40
"""Lines that a training prints at least."""
_SNAPSHOTS = 5
_TESTS = 10


def iterations(epochs: float, images: int, batch: int) -> int:
    """Iterations for a number of passes over `images` images at `batch` an iteration, rounded up."""
    return max(1, ceil(epochs * images / batch))


def stretch(solver: Any, max_iter: int) -> None:
    """Change a SolverParameter, in place, to a number of iterations; the learning rate keeps its course over the whole.

    Steps come at the same share of the training. The gammas of "inv" and "sigmoid" are per iteration, and that of "exp"
    is a factor per iteration: what they make of the learning rate at the end stays the same.

    Raises:
        InputError: the solver states no max_iter.
    """
    if not solver.max_iter:
        raise InputError("max_iter, the number of iterations that its schedule is made for, is missing")
    factor = max_iter / solver.max_iter
    solver.max_iter = max_iter
    if solver.lr_policy == "multistep":
        solver.stepvalue[:] = [max(1, round(step * factor)) for step in solver.stepvalue]
    elif solver.lr_policy == "step":
        solver.stepsize = max(1, round(solver.stepsize * factor))
    elif solver.lr_policy == "inv":
        solver.gamma = _rounded(solver.gamma / factor)
    elif solver.lr_policy == "exp":
        solver.gamma = solver.gamma ** (1 / factor)
    elif solver.lr_policy == "sigmoid":
        solver.gamma = _rounded(solver.gamma / factor)
        solver.stepsize = round(solver.stepsize * factor)
    if solver.snapshot:
        solver.snapshot = max(1, round(solver.snapshot * factor))


def fill_intervals(solver: Any, test_batches: int | None) -> None:
    """Set display, snapshot and the tests of a SolverParameter whose max_iter is final.

    Args:
        test_batches: that hold the test list once; None where there are no labels to test with.
    """
    most = max(1, solver.max_iter // _DISPLAYS)
    solver.display = min(solver.display, most) if solver.display else most
    if not solver.snapshot:
        solver.snapshot = ceil(solver.max_iter / _SNAPSHOTS)
    for field in ("test_iter", "test_interval", "test_initialization", "test_compute_loss", "test_state"):
        solver.ClearField(field)
    if test_batches is not None:
        solver.test_iter.append(test_batches)
        solver.test_interval = ceil(solver.max_iter / _TESTS)
        solver.test_initialization = False  # before the first iteration no statistics are stored


def drops(solver: Any) -> list[int]:
    """The iterations at which the learning rate comes down by a step."""
    if solver.lr_policy == "multistep":
        return list(solver.stepvalue)
    if solver.lr_policy == "step":
        return list(range(solver.stepsize, solver.max_iter, solver.stepsize))
    return []


def _rounded(gamma: float) -> float:
    """Six digits, as a person would write it."""
    return float(f"{gamma:.6g}")

"""A solver's schedule, scaled to another number of iterations."""

from __future__ import annotations

from math import ceil

from autodial.errors import InputError
from autodial.proto import messages as pb

EPOCHS = {"alexnet": 60, "svhn_mnist": 25}
"""Passes over the source in the training of shipped nets for which the paper counts epochs (section 4.1, appendix B);
for the others it counts iterations."""

_DISPLAYS = 40
"""The fewest progress lines that a training prints."""
_SNAPSHOTS = 5
_TESTS = 10


def iterations(epochs: float, images: int, batch: int) -> int:
    """The iterations for a number of passes over `images` images, with `batch` images per iteration, rounded up."""
    return max(1, ceil(epochs * images / batch))


def describe_epochs(epochs: float) -> str:
    """`1 epoch`, `0.533 epochs`, `427 epochs`: three digits, or all those of whole epochs."""
    text = f"{epochs:.0f}" if epochs >= 100 else f"{epochs:.3g}"
    return f"{text} epoch{'' if text == '1' else 's'}"


def stretch(solver: pb.SolverParameter, max_iter: int) -> None:
    """Change a solver in place to another number of iterations; the learning rate's curve keeps its shape.

    Steps come at the same shares of the training. The gammas of "inv", "sigmoid" and "exp" count per iteration; they
    change so that the final learning rate stays the same.

    Raises:
        InputError: the solver has no max_iter.
    """
    if not solver.max_iter:
        raise InputError("the solver has no max_iter, the number of iterations that its schedule is made for: add it")
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


def fill_intervals(solver: pb.SolverParameter, test_batches: int | None) -> None:
    """Set the display, snapshot and test intervals of a solver whose max_iter is final.

    Args:
        test_batches: the number of batches that make one pass over the test list; None without labelled images.
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
        solver.test_initialization = False  # no statistics are stored before the first iteration


def drops(solver: pb.SolverParameter) -> list[int]:
    """The iterations at which the learning rate drops by a step."""
    if solver.lr_policy == "multistep":
        return list(solver.stepvalue)
    if solver.lr_policy == "step":
        return list(range(solver.stepsize, solver.max_iter, solver.stepsize))
    return []


def _rounded(gamma: float) -> float:
    """Round to six digits, as a person would write it."""
    return float(f"{gamma:.6g}")

"""The methods' names and schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodial import proto
from autodial.comparison.methods import METHODS, Method, about_nets, check_methods, solver_for, trained
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.training.lr_policy import learning_rate, next_step

FORKS = Path(__file__).parents[3] / "shared/reference/da_forks"
SOLVERS = {
    "deep-coral": "dcoral/a_w_solver_coral_fc8_loss_0.8_full_source.prototxt",
    "dan": "xlearn/DAN/alexnet/solver.prototxt",
    "rtn": "xlearn/RTN/alexnet/solver.prototxt",
    "jan": "xlearn/JAN/alexnet/solver.prototxt",
    "reversegrad": "filled/grl_solver.prototxt",
}
BASE = pb.SolverParameter(
    base_lr=0.02, lr_policy="multistep", gamma=0.1, stepvalue=[300, 350], max_iter=400, momentum=0.9, weight_decay=0.01
)


@pytest.mark.skipif(not FORKS.is_dir(), reason="the released solvers are not in ../shared")
@pytest.mark.parametrize("name", SOLVERS)
def test_the_released_course_on_fewer_iterations(name: str) -> None:
    """At each tenth of the training, the rate is the same share of the first one."""
    method = METHODS[name]
    assert isinstance(method, Method)
    ours, released = solver_for(method, BASE, same_schedule=False), proto.read_solver(FORKS / SOLVERS[name])
    for tenth in range(10):
        shares = []
        for solver in (ours, released):
            iteration = solver.max_iter * tenth // 10
            rate = learning_rate(solver, iteration, next_step(solver, iteration, 0))
            shares.append(rate / solver.base_lr)
        assert shares[0] == pytest.approx(shares[1], rel=1e-4)
    assert (ours.base_lr, ours.momentum, ours.weight_decay) == (BASE.base_lr, BASE.momentum, BASE.weight_decay)
    assert not ours.stepvalue


def test_the_same_course_for_all() -> None:
    for method in METHODS.values():
        if isinstance(method, Method):
            assert solver_for(method, BASE, same_schedule=True) == BASE


def test_names() -> None:
    assert check_methods(["autodial", "dan", "autodial"]) == ["dan", "autodial"]
    assert trained(["coral", "gfk", "dan"]) == ["source-only", "adabn", "dan"]
    with pytest.raises(InputError, match='there is no method "dann"; did you mean "dan"'):
        check_methods(["dann"])


def test_nets_that_have_no_row_are_told() -> None:
    assert about_nets(["source-only", "adabn", "coral", "gfk"], 3) is None
    assert about_nets(["dan", "coral"], 2) == (
        "adabn is trained as well, 2 runs without a row, as features are aligned by coral"
    )
    told = about_nets(["coral", "tca", "gfk"], 1)
    assert told is not None and told.startswith("source-only, adabn are trained") and told.endswith("coral, tca, gfk")

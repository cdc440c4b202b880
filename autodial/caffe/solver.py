"""pycaffe's solvers: the same training loop, on nets whose blobs are all at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

import autodial.solver
from autodial.caffe.net import Net


class SGDSolver:
    """Caffe's SGD solver.

    `net` and `test_nets` are Net objects; the next pass reads what was written to the blobs of their Input layers.

    Args:
        solver_file: solver.prototxt; relative paths in it mean the working directory, then its folder.
    """

    def __init__(self, solver_file: str) -> None:
        self._solver = _Solver.from_file(solver_file)
        self.net = self._solver.shown
        self.test_nets = self._solver.shown_tests

    @property
    def iter(self) -> int:
        """Number of updates done."""
        return self._solver.iter

    def step(self, iterations: int) -> None:
        """Train for a number of iterations."""
        self._solver.step(iterations)

    def solve(self, resume_file: str | None = None) -> None:
        """Train until max_iter, from a .solverstate on if one is given."""
        if resume_file is not None:
            self.restore(resume_file)
        self._solver.solve()

    def snapshot(self) -> None:
        """Write the .caffemodel and the .solverstate."""
        self._solver.snapshot()

    def restore(self, state_file: str) -> None:
        """Continue from a .solverstate."""
        self._solver.restore(state_file)


class _Solver(autodial.solver.Solver):
    """Runs the nets through their pycaffe faces, so that scripts see and may change every blob."""

    @property
    def shown(self) -> Net:
        if not hasattr(self, "_shown"):
            self._shown = Net(self.net)
        return self._shown

    @property
    def shown_tests(self) -> list[Net]:
        if not hasattr(self, "_shown_tests"):
            self._shown_tests = [Net(net) for net in self.test_nets]
        return self._shown_tests

    def _forward_backward(self, pass_: int) -> Mapping[str, Tensor]:
        self.shown.run(self.iter * self.param.iter_size + pass_, seed=(self.iter, pass_))
        self.shown.backward()
        return _results(self.shown)

    def _test_outputs(self, index: int, batches: int) -> Iterator[Mapping[str, Tensor]]:
        for j in range(batches):
            self.shown_tests[index].run(j, seed=(j, 0))
            yield _results(self.shown_tests[index])


def _results(net: Net) -> dict[str, Tensor]:
    names = dict.fromkeys((*net.module.outputs, *net.module.loss_weights))
    return {name: torch.from_numpy(net.blobs[name].data) for name in names}


def get_solver(solver_file: str) -> SGDSolver:
    """The solver that a solver.prototxt describes."""
    return SGDSolver(solver_file)

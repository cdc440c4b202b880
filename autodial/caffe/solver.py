"""pycaffe's solvers: the same training loop, on nets whose blobs are all at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

import autodial.training.solver
from autodial.caffe import mode
from autodial.caffe.net import Net
from autodial.proto import messages as pb
from autodial.proto import read_solver
from autodial.training.console import Lines
from autodial.training.lr_policy import learning_rate, next_step
from autodial.training.monitor import Monitor, RunningSolver
from autodial.training.update import update_class

Callback = Callable[[], object]


class Solver:
    """Base of pycaffe's solver classes. The class decides the type of the solver, whatever type the file states.

    `set_mode_cpu` or `set_mode_gpu` decides the device, whatever solver_mode the file states. Caffe's progress lines go
    to stderr (`init_log`). Files that the solver's field `weights` names are loaded.

    Args:
        solver_file: solver.prototxt; relative paths in it mean the working directory, then its folder.

    Attributes:
        net, test_nets: Net objects; test_nets share the parameters of net. The next pass reads what was written to the
            blobs of their Input layers.
        param: SolverParameter; fields that each iteration reads, such as base_lr, can be changed.

    Raises:
        InputError: the file can't be read, or a field can't be honoured.
    """

    type: ClassVar[str]
    """Caffe's name of the solver type."""

    def __init__(self, solver_file: str | os.PathLike[str]) -> None:
        seeded = read_solver(solver_file).random_seed >= 0
        self._solver = _Solver.from_file(
            solver_file,
            device=str(mode.device()),
            seed=None if seeded else mode.seed(),
            overrides=[f"solver.type={self.type}"],
        )
        self.net = self._solver.shown
        self.test_nets = self._solver.shown_tests
        self.param: pb.SolverParameter = self._solver.param
        self._solver.load_weights(self._solver.own_weights)
        self.net.download()

    @property
    def iter(self) -> int:
        """The number of updates done."""
        return self._solver.iter

    def step(self, iterations: int) -> None:
        """Train for a number of iterations."""
        self._solver.step(iterations)

    def solve(self, resume_file: str | os.PathLike[str] | None = None) -> None:
        """Train until max_iter, starting from a .solverstate if one is given."""
        if resume_file is not None:
            self.restore(resume_file)
        self._solver.solve()

    def apply_update(self) -> None:
        """Update the parameters from their gradients with the iteration's learning rate, as at the end of `step`.

        The gradients and `iter` stay unchanged.
        """
        self._solver.apply_update()

    def snapshot(self) -> None:
        """Write the .caffemodel and the .solverstate."""
        self.net.upload()
        self._solver.snapshot()

    def restore(self, state_file: str | os.PathLike[str]) -> None:
        """Continue from a .solverstate."""
        self._solver.restore(state_file)
        self.net.download()

    def share_weights(self, net: Net) -> None:
        """Let a net use the memory of the train net's parameters (`Net.share_with`)."""
        net.share_with(self.net)

    def add_callback(self, on_start: Callback, on_gradient: Callback) -> None:
        """Call functions in each iteration: before the first forward pass, and when the gradients are computed."""
        self._solver.callbacks.append((on_start, on_gradient))


class SGDSolver(Solver):
    """Caffe's SGD solver."""

    type = "SGD"


class NesterovSolver(Solver):
    """Caffe's Nesterov solver."""

    type = "Nesterov"


class AdaGradSolver(Solver):
    """Caffe's AdaGrad solver."""

    type = "AdaGrad"


class RMSPropSolver(Solver):
    """Caffe's RMSProp solver."""

    type = "RMSProp"


class AdaDeltaSolver(Solver):
    """Caffe's AdaDelta solver."""

    type = "AdaDelta"


class AdamSolver(Solver):
    """Caffe's Adam solver."""

    type = "Adam"


_classes = {
    cls.type: cls for cls in (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)
}


def get_solver(solver_file: str | os.PathLike[str]) -> Solver:
    """The solver of the type that a solver.prototxt states.

    Raises:
        InputError: the type does not exist; or as Solver.
    """
    name = read_solver(solver_file).type
    update_class(name)
    return _classes[name](solver_file)


class _Download(Monitor):
    """Copies the updated parameters to the arrays that scripts see."""

    def __init__(self, net: Net) -> None:
        self._net = net

    def iterated(self, solver: RunningSolver) -> None:
        self._net.download()


class _Solver(autodial.training.solver.Solver):
    """Runs the nets through their pycaffe interfaces, so that scripts see and may change every blob."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shown = Net.of(self.net, self.device)
        self.shown_tests = [Net.of(net, self.device) for net in self.test_nets]
        self.callbacks: list[tuple[Callback, Callback]] = []
        self.monitors += [_Download(self.shown), Lines(mode.log)]

    def clear_gradients(self) -> None:
        self.shown.clear_param_diffs()

    def forward_backward(self, pass_: int) -> Mapping[str, Tensor]:
        if pass_ == 0:
            for on_start, _ in self.callbacks:
                on_start()
        self.shown.run(seed=(self.iter, pass_), batch=self.iter * self.param.iter_size + pass_)
        self.shown.backward()
        if pass_ == self.param.iter_size - 1:
            for _, on_gradient in self.callbacks:
                on_gradient()
            self.shown.upload()
        return self._results(self.shown)

    def apply_update(self) -> None:
        self.shown.upload()
        self.current_step = next_step(self.param, self.iter, self.current_step)
        self.update.step(learning_rate(self.param, self.iter, self.current_step), self.iter)
        self.shown.download()

    def test_outputs(self, index: int, batches: int) -> Iterator[Mapping[str, Tensor]]:
        net = self.shown_tests[index]
        for j in range(batches):
            net.run(seed=(j, 0), batch=j, grad=False)
            yield self._results(net)

    def _results(self, net: Net) -> dict[str, Tensor]:
        names = dict.fromkeys((*net.outputs, *net.module.loss_weights))
        return {name: net.blobs[name].values.tensor(self.device).clone() for name in names}

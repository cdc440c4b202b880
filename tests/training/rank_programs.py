"""What tests run as the ranks of a training, each in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autodial.cli import main
from autodial.system.ranks import LostRankError, Ranks
from autodial.training import collapse, data_parallel
from autodial.training.monitor import Monitor, TestRow, TrainRow
from autodial.training.solver import Solver


class Rows(Monitor):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.train: list[TrainRow] = []
        self.test: list[TestRow] = []

    def displayed(self, row: TrainRow) -> None:
        self.train.append(row)

    def tested(self, row: TestRow) -> None:
        self.test.append(row)


def solver(ranks: Ranks | None, *overrides: str) -> tuple[Solver, Rows]:
    rows = Rows()
    run = Solver.from_file("solver.prototxt", overrides=overrides, ranks=ranks)
    run.monitors.append(rows)
    return run, rows


def state(run: Solver) -> list[Tensor]:
    """All that a snapshot holds."""
    return [*(param.tensor.detach().clone() for param in run.net.params), *(t.clone() for t in run.update.history)]


def train(
    ranks: Ranks | None,
    overrides: tuple[str, ...] = (),
    snapshot: str | None = None,
    samples: int | None = None,
    bucket_bytes: int | None = None,
) -> Any:
    """A whole training: its rows, and the state at its end.

    `samples` are enough to watch for a collapse, and `bucket_bytes` of gradients are summed at a time.
    """
    if bucket_bytes is not None:
        data_parallel.BUCKET_BYTES = bucket_bytes
    if samples is not None:
        collapse._SAMPLES, collapse._PER_CLASS = samples, 0
    run, rows = solver(ranks, *overrides)
    if snapshot is not None:
        run.restore(snapshot)
    run.check()
    assert run.solve()
    return rows.train, rows.test, state(run)


def order(ranks: Ranks) -> list[list[str]]:
    """Of each iteration, what came when: the gradients of the blobs in the last backward pass, and sums of blobs."""
    data_parallel.BUCKET_BYTES = 200
    run, _ = solver(ranks, "solver.iter_size=2")
    names: dict[int, str] = {}  # of gradients
    events: list[list[str]] = []

    def noted(begin: Any, tensors: Any) -> Any:
        known = [names.get(tensor.data_ptr()) for tensor in tensors]
        events[-1] += [f"sum of {name}" for name in known if name is not None]
        return begin(tensors)

    def passed(blob: Tensor, name: str) -> None:
        assert blob.grad is not None
        names[blob.grad.data_ptr()] = name
        events[-1].append(name)

    for param in run.net.params:
        if param.tensor.requires_grad:
            name = f"{param.layer} {param.index}"
            param.tensor.register_post_accumulate_grad_hook(lambda blob, name=name: passed(blob, name))
    ranks.begin_sum = partial(noted, ranks.begin_sum)  # type: ignore[method-assign]
    for _ in range(2):
        events.append([])
        names.clear()  # another tensor may lie where a gradient of the iteration before lay
        run.step(1)
    return events


def die(ranks: Ranks, rank: int, iteration: int) -> str:
    """A training in which one rank dies in the middle of an iteration; what another one's error says."""
    run, _ = solver(ranks)

    def kill(*_: object) -> None:
        if run.iter == iteration:
            os.kill(os.getpid(), signal.SIGKILL)

    if ranks.rank == rank:
        run.net.layer("fc").register_forward_hook(kill)
    try:
        run.solve()
    except LostRankError as error:
        return str(error)
    raise AssertionError("nobody was missed")


def stop(ranks: Ranks, rank: int, iteration: int) -> int:
    """A training that one rank is asked to stop; the iteration at which each does."""
    run, _ = solver(ranks)

    class Stop(Monitor):
        def iterated(self, solver: Solver) -> None:
            if solver.iter == iteration:
                solver.stop()

    if ranks.rank == rank:
        run.monitors.append(Stop())
    assert not run.solve()
    return run.iter


def differ(ranks: Ranks, **options: Any) -> str:
    """What the check says where rank 1 starts from something else."""
    run, _ = solver(ranks, *options.get("overrides", ()))
    with torch.no_grad():
        if ranks.rank == 1 and "blob" in options:
            run.net.layer(options["blob"]).blobs[0].view(-1)[0] += 1e-3
    try:
        run.check()
    except Exception as error:
        return str(error)
    return ""


def command(arguments: list[list[str]]) -> tuple[int, str, str]:
    """The command line, with each rank's arguments; exit status, standard output and standard error."""
    sys.argv = ["autodial", *arguments[int(os.environ["RANK"])]]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as exit_:
            if dist.is_initialized():
                print("still joined to the others", file=err)  # the process might be aborted for it at its end
            return int(exit_.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("unreachable")


if "CALL" in globals():
    call: dict[str, Any] = globals()["CALL"]
    os.environ.update({key: str(value) for key, value in call["environment"].items()})
    os.chdir(call["folder"])
    torch.set_num_threads(1)
    program = command if call["name"] == "command" else partial(globals()[call["name"]], Ranks.join())
    torch.save(program(**call["options"]), call["result"])
    os._exit(0)

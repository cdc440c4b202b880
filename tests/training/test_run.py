"""A training from a program: its checks, its lock, its result."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autodial.errors import InputError
from autodial.proto import read_state, read_weights
from autodial.training.monitor import Monitor, RunningSolver
from autodial.training.run import Outcome, Snapshot, Training

Edit = Callable[[str, str, str], None]

pytestmark = pytest.mark.usefixtures("project")


class StopAt(Monitor):
    """Asks the solver to stop after an iteration."""

    def __init__(self, iteration: int) -> None:
        self._iteration = iteration

    def iterated(self, solver: RunningSolver) -> None:
        if solver.iter == self._iteration:
            solver.stop()


def start(*, overrides: tuple[str, ...] = (), snapshot: Path | None = None, folder: str | None = None) -> Training:
    return Training("solver.prototxt", device="cpu", workers=0, overrides=overrides, snapshot=snapshot, folder=folder)


def snapshot_of(iteration: int) -> Snapshot:
    prefix = f"snapshots/stripes_iter_{iteration}"
    return Snapshot(iteration, Path(f"{prefix}.solverstate"), Path(f"{prefix}.caffemodel"))


def test_a_finished_training_says_where_everything_is() -> None:
    begun = []
    result = start().run(begun=lambda: begun.append(Path("snapshots/stripes.lock").exists()))
    assert begun == [True] and not Path("snapshots/stripes.lock").exists()
    assert (result.outcome, result.iteration, result.error) == (Outcome.FINISHED, 8, None)
    assert result.folder == Path("snapshots/stripes_run") and result.snapshot == snapshot_of(8)
    (record,) = json.loads((result.folder / "run.json").read_text())["starts"]
    assert record["command"] == shlex.join(sys.orig_argv)


def test_a_stopped_training_goes_on_from_its_snapshot_to_the_same_weights() -> None:
    end = start(overrides=("solver.snapshot_prefix=whole/stripes",)).run().snapshot
    stopped = start().run([StopAt(3)])
    assert (stopped.outcome, stopped.iteration, stopped.snapshot) == (Outcome.STOPPED, 3, snapshot_of(3))
    assert read_state("snapshots/stripes_iter_3.solverstate").iter == 3
    result = start(snapshot=snapshot_of(3).state).run()
    assert (result.outcome, result.folder) == (Outcome.FINISHED, stopped.folder)
    assert end is not None and end.weights is not None
    assert Path("snapshots/stripes_iter_8.caffemodel").read_bytes() == end.weights.read_bytes()


def test_a_training_that_diverges_says_so_and_names_the_last_good_snapshot() -> None:
    result = start(overrides=("solver.base_lr=1e30", "solver.snapshot=1")).run()
    assert result.outcome is Outcome.DIVERGED and "NaN or infinity" in str(result.error)
    kept = sorted(Path("snapshots").glob("*.solverstate"), key=lambda path: read_state(path).iter)
    assert (result.snapshot and result.snapshot.state) == (kept[-1] if kept else None)


def test_the_solver_may_name_the_weights(edit: Edit) -> None:
    """As BVLC's last Caffe: the command line's come in their place, and a snapshot needs none."""
    start().run()
    other = ("solver.snapshot_prefix=other/stripes",)
    edit("solver.prototxt", "net:", 'weights: "snapshots/stripes_iter_4.caffemodel" net:')
    (named,) = {layer.name: layer for layer in read_weights(snapshot_of(4).weights or "").layers}["fc"].blobs[:1]
    (given,) = {layer.name: layer for layer in read_weights(snapshot_of(8).weights or "").layers}["fc"].blobs[:1]
    training = start(overrides=other)
    assert training.weights == [Path("snapshots/stripes_iter_4.caffemodel")] and training.missing == []
    for net in (training.solver.net, *training.solver.test_nets):
        np.testing.assert_array_equal(net.layer("fc").blobs[0].detach(), named)
    training = Training("solver.prototxt", overrides=other, weights=[snapshot_of(8).weights or ""], workers=0)
    np.testing.assert_array_equal(training.solver.net.layer("fc").blobs[0].detach(), given)
    Path("snapshots/stripes_iter_4.caffemodel").rename("gone.caffemodel")
    with pytest.raises(InputError, match=r'solver\.prototxt: weights: "snapshots/stripes_iter_4\.caffemodel" does not'):
        start(overrides=other)
    assert start(snapshot=snapshot_of(8).state, folder="resumed").weights == []


def test_what_is_done_is_not_trained_again() -> None:
    start().run()
    before = Path("snapshots/stripes_run/run.json").read_bytes()
    training = start(snapshot=snapshot_of(8).state)
    assert training.done
    result = training.run()
    assert (result.outcome, result.iteration, result.snapshot) == (Outcome.FINISHED, 8, snapshot_of(8))
    assert Path("snapshots/stripes_run/run.json").read_bytes() == before


def test_resumed_and_stopped_at_once_it_names_the_snapshot_that_is_there() -> None:
    """Also where the solver would write its own to another place."""
    start().run()
    training = start(snapshot=snapshot_of(4).state, overrides=("solver.snapshot_prefix=other",), folder="other_run")
    training.solver.stop()
    result = training.run()
    assert (result.outcome, result.snapshot) == (Outcome.STOPPED, snapshot_of(4))


def test_errors_name_parameters() -> None:
    with pytest.raises(InputError, match="`weights` starts a run and `snapshot` resumes one"):
        Training("solver.prototxt", weights=["a"], snapshot="b")
    start().run()
    with pytest.raises(InputError, match=r"_iter_8\.solverstate is the newest.* `overrides` solver\.snapshot_prefix=P"):
        start()
    other = start(overrides=("solver.snapshot_prefix=other",), folder="snapshots/stripes_run")
    with pytest.raises(InputError, match="another folder with `folder`, or resume that run with `snapshot`"):
        other.run()

"""Whole training runs against the original's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from check_solvers import FOLDER, LOSSES, TOLERANCE, differences, load, starts
from torch import Tensor

from autodial import proto
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.training.solver import Solver


class Recorded(Solver):
    """Feeds what the record's Input layers held; `losses` are those of the last pass."""

    run: str
    record: dict[str, Any]

    def forward_backward(self, pass_: int) -> Mapping[str, Tensor]:
        self.net.seed_pass(self.iter, pass_)
        outputs = self.net({name: torch.from_numpy(self.record[name][self.iter]) for name in ("data", "label")})
        self.net.loss(outputs).backward()
        self.losses = [float(outputs[name].detach()) for name in LOSSES]
        return outputs

    def blob(self, layer: str, index: int) -> Tensor:
        return self.net.layer(layer).blobs[index].detach()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`start(run)` copies a record's folder, as runs write snapshots, and gives its Solver.

    One thread adds up in one order; more would add their own rounding to what these runs amplify.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def solver(run: str) -> Recorded:
        shutil.copytree(FOLDER / run, tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        recorded = Recorded.from_file("solver.prototxt")
        recorded.run, recorded.record = run, load(FOLDER / run)
        return recorded

    yield solver
    torch.set_num_threads(threads)


def follow(solver: Recorded) -> None:
    """Train to the record's end, comparing losses in each iteration and blobs where it holds them."""
    for i in range(solver.iter, len(solver.record["data"])):
        solver.step(1)
        found = differences(solver.run, solver.record, i + 1, solver.losses, solver.blob)
        assert found == [], f"after iteration {i + 1}"


@pytest.mark.parametrize(("run", "iteration"), starts())
def test_training_follows_the_original(run: str, iteration: int, start: Any) -> None:
    solver = start(run)
    if iteration:
        solver.restore(f"snap_iter_{iteration}.solverstate")
    else:
        solver.load_weights(["init.caffemodel"])
    assert solver.iter == iteration
    follow(solver)


def without_numbers(message: Any) -> Any:
    """A message in which only the blobs' elements are missing."""
    for blobs in [layer.blobs for layer in message.layer] if hasattr(message, "layer") else [message.history]:
        for blob in blobs:
            blob.ClearField("data")
    return message


def test_snapshot_has_the_originals_fields_names_and_shapes(start: Any, tmp_path: Path) -> None:
    solver = start("sgd_step_snapshot")
    originals = {name: Path(name).read_bytes() for name in ("snap_iter_20.caffemodel", "snap_iter_20.solverstate")}
    solver.restore("snap_iter_20.solverstate")
    assert (solver.iter, solver.current_step) == (20, 1)
    assert solver.snapshot() == (Path("snap_iter_20.caffemodel"), Path("snap_iter_20.solverstate"))
    for (name, original), message in zip(originals.items(), (pb.NetParameter, pb.SolverState), strict=True):
        ours = message.FromString(Path(name).read_bytes())
        theirs = message.FromString(original)
        if name.endswith("state"):
            assert ours == theirs
        else:
            assert [blob.data for layer in ours.layer for blob in layer.blobs] == [
                blob.data for layer in theirs.layer for blob in layer.blobs
            ]
            assert without_numbers(ours) == without_numbers(theirs)
    assert not list(tmp_path.glob("*partial*"))


def test_snapshot_of_a_run_has_the_originals_numbers(start: Any) -> None:
    solver = start("sgd_step_snapshot")
    original = proto.read_state("snap_iter_20.solverstate")
    solver.load_weights(["init.caffemodel"])
    solver.step(20)  # snapshot: 20
    ours = proto.read_state("snap_iter_20.solverstate")
    assert (ours.iter, ours.current_step, ours.learned_net) == (20, 1, "snap_iter_20.caffemodel")
    for history, theirs in zip(ours.history, original.history, strict=True):
        np.testing.assert_allclose(history, theirs, rtol=0, atol=TOLERANCE)


def test_caffemodel_is_found_beside_the_solverstate(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = start("sgd_step_snapshot")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    solver.restore("../snap_iter_20.solverstate")
    assert solver.iter == 20
    Path("../snap_iter_20.caffemodel").unlink()
    with pytest.raises(InputError, match=r"needs its caffemodel.*not at ../snap_iter_20.caffemodel or snap_"):
        solver.restore("../snap_iter_20.solverstate")


def test_state_of_another_net_is_refused(start: Any) -> None:
    solver = start("sgd_step_snapshot")
    state = proto.read_state("snap_iter_20.solverstate")
    state.history[8] = state.history[8][:5]
    proto.write_state(state, "other.solverstate")
    with pytest.raises(InputError, match=r'layer "fc6", blob 0, has shape \(5, 36\), and the blob has \(10, 36\)'):
        solver.restore("other.solverstate")
    del state.history[3:]
    proto.write_state(state, "other.solverstate")
    with pytest.raises(InputError, match=r"history of 3 blobs, and SGD on this net has 17"):
        solver.restore("other.solverstate")
    assert solver.iter == 0


def test_weights_instead_of_a_state_are_refused(start: Any) -> None:
    solver = start("sgd_step_snapshot")
    with pytest.raises(InputError, match=r"resume, name snap_iter_20.solverstate; to start .* name it with `weights`"):
        solver.restore("snap_iter_20.caffemodel")
    with pytest.raises(InputError, match="a solver's state and holds no weights"):
        solver.load_weights(["snap_iter_20.solverstate"])

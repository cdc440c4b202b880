"""Whole training runs against the original's (../shared/golden/solvers; two of them lie in records/)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from autodial import proto
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.solver import Solver

RECORDS = Path(__file__).parent / "records"
SHARED = Path(__file__).parents[3] / "shared" / "golden" / "solvers"
LOCAL = ["sgd_iter_size", "sgd_step_snapshot"]
OTHERS = [f"sgd_{name}" for name in (
    "alpha_fixed_half", "alpha_moves", "clip", "exp", "fixed", "frozen_conv", "frozen_with_decay", "inv", "l1",
    "multistep", "poly", "sigmoid",
)] + ["adadelta", "adagrad", "adam", "nesterov", "rmsprop"]  # fmt: skip
TOLERANCE = 2e-6
"""Of the largest element of a blob, at least of 1."""
TOLERANCES = {"sgd_alpha_moves": 2e-5, "adagrad": 1e-4, "adam": 1e-4, "rmsprop": 1e-4}
"""Alphas with lr_mult 10 amplify rounding: computed in float64, that run is as far from the record. So do the types
that divide a gradient by its own size."""
SCALED = ("adagrad", "adam", "rmsprop")
"""Types that divide a gradient by its own size."""
WITHOUT_EFFECT = ("conv1/1", "fc6/1", "conv1/sc/1", "conv1/dial/1", "fc6-dial/1")
"""Biases that the Dial layer behind them takes out again (conv1/sc's where every pooled value is positive), and the
means that they shift. In exact arithmetic these biases have gradients of 0, and what the record holds of them in SCALED
runs is the original's rounding."""


class Recorded(Solver):
    """Feeds what the record's Input layers held; `losses` are those of the last pass."""

    record: Any

    def _forward_backward(self, pass_: int) -> Mapping[str, Tensor]:
        self.net.seed_pass(self.iter, pass_)
        outputs = self.net({name: torch.from_numpy(self.record[name][self.iter]) for name in ("data", "label")})
        self.net.loss(outputs).backward()
        self.losses = [float(outputs[name].detach()) for name in ("loss-source", "loss-target")]
        return outputs


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`start(run)` copies a record's folder, as runs write snapshots, and gives its Solver.

    One thread adds up in one order; more would add their own rounding to what these runs amplify.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def solver(run: str) -> Recorded:
        folder = (RECORDS if run in LOCAL else SHARED) / run
        if not folder.is_dir():
            pytest.skip("needs ../shared/golden beside the checkout")
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        recorded = Recorded.from_file("solver.prototxt")
        recorded.record = np.load("trace.npz")
        return recorded

    yield solver
    torch.set_num_threads(threads)


def follow(solver: Recorded, tolerance: float = TOLERANCE) -> None:
    """Train to the record's end, comparing losses in each iteration and blobs where it holds them."""
    record, compared = solver.record, 0
    for i in range(solver.iter, len(record["data"])):
        solver.step(1)
        np.testing.assert_allclose(solver.losses, record["losses"][i], rtol=1e-5, atol=tolerance)
        for key in record.files:
            iteration, _, blob = key.partition("/")
            if iteration != f"iter{i + 1}":
                continue
            layer, _, index = blob.rpartition("/")
            ours, theirs = solver.net.layer(layer).blobs[int(index)].detach().numpy(), record[key]
            if solver.param.type.lower() in SCALED and blob in WITHOUT_EFFECT:
                continue
            off = np.abs(ours - theirs).max() / max(1, np.abs(theirs).max())
            assert off <= tolerance, f"{key} after {i + 1} is off by {off:.2g}"
            compared += 1
    assert compared


@pytest.mark.parametrize("run", LOCAL + OTHERS)
def test_training_follows_the_original(run: str, start: Any) -> None:
    solver = start(run)
    solver.load_weights(["init.caffemodel"])
    follow(solver, TOLERANCES.get(run, TOLERANCE))


def test_resuming_from_the_originals_snapshot_follows_the_original(start: Any) -> None:
    solver = start("sgd_step_snapshot")
    solver.restore("snap_iter_20.solverstate")
    assert (solver.iter, solver.current_step) == (20, 1)
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
    with pytest.raises(InputError, match=r"needs its caffemodel.*not at snap_iter_20.caffemodel or"):
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
    with pytest.raises(InputError, match=r"pass snap_iter_20.solverstate; to start from it, pass it with --weights"):
        solver.restore("snap_iter_20.caffemodel")
    with pytest.raises(InputError, match="a solver's state and holds no weights"):
        solver.load_weights(["snap_iter_20.solverstate"])

"""pycaffe's solver on runs of the original, and what a script may ask of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import autodial.caffe as caffe

RECORDS = Path(__file__).parents[1] / "solver" / "records"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(RECORDS / "sgd_step_snapshot", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("start", [0, 20])
def test_a_run_of_the_original(run: Path, start: int) -> None:
    trace = np.load("trace.npz")
    solver = caffe.get_solver("solver.prototxt")
    assert isinstance(solver, caffe.SGDSolver)
    if start:
        solver.restore("snap_iter_20.solverstate")
    else:
        solver.net.copy_from("init.caffemodel")
    for i in range(start, start + 5):
        solver.net.blobs["data"].data[...] = trace["data"][i]
        solver.net.blobs["label"].data[...] = trace["label"][i]
        solver.step(1)
        losses = [float(solver.net.blobs[name].data) for name in ("loss-source", "loss-target")]
        np.testing.assert_allclose(losses, trace["losses"][i], rtol=1e-5, atol=1e-6)
    assert solver.iter == start + 5


def test_apply_update_uses_the_gradients_that_a_script_wrote(run: Path) -> None:
    solver = caffe.SGDSolver("solver.prototxt")
    blob = solver.net.params["fc8"][0]
    blob.data[...] = 0
    blob.diff[...] = 1
    solver.apply_update()
    # base_lr 0.01, lr_mult 10, no decay of zeros
    np.testing.assert_allclose(blob.data, -0.1, rtol=1e-6)


def test_callbacks_stand_around_each_pass(run: Path) -> None:
    solver = caffe.SGDSolver("solver.prototxt")
    calls: list[str] = []
    solver.add_callback(lambda: calls.append("start"), lambda: calls.append("gradients"))
    solver.net.blobs["data"].data[...] = np.random.default_rng(0).normal(size=(12, 2, 8, 8))
    solver.step(2)
    assert calls == ["start", "gradients"] * 2


def test_nets_outlive_their_solver(run: Path) -> None:
    net = caffe.SGDSolver("solver.prototxt").net
    arrays = [blob.data for blobs in net.params.values() for blob in blobs]
    del net
    assert all(np.isfinite(array).all() for array in arrays)


def test_types_have_their_classes(run: Path) -> None:
    text = Path("solver.prototxt").read_text()
    for name in ("Nesterov", "AdaDelta", "Adam"):
        Path("other.prototxt").write_text(text.replace('type: "SGD"', f'type: "{name}"'))
        assert type(caffe.get_solver("other.prototxt")) is getattr(caffe, f"{name}Solver")

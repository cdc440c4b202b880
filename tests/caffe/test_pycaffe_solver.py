"""pycaffe's solver classes, by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import autodial.caffe as caffe
from autodial.errors import InputError

Write = Callable[..., str]

LINE = """
layer { name: "x" type: "Input" top: "x" top: "t" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 1 weight_filler { value: 0.5 } bias_filler { value: 0.1 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""
SETTINGS = 'base_lr: 0.01 lr_policy: "inv" gamma: 0.0001 power: 0.75 max_iter: 6 snapshot_prefix: "run/model"'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def solver(small: str, write: Write) -> caffe.SGDSolver:
    """A solver of the net that makes up its own data."""
    more = "test_iter: 2 test_interval: 3 display: 2 snapshot_after_train: false"
    return caffe.SGDSolver(write(f'net: "{small}" {more} {SETTINGS}', "solver.prototxt"))


@pytest.fixture
def line(write: Write) -> Callable[[str], str]:
    """`line(settings)` writes a solver for a single InnerProduct, of weights 0.5 and bias 0.1, and gives its path."""
    write(LINE, "line.prototxt")
    return lambda settings: write(f'net: "line.prototxt" {SETTINGS} {settings}', "line_solver.prototxt")


def test_solve_and_snapshot(solver: caffe.SGDSolver, folder: Path) -> None:
    assert solver.iter == 0
    solver.solve()
    assert solver.iter == 6 and not (folder / "run").exists()
    solver.snapshot()
    assert sorted(path.name for path in (folder / "run").iterdir()) == [
        "model_iter_6.caffemodel", "model_iter_6.solverstate",
    ]  # fmt: skip


def test_lines_of_progress_go_to_stderr(solver: caffe.SGDSolver, capsys: pytest.CaptureFixture[str]) -> None:
    caffe.init_log(0)
    solver.solve()
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("Iteration 4, lr = 0.00999") for line in lines)
    assert any(line.startswith("Iteration 3, testing net 0") for line in lines)


def test_restoring_goes_on_as_if_nothing_had_been(solver: caffe.SGDSolver) -> None:
    solver.step(3)
    solver.snapshot()
    solver.step(3)
    resumed, solved = caffe.get_solver("solver.prototxt"), caffe.get_solver("solver.prototxt")
    resumed.restore("run/model_iter_3.solverstate")
    assert resumed.iter == 3
    resumed.step(3)
    solved.solve("run/model_iter_3.solverstate")
    for other in (resumed, solved):
        np.testing.assert_array_equal(other.net.params["conv"][0].data, solver.net.params["conv"][0].data)


def test_the_solvers_own_weights_are_there(line: Callable[[str], str]) -> None:
    first = caffe.SGDSolver(line(""))
    first.net.params["ip"][0].data[...] = 3
    first.net.save("three.caffemodel")
    solver = caffe.get_solver(line('weights: "three.caffemodel" test_iter: 1 test_interval: 1'))
    for net in (solver.net, solver.test_nets[0]):
        np.testing.assert_array_equal(net.params["ip"][0].data, [[3, 3, 3]])
    solver.net.blobs["x"].data[...] = 1
    solver.step(1)
    assert np.all(solver.net.params["ip"][0].data < 3)


def test_nets_outlive_the_solver(solver: caffe.SGDSolver) -> None:
    nets = [solver.net, *solver.test_nets]
    del solver
    gc.collect()
    assert len(nets) == 2
    for net in nets:
        net.forward()
        assert np.isfinite(net.blobs["loss"].data) and np.isfinite(net.params["conv"][0].diff).all()


def test_test_nets_have_the_train_nets_parameters(solver: caffe.SGDSolver, small: str) -> None:
    solver.step(2)
    train, test = solver.net.params["ip"][0].data, solver.test_nets[0].params["ip"][0].data
    assert np.shares_memory(train, test)
    other = caffe.Net(small, caffe.TEST)
    solver.share_weights(other)
    assert np.shares_memory(train, other.params["ip"][0].data)
    solver.test_nets[0].share_with(solver.net)  # as scripts do, who can't know
    assert np.shares_memory(train, solver.test_nets[0].params["ip"][0].data)


def test_tests_average_over_their_batches(solver: caffe.SGDSolver, capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    net = solver.test_nets[0]
    for j in range(2):
        net.run(seed=(j, 0), batch=j)
        losses.append(float(net.blobs["loss"].data))
    assert losses[0] != losses[1]
    caffe.init_log(0)
    solver.step(1)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "Test net output #0: loss = " in line)
    assert float(line.split("= ")[1].split()[0]) == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_apply_update_steps_by_the_gradients_that_are_there(solver: caffe.SGDSolver) -> None:
    weight, bias = solver.net.layers[1].blobs
    weight.data[...], bias.data[...] = 0, 0
    weight.diff[...], bias.diff[...] = 1, 1
    solver.apply_update()
    np.testing.assert_allclose(weight.data, -0.01, atol=1e-8)
    np.testing.assert_allclose(bias.data, -0.02, atol=1e-8)  # lr_mult 2
    assert solver.iter == 0


def test_arrays_of_gradients_stay_the_same_while_training(solver: caffe.SGDSolver) -> None:
    diff = solver.net.params["conv"][0].diff
    solver.step(2)
    assert diff.any() and np.shares_memory(diff, solver.net.params["conv"][0].diff)


def test_the_way_back_after_an_update(solver: caffe.SGDSolver) -> None:
    solver.step(1)
    net = solver.net
    net.clear_param_diffs()
    net.backward(start="ip", end="ip")
    # by the weights as they are now
    expected = net.blobs["scores"].diff @ net.params["ip"][0].data
    np.testing.assert_allclose(net.blobs["conv"].diff.reshape(4, -1), expected, rtol=1e-4, atol=1e-5)


def test_callbacks_come_before_the_passes_and_before_the_update(line: Callable[[str], str]) -> None:
    solver = caffe.get_solver(line("iter_size: 2"))
    calls = []

    def on_start() -> None:
        calls.append(("start", solver.iter))
        solver.net.blobs["x"].data[...] = 1

    def on_gradient() -> None:
        calls.append(("gradient", solver.iter))
        np.testing.assert_allclose(solver.net.params["ip"][1].diff, 2 * 1.6, rtol=1e-6)  # the sum of iter_size passes
        solver.net.params["ip"][0].diff[...] = 0
        solver.net.params["ip"][1].diff[...] = 0

    solver.add_callback(on_start, on_gradient)
    solver.step(2)
    assert calls == [("start", 0), ("gradient", 0), ("start", 1), ("gradient", 1)]
    np.testing.assert_array_equal(solver.net.params["ip"][0].data, 0.5)


def test_param_can_be_read_and_changed(line: Callable[[str], str]) -> None:
    solver = caffe.get_solver(line(""))
    assert (solver.param.max_iter, solver.param.display) == (6, 0)
    solver.param.base_lr = 0.5
    solver.net.params["ip"][0].diff[...] = 1
    solver.apply_update()
    np.testing.assert_allclose(solver.net.params["ip"][0].data, 0.5 - 0.5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "settings", "first_step"),
    [
        # of a gradient g without a history, at rate 0.01, from the formulas of Caffe's ComputeUpdateValue
        ("SGD", "momentum: 0.9", lambda g: 0.01 * g),
        ("Nesterov", "momentum: 0.9", lambda g: 1.9 * 0.01 * g),
        ("AdaGrad", "", lambda g: 0.01 * g / (np.abs(g) + 1e-8)),
        ("RMSProp", "rms_decay: 0.75", lambda g: 0.01 * g / (0.5 * np.abs(g) + 1e-8)),
        ("AdaDelta", "momentum: 0.75 delta: 0.1", lambda g: 0.01 * g * np.sqrt(0.1 / (0.25 * g**2 + 0.1))),
        ("Adam", "momentum: 0.9 momentum2: 0.99", lambda g: 0.01 * g / (np.abs(g) + 1e-7)),
    ],
)
def test_solver_classes(
    kind: str, settings: str, first_step: Callable[[np.ndarray], np.ndarray], line: Callable[[str], str]
) -> None:
    by_type = caffe.get_solver(line(f'type: "{kind}" {settings}'))
    assert type(by_type) is getattr(caffe, f"{kind}Solver")
    by_class = getattr(caffe, f"{kind}Solver")(line(settings))  # whatever type the file states
    for solver in (by_type, by_class):
        weight = solver.net.params["ip"][0]
        gradient = np.array([[1, -2, 0.5]])
        weight.diff[...] = gradient
        solver.apply_update()
        np.testing.assert_allclose(0.5 - weight.data, first_step(gradient), rtol=1e-4)


def test_seeds(write: Write, small: str) -> None:
    def weight(settings: str) -> np.ndarray:
        path = write(f'net: "{small}" base_lr: 1 lr_policy: "fixed" {settings}', "seeded.prototxt")
        return caffe.get_solver(path).net.params["conv"][0].data

    stated = weight("random_seed: 3")
    caffe.set_random_seed(3)
    np.testing.assert_array_equal(weight(""), stated)
    caffe.set_random_seed(4)
    assert (weight("") != stated).any()
    np.testing.assert_array_equal(weight("random_seed: 3"), stated)


def test_an_unknown_type_is_refused(line: Callable[[str], str]) -> None:
    with pytest.raises(InputError, match='"Lion"'):
        caffe.get_solver(line('type: "Lion"'))

"""pycaffe on a CUDA device: the numbers of the CPU, in arrays that are in step with the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import autodial.caffe as caffe

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu

Write = Callable[..., str]


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.fixture
def pair(small: str, tmp_path: Path) -> tuple[caffe.Net, caffe.Net]:
    """The same net on CPU and GPU."""
    cpu = caffe.Net(small, caffe.TRAIN)
    cpu.save(tmp_path / "w.caffemodel")
    caffe.set_mode_gpu()
    gpu = caffe.Net(small, caffe.TRAIN, weights=str(tmp_path / "w.caffemodel"))
    assert gpu.params["conv"][0].tensor.is_cuda
    return cpu, gpu


def test_passes(pair: tuple[caffe.Net, caffe.Net]) -> None:
    cpu, gpu = pair
    for net in pair:
        net.params["ip"][0].data[0, 0] = 3  # written before a pass, read by it
    for _ in range(2):
        cpu.forward()
        gpu.blobs["data"].data[...] = cpu.blobs["data"].data
        gpu.forward(start="conv")
        for net in pair:
            net.backward()
    for name in ("scores", "loss"):
        close(gpu.blobs[name].data, cpu.blobs[name].data)
        close(gpu.blobs[name].diff, cpu.blobs[name].diff)
    for name in cpu.params:
        for ours, theirs in zip(gpu.params[name], cpu.params[name], strict=True):
            close(ours.diff, theirs.diff)
    diff = gpu.params["conv"][0].diff
    gpu.clear_param_diffs()
    assert not diff.any()


def test_an_activation_that_is_edited_before_the_way_back(pair: tuple[caffe.Net, caffe.Net]) -> None:
    _, gpu = pair
    gpu.forward()
    conv = np.random.default_rng(0).normal(size=(4, 3, 4, 5)).astype(np.float32)
    gpu.blobs["conv"].data[...] = conv
    gpu.backward()
    close(gpu.params["ip"][0].diff, gpu.blobs["scores"].diff.T @ conv.reshape(4, -1))


def test_what_is_written_to_a_parameter_is_saved_and_shared(
    pair: tuple[caffe.Net, caffe.Net], small: str, tmp_path: Path
) -> None:
    _, gpu = pair
    held = gpu.params["ip"][0].data
    held[...] = 2
    gpu.save(tmp_path / "changed.caffemodel")
    other = caffe.Net(small, caffe.TRAIN, weights=str(tmp_path / "changed.caffemodel"))
    close(other.params["ip"][0].data, held)
    other.share_with(gpu)
    other.forward()
    held[...] = 4
    assert np.shares_memory(other.params["ip"][0].data, held)
    other.forward()
    close(other.blobs["scores"].data[:, 0], 4 * other.blobs["conv"].data.reshape(4, -1).sum(1))
    gpu.copy_from(str(tmp_path / "changed.caffemodel"))
    assert (held == 2).all()


def test_training(small: str, write: Write) -> None:
    path = write(
        f'net: "{small}" test_iter: 1 test_interval: 100 base_lr: 0.01 momentum: 0.9 lr_policy: "fixed"'
        ' type: "Nesterov" snapshot_prefix: "' + str(Path(small).parent / "snap") + '"',
        "solver.prototxt",
    )
    solvers = [caffe.get_solver(path)]
    caffe.set_mode_gpu()
    solvers.append(caffe.get_solver(path))
    held = [(solver.net.params["conv"][0].data, solver.test_nets[0].params["conv"][0].data) for solver in solvers]
    start = held[0][0].copy()
    for solver in solvers:
        solver.add_callback(
            lambda solver=solver: solver.net.params["ip"][1].data.fill(0.25),
            lambda solver=solver: solver.net.params["ip"][0].diff.fill(0),
        )
        solver.step(5)
    (cpu, _), (gpu, tested) = held
    assert np.abs(cpu - start).max() > 0.01
    close(gpu, cpu)
    assert np.shares_memory(gpu, tested)
    close(*(solver.net.params["ip"][0].data for solver in solvers))
    solvers[1].snapshot()
    gpu[...] = 0
    solvers[1].restore(str(Path(small).parent / "snap_iter_5.solverstate"))
    close(gpu, cpu)


def test_python_layers(write: Write, tmp_path: Path) -> None:
    (tmp_path / "on_gpu.py").write_text(
        "import autodial.caffe as caffe\n"
        "class Slope(caffe.Layer):\n"
        "    def setup(self, bottom, top):\n"
        "        self.blobs.add_blob(1)\n"
        "        self.blobs[0].data[...] = 2\n"
        "    def reshape(self, bottom, top):\n"
        "        top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top):\n"
        "        top[0].data[...] = self.blobs[0].data * bottom[0].data\n"
        "    def backward(self, top, propagate_down, bottom):\n"
        "        self.blobs[0].diff[...] += (top[0].diff * bottom[0].data).sum()\n"
        "        bottom[0].diff[...] = self.blobs[0].data * top[0].diff\n"
    )
    text = (
        'layer { name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 4 dim: 3 }'
        ' shape { dim: 4 dim: 1 } data_filler { type: "gaussian" } } }'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "h"'
        ' inner_product_param { num_output: 1 weight_filler { type: "xavier" } bias_filler { value: 1 } } }'
        'layer { name: "s" type: "Python" bottom: "h" top: "y" python_param { module: "on_gpu" layer: "Slope" } }'
        'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }'
    )
    path = write(f'net: "{write(text)}" base_lr: 0.05 lr_policy: "fixed" clip_gradients: 1', "solver.prototxt")
    solvers = [caffe.get_solver(path)]
    caffe.set_mode_gpu()
    solvers.append(caffe.get_solver(path))
    for solver in solvers:
        solver.step(5)
    for name in ("ip", "s"):
        ours, theirs = (solver.net.params[name][0].data for solver in solvers)
        close(ours, theirs)
    assert abs(solvers[1].net.params["s"][0].data[0] - 2) > 0.01

"""Training on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from autodial.net.net import Param
from autodial.proto import parse_solver
from autodial.training.solver import Solver
from autodial.training.update import SGD

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Whatever makes the program wait for the device is an error."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_training_follows_the_cpu(project: Path) -> None:
    # no dropout, whose masks are drawn on the device
    runs = [
        Solver.from_file("solver.prototxt", device=device, workers=2, overrides=["drop.dropout_param.dropout_ratio=0"])
        for device in ("cpu", "cuda")
    ]
    for run in runs:
        run.step(5)
    for ours, theirs in zip(*(run.net.params for run in runs), strict=True):
        torch.testing.assert_close(theirs.tensor.cpu(), ours.tensor, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(*(run.update.history for run in runs), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-3, atol=1e-4)
    cpu, cuda = (run.test() for run in runs)
    torch.testing.assert_close(cuda["loss-test"], cpu["loss-test"], rtol=1e-3, atol=1e-4)


def test_snapshot_moves_between_devices(project: Path) -> None:
    run = Solver.from_file("solver.prototxt", device="cuda")
    run.step(3)
    _, state = run.snapshot()
    resumed = Solver.from_file("solver.prototxt")
    resumed.restore(state)
    for ours, theirs in zip(resumed.net.params, run.net.params, strict=True):
        assert torch.equal(ours.tensor, theirs.tensor.cpu())


@pytest.mark.usefixtures("no_waiting")
def test_update_does_not_wait_for_the_device(project: Path) -> None:
    run = Solver.from_file("solver.prototxt", device="cuda", overrides=["solver.clip_gradients=0.1"])
    run.step(1)
    torch.cuda.set_sync_debug_mode("error")
    run.update.step(0.1, 0)


def test_update_equals_the_cpus(project: Path) -> None:
    param = parse_solver("momentum: 0.9 weight_decay: 0.01 clip_gradients: 1 iter_size: 2 regularization_type: 'L1'")
    results = []
    for device in ("cpu", "cuda"):
        run = Solver.from_file("solver.prototxt", device=device)
        params: list[Param] = run.net.params
        for i, learnable in enumerate(params):
            if learnable.tensor.requires_grad:
                generator = torch.Generator().manual_seed(i)
                learnable.tensor.grad = torch.randn(learnable.tensor.shape, generator=generator).to(device)
        SGD(param, params).step(0.1, 0)
        results.append([learnable.tensor.detach().cpu() for learnable in params])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)

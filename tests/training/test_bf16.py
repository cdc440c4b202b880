"""Training with --precision bf16: what is bfloat16, what stays float32, and that it trains."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autodial.cli import main
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net, read_weights
from autodial.training.solver import Solver

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 3 dim: 8 dim: 8 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" }
layer { name: "dial" type: "Dial" bottom: "norm" top: "dial" dial_param { slice_point: 4 } }
layer { name: "scale" type: "Scale" bottom: "dial" top: "scale" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "scale" top: "relu" }
layer { name: "fc" type: "InnerProduct" bottom: "relu" top: "fc"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "slice" type: "Slice" bottom: "fc" top: "source" top: "target" slice_param { axis: 0 slice_point: 4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "source" bottom: "label" top: "loss" }
layer { name: "entropy" type: "EntropyLoss" bottom: "target" top: "entropy" loss_weight: 0.1 }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def run(precision: torch.dtype) -> tuple[Net, dict[str, Tensor]]:
    net = Net(parse_net(NET), pb.TRAIN, seed=1)
    generator = torch.Generator().manual_seed(0)
    inputs = {"data": torch.randn(8, 3, 8, 8, generator=generator), "label": torch.tensor([0.0, 1, 2, 3])}
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        outputs = net(inputs)
    net.loss(outputs).backward()  # type: ignore[no-untyped-call]
    return net, outputs


def test_losses_statistics_and_gradients_are_float32_and_close() -> None:
    (half, outputs), (full, expected) = run(torch.bfloat16), run(torch.float32)
    for name, value in expected.items():
        assert outputs[name].dtype == torch.float32
        torch.testing.assert_close(outputs[name], value, rtol=0.03, atol=0.02)
    for ours, theirs in zip(half.params, full.params, strict=True):
        assert ours.tensor.dtype == torch.float32
        if theirs.tensor.grad is not None and theirs.layer != "conv":
            assert ours.tensor.grad is not None and ours.tensor.grad.dtype == torch.float32
            error = (ours.tensor.grad - theirs.tensor.grad).norm()
            assert error < 0.1 * theirs.tensor.grad.norm() + 1e-3, (ours.layer, ours.index)
    torch.testing.assert_close(half.layer("dial").variance, full.layer("dial").variance, rtol=0.02, atol=0.01)


def test_losses_read_float32_and_what_lies_before_is_bfloat16() -> None:
    net = Net(parse_net(NET), pb.TRAIN, seed=1)
    seen: dict[str, torch.dtype] = {}

    def see(name: str) -> None:
        def hook(layer: nn.Module, bottoms: tuple[Tensor, ...]) -> None:
            seen[name] = bottoms[0].dtype

        net.layer(name).register_forward_pre_hook(hook)

    for name in ("norm", "fc", "loss", "entropy", "prob"):
        see(name)
    with torch.autocast("cpu", torch.bfloat16):
        net({"data": torch.randn(8, 3, 8, 8), "label": torch.zeros(4)})
    full = dict.fromkeys(("loss", "entropy", "prob"), torch.float32)
    assert seen == {"norm": torch.bfloat16, "fc": torch.bfloat16, **full}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_train_command(
    project: Path, precision: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--workers", "0", "--device", "cpu", *(["--precision", "bf16"] if precision == "bf16" else [])]
    monkeypatch.setattr(sys, "argv", ["autodial", "train", "--solver", "solver.prototxt", *options])
    halves = set()
    forward = Solver.forward_backward

    def watched(self: Solver, pass_: int) -> object:
        for module in self.net.layers.values():
            module.register_forward_hook(lambda module, bottoms, top: halves.add(getattr(top, "dtype", None)))
        return forward(self, pass_)

    monkeypatch.setattr(Solver, "forward_backward", watched)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code, capsys.readouterr().err
    assert (torch.bfloat16 in halves) == (precision == "bf16")
    (start,) = json.loads(Path("snapshots/stripes_run/run.json").read_text())["starts"]
    assert start["precision"] == precision
    assert ("--precision bf16" in start["command"]) == (precision == "bf16")
    weights = read_weights("snapshots/stripes_iter_8.caffemodel")
    assert all(blob.dtype == "float32" for layer in weights.layers for blob in layer.blobs if blob is not None)


def test_another_precision_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["autodial", "train", "--solver", "solver.prototxt", "--precision", "fp8"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert "fp8" in capsys.readouterr().err


def test_going_on_in_another_precision_is_said(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    train = ["autodial", "train", "--solver", "solver.prototxt", "--workers", "0", "--device", "cpu"]
    for more in (["--precision", "bf16"], ["--snapshot", "snapshots/stripes_iter_4.solverstate"]):
        monkeypatch.setattr(sys, "argv", [*train, *more])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code
        out = capsys.readouterr().out
        assert ("on cpu in bf16 from iteration 0" in out) == (more[0] == "--precision")
        assert ("holds a run in bf16, which continues in float32" in caplog.text) == (more[0] == "--snapshot")

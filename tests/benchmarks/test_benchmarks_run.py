"""Benchmarks in their quick form, and the plain layer that they compare with against the product's."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autodial.layers import DomainAlignment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("alignment --device cpu", ["16x32", "6x8x14x14"]),
        *(
            pytest.param(name, rows, marks=pytest.mark.slow)
            for name, rows in (
                ("training_step --device cpu", ["plain", "ours", "bf16"]),
                ("resnet50_step --device cpu", ["BatchNorm", "aligned"]),
                ("folding", ["unfolded", "affine", "folded"]),
                ("ranks", ["1 process, 1 thread", "2 processes, 1 thread each"]),
                ("start_up", ["digits ready", "first step", "memory"]),
                ("serve", ["predict", "serve", "a Predictor"]),
            )
        ),
    ],
)
def test_quick_form(name: str, rows: list[str], tmp_path: Path) -> None:
    script, *options = name.split()
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--quick", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert not [row for row in rows if f" {row} " not in words], done.stdout


@pytest.mark.parametrize("shape", [(7, 4), (5, 4, 3, 2)])
def test_plain_alignment_is_the_layer(shape: tuple[int, ...]) -> None:
    plain_class = runpy.run_path(str(BENCHMARKS / "plain.py"))["PlainAlignment"]
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    results = []
    for kind in (plain_class, DomainAlignment):
        layer = kind(shape[1], slice_point=3, alpha=0.7).double()
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        y.backward(grad)
        results.append((y, inputs.grad, layer.alpha.grad, layer.mean, layer.variance, layer.normalizer))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("script", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_what_a_script_imports_is_there(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if script == "timm_inference.py":
        pytest.importorskip("timm", reason="needs timm, which only this benchmark compares with")
    monkeypatch.syspath_prepend(BENCHMARKS)
    runpy.run_path(str(BENCHMARKS / script))

"""benchmarks/gpu.py on the CPU: that its parts run, and what becomes of a part that can't."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no forkserver, and no groups of processes")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(folder: Path, *parts: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The command in its quick form, and what it wrote."""
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *parts, "--quick", "--device", "cpu"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert (folder / "gpu.json").exists(), done.stderr
    return done, json.loads((folder / "gpu.json").read_text())


def test_all_parts_run(tmp_path: Path) -> None:
    done, found = run(tmp_path)
    assert done.returncode == 0, done.stdout
    names = ["machine", "kernels", "layer", "steps", "tests", "ranks", "train", "predict"]
    assert list(found["parts"]) == names
    for name, part in found["parts"].items():
        assert part["outcome"] == "done" and part["rows"], name
        assert all("skipped" not in row for row in part["rows"]), name
        assert f"{name}: done" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.json"]


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "onnx.py").write_text('raise ModuleNotFoundError("No module named \'onnx\'", name="onnx")')
    done, found = run(tmp_path, "predict", PYTHONPATH=str(stubs))
    assert found["parts"]["predict"]["rows"] == [{"what": "predict", "skipped": "needs onnx"}]
    assert found["parts"]["machine"]["rows"] and done.returncode == 0


def test_a_part_ends_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu

    try:
        options = gpu.Options("cpu", True, [])
        part = gpu.start_part("train", 0.0, options, multiprocessing.get_context("forkserver"))
        assert part["outcome"] == "out of time after 1 s"
        assert not gpu.is_good(part) and part["seconds"] < 1 + gpu.GRACE
    finally:
        sys.modules.pop("gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_ends_at_once(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "layer"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "nothing can be measured on cuda here" in done.stderr
    assert list(json.loads((tmp_path / "gpu.json").read_text())["parts"]) == ["machine"]


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "stepps", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and 'there is no part "stepps"' in done.stderr

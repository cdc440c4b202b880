"""The command line's front door: what it loads, and what it makes of errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

HELP = """
import sys
sys.argv = ["autodial", "--help"]
try:
    import autodial.cli
    autodial.cli.main()
except SystemExit:
    pass
"""
HEAVY = ("torch", "onnx", "onnxruntime", "cv2", "matplotlib", "h5py", "tensorboard")


def run(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=120)


def autodial(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run(f"import sys; sys.argv = {['autodial', *arguments]!r}; from autodial.cli import main; main()", cwd)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (HELP, HEAVY),
        ("import autodial", HEAVY),
        ("import autodial.proto", HEAVY),
        ("import autodial.data.image_data", ("torch", "onnx", "onnxruntime", "matplotlib")),
        ("import autodial.deploy; autodial.deploy.Predictor", ("torch", "onnx", "matplotlib")),
    ],
)
def test_what_an_import_loads(statement: str, absent: tuple[str, ...]) -> None:
    result = run(f"{statement}\nimport sys\nprint('LOADED', [name for name in {absent!r} if name in sys.modules])")
    assert "LOADED []" in result.stdout, result.stdout + result.stderr


def test_bad_input_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    result = autodial("train", "--solver", "nowhere.prototxt", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("autodial: error: nowhere.prototxt") and result.stderr.count("\n") == 1


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path) -> None:
    for arguments in (["--debug", "test"], ["test", "--debug"]):
        result = autodial(*arguments, "--net", "nowhere.prototxt", "--weights", "x.caffemodel", cwd=tmp_path)
        assert result.returncode == 2 and "Traceback" in result.stderr


def test_opencv_is_quiet_about_images_that_a_command_reports(tmp_path: Path) -> None:
    data = cv2.imencode(".png", np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))[1].tobytes()
    for place in ("source/a/1.png", "source/b/1.png", "target/1.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(data if place.startswith("source") else data[:2000])
    result = autodial("init", "p", "--arch", "alexnet", "--source", "source", "--target", "target", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "damaged or cut short" in result.stderr


def test_usage_is_status_2() -> None:
    assert autodial("train").returncode == 2
    assert autodial("nonsense").returncode == 2


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['autodial', 'train', '--solver', __file__]"
    result = run(f"__file__ = 'x'\n{code}\nfrom autodial.cli import main; main()")
    assert result.returncode == 1
    assert result.stderr.startswith('autodial: error: this needs torch, which is not installed: pip install ".[train]"')


@pytest.mark.parametrize("module", ["autodial.caffe", "autodial.layers"])
def test_import_without_torch_says_what_to_install(module: str) -> None:
    hidden = "import sys; sys.modules['torch'] = None"
    result = run(f"{hidden}\nimport {module}")
    last = result.stderr.splitlines()[-1]
    assert last == (
        "ModuleNotFoundError: training, autodial.caffe and autodial.layers need PyTorch, which is not installed: "
        "pip install '.[train]' in AutoDIAL's checkout brings it"
    )

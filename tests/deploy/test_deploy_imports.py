from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autodial.deploy


def loaded_after(program: str) -> set[str]:
    command = [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in output.split()}


def test_importing_the_package_and_the_command_is_light() -> None:
    program = "import autodial.deploy, autodial.commands.predict"
    assert not loaded_after(program) & {"torch", "onnx", "onnxruntime", "cv2", "matplotlib", "numpy", "google"}


def test_predicting_loads_neither_torch_nor_onnx(model: Any, photos: Any, tmp_path: Any) -> None:
    program = f"""
from autodial.deploy import PredictOptions, predict_folder
options = PredictOptions(sort_into={str(tmp_path / "s")!r})
predict_folder({str(model.path)!r}, [{str(photos)!r}], {str(tmp_path / "out.csv")!r}, options)
"""
    loaded = loaded_after(program)
    assert {"onnxruntime", "cv2", "numpy"} <= loaded
    assert not loaded & {"torch", "onnx", "onnxscript", "matplotlib", "sklearn", "pyarrow", "google"}


@pytest.mark.skipif(sys.platform == "win32", reason="ONNX Runtime keeps its number elsewhere there")
def test_onnx_runtime_collects_no_usage_data(model: Any, photos: Any, tmp_path: Any) -> None:
    """Where it does, it makes a database and a number for the machine in the user's folder."""
    program = (
        f"from autodial.deploy import Predictor; Predictor({str(model.path)!r}).predict([{str(photos / 'a.png')!r}])"
    )
    for disabled in ("1", None):
        home = tmp_path / f"home-{disabled}"
        home.mkdir()
        environment = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
        environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        code = program if disabled else "import onnxruntime"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
        made = [path for path in home.rglob("*") if path.is_file()]
        if disabled:
            assert not made
        elif not made:
            pytest.skip("this ONNX Runtime collects nothing by itself")


@pytest.mark.parametrize("module", [path.stem for path in Path(autodial.deploy.__file__).parent.glob("[!_]*.py")])
def test_no_module_brings_torch(module: str) -> None:
    assert not loaded_after(f"import autodial.deploy.{module}") & {"torch", "onnx", "matplotlib", "pyarrow"}


def test_the_package_names_what_it_offers() -> None:
    for name in autodial.deploy.__all__:
        assert getattr(autodial.deploy, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        autodial.deploy.nothing  # noqa: B018

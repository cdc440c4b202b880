from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import typer
from typer.testing import CliRunner

from autodial.commands import doctor as doctor_command
from autodial.deploy import doctor, providers
from autodial.deploy.doctor import Check, Status, examine

app = typer.Typer()
app.command()(doctor_command.doctor)


def found(name: str) -> Check:
    (check,) = (check for check in examine() if check.name == name)
    return check


def install(folder: Path, **versions: str) -> None:
    """Let packages be installed in `folder`, as far as their metadata go."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")


def test_a_machine_that_works() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert f"{onnxruntime.__version__} (" in result.output and "CPUExecutionProvider" in result.output
    report = json.loads(CliRunner().invoke(app, ["--json"]).stdout)
    assert report["ok"] is True
    names = [check["name"] for check in report["checks"]]
    assert {"AutoDIAL", "CPUs", "OpenCV", "ONNX Runtime", "GPU", "pyarrow", "torch"} <= set(names)
    assert all(set(check) == {"name", "status", "found", "remedy"} for check in report["checks"])


def test_examining_loads_neither_torch_nor_onnx() -> None:
    program = "from autodial.deploy.doctor import examine; examine(); import sys; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "onnxruntime" in said.split() and not {"torch", "onnx"} & set(said.split())


def test_another_project_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, autodial="0.7.2")
    monkeypatch.syspath_prepend(tmp_path)
    check = found("the name autodial")
    assert check.status is Status.PROBLEM and "autodial 0.7.2, another project's" in check.found
    assert check.remedy == "pip uninstall -y autodial autodial-layers, then install AutoDIAL again"
    assert CliRunner().invoke(app, []).exit_code == 1


def test_both_wheels_of_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, onnxruntime="1.20.0", onnxruntime_gpu="1.21.0", onnxruntime_extensions="0.14")
    monkeypatch.syspath_prepend(tmp_path)
    check = found("ONNX Runtime wheels")
    assert check.status is Status.PROBLEM
    assert "onnxruntime 1.20.0" in check.found and "extensions" not in check.found
    assert check.remedy in (
        "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu",
        "pip uninstall -y onnxruntime-gpu onnxruntime && pip install onnxruntime-gpu",
    )
    assert CliRunner().invoke(app, []).exit_code == 1


def test_two_wheels_of_opencv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, opencv_contrib_python="4.12.0", opencv_python="4.12.0")
    monkeypatch.syspath_prepend(tmp_path)
    check = found("OpenCV")
    assert check.status is Status.WARNING and "opencv-contrib-python 4.12.0" in check.found


@pytest.mark.parametrize(("package", "name"), [("onnxruntime", "ONNX Runtime"), ("cv2", "OpenCV")])
def test_what_cannot_be_imported(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    check = found(name)
    assert check.status is Status.PROBLEM and check.remedy
    result = CliRunner().invoke(app, ["--json"])
    assert result.exit_code == 1 and json.loads(result.stdout)["ok"] is False


def test_a_gpu_without_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cuda_device_count", lambda: 2)
    if providers.CUDA not in onnxruntime.get_available_providers():
        pytest.skip("needs onnxruntime-gpu")
    if providers.cuda_device_count() > 0:
        pytest.skip("this machine has a GPU")
    load = ctypes.CDLL

    def without_cudnn(name: Any, *arguments: Any, **options: Any) -> Any:
        if "cudnn" in str(name):
            raise OSError(f"{name}: cannot open shared object file")
        return load(name, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", without_cudnn)
    assert found("GPU").found == "2 shown by the driver"
    check = found("CUDA")
    assert (
        check.status is Status.PROBLEM
        and "cudnn" in check.found
        and check.found.endswith("missing")
        and ".[cuda]" in str(check.remedy)
    )


def test_a_gpu_and_the_wheel_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [providers.CPU])
    check = found("CUDA")
    assert check.status is Status.WARNING and "built without CUDA" in check.found
    assert check.remedy == "to run them on the GPU: pip uninstall -y onnxruntime && pip install onnxruntime-gpu"


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert 'absent   torch         training and export need it (pip install ".[train]")' in result.output
    assert 'absent   pyarrow       tables in Parquet need it (pip install ".[parquet]")' in result.output


def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert CliRunner().invoke(app, []).exit_code == 1


def test_a_torch_that_does_not_see_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(providers, "cuda_device_count", lambda: 1)
    lines = CliRunner().invoke(app, []).output.splitlines()
    (line,) = [line for line in lines if line.split()[1] == "torch"]
    assert line.startswith("warning") and "doesn't use the GPU" in line

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from autodial.deploy import Predictor, providers
from autodial.errors import InputError, WorkError

NEEDS_NO_GPU = pytest.mark.skipif(providers.cuda_device_count() > 0, reason="this machine has a GPU")


def test_cpu(model: Any) -> None:
    predictor = Predictor(model.path, "cpu")
    assert predictor.provider == "CPUExecutionProvider"
    assert (predictor.reason, predictor.cuda_failure) == ("asked for", None)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "auto:1", "CPU", ""])
def test_refuses_other_devices(model: Any, device: str) -> None:
    with pytest.raises(InputError, match="auto, cpu, cuda"):
        Predictor(model.path, device)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder, and not a model: name the \.onnx file"):
        Predictor(tmp_path)
    weights = tmp_path / "net.caffemodel"
    weights.write_bytes(b"\x0a\x03net")
    with pytest.raises(InputError, match=r"net\.caffemodel is one of Caffe's files: make an \.onnx file of it"):
        Predictor(weights)


@NEEDS_NO_GPU
def test_auto_without_a_gpu_takes_the_cpu_in_silence(model: Any, capfd: pytest.CaptureFixture[str]) -> None:
    predictor = Predictor(model.path)
    assert (predictor.provider, predictor.cuda_failure) == ("CPUExecutionProvider", None)
    assert predictor.reason == "auto: this machine shows no NVIDIA GPU with a working driver"
    assert capfd.readouterr() == ("", "")


@NEEDS_NO_GPU
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_fails_without_a_gpu(model: Any, device: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkError, match=f"device {device} can't be used: this machine shows no NVIDIA GPU"):
        Predictor(model.path, device)
    assert capfd.readouterr() == ("", "")


@NEEDS_NO_GPU
def test_a_gpu_that_fails(model: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The driver shows a GPU and ONNX Runtime can't use it: it goes on with the CPU and only logs that."""
    monkeypatch.setattr(providers, "cuda_device_count", lambda: 1)
    if providers.CUDA not in onnxruntime.get_available_providers():
        pytest.skip("needs onnxruntime-gpu")
    predictor = Predictor(model.path, "auto")
    assert predictor.provider == "CPUExecutionProvider"
    assert predictor.cuda_failure is not None and r".[cuda]" in predictor.cuda_failure
    with pytest.raises(WorkError, match=r"device cuda can't be used: .*\.\[cuda\]"):
        Predictor(model.path, "cuda")
    with pytest.raises(WorkError, match="this machine has 1 CUDA device, and numbers start at 0"):
        Predictor(model.path, "cuda:1")
    assert capfd.readouterr() == ("", "")


@NEEDS_NO_GPU
def test_an_onnxruntime_without_cuda(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "built without CUDA" in str(Predictor(model.path).cuda_failure)


@NEEDS_NO_GPU
def test_cuda_that_fails_in_its_first_run(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN is loaded by the first kernel that needs it: a session that opens on CUDA may still be unable to run."""
    monkeypatch.setattr(providers, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [providers.CUDA, providers.CPU])
    opened = onnxruntime.InferenceSession

    class WithCuda(opened):  # type: ignore[misc, valid-type]
        def __init__(self, path: str, options: Any, **more: Any) -> None:
            self._on_cuda = len(more.pop("providers")) > 1
            super().__init__(path, options, providers=[providers.CPU], **more)

        def get_providers(self) -> list[str]:
            return [providers.CUDA, providers.CPU] if self._on_cuda else [providers.CPU]

        def run(self, *arguments: Any) -> Any:
            if self._on_cuda:
                raise RuntimeError("libcudnn.so.9 not found\nat some place")
            return super().run(*arguments)

    monkeypatch.setattr(onnxruntime, "InferenceSession", WithCuda)
    predictor = Predictor(model.path)
    assert predictor.provider == "CPUExecutionProvider"
    assert str(predictor.cuda_failure).startswith("libcudnn.so.9 not found at some place (")


@pytest.mark.gpu
@pytest.mark.skipif(providers.cuda_device_count() == 0, reason="needs a GPU")
def test_cuda_gives_the_cpus_numbers(model: Any) -> None:
    import numpy as np

    images = list(np.random.default_rng(0).integers(0, 256, (40, 6, 9, 3), dtype=np.uint8))
    predictor = Predictor(model.path, "cuda")
    assert predictor.provider == "CUDAExecutionProvider"
    np.testing.assert_allclose(predictor.predict(images)[0], model.logits(*images), rtol=1e-5, atol=1e-5)

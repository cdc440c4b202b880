"""Which of ONNX Runtime's execution providers runs a model: CUDA where it is there, the CPU otherwise."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autodial.deploy.metadata import ModelInfo
from autodial.deploy.weights_file import belong_together, weights_file
from autodial.errors import InputError, WorkError
from autodial.model_file import INPUT
from autodial.wording import shortened

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

_DEVICE = re.compile(r"(auto|cpu|cuda)(?:(?<=cuda):([0-9]+))?")

# ONNX Runtime's severities: 2 warnings (its default), 3 errors, 4 fatal errors only.
_WARNING, _ERROR, _FATAL = 2, 3, 4


@dataclass(frozen=True)
class OpenedModel:
    """An onnxruntime.InferenceSession, what it says about itself, and how it came to run where it runs."""

    session: Any
    info: ModelInfo
    provider: str
    """`CPU` or `CUDA`."""
    reason: str
    """Why it runs there: what was asked for, or what "auto" found."""
    cuda_failure: str | None
    """Why a GPU that this machine has is not in use, where device "auto" had to go on without it."""
    device: tuple[str, int]
    """ONNX Runtime's name of the device, and its number."""


class _CudaError(Exception):
    """CUDA can't be used, and why, as the end of a sentence."""


def open_model(path: Path, device: str, threads: int) -> OpenedModel:
    """Load the ONNX file at `path` on `device`: "auto", "cpu", "cuda" or "cuda:N" (N counts from 0).

    On the CPU `threads` of them compute.

    "auto" takes the first GPU if the machine has one and the model runs on it, and the CPU otherwise. Products are
    computed without TF32 on the GPU.

    Raises:
        InputError: the device has another form, or the file is missing, cut short, not a model that ONNX Runtime can
            load, or not one that `autodial export` made for images.
        WorkError: "cuda" was asked for and can't be used.
    """
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise InputError(f"device {device!r} is not one of auto, cpu, cuda, cuda:N")
    kind, index = match.group(1), int(match.group(2) or 0)
    if path.is_dir():
        raise InputError(f"{path} is a folder, and not a model: name the .onnx file that `autodial export` wrote")
    if not path.is_file():
        raise InputError(f"{path}: no such file; name the .onnx file that `autodial export` wrote")
    if path.suffix in (".caffemodel", ".prototxt"):
        raise InputError(f"{path} is one of Caffe's files: make an .onnx file of it with `autodial export`")

    cuda_failure = None
    why = "asked for" if kind != "auto" else "auto: this machine shows no NVIDIA GPU with a working driver"
    if kind == "cuda" or (kind == "auto" and cuda_device_count() > 0):
        try:
            session, info = _open_on_cuda(path, index, threads)
            why = "auto: the first GPU" if kind == "auto" else why
            return OpenedModel(session, info, CUDA, why, None, ("cuda", index))
        except _CudaError as error:
            if kind == "cuda":
                raise WorkError(f"device {device} can't be used: {error}") from error
            cuda_failure, why = str(error), "auto: the GPU can't be used"
    return OpenedModel(*_open(path, [CPU], threads), CPU, why, cuda_failure, ("cpu", 0))


def cuda_device_count() -> int:
    """Number of GPUs that the CUDA driver shows this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _open_on_cuda(path: Path, index: int, threads: int) -> tuple[Any, ModelInfo]:
    import onnxruntime as ort  # type: ignore[import-untyped]

    count = cuda_device_count()
    if count == 0:
        raise _CudaError("this machine shows no NVIDIA GPU with a working driver")
    if index >= count:
        raise _CudaError(f"this machine has {count} CUDA device{'s' if count > 1 else ''}, and numbers start at 0")
    if CUDA not in ort.get_available_providers():
        raise _CudaError("the installed ONNX Runtime was built without CUDA (onnxruntime-gpu is the one that has it)")

    options = {
        "device_id": str(index),
        "use_tf32": "0",
        # The default times every algorithm for each batch size it meets, and may choose others in the next run.
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    with quiet(), contextlib.redirect_stdout(io.StringIO()) as printed:
        ort.preload_dlls()  # reports what it can't load by printing
        try:
            session, info = _open(path, [(CUDA, options), CPU], threads)
            if CUDA in session.get_providers():
                # Some libraries, cuDNN for one, are only looked for when a kernel needs them: run something.
                session.run(None, {INPUT: np.zeros((1, *info.image_shape), np.uint8)})
                return session, info
            why = printed.getvalue().partition("\n")[0] or "ONNX Runtime could not start its CUDA provider"
        except InputError:
            raise
        except Exception as error:
            why = reason(error)
    raise _CudaError(
        f"{why} (`pip install '.[cuda]'` in AutoDIAL's checkout brings the CUDA and cuDNN libraries, if one is missing)"
    )


def _open(path: Path, providers: list[Any], threads: int) -> tuple[Any, ModelInfo]:
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as errors  # type: ignore[import-untyped]

    options = ort.SessionOptions()
    options.log_severity_level = _ERROR
    # ONNX Runtime would count the host's CPUs, whatever a container's quota says.
    options.intra_op_num_threads = threads
    # Threads that wait for the next batch would otherwise spin on the CPUs that are decoding it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # Without enable_fallback=0 a provider that fails is replaced with the CPU behind a printed banner.
        session = ort.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
        _check_weights(path)
        return session, ModelInfo.of_session(session, path)
    except UnicodeDecodeError as error:  # of names, metadata, and ONNX Runtime's words about them
        raise InputError(
            f"{path} is damaged: its names or metadata are not in UTF-8; export or copy it again"
        ) from error
    except errors.InvalidProtobuf as error:
        raise InputError(f"{path} is not an ONNX file, or it is cut short: export or copy it again") from error
    except (
        errors.InvalidGraph,
        errors.InvalidArgument,
        errors.NotImplemented,
        errors.Fail,
        errors.RuntimeException,
    ) as error:
        _check_weights(path, error)
        if providers != [CPU]:
            raise
        raise InputError(f"{path}: ONNX Runtime {ort.__version__} can't load it: {reason(error)}") from error


def _check_weights(path: Path, error: Exception | None = None) -> None:
    """Raise InputError if the second file, which has a model's weights, is missing or is not the model's own.

    Args:
        path: the model.
        error: why ONNX Runtime could not load it; None once it has, so that what is checked is what was loaded.
    """
    second = weights_file(path)
    if second is None:
        return
    if not second.is_file():
        remedy = "copy or link" if path.is_symlink() else "copy"
        raise InputError(
            f"{path}: its weights lie in a second file, which is not at {second}: {remedy} it there"
        ) from error
    external = error is not None and "external" in str(error).lower()  # ONNX Runtime's word for such files
    if external and not (real := second.resolve()).is_relative_to(folder := path.resolve().parent):
        raise InputError(
            f"{second} is a link to {real}, and ONNX Runtime reads a model's weights from the model's own folder only, "
            f"{folder}: copy them there"
        ) from error
    if external or not belong_together(path, second):
        raise InputError(
            f"{second} is cut short, or is not the file with the weights of {path.name}: export or copy both again"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep ONNX Runtime's own report of a CUDA that fails off the terminal: the caller puts it into words."""
    import onnxruntime as ort

    ort.set_default_logger_severity(_FATAL)
    try:
        yield
    finally:
        ort.set_default_logger_severity(_WARNING)


def reason(error: Exception) -> str:
    """What an exception of ONNX Runtime says, on one line of bounded length, without its code and last full stop."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    return shortened(" ".join(text.split()).rstrip("."), 500)

"""What this machine can do for `autodial predict`, and what keeps it from doing more."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import importlib
import io
import os
import platform
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import Any

from autodial import DISTRIBUTION, __version__
from autodial.deploy.providers import CPU, CUDA, cuda_device_count, quiet, reason
from autodial.system.cpus import available_cpus, cgroup_quota

# One convolution of 1 x 1, times 2: cuDNN is looked for when a convolution first runs. Written with onnx.helper.
_MODEL = base64.b64decode(
    "CAoSADpjCg8KAXgKAXcSAXkiBENvbnYSAWcqEwgBCAEIAQgBEAFCAXdKBAAAAEBaGwoBeBIWChQIARIQCgIIAQoCCAEKAggCCgIIAmIbCgF5EhYKFAgB"
    "EhAKAggBCgIIAQoCCAIKAggCQgQKABAS"
)
_INSTALL_CUDA = 'pip install ".[cuda]" in AutoDIAL\'s checkout brings the CUDA and cuDNN libraries'


class Status(StrEnum):
    """How a check came out."""

    OK = "ok"
    ABSENT = "absent"
    """It isn't installed, and only a part of AutoDIAL needs it."""
    WARNING = "warning"
    """It works, and not as well as it could."""
    PROBLEM = "problem"
    """Something doesn't work."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    remedy: str | None = None
    """What to do about it, where there is something to do."""


def examine() -> list[Check]:
    """Look at all that labelling images needs."""
    checks = [*_autodial(), _cpus(), _opencv()]
    runtime = _onnxruntime()
    checks += runtime
    if runtime[-1].status is not Status.PROBLEM:
        checks += _gpu()
    checks.append(_optional("pyarrow", "tables in Parquet", "parquet"))
    checks.append(_optional("uvicorn", "services over HTTP", "serve"))
    checks.append(_optional("ray", "clusters", "ray"))
    found = version("fsspec")
    if found is None:
        checks.append(Check("fsspec", Status.ABSENT, "addresses such as s3:// need it (pip install fsspec s3fs)"))
    else:
        checks.append(Check("fsspec", Status.OK, f"{found}, for addresses"))
    return checks


def _optional(package: str, purpose: str, extra: str) -> Check:
    found = version(package)
    if found is None:
        return Check(package, Status.ABSENT, f'{purpose} need it (pip install ".[{extra}]")')
    return Check(package, Status.OK, f"{found}, for {purpose}")


def version(package: str) -> str | None:
    """The version of an installed package, which is not imported; None if it isn't there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _autodial() -> list[Check]:
    found = f"{DISTRIBUTION} {__version__}, Python {platform.python_version()}, {platform.platform()}"
    checks = [Check("AutoDIAL", Status.OK, found)]
    other = version("autodial")
    if other is not None:
        checks.append(
            Check(
                "the name autodial",
                Status.PROBLEM,
                f"the package autodial {other}, another project's, is installed too: it has a command and modules of "
                "the same names, and whichever came last is used",
                f"pip uninstall -y autodial {DISTRIBUTION}, then install AutoDIAL again",
            )
        )
    return checks


def _cpus() -> Check:
    quota = cgroup_quota()
    limit = "" if quota is None else f", a control group's quota of {quota:g}"
    return Check("CPUs", Status.OK, f"{available_cpus()} for this process, of {os.cpu_count()}{limit}")


def _opencv() -> Check:
    wheels = _installed("opencv-python", "opencv-python-headless", "opencv-contrib-python")
    wheels |= _installed("opencv-contrib-python-headless")
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError as error:
        return Check("OpenCV", Status.PROBLEM, f"can't be imported: {error}", "pip install opencv-python-headless")
    if len(wheels) > 1:
        return Check("OpenCV", Status.WARNING, f"{_list(wheels)} are installed in the same place", _keep_one(wheels))
    return Check("OpenCV", Status.OK, f"{cv2.__version__} ({', '.join(wheels) or 'not from a wheel'})")


def _onnxruntime() -> list[Check]:
    wheels = {
        name: number
        for name, number in _all_installed().items()
        if name == "onnxruntime" or (name.startswith("onnxruntime-") and name != "onnxruntime-extensions")
    }
    checks = []
    if len(wheels) > 1:
        found = f"{_list(wheels)} are installed in the same place, and whichever came last is used"
        checks.append(Check("ONNX Runtime wheels", Status.PROBLEM, found, _keep_one(wheels, "onnxruntime-gpu")))
    try:
        ort: Any = importlib.import_module("onnxruntime")
        providers = [name for name in ort.get_available_providers() if name in (CUDA, CPU)]
        found = f"{ort.__version__} ({', '.join(wheels) or 'not from a wheel'}), with {', '.join(providers)}"
        _run(CPU)
    except Exception as error:  # a library that is missing raises ImportError, and AttributeError a broken install
        remedy = f"pip uninstall -y {' '.join(wheels) or 'onnxruntime'}, then install AutoDIAL again"
        return [*checks, Check("ONNX Runtime", Status.PROBLEM, f"doesn't work: {reason(error)}", remedy)]
    return [*checks, Check("ONNX Runtime", Status.OK, found)]


def _gpu() -> list[Check]:
    import onnxruntime as ort  # type: ignore[import-untyped]

    count = cuda_device_count()
    if count == 0:
        return [Check("GPU", Status.OK, "no NVIDIA GPU with a working driver: the CPU runs the models")]
    seen = Check("GPU", Status.OK, f"{count} shown by the driver")
    if CUDA not in ort.get_available_providers():
        found = "the installed ONNX Runtime was built without CUDA: models run on the CPU"
        remedy = "to run them on the GPU: pip uninstall -y onnxruntime && pip install onnxruntime-gpu"
        return [seen, Check("CUDA", Status.WARNING, found, remedy)]
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls()
        loaded = {name: _loads(name) for name in _cuda_libraries()}
        libraries = ", ".join(f"{name} {'found' if there else 'missing'}" for name, there in loaded.items())
        try:
            _run(CUDA)
        except Exception as error:
            return [seen, Check("CUDA", Status.PROBLEM, f"{reason(error)}; {libraries}", _INSTALL_CUDA)]
    return [seen, Check("CUDA", Status.OK, f"a convolution runs on the GPU; {libraries}")]


def _run(provider: str) -> None:
    """Run the small model on `provider`; any exception if that fails."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(_MODEL, options, providers=[provider], enable_fallback=0)
    if provider not in session.get_providers():
        raise RuntimeError(f"ONNX Runtime could not start {provider}")
    (result,) = session.run(None, {"x": np.ones((1, 1, 2, 2), np.float32)})
    if not np.array_equal(result, np.full((1, 1, 2, 2), 2, np.float32)):
        raise RuntimeError(f"{provider} computes wrong results")


def _cuda_libraries() -> list[str]:
    """Names of the libraries that ONNX Runtime's CUDA provider needs, as the loader looks for them."""
    import onnxruntime as ort

    major = str(getattr(ort, "cuda_version", "")).partition(".")[0]
    if sys.platform == "win32":
        names = [f"cudart64_{major}", f"cublas64_{major}", f"cublasLt64_{major}", "curand64_10", "cudnn64_9"]
        return [f"{name}.dll" for name in names]
    names = [f"libcudart.so.{major}", f"libcublas.so.{major}", f"libcublasLt.so.{major}"]
    return [*names, "libcurand.so.10", "libcudnn.so.9"]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _all_installed() -> dict[str, str]:
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a broken one has none
            found[name.lower().replace("_", "-")] = distribution.version
    return found


def _installed(*names: str) -> dict[str, str]:
    return {name: number for name in names if (number := version(name)) is not None}


def _list(wheels: dict[str, str]) -> str:
    return " and ".join(f"{name} {number}" for name, number in wheels.items())


def _keep_one(wheels: dict[str, str], best: str | None = None) -> str:
    kept = best if best in wheels else next(iter(wheels))
    return f"pip uninstall -y {' '.join(wheels)} && pip install {kept}"

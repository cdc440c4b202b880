from __future__ import annotations

import subprocess
import sys

import pytest

import autodial.converters


def test_importing_the_package_is_light() -> None:
    program = "import autodial.converters, sys; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[0] for name in output.split()}
    assert not loaded & {"torch", "onnx", "onnxruntime", "cv2", "numpy", "google"}


def test_the_package_names_what_it_offers() -> None:
    for name in autodial.converters.__all__:
        assert getattr(autodial.converters, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        autodial.converters.nothing  # noqa: B018

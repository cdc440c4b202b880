"""Fixtures of the pycaffe tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import autodial.caffe as caffe

SMALL = """
name: "small" force_backward: true
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 4 dim: 2 dim: 5 dim: 6 } shape { dim: 4 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 3 kernel_size: 2 weight_filler { type: "gaussian" std: 1 }
    bias_filler { value: 0.5 } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "scores"
  inner_product_param { num_output: 7 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""
"""A net that makes up its own data."""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """`write(text, name="net.prototxt")` writes a file and returns its path, as text."""

    def write(text: str, name: str = "net.prototxt") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.fixture
def small(write: Callable[..., str]) -> str:
    """Path of the prototxt with SMALL."""
    return write(SMALL, "small.prototxt")


@pytest.fixture(autouse=True)
def default_mode() -> Iterator[None]:
    """What a test sets for the process ends with it; the solvers' lines are not printed."""
    caffe.init_log(1)
    caffe.set_random_seed(0)
    yield
    caffe.set_mode_cpu()
    caffe.set_device(0)
    caffe.init_log(0)

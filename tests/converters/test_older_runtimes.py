"""Every kind of file that exports write, read by an ONNX Runtime from before the exporter's own IR version."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
import torch
from environments import environment
from image_nets import with_inputs
from torch import nn

from autodial.converters import TritonModel, convert_batchnorm, export_module
from autodial.converters.net_export import export
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb

pytestmark = pytest.mark.network

NET = """
layer { name: "images" type: "ImageData" top: "data" top: "labels"
  transform_param { scale: 0.0078125 mean_value: 128 crop_size: 18 }
  image_data_param { source: "list.txt" new_height: 20 new_width: 20 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "dial" type: "Dial" bottom: "conv" top: "conv" dial_param { slice_point: 2 } }
layer { name: "sc" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "up" type: "Deconvolution" bottom: "pool" top: "up"
  convolution_param { num_output: 4 kernel_size: 2 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "mean" type: "Pooling" bottom: "up" top: "mean" pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc" type: "InnerProduct" bottom: "mean" top: "fc"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "labels" top: "accuracy" }
"""

READ = """
import sys
import numpy as np, onnxruntime
assert onnxruntime.__version__ == sys.argv[1]
session = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
fed = np.load(sys.argv[3])
np.save(sys.argv[4], session.run(["logits"], {session.get_inputs()[0].name: fed})[0])
"""
VERSION = "1.17.3"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.version_info >= (3, 13):
        pytest.skip(f"ONNX Runtime {VERSION} has no wheel for this Python")
    folder = tmp_path_factory.mktemp("environments") / "older"
    return environment(folder, f"onnxruntime=={VERSION} numpy<2")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for i in range(40):
        cv2.imwrite(str(folder / f"{i}.png"), rng.integers(0, 256, (20, 20, 3), dtype=np.uint8))
    (folder / "list.txt").write_text("".join(f"{i}.png 0\n" for i in range(40)))
    return folder


def weights() -> Weights:
    """Statistics as training leaves them, and what the fillers give."""
    net = Net(with_inputs(parse_net(NET), 20, 20), pb.TEST)
    rng = np.random.default_rng(0)
    layers = []
    for saved in net.weights().layers:
        blobs = list(saved.blobs)
        if saved.type == "Dial":
            blobs[1:] = [rng.normal(0, 0.1, (2, 6)), rng.uniform(0.01, 0.1, (2, 6)), np.ones(1)]
        layers.append(LayerWeights(saved.param, [np.asarray(blob, np.float32) for blob in blobs]))
    return Weights("net", layers)


def of_caffe(images: Path, output: Any, **options: Any) -> None:
    export(parse_net(NET), weights(), output, base_dir=images, **options)


def of_torch(images: Path, output: Any, **options: Any) -> None:
    torch.manual_seed(0)
    module = convert_batchnorm(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(6, 5),
        )
    )  # fmt: skip
    export_module(module, output, size=(20, 20), **options)


@pytest.mark.parametrize("make", [of_caffe, of_torch])
@pytest.mark.parametrize("kind", ["float32", "keep-affine", "raw-input", "fp16", "int8", "triton"])
def test_what_is_written_is_read(
    make: Callable[..., None], kind: str, older: Path, images: Path, tmp_path: Path
) -> None:
    if make is of_torch and kind in ("keep-affine", "raw-input"):
        pytest.skip("export_module has no such option")
    options: dict[str, Any] = {"keep-affine": {"keep_affine": True}, "raw-input": {"raw_input": True}}.get(kind, {})
    if kind in ("fp16", "int8"):
        options = {"precision": kind, "calibration": images, "min_agreement": 0}
    path = tmp_path / "model.onnx"
    make(images, TritonModel(tmp_path, "net") if kind == "triton" else path, **options)
    if kind == "triton":
        path = tmp_path / "net" / "1" / "model.onnx"
    pixels = np.stack([cv2.imread(str(images / f"{i}.png")) for i in range(5)])
    fed = pixels[:, 1:19, 1:19].transpose(0, 3, 1, 2).astype(np.float32) / 128 - 1 if kind == "raw-input" else pixels
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(["logits"], {session.get_inputs()[0].name: fed})
    np.save(tmp_path / "fed.npy", fed)
    command = [older, "-c", READ, VERSION, path, tmp_path / "fed.npy", tmp_path / "logits.npy"]
    subprocess.run(list(map(str, command)), check=True, timeout=300)
    # of 8 bits, another rounding moves a value by one of their steps
    tolerance = {"fp16": 2e-3, "int8": 0.05}.get(kind, 1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), expected, rtol=0, atol=tolerance * np.ptp(expected))

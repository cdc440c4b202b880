"""Public deploy nets with random weights, against the net itself and OpenCV's importers of Caffe and of ONNX."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from environments import environment
from originals import shared_files
from random_weights import random_weights

from autodial.converters.net_convert import ConvertReport, convert
from autodial.proto import read_net, write_text, write_weights

ZOO = "reference/zoo/*/**/*.prototxt"
OPENCV = """
import sys
import cv2, numpy as np
net = cv2.dnn.readNetFromCaffe(sys.argv[1], sys.argv[2])
net.setInput(np.load(sys.argv[3]), "data")
names = sys.argv[5:]
np.savez(sys.argv[4], *net.forward(names))
"""
NOT_READ = ("SE-ResNet-50", "test", "deploy_rfcn_voc_resnet101-v2-merge", "deploy_psp_resnet101-v2-merge")
"""What OpenCV's importer lacks: Axpy, Python layers, and the memory that a net for 713 x 713 pixels takes there."""


def ready(path: Path) -> Any:
    """The net; detections are many, so that they can be compared."""
    net = read_net(path)
    for layer in net.layer:
        if layer.type == "DetectionOutput":
            layer.detection_output_param.confidence_threshold = 0.08
    return net


SMALLER = {"mbox_loc": 0.3, "score_map": 1e-6}
"""Factors for the weights of layers by a part of their names: of boxes, which would grow beyond bounds, and of PSPNet's
scores, which are millions without BatchNorm, so that a softmax would make 0 or 1 of their last digits."""


def converted(net: Any, folder: Path) -> tuple[ConvertReport, Any]:
    """The report, and the weights."""
    weights = random_weights(net)
    for layer in weights.layers:
        factor = next((factor for part, factor in SMALLER.items() if part in layer.param.name), None)
        if factor is not None:
            layer.blobs = [None if blob is None else blob * np.float32(factor) for blob in layer.blobs]
    return convert(net, weights, folder / "net.onnx"), weights


@pytest.mark.slow
@pytest.mark.parametrize("path", shared_files(ZOO))
def test_it_converts_and_agrees(path: Path, tmp_path: Path) -> None:
    report, _ = converted(ready(path), tmp_path)
    assert report.verified, report.notes


@pytest.mark.network
@pytest.mark.parametrize("path", shared_files(ZOO, keep=lambda path: path.stem not in NOT_READ))
def test_opencvs_importers_agree(path: Path, tmp_path: Path, opencv4: Path) -> None:
    net = ready(path)
    report, weights = converted(net, tmp_path)
    write_text(net, tmp_path / "net.prototxt")
    write_weights(weights, tmp_path / "net.caffemodel")
    (shape,) = report.inputs.values()
    x = np.random.default_rng(3).integers(0, 256, [1, *(length or 1 for length in shape[1:])]).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    names = list(report.outputs)
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    ours = session.run(names, {"data": x})
    files = [tmp_path / name for name in ("net.prototxt", "net.caffemodel", "x.npy", "out.npz")]
    makers = {top: layer.name for layer in net.layer for top in layer.top}  # OpenCV calls blobs after their layers
    command = [opencv4, "-c", OPENCV, *files, *(makers[name] for name in names)]
    subprocess.run([str(each) for each in command], check=True, timeout=600)
    with np.load(tmp_path / "out.npz") as archive:
        assert_same(ours, [archive[f"arr_{i}"] for i in range(len(names))])
    if int(cv2.__version__.partition(".")[0]) >= 5:
        reader = cv2.dnn.readNetFromONNX(str(tmp_path / "net.onnx"))
        reader.setInput(x, "data")
        assert_same(ours, reader.forward(names))


def assert_same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        if one.ndim == 4 and one.shape[3] == 7:  # detections: OpenCV sorts them by score, and fills up with zeros
            one, other = (rows.reshape(-1, 7) for rows in (one, other))
            other = other[other[:, 2] > 0]
            assert len(one) == len(other) > 10
            other = other[np.abs(one[:, None] - other).max(2).argmin(1)]
        np.testing.assert_allclose(other.reshape(one.shape), one, rtol=0, atol=1e-4 * np.ptp(one))


@pytest.fixture(scope="module")
def opencv4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("environments") / "opencv", "opencv-python-headless<5")

"""Predictors of deploy nets, whose preparation of images is stated: against OpenCV's resize and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from random_weights import random_weights

from autodial import proto
from autodial.converters.net_export import export
from autodial.deploy import Predictor
from autodial.errors import InputError
from autodial.proto import Weights, parse_net, write_text, write_weights
from autodial.proto import messages as pb

DEPLOY = """
name: "small"
input: "data"
input_shape { dim: 10 dim: 3 dim: 12 dim: 12 }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
MEAN = (104.0, 117.0, 123.0)


@pytest.fixture
def deploy() -> tuple[Any, Weights]:
    net = parse_net(DEPLOY)
    weights = random_weights(net)
    for layer in weights.layers:
        layer.blobs = [None if blob is None else blob / 50 for blob in layer.blobs]
    return net, weights


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8))
    return path


def expected(weights: Weights, image: Path, size: tuple[int, int], crop: int, mean: Any, scale: float = 1.0) -> Any:
    """The probabilities of an image."""
    pixels = cv2.resize(cv2.imread(str(image)), size[::-1], interpolation=cv2.INTER_LINEAR)
    top, left = (size[0] - crop) // 2, (size[1] - crop) // 2
    blob = (pixels[top : top + crop, left : left + crop].transpose(2, 0, 1) - mean) * scale
    weight, bias = (torch.from_numpy(np.array(blob)) for layer in weights.layers for blob in layer.blobs)
    return (torch.from_numpy(blob.astype(np.float32).ravel()) @ weight.T + bias).softmax(0).numpy()


def test_transform_and_size_say_how_an_image_becomes_the_blob(
    deploy: tuple[Any, Weights], image: Path, tmp_path: Path
) -> None:
    net, weights = deploy
    mean = np.reshape(MEAN, (3, 1, 1))
    for transform, size, seen in (
        (pb.TransformationParameter(mean_value=MEAN, scale=0.5), None, (12, 12)),
        (pb.TransformationParameter(mean_value=MEAN, scale=0.5), (16, 20), (16, 20)),
        (pb.TransformationParameter(mean_value=MEAN, scale=0.5, crop_size=12, mirror=True), None, (32, 32)),
    ):
        report = export(net, weights, tmp_path / "model.onnx", transform=transform, size=size)
        assert report.metadata["size"] == list(seen) and not report.metadata["raw_input"]
        _, (probabilities,) = Predictor(report.output, "cpu").predict([image])
        np.testing.assert_allclose(probabilities, expected(weights, image, seen, 12, mean, 0.5), atol=1e-5)


def test_a_mean_image_states_the_size(deploy: tuple[Any, Weights], image: Path, tmp_path: Path, autodial: Any) -> None:
    net, weights = deploy
    mean = np.random.default_rng(1).uniform(0, 255, (3, 14, 18)).astype(np.float32)
    (tmp_path / "mean.binaryproto").write_bytes(proto.blob_from_array(mean[None]).SerializeToString())
    write_text(net, tmp_path / "deploy.prototxt")
    write_weights(weights, tmp_path / "net.caffemodel")
    (tmp_path / "labels.txt").write_text("ant\nbee\ncat\n")
    words = ["export", "--net", tmp_path / "deploy.prototxt", "--weights", tmp_path / "net.caffemodel"]
    words += ["-o", tmp_path / "model.onnx", "--labels", tmp_path / "labels.txt"]
    status, _, err = autodial(*words, "--mean", tmp_path / "mean.binaryproto", "--transform", "crop_size: 12")
    assert status == 0, err
    predictor = Predictor(tmp_path / "model.onnx", "cpu")
    assert predictor.info.classes == ("ant", "bee", "cat") and predictor.info.size == (14, 18)
    _, (probabilities,) = predictor.predict([image])
    np.testing.assert_allclose(probabilities, expected(weights, image, (14, 18), 12, mean[:, 1:13, 3:15]), atol=1e-5)

    status, _, err = autodial(*words, "--mean", "104,117,123", "--resize", "16")
    assert status == 0, err
    _, (probabilities,) = Predictor(tmp_path / "model.onnx", "cpu").predict([image])
    assert np.abs(probabilities - expected(weights, image, (16, 16), 12, np.reshape(MEAN, (3, 1, 1)))).max() < 1e-5
    status, _, err = autodial(*words, "--mean", "1,2,3", "--transform", "mean_value: 4")
    assert status == 2 and "both state a mean" in err
    status, _, err = autodial(*words)
    assert status == 2 and "--transform and --resize" in err


def test_sizes_that_do_not_fit_are_refused(deploy: tuple[Any, Weights], tmp_path: Path) -> None:
    net, weights = deploy
    with pytest.raises(InputError, match="images of 8 x 8 become 8 x 8, and the net's input blob takes 12 x 12"):
        export(net, weights, tmp_path / "model.onnx", size=(8, 8))
    features = parse_net(DEPLOY.replace("dim: 3 dim: 12 dim: 12", "dim: 20"))
    with pytest.raises(InputError, match=r"blob of shape \(10, 20\) holds no images: use `raw_input`"):
        export(features, random_weights(features), tmp_path / "model.onnx", size=(8, 8))
    assert not list(tmp_path.iterdir())

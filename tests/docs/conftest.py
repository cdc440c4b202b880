"""What the pages' blocks work on: small images and nets under the names that the pages use."""

from __future__ import annotations

import copy
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autodial.net.net import Net
from autodial.proto import Weights, parse_net, read_net, read_solver, write_text, write_weights
from autodial.proto import messages as pb

PROJECTS = ("README.md", "docs/images.md", "docs/predict.md", "docs/quickstart.md", "docs/serve.md")
"""Pages about a project that `init` makes."""
_CLASSES = ("bolt", "nut", "washer")
_DIGITS = tuple("0123456789")
_DEPLOY = """
name: "small-resnet"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 224 dim: 224 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 7 stride: 16 weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def write_images(folder: Path, count: int, classes: tuple[str, ...]) -> None:
    """`count` grey PNGs for each class, 20 pixels a side: a bright square whose place is the class, and noise."""
    rng = np.random.default_rng(len(folder.name))
    for i, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for j in range(count):
            image = rng.integers(0, 80, (20, 20), dtype=np.uint8)
            top, left = 5 * (i // 4), 4 * (i % 4)
            image[top : top + 6, left : left + 6] += 150
            assert cv2.imwrite(str(folder / name / f"{j}.png"), image)


def write_folders(folder: Path) -> None:
    """The sources studio/ and amazon/, the targets phone/, webcam/, more_webcam/ and new_photos/, others, a table."""
    for name in ("studio", "phone", "amazon", "webcam"):
        write_images(folder / name, 16, _CLASSES)
    for name in ("more_webcam", "photos", "more"):
        shutil.copytree(folder / "phone", folder / name)
    for name in ("a.png", "b.png"):
        shutil.copyfile(folder / "phone" / "bolt" / "0.png", folder / "photos" / name)
    (folder / "list.txt").write_text("photos/a.png\n")
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in sorted(folder.glob("photos/*.png"))]
    pq.write_table(pa.table({"image": images}), folder / "train-00000-of-00001.parquet")


def write_caffe_files(folder: Path) -> None:
    """The net and solver for digits that ship, with few images and iterations, and weights under the pages' names."""
    digits = files("autodial.prototxt") / "digits"
    for name in ("train_val.prototxt", "solver.prototxt"):
        (folder / name).write_text((digits / name).read_text("utf-8"), "utf-8")
    solver = read_solver(folder / "solver.prototxt")
    solver.max_iter, solver.snapshot, solver.display, solver.solver_mode = 8, 4, 4, solver.CPU
    write_text(solver, folder / "solver.prototxt")
    for name in ("source", "target", "target_test"):
        write_images(folder / f"{name}_images", 14, _DIGITS)
        paths = sorted((folder / f"{name}_images").rglob("*.png"))
        (folder / f"{name}.txt").write_text("".join(f"{path} {path.parent.name}\n" for path in paths))
    shutil.copytree(folder / "target_images", folder / "new_photos")
    (folder / "labels.txt").write_text("\n".join(_DIGITS))
    net = Net(read_net(folder / "train_val.prototxt"), pb.TEST, base_dir=folder)
    for layer in net.layers.values():
        for blob in getattr(layer, "blobs", ()):
            if not blob.requires_grad:
                blob.fill_(1)  # statistics: mean and variance 1, of one batch
    write_weights(net.weights(), folder / "digits.caffemodel")
    convolutions = [layer for layer in net.weights().layers if layer.param.type == "Convolution"]
    write_weights(Weights("convolutions", convolutions), folder / "bvlc_reference_caffenet.caffemodel")
    (folder / "deploy.prototxt").write_text(_DEPLOY)
    resnet = Net(parse_net(_DEPLOY), pb.TEST)
    resnet.layer("bn").blobs[1].fill_(1)
    resnet.layer("bn").blobs[2].fill_(1)
    write_weights(resnet.weights(), folder / "resnet.caffemodel")


def torch_names() -> dict[str, Any]:
    """Two models with batch normalization, a loader for each domain, and the classes' names."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    source = DataLoader(TensorDataset(torch.randn(18, 3, 224, 224), torch.randint(0, 3, (18,))), batch_size=6)
    target = DataLoader(list(torch.randn(8, 3, 224, 224)), batch_size=4)
    names = {"model": model, "source_loader": source, "target_loader": target, "names": list(_CLASSES)}
    return {**names, "new_model": copy.deepcopy(model), "second_loader": source}


@pytest.fixture
def prepared(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A working directory with everything that a page may name; the names that its Python blocks find."""
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path)
    write_caffe_files(tmp_path)
    if page in PROJECTS:  # whose files those of these names would hide
        for name in ("train_val.prototxt", "source.txt", "target.txt", "labels.txt"):
            (tmp_path / name).unlink()
    return torch_names()

"""The programs of examples/."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net, write_weights

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEPLOY = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 1 dim: 8 dim: 8 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def run(name: str, *arguments: str | Path) -> str:
    """What an example prints."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_module_is_trained_exported_and_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in ("source/cat", "source/dog", "target"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(16):
            assert cv2.imwrite(str(tmp_path / folder / f"{i}.png"), rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    model = tmp_path / "model.onnx"
    said = run("train_module.py", tmp_path / "source", tmp_path / "target", model, "--epochs", "1")
    assert "epoch 1 of 1: loss" in said and model.exists()
    said = run("label_images.py", model, tmp_path / "target" / "0.png", tmp_path / "target" / "1.png")
    assert len(said.splitlines()) == 2 and all("cat (" in line or "dog (" in line for line in said.splitlines())


def test_forward_with_pycaffe(tmp_path: Path) -> None:
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    write_weights(Net(parse_net(DEPLOY), pb.TEST).weights(), tmp_path / "net.caffemodel")
    said = run("forward_with_pycaffe.py", tmp_path / "deploy.prototxt", tmp_path / "net.caffemodel")
    assert said.startswith("prob: (2, 3), the first row's largest value is 0.")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("label_images.py", "the following arguments are required: MODEL.onnx, IMAGE"),
        ("label_images.py gone.onnx a.png", "gone.onnx"),
        ("forward_with_pycaffe.py", "the following arguments are required: DEPLOY.prototxt, WEIGHTS.caffemodel"),
        ("forward_with_pycaffe.py gone.prototxt gone.caffemodel", "gone.prototxt"),
        ("train_module.py gone gone out.onnx", "gone has 0 images, and a batch takes 16: add some"),
    ],
)
def test_wrong_arguments_are_a_sentence_and_status_2(command: str, message: str, tmp_path: Path) -> None:
    name, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"usage: {name}")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{name}: error: ") and message in last

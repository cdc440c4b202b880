"""A small project with a file of every kind that commands read, all whole; it is what gets damaged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import h5py
import lmdb
import numpy as np

from autodial.proto import messages as pb

NET = """
name: "spots"
layer { name: "source" type: "ImageData" top: "source" top: "label" include { phase: TRAIN }
  transform_param { mirror: true mean_value: 90 scale: 0.01 }
  image_data_param { source: "source.txt" batch_size: 4 shuffle: true } }
layer { name: "target" type: "ImageData" top: "target" top: "target-label" include { phase: TRAIN }
  transform_param { mirror: true mean_value: 90 scale: 0.01 }
  image_data_param { source: "target.txt" batch_size: 3 shuffle: true } }
layer { name: "silence" type: "Silence" bottom: "target-label" include { phase: TRAIN } }
layer { name: "join" type: "Concat" bottom: "source" bottom: "target" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { mean_value: 90 scale: 0.01 } image_data_param { source: "test.txt" batch_size: 5 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 3 stride: 1 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "conv/dial" type: "Dial" bottom: "conv" top: "conv" param { lr_mult: 1 }
  dial_param { slice_point: 4 moving_average_fraction: 0.8 weight_filler { type: "constant" value: 0.9 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } bias_filler { type: "constant" } } }
layer { name: "slice" type: "Slice" bottom: "fc" top: "fc-source" top: "fc-target" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 4 } }
layer { name: "loss-source" type: "SoftmaxWithLoss" bottom: "fc-source" bottom: "label" top: "loss-source"
  include { phase: TRAIN } }
layer { name: "loss-target" type: "EntropyLoss" bottom: "fc-target" top: "loss-target" loss_weight: 0.1
  include { phase: TRAIN } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
SOLVER = """
net: "net.prototxt"
base_lr: 0.05 lr_policy: "step" gamma: 0.5 stepsize: 4 momentum: 0.9 weight_decay: 0.001
max_iter: 8 display: 2 test_iter: 3 test_interval: 4 snapshot: 4 snapshot_prefix: "spots" random_seed: 5
solver_mode: CPU
"""
PLAIN = """
name: "plain"
input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
SETTINGS = "# a variant\nloss-target.loss_weight=0.2\n*/dial.param[0].lr_mult=0\nconv.convolution_param.pad=0\n"
QUICK = ("--device", "cpu", "--workers", "0")
TEST_LAYER = 'type: "ImageData" top: "data" top: "label" include { phase: TEST }'


def autodial(*arguments: str, folder: Path, status: int = 0) -> None:
    """Run a command in a process of its own; it must end with that status."""
    done = subprocess.run([sys.executable, "-m", "autodial", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"


def make_images(folder: Path) -> None:
    """24 images of three classes in each of two domains, in class folders and lists, and one that is broken."""
    rng = np.random.default_rng(0)
    for domain, ink in (("source", 100), ("target", 40)):
        lines = []
        for i in range(24):
            image = rng.integers(0, 60, (8, 8, 3), dtype=np.uint8)
            image[:, :, i % 3] += ink
            path = Path(domain, "abc"[i % 3], f"{i}.{('png', 'jpg', 'webp', 'bmp', 'tiff')[i % 5]}")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(folder / path), image)
            lines.append(f"{path} {i % 3}\n")
        (folder / f"{domain}.txt").write_text("".join(lines))
    (folder / "test.txt").write_text("".join(lines))
    (folder / "labels.txt").write_text("a\nb\nc\n")


def make_data(folder: Path) -> None:
    """The target's images in an LMDB and in HDF5, a mean image, and nets that read them."""
    mean = pb.BlobProto(num=1, channels=3, height=8, width=8)
    mean.data.extend([90.0] * 192)
    (folder / "mean.binaryproto").write_bytes(mean.SerializeToString())
    entries = [line.split() for line in (folder / "test.txt").read_text().splitlines()]
    images = [(cv2.imread(str(folder / path)).transpose(2, 0, 1), int(label)) for path, label in entries]  # type: ignore[union-attr]
    with lmdb.open(str(folder / "test.lmdb"), map_size=1 << 20) as database, database.begin(write=True) as transaction:
        for i, (image, label) in enumerate(images):
            datum = pb.Datum(channels=3, height=8, width=8, data=image.tobytes(), label=label)
            transaction.put(f"{i:04}".encode(), datum.SerializeToString())
    with h5py.File(folder / "test.h5", "w") as file:
        file["data"] = np.stack([image for image, _ in images]) * np.float32(0.01)
        file["label"] = np.array([label for _, label in images], np.float32)
    (folder / "h5.txt").write_text("test.h5\n")
    head, tail = NET.split(TEST_LAYER)
    rest = tail.split("\n", 2)[2]
    for name, layer in {
        "mean": """type: "ImageData" transform_param { mean_file: "mean.binaryproto" }
  image_data_param { source: "test.txt" batch_size: 5 }""",
        "lmdb": 'type: "Data" data_param { source: "test.lmdb" batch_size: 5 backend: LMDB }',
        "hdf5": 'type: "HDF5Data" hdf5_data_param { source: "h5.txt" batch_size: 5 }',
    }.items():
        tops = 'top: "data" top: "label" include { phase: TEST }'
        (folder / f"{name}.prototxt").write_text(f"{head}{layer} {tops} }}\n{rest}")


def make(folder: Path) -> Path:
    """Write all of it, which takes half a minute; records in it name this folder."""
    folder.mkdir()
    make_images(folder)
    for name, text in (("net", NET), ("solver", SOLVER), ("plain", PLAIN)):
        (folder / f"{name}.prototxt").write_text(text)
    (folder / "mine.settings").write_text(SETTINGS)
    make_data(folder)
    autodial("train", "--solver", "solver.prototxt", "-o", "run", *QUICK, folder=folder)
    shutil.copy(folder / "spots_iter_8.caffemodel", folder / "w.caffemodel")
    autodial("upgrade", "w.caffemodel", "w.h5", folder=folder)
    autodial("export", "--net", "net.prototxt", "--weights", "w.caffemodel", "-o", "m.onnx", folder=folder)
    (folder / "z.png").write_bytes(b"broken")
    arguments = (
        "m.onnx",
        "target",
        "z.png",
        "-o",
        "out.csv",
        "--max-failures",
        "0",
        "--batch-size",
        "4",
        "--device",
        "cpu",
    )
    autodial("predict", *arguments, folder=folder, status=1)
    assert (folder / "out.csv.partial.json").exists()
    return folder

"""The example nets and solvers of BVLC Caffe, with stand-ins for the files that they name.

The expected shapes are worked out by hand: a convolution or pooling window of k at stride s over n + 2 * pad pixels
fits floor((n + 2 * pad - k) / s) + 1 times, and in a pooling ceil(...) + 1 times.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import cv2
import h5py
import lmdb
import numpy as np
import pytest
from originals import shared

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import read_net, read_solver
from autodial.training.solver import Solver

BVLC = shared("reference/bvlc")

Shapes = dict[str, tuple[int, ...]]
PROTOTXTS = sorted(path.name for path in BVLC.glob("*.prototxt"))
SOLVERS = [name for name in PROTOTXTS if "solver" in name]
WINDOW_DATA = "examples_finetune_pascal_detection_pascal_finetune_trainval_test.prototxt"

PYLOSS = """
import autodial.caffe as caffe

class EuclideanLossLayer(caffe.Layer):
    def setup(self, bottom, top):
        assert len(bottom) == 2

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        top[0].data[...] = ((bottom[0].data - bottom[1].data) ** 2).sum() / bottom[0].num / 2

    def backward(self, top, propagate_down, bottom):
        pass
"""


# --- stand-ins


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Caffe's own, in which each database, list and mean holds one image of the right size."""
    folder = tmp_path_factory.mktemp("caffe")
    for database, shape in {
        "examples/cifar10/cifar10_train_lmdb": (3, 32, 32),
        "examples/cifar10/cifar10_test_lmdb": (3, 32, 32),
        "examples/mnist/mnist_train_lmdb": (1, 28, 28),
        "examples/mnist/mnist_test_lmdb": (1, 28, 28),
        "examples/imagenet/ilsvrc12_train_lmdb": (3, 256, 256),
        "examples/imagenet/ilsvrc12_val_lmdb": (3, 256, 256),
    }.items():
        write_database(folder / database, shape)
    write_mean(folder / "examples/cifar10/mean.binaryproto", (3, 32, 32))
    write_mean(folder / "data/ilsvrc12/imagenet_mean.binaryproto", (3, 256, 256))
    assert cv2.imwrite(str(folder / "image.png"), np.zeros((30, 40, 3), dtype=np.uint8))
    for name in ("data/flickr_style/train.txt", "data/flickr_style/test.txt", "examples/_temp/file_list.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("image.png 0\n")
    for part in ("train", "test"):
        list_file = folder / f"examples/hdf5_classification/data/{part}.txt"
        list_file.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(list_file.with_suffix(".h5"), "w") as file:
            file["data"] = np.zeros((20, 4), dtype=np.float32)
            file["label"] = np.zeros(20, dtype=np.float32)
        list_file.write_text(f"examples/hdf5_classification/data/{part}.h5\n")
    (folder / "pyloss.py").write_text(PYLOSS)
    return folder


def write_database(folder: Path, shape: tuple[int, int, int]) -> None:
    folder.mkdir(parents=True)
    channels, height, width = shape
    datum = pb.Datum(channels=channels, height=height, width=width, data=bytes(prod(shape)))
    with lmdb.open(str(folder), map_size=2**22, lock=False) as environment, environment.begin(write=True) as txn:
        txn.put(b"00000000", datum.SerializeToString())


def write_mean(path: Path, shape: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    channels, height, width = shape
    blob = pb.BlobProto(num=1, channels=channels, height=height, width=width, data=[0.0] * prod(shape))
    path.write_bytes(blob.SerializeToString())


@pytest.fixture
def caffe_root(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`files` as the working directory."""
    monkeypatch.chdir(files)
    yield files
    sys.modules.pop("pyloss", None)


# --- what Caffe gives


def with_labels(shapes: Shapes, batch: int, *scalars: str) -> Shapes:
    return {**shapes, "label": (batch,), **dict.fromkeys(scalars, ())}


def imagenet(batch: int, last: str = "fc8", classes: int = 1000) -> Shapes:
    """CaffeNet, AlexNet and what is fine-tuned from them: 227 -> 55 -> 27 -> 13 -> 6 pixels."""
    return {
        "data": (batch, 3, 227, 227),
        "conv1": (batch, 96, 55, 55),
        "pool1": (batch, 96, 27, 27),
        "norm1": (batch, 96, 27, 27),
        "conv2": (batch, 256, 27, 27),
        "pool2": (batch, 256, 13, 13),
        "norm2": (batch, 256, 13, 13),
        "conv3": (batch, 384, 13, 13),
        "conv4": (batch, 384, 13, 13),
        "conv5": (batch, 256, 13, 13),
        "pool5": (batch, 256, 6, 6),
        "fc6": (batch, 4096),
        "fc7": (batch, 4096),
        last: (batch, classes),
    }


def alexnet(batch: int) -> Shapes:
    """AlexNet normalizes before it pools."""
    return {**imagenet(batch), "norm1": (batch, 96, 55, 55), "norm2": (batch, 256, 27, 27)}


def lenet(batch: int) -> Shapes:
    return {
        "data": (batch, 1, 28, 28),
        "conv1": (batch, 20, 24, 24),
        "pool1": (batch, 20, 12, 12),
        "conv2": (batch, 50, 8, 8),
        "pool2": (batch, 50, 4, 4),
        "ip1": (batch, 500),
        "ip2": (batch, 10),
    }


def cifar(batch: int) -> Shapes:
    """Poolings of 3 at stride 2 whose last windows reach over the edge: 32 -> 16 -> 8 -> 4 pixels."""
    return {
        "data": (batch, 3, 32, 32),
        "conv1": (batch, 32, 32, 32),
        "pool1": (batch, 32, 16, 16),
        "conv2": (batch, 32, 16, 16),
        "pool2": (batch, 32, 8, 8),
        "conv3": (batch, 64, 8, 8),
        "pool3": (batch, 64, 4, 4),
    }


def cifar_quick(batch: int) -> Shapes:
    return {**cifar(batch), "ip1": (batch, 64), "ip2": (batch, 10)}


def cifar_full(batch: int) -> Shapes:
    norms: Shapes = {"norm1": (batch, 32, 16, 16), "norm2": (batch, 32, 8, 8)}
    return {**cifar(batch), **norms, "ip1": (batch, 10)}


def cifar_sigmoid(batch: int) -> Shapes:
    sigmoids: Shapes = {
        "Sigmoid1": (batch, 32, 16, 16),
        "Sigmoid2": (batch, 32, 16, 16),
        "Sigmoid3": (batch, 64, 8, 8),
    }
    return {**cifar(batch), **sigmoids, "ip1": (batch, 10)}


def cifar_bn(batch: int) -> Shapes:
    norms: Shapes = {"bn1": (batch, 32, 16, 16), "bn2": (batch, 32, 16, 16), "bn3": (batch, 64, 8, 8)}
    return {**cifar_sigmoid(batch), **norms}


def perceptron(first: str, hidden: int, second: str) -> Shapes:
    return {"data": (10, 4), first: (10, hidden), second: (10, 2)}


FEATURES = with_labels({**imagenet(50), "prob": (50, 1000)}, 50, "accuracy", "loss")
NONLINEAR = with_labels(perceptron("ip1", 40, "ip2"), 10, "accuracy", "loss")
LINREG: Shapes = {"x": (10, 3, 2), "y": (10, 3, 2), "ipx": (10, 10), "ipy": (10, 10), "loss": (1,)}

# by name: the shapes in the TRAIN phase and in the TEST phase
EXPECTED: dict[str, tuple[Shapes, Shapes]] = {
    "examples_cifar10_cifar10_full": ({**cifar_full(1), "prob": (1, 10)},) * 2,
    "examples_cifar10_cifar10_full_sigmoid_train_test": (
        with_labels(cifar_sigmoid(111), 111, "loss"),
        with_labels(cifar_sigmoid(1000), 1000, "loss", "accuracy"),
    ),
    "examples_cifar10_cifar10_full_sigmoid_train_test_bn": (
        with_labels(cifar_bn(100), 100, "loss"),
        with_labels(cifar_bn(1000), 1000, "loss", "accuracy"),
    ),
    "examples_cifar10_cifar10_full_train_test": (
        with_labels(cifar_full(100), 100, "loss"),
        with_labels(cifar_full(100), 100, "loss", "accuracy"),
    ),
    "examples_cifar10_cifar10_quick": ({**cifar_quick(1), "prob": (1, 10)},) * 2,
    "examples_cifar10_cifar10_quick_train_test": (
        with_labels(cifar_quick(100), 100, "loss"),
        with_labels(cifar_quick(100), 100, "loss", "accuracy"),
    ),
    "examples_feature_extraction_imagenet_val": (FEATURES, FEATURES),
    "examples_hdf5_classification_nonlinear_auto_test": (NONLINEAR, NONLINEAR),
    "examples_hdf5_classification_nonlinear_auto_train": (NONLINEAR, NONLINEAR),
    "examples_hdf5_classification_nonlinear_train_val": (
        with_labels(perceptron("fc1", 40, "fc2"), 10, "loss"),
        with_labels(perceptron("fc1", 40, "fc2"), 10, "loss", "accuracy"),
    ),
    "examples_hdf5_classification_train_val": (
        with_labels({"data": (10, 4), "fc1": (10, 2)}, 10, "loss"),
        with_labels({"data": (10, 4), "fc1": (10, 2)}, 10, "loss", "accuracy"),
    ),
    "examples_mnist_lenet": ({**lenet(64), "prob": (64, 10)},) * 2,
    "examples_mnist_lenet_train_test": (
        with_labels(lenet(64), 64, "loss"),
        with_labels(lenet(100), 100, "loss", "accuracy"),
    ),
    "examples_net_surgery_conv": ({"data": (1, 1, 100, 100), "conv": (1, 3, 96, 96)},) * 2,
    "examples_pycaffe_linreg": (LINREG, LINREG),
    "models_bvlc_alexnet_deploy": ({**alexnet(10), "prob": (10, 1000)},) * 2,
    "models_bvlc_alexnet_train_val": (
        with_labels(alexnet(256), 256, "loss"),
        with_labels(alexnet(50), 50, "loss", "accuracy"),
    ),
    "models_bvlc_reference_caffenet_deploy": ({**imagenet(10), "prob": (10, 1000)},) * 2,
    "models_bvlc_reference_caffenet_train_val": (
        with_labels(imagenet(256), 256, "loss"),
        with_labels(imagenet(50), 50, "loss", "accuracy"),
    ),
    "models_finetune_flickr_style_deploy": ({**imagenet(10, "fc8_flickr", 20), "prob": (10, 20)},) * 2,
    "models_finetune_flickr_style_train_val": (
        with_labels(imagenet(50, "fc8_flickr", 20), 50, "loss"),
        with_labels(imagenet(50, "fc8_flickr", 20), 50, "loss", "accuracy"),
    ),
}

# by a pattern in the name: the shapes of the weights
WEIGHTS: dict[str, Shapes] = {
    "(alex|caffe)net": {
        "conv1": (96, 3, 11, 11),
        "conv2": (256, 48, 5, 5),
        "conv3": (384, 256, 3, 3),
        "conv4": (384, 192, 3, 3),
        "conv5": (256, 192, 3, 3),
        "fc6": (4096, 9216),
        "fc7": (4096, 4096),
        "fc8": (1000, 4096),
    },
    "lenet": {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5), "ip1": (500, 800), "ip2": (10, 500)},
    "cifar10_quick": {
        "conv1": (32, 3, 5, 5),
        "conv2": (32, 32, 5, 5),
        "conv3": (64, 32, 5, 5),
        "ip1": (64, 1024),
        "ip2": (10, 64),
    },
}


@pytest.mark.parametrize("phase", [pb.TRAIN, pb.TEST], ids=["train", "test"])
@pytest.mark.parametrize("name", EXPECTED)
def test_every_net_has_caffes_shapes(caffe_root: Path, name: str, phase: int) -> None:
    net = Net(read_net(BVLC / f"{name}.prototxt"), phase)
    shapes = {blob: shape for blob, shape in net.blob_shapes.items() if not re.search(r"_split_\d+$", blob)}
    assert shapes == EXPECTED[name][phase]
    for architecture, weights in WEIGHTS.items():
        if re.search(rf"{architecture}(_|$)", name):
            assert {layer: tuple(net.layer(layer).blobs[0].shape) for layer in weights} == weights
            biases = {layer: tuple(net.layer(layer).blobs[1].shape) for layer in weights}
            assert biases == {layer: shape[:1] for layer, shape in weights.items()}


def test_every_prototxt_is_covered() -> None:
    nets = {name.removesuffix(".prototxt") for name in PROTOTXTS if name not in SOLVERS}
    assert nets == {*EXPECTED, WINDOW_DATA.removesuffix(".prototxt")}
    assert {name.removesuffix(".prototxt") for name in SOLVERS} == {*ACCEPTED, *REFUSED}


def test_window_data_is_refused_by_name() -> None:
    param = read_net(BVLC / WINDOW_DATA)
    with pytest.raises(InputError, match=r'layer "data": layer type "WindowData" is not supported: cut the windows'):
        Net(param, pb.TRAIN)


# --- solvers

# by name: the solver's type and the number of its test nets
ACCEPTED: dict[str, tuple[str, int]] = {
    "examples_cifar10_cifar10_full_sigmoid_solver": ("SGD", 1),
    "examples_cifar10_cifar10_full_sigmoid_solver_bn": ("SGD", 1),
    "examples_cifar10_cifar10_full_solver": ("SGD", 1),
    "examples_cifar10_cifar10_full_solver_lr1": ("SGD", 1),
    "examples_cifar10_cifar10_full_solver_lr2": ("SGD", 1),
    "examples_cifar10_cifar10_quick_solver": ("SGD", 1),
    "examples_cifar10_cifar10_quick_solver_lr1": ("SGD", 1),
    "examples_mnist_lenet_adadelta_solver": ("AdaDelta", 1),
    "examples_mnist_lenet_consolidated_solver": ("SGD", 2),
    "examples_mnist_lenet_multistep_solver": ("SGD", 1),
    "examples_mnist_lenet_solver": ("SGD", 1),
    "examples_mnist_lenet_solver_adam": ("Adam", 1),
    "examples_mnist_lenet_solver_rmsprop": ("RMSProp", 1),
    "models_bvlc_alexnet_solver": ("SGD", 1),
    "models_bvlc_reference_caffenet_solver": ("SGD", 1),
    "models_finetune_flickr_style_solver": ("SGD", 1),
}
REFUSED = {
    "examples_finetune_pascal_detection_pascal_finetune_solver": 'layer type "WindowData" is not supported',
    "examples_mnist_lenet_auto_solver": r'"mnist/lenet_auto_train\.prototxt" does not exist',  # a script writes it
}


@pytest.fixture
def nets(caffe_root: Path) -> None:
    """The nets that the solvers name, where they name them."""
    for solver in SOLVERS:
        net = read_solver(BVLC / solver).net
        source = BVLC / net.replace("/", "_")
        if net and source.is_file():
            (caffe_root / net).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, caffe_root / net)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("name", ACCEPTED)
def test_solvers_are_accepted(name: str) -> None:
    type_, test_nets = ACCEPTED[name]
    solver = Solver.from_file(BVLC / f"{name}.prototxt", device="cpu")
    assert solver.param.type == type_
    assert len(solver.test_nets) == test_nets
    assert solver.net.loss_weights == {"loss": 1.0}


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("name", REFUSED)
def test_solvers_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=REFUSED[name]):
        Solver.from_file(BVLC / f"{name}.prototxt", device="cpu")


def test_the_consolidated_solver_tests_by_stage(caffe_root: Path) -> None:
    """LeNet in the old format, in the solver itself, with a test net for each of two stages."""
    solver = Solver.from_file(BVLC / "examples_mnist_lenet_consolidated_solver.prototxt", device="cpu")
    train, *tests = (
        {name: net.blob_shapes[name] for name in (*lenet(0), "label", "loss")}
        for net in (solver.net, *solver.test_nets)
    )
    assert train == with_labels(lenet(64), 64, "loss")
    assert tests == [with_labels(lenet(100), 100, "loss")] * 2
    read = [net.layer("mnist").source.database.path.parent.name for net in solver.test_nets]  # type: ignore[union-attr]
    assert read == ["mnist_test_lmdb", "mnist_train_lmdb"]

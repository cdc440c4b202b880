"""The nets and solvers that ship: their shapes, their recipes, and the files that the AutoDIAL authors released."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from originals import shared

from autodial import proto
from autodial.errors import InputError
from autodial.evaluation.timing import replace_missing_data
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_folder, shipped_names, shipped_net, shipped_solver
from autodial.netparam.variants import VARIANTS, apply_variant, apply_variants
from autodial.proto import messages as pb
from autodial.training.lr_policy import learning_rate
from autodial.training.solver import Solver

TRUNK = ("Convolution", "InnerProduct", "Pooling", "LRN", "ReLU", "Dial", "Scale", "Concat")

SHAPES = {
    "alexnet": {
        "conv1": (96, 55, 55), "pool1": (96, 27, 27), "conv2": (256, 27, 27), "pool2": (256, 13, 13),
        "conv5": (256, 13, 13), "pool5": (256, 6, 6), "fc6": (4096,), "fc7": (4096,), "fc8": (31,),
    },
    "inception_bn": {
        "conv1/7x7_s2": (64, 112, 112), "pool2/3x3_s2": (192, 28, 28), "inception_3a/output": (256, 28, 28),
        "inception_3b/output": (320, 28, 28), "inception_3c/output": (576, 14, 14),
        "inception_4a/output": (576, 14, 14), "inception_4b/output": (576, 14, 14),
        "inception_4c/output": (576, 14, 14), "inception_4d/output": (576, 14, 14),
        "inception_4e/output": (1024, 7, 7), "inception_5a/output": (1024, 7, 7), "inception_5b/output": (1024, 7, 7),
        "pool5/7x7_s1": (1024, 1, 1), "fc1": (31,),
    },
    "svhn_mnist": {
        "data": (3, 32, 32), "conv1": (64, 32, 32), "pool1": (64, 16, 16), "conv2": (64, 16, 16), "pool2": (64, 8, 8),
        "conv3": (128, 8, 8), "fc4": (3072,), "fc5": (2048,), "fc6": (10,),
    },
}  # fmt: skip
"""Of an image's blobs; those of Inception-BN as Ioffe and Szegedy list them."""

BATCHES = {"alexnet": (199, 57, 64), "inception_bn": (32, 16, 16), "svhn_mnist": (140, 116, 100)}
"""Source, target, TEST."""


def sized(name: str, source: int, target: int, test: int) -> list[str]:
    """Settings that make a net's batches small."""
    net = proto.read_net(shipped_net(name))
    slices = [layer for layer in net.layer if layer.type == "Slice"]
    dials = [layer for layer in net.layer if layer.type == "Dial"]
    return [
        f"data-source.image_data_param.batch_size={source}",
        f"data-target.image_data_param.batch_size={target}",
        f"data-test.image_data_param.batch_size={test}",
        *(f"{layer.name}.slice_param.slice_point={source}" for layer in slices),
        *(f"{layer.name}.dial_param.slice_point={source}" for layer in dials),
    ]


def test_names() -> None:
    assert shipped_names() == ["alexnet", "digits", "inception_bn", "svhn_mnist"]
    with pytest.raises(InputError, match=r'no net "alexnett" ships .* alexnet, digits, inception_bn, svhn_mnist'):
        shipped_folder("alexnett")


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_in_both_phases(name: str) -> None:
    param = proto.read_net(shipped_net(name))
    *train, test = BATCHES[name]
    for phase, batch in ((pb.TRAIN, sum(train)), (pb.TEST, test)):
        filtered, replaced = replace_missing_data(filter_net(param, phase), None)
        assert len(replaced) == (2 if phase == pb.TRAIN else 1)
        net = Net(filtered, phase)
        assert {blob: net.blob_shapes[blob] for blob in SHAPES[name]} == {
            blob: (batch, *shape) for blob, shape in SHAPES[name].items()
        }
        if phase == pb.TRAIN:
            assert sorted(net.loss_weights.values()) == pytest.approx([0.1, 1])
            slices = [layer for layer in param.layer if layer.type == "Slice"]
            dials = [layer for layer in param.layer if layer.type == "Dial"]
            assert {layer.slice_param.slice_point[0] for layer in slices} == {train[0]}
            assert {layer.dial_param.slice_point for layer in dials} == {train[0]}


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of stand-in images of odd sizes, some grey, in the working directory."""
    rng = np.random.default_rng(0)
    for i, shape in enumerate([(40, 61, 3), (300, 233, 3), (28, 28), (77, 50), (256, 256, 3)]):
        assert cv2.imwrite(str(tmp_path / f"{i}.png"), rng.integers(0, 256, shape, dtype=np.uint8))
    for name in ("source", "target", "target_test"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{i}.png {i}\n" for i in range(5)))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["alexnet", pytest.param("inception_bn", marks=pytest.mark.slow), "svhn_mnist"])
def test_one_iteration(images: None, name: str) -> None:
    solver = Solver.from_file(
        shipped_solver(name),
        overrides=[
            *sized(name, 3, 2, 5),
            "solver.snapshot_prefix=x",
            "solver.test_iter=1",
            "solver.test_interval=1",
        ],
    )
    solver.check()
    before = {(p.layer, p.index): p.tensor.clone() for p in solver.net.params}
    solver.step(1)
    assert 0 < solver.smoothed_loss() < 100
    (accuracy,) = solver.test().values()
    assert 0 <= accuracy.item() <= 1
    changed = {p.layer for p in solver.net.params if not p.tensor.equal(before[p.layer, p.index])}
    solver.close()
    frozen = {"alexnet": "conv", "inception_bn": ("conv", "inception_3"), "svhn_mnist": "none"}[name]
    weights = {layer.name for layer in solver.net.param.layer if layer.type in ("Convolution", "InnerProduct")}
    assert weights & changed == {layer for layer in weights if not layer.startswith(frozen)}


# --- the paper's recipes


@pytest.mark.parametrize(
    ("name", "epochs", "drop", "images"), [("alexnet", 60, 54, 2817), ("svhn_mnist", 25, None, 73257)]
)
def test_epochs(name: str, epochs: int, drop: int | None, images: int) -> None:
    solver = proto.read_solver(shipped_solver(name))
    source = BATCHES[name][0]
    assert solver.max_iter == ceil(epochs * images / source)
    assert list(solver.stepvalue) == ([] if drop is None else [ceil(drop * images / source)])


def test_rates() -> None:
    """lr 1e-3 and a tenth of it; and 0.01 / (1 + 10 p)^0.75 in the appendix."""
    for path, drop, end in (
        (shipped_solver("alexnet"), 765, 850),
        (shipped_solver("inception_bn"), 1000, 1200),
        (shipped_folder("inception_bn") / "solver_testbed.prototxt", 1500, 2000),
    ):
        solver = proto.read_solver(path)
        assert (list(solver.stepvalue), solver.max_iter, solver.lr_policy) == ([drop], end, "multistep")
        assert [learning_rate(solver, 0, step) for step in (0, 1)] == pytest.approx([1e-3, 1e-4])
        assert (solver.momentum, solver.weight_decay) == pytest.approx((0.9, 5e-4))
    solver = proto.read_solver(shipped_solver("svhn_mnist"))
    for progress in (0, 0.5, 1):
        rate = learning_rate(solver, round(progress * solver.max_iter), 0)
        assert rate == pytest.approx(0.01 / (1 + 10 * progress) ** 0.75, rel=1e-4)
    assert (solver.momentum, solver.weight_decay) == pytest.approx((0.9, 5e-4))


@pytest.mark.parametrize(("source", "target", "batch"), [(2817, 795, (199, 57)), (73257, 60000, (140, 116))])
def test_batches_are_in_proportion(source: int, target: int, batch: tuple[int, int]) -> None:
    share = 256 * source // (source + target)
    assert (share, 256 - share) == batch
    assert batch in [value[:2] for value in BATCHES.values()]


def test_first_blocks_of_inception_keep_their_batch_normalization() -> None:
    """Paper, section 4.1: frozen, with alpha fixed to 0.5; all others learn, from 1 on."""
    for layer in proto.read_net(shipped_net("inception_bn")).layer:
        first = layer.name.startswith(("conv1/", "conv2/", "inception_3"))
        if layer.type in ("Convolution", "Scale", "Dial"):
            assert {param.lr_mult for param in layer.param} == {0 if first else 1}, layer.name
        if layer.type == "Dial":
            assert layer.dial_param.weight_filler.value == (0.5 if first else 1), layer.name


# --- variants


@pytest.mark.parametrize("name", [*SHAPES, "digits"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_connect(name: str, variant: str) -> None:
    """Every layer's bottoms are there in both phases."""
    net = apply_variant(proto.read_net(shipped_net(name)), variant)
    for phase in (pb.TRAIN, pb.TEST):
        tops: set[str] = set()
        read: set[str] = set()
        for layer in filter_net(net, phase).layer:
            assert tops.issuperset(layer.bottom), layer.name
            tops.update(layer.top)
            read.update(layer.bottom)
        losses = {"loss-source", "loss-target", "accuracy"}
        assert tops - read <= losses


def test_source_only_is_the_network_alone() -> None:
    """AlexNet and the appendix's network lose their Dial layers, Inception-BN gets its batch normalization back."""
    for name, kinds in (("alexnet", set()), ("svhn_mnist", set()), ("inception_bn", {"BatchNorm", "Scale"})):
        net = apply_variant(proto.read_net(shipped_net(name)), "source-only")
        assert {layer.type for layer in net.layer}.intersection(("Dial", "BatchNorm", "Scale")) == kinds


# --- the original's files


def trunk(net: Any) -> dict[str, Any]:
    """The layers between images and losses, by name."""
    return {layer.name: layer for layer in net.layer if layer.type in TRUNK and layer.top[0] != "data"}


def described(layer: Any, names: dict[str, str]) -> Any:
    """What a layer computes and learns, in one form for all ways to write it."""
    convolution, pooling, linear = layer.convolution_param, layer.pooling_param, layer.inner_product_param
    return (
        layer.type,
        [names.get(blob, blob) for blob in layer.bottom],
        [names.get(blob, blob) for blob in layer.top],
        [(param.lr_mult, param.decay_mult) for param in layer.param],
        {
            "Convolution": lambda: (
                convolution.num_output,
                list(convolution.kernel_size),
                list(convolution.stride) or [1],
                list(convolution.pad) or [0],
                convolution.group,
                convolution.bias_term,
                convolution.weight_filler,
                convolution.bias_filler.value,
            ),
            "Pooling": lambda: (pooling.pool, pooling.kernel_size, pooling.stride, pooling.pad, pooling.global_pooling),
            "InnerProduct": lambda: (linear.bias_term, linear.weight_filler, linear.bias_filler.value),
            "Dial": lambda: (layer.dial_param.moving_average_fraction, layer.dial_param.weight_filler),
            "Scale": lambda: (layer.scale_param.bias_term, layer.scale_param.bias_filler.value),
            "LRN": lambda: layer.lrn_param,
        }.get(layer.type, lambda: None)(),
    )


def test_released_variant_of_inception() -> None:
    """The same layers, shapes, multipliers and fillers as in the file that the authors released."""
    released = trunk(proto.read_net(shared("reference/autodial/inception_train_val.prototxt")))
    folder = shipped_folder("inception_bn")
    ours = trunk(apply_variants(proto.read_net(shipped_net("inception_bn")), ["released"], folder))
    assert list(ours) == list(released)
    for name in ours:
        assert described(ours[name], {}) == described(released[name], {}), name

    # and the paper's differs in just what the file's comment says
    paper = trunk(proto.read_net(shipped_net("inception_bn")))
    others = {name for name in paper if described(paper[name], {}) != described(released[name], {})}
    assert others == {
        name
        for name, layer in paper.items()
        if layer.type == "Dial"
        or (layer.type in ("Convolution", "Scale") and name.startswith(("inception_4", "inception_5"))
            and name.split("/")[1] in ("double3x3a", "double3x3b"))
    }  # fmt: skip


def test_alexnet_is_the_released_one() -> None:
    released = trunk(proto.read_net(shared("reference/autodial/alexnet_train_val.prototxt")))
    ours = trunk(proto.read_net(shipped_net("alexnet")))
    assert [name.replace("-scale", "-sc") for name in ours] == list(released)
    for name, layer in ours.items():
        if layer.type == "Dial":
            layer.dial_param.moving_average_fraction = 0.999
        if name == "fc8-new":  # whose bias the Dial layer takes away
            assert list(map(float, (layer.param[0].lr_mult, layer.param[1].lr_mult))) == [10, 20]
            del layer.param[1]
            layer.inner_product_param.bias_term = False
        assert described(layer, {}) == described(released[name.replace("-scale", "-sc")], {}), name


def test_source_only_alexnet_is_caffenet_without_dropout() -> None:
    """conv1 to fc7 are layer for layer those of the BVLC reference model, so that its weights fit."""
    caffenet = trunk(proto.read_net(shared("reference/bvlc/models_bvlc_reference_caffenet_train_val.prototxt")))
    ours = trunk(apply_variant(proto.read_net(shipped_net("alexnet")), "source-only"))
    assert [name.removesuffix("-new") for name in ours] == list(caffenet)
    for name, layer in ours.items():
        if name != "fc8-new":
            kind, bottom, top, _, rest = described(layer, {})
            theirs = described(caffenet[name], {})
            assert (kind, bottom, top, rest) == (*theirs[:3], theirs[4]), name

"""`--drift` on real shifts of domain: the source's images must set it off, held-out images of the target must not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from originals import shared

from autodial.deploy import PredictOptions, predict_folder
from autodial.deploy.drift import Drift, Verdict

pytest.importorskip("torch", reason="needs the packages of autodial[train]")

from autodial.converters.net_export import export
from autodial.demo.images import write_images
from autodial.netparam.shipped import shipped_net, shipped_solver
from autodial.proto import messages as pb
from autodial.proto import read_net, read_weights
from autodial.training.solver import Solver

HELD = 1000
"""Images of each domain that training doesn't see."""
SIZES = (50, 200, 1000)

Lines = Sequence[str]
"""Of an image list."""


def train(folder: Path, source: Lines, target: Lines, size: int, iterations: int, seed: int) -> Path:
    """Train the demo's net and export it."""
    net = shipped_net("digits").read_text().replace("_height: 20 new_width: 20", f"_height: {size} new_width: {size}")
    (folder / "train_val.prototxt").write_text(net)
    (folder / "solver.prototxt").write_bytes(shipped_solver("digits").read_bytes())
    for name, lines in (("source", source), ("target", target), ("target_test", target[:100])):
        (folder / f"{name}.txt").write_text("".join(lines))
    settings = [f"solver.max_iter={iterations}", f"solver.snapshot_prefix={folder / 'digits'}"]
    Solver.from_file(folder / "solver.prototxt", device="cpu", seed=seed, overrides=settings).solve()
    weights = read_weights(folder / f"digits_iter_{iterations}.caffemodel")
    export(read_net(folder / "train_val.prototxt"), weights, folder / "model.onnx", base_dir=folder)
    return folder / "model.onnx"


def drift_of(model: Path, lines: Lines) -> Drift:
    (model.parent / "images.txt").write_text("".join(lines))
    drift = predict_folder(
        model, [model.parent / "images.txt"], model.parent / "out.csv", PredictOptions(drift=model.parent / "out.json")
    ).drift
    assert drift is not None and drift.images == len(lines)
    return drift


def check(model: Path, source: Lines, target: Lines, seed: int) -> None:
    """Draw folders of several sizes from images that training didn't see."""
    rng = np.random.default_rng(seed)
    for count in SIZES:
        for _ in range(3):
            others = drift_of(model, rng.choice(source, count, replace=False).tolist())
            assert others.verdict is Verdict.SHIFTED, (count, others.record())
            held_out = drift_of(model, rng.choice(target, count, replace=False).tolist())
            assert held_out.verdict is (Verdict.ALIKE if count > 50 else Verdict.TOO_FEW), (count, held_out.record())
    some = drift_of(model, [line for line in target if line.split()[-1] in "0123"])
    assert some.verdict is Verdict.CLASSES, some.record()


def rendered_and_handwritten(folder: Path, seed: int) -> tuple[list[str], list[str]]:
    files = write_images(folder, seed)
    rng = np.random.default_rng(seed)
    lists = []
    for path in (files.source_list, files.target_test_list):
        lines = [f"{folder}/{line}\n" for line in path.read_text().splitlines()]
        lists.append(rng.permutation(lines).tolist())
    return lists[0], lists[1]


def from_lmdb(name: str, folder: Path) -> list[str]:
    from autodial.data.lmdb import Lmdb

    database = Lmdb(shared(f"data/{name}"))
    folder.mkdir()
    lines = []
    for i, (_, value) in enumerate(database.read(range(len(database)))):
        datum = pb.Datum.FromString(value)
        pixels = np.frombuffer(datum.data, np.uint8)
        image = cv2.imdecode(pixels, cv2.IMREAD_GRAYSCALE) if datum.encoded else pixels.reshape(28, 28)
        cv2.imwrite(str(folder / f"{i}.png"), image)
        lines.append(f"{folder / f'{i}.png'} {datum.label}\n")
    return lines


def test_a_short_training(tmp_path: Path) -> None:
    source, target = rendered_and_handwritten(tmp_path, seed=1)
    model = train(tmp_path, source[HELD:], target[HELD:], size=20, iterations=100, seed=1)
    check(model, source[:HELD], target[:HELD], seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_demos_training(tmp_path: Path, seed: int) -> None:
    source, target = rendered_and_handwritten(tmp_path, seed)
    model = train(tmp_path, source[HELD:], target[HELD:], size=20, iterations=800, seed=seed)
    check(model, source[:HELD], target[:HELD], seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("source", "target"), [("mnist", "usps"), ("usps", "mnist")])
def test_mnist_and_usps(tmp_path: Path, source: str, target: str, seed: int) -> None:
    lists = {
        (name, part): from_lmdb(f"{name}_{part}_lmdb", tmp_path / f"{name}_{part}")
        for name in (source, target)
        for part in ("train", "test")
    }
    model = train(tmp_path, lists[source, "train"], lists[target, "train"], size=28, iterations=800, seed=seed)
    check(model, lists[source, "test"], lists[target, "test"], seed)

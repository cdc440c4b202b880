"""What the net is run for: features against numpy's sums over hand-normalized values, shares, and rows of databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from autodial import proto
from autodial.proto import messages as pb
from autodial.report.evaluation import Absent, Evaluation, evaluate
from autodial.report.features import LayerFeatures
from autodial.report.run import Run

Floats = NDArray[np.float64]
EPS = 1e-5


@pytest.fixture
def evaluated(trained: Path) -> Evaluation:
    layers = ["conv/dial", "fc/dial"]
    return evaluate(Run.read(trained / "run"), images=100, layers=layers, device=torch.device("cpu"), workers=0)


@pytest.fixture
def blobs(trained: Path) -> dict[str, list[Floats]]:
    """The trained blobs by layer."""
    weights = proto.read_weights(trained / "spots_iter_8.caffemodel")
    return {layer.name: [np.asarray(blob, np.float64) for blob in layer.blobs] for layer in weights.layers}


def images(folder: Path, domain: str) -> torch.Tensor:
    """What the net gets of a domain's images in TEST: the middle 8 x 8 pixels, (N, 3, 8, 8)."""
    paths = sorted((folder / domain).glob("*.png"), key=lambda path: int(path.stem))
    pixels = np.stack([cv2.imread(str(path))[1:9, 1:9] for path in paths]).astype(np.float64)
    return torch.from_numpy((pixels - (90, 100, 110)) * 0.01).permute(0, 3, 1, 2)


def forward(folder: Path, blobs: dict[str, list[Floats]], row: int) -> dict[str, tuple[Floats, Floats]]:
    """What enters and leaves each Dial layer, (channels, values): torch's convolution, and normalization by hand."""
    weights, bias = (torch.from_numpy(blob) for blob in blobs["conv"])
    before = F.conv2d(images(folder, ("source", "target")[row]), weights, bias.flatten())
    after = normalized(before, blobs["conv/dial"], row)
    weights, bias = (torch.from_numpy(blob) for blob in blobs["fc"])
    fc = F.linear(after.relu().flatten(1), weights.view(3, -1), bias.flatten())
    return {
        "conv/dial": (by_channel(before), by_channel(after)),
        "fc/dial": (by_channel(fc), by_channel(normalized(fc, blobs["fc/dial"], row))),
    }


def normalized(x: torch.Tensor, dial: list[Floats], row: int) -> torch.Tensor:
    _, mean, variance, normalizer = (torch.from_numpy(blob) for blob in dial)
    shape = (1, -1, *[1] * (x.dim() - 2))
    mean, variance = (blob.view(2, -1)[row] / normalizer.item() for blob in (mean, variance))
    return (x - mean.view(shape)) / (variance.view(shape) + EPS).sqrt()


def by_channel(x: torch.Tensor) -> Floats:
    values: Floats = x.transpose(0, 1).flatten(1).numpy()
    return values


def test_features_are_those_of_each_domains_own_predictor(
    trained: Path, evaluated: Evaluation, blobs: dict[str, list[Floats]]
) -> None:
    source, target = forward(trained, blobs, 0), forward(trained, blobs, 1)
    assert not isinstance(evaluated.features, Absent)
    assert [layer.layer for layer in evaluated.features] == ["conv/dial", "fc/dial"]
    for layer in evaluated.features:
        assert layer.alpha == pytest.approx(np.clip(blobs[layer.layer][0], 0.5, 1).item())
        for channel in layer.channels:
            for place, seen in enumerate((channel.before, channel.after)):
                for domain, values in zip((source, target), seen, strict=True):
                    expected = domain[layer.layer][place][channel.number]
                    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)
        check_distances(layer, source[layer.layer], target[layer.layer])


def check_distances(layer: LayerFeatures, source: tuple[Floats, Floats], target: tuple[Floats, Floats]) -> None:
    gap = source[0].mean(1) - target[0].mean(1)
    deviations = [np.sqrt(values.var(1) + EPS) for values in (source[0], target[0])]
    mixture = np.sqrt((source[0].var(1) + target[0].var(1)) / 2 + (gap / 2) ** 2 + EPS)
    assert layer.before == pytest.approx((np.hypot(gap, deviations[0] - deviations[1]) / mixture).mean(), rel=1e-4)
    gap = source[1].mean(1) - target[1].mean(1)
    assert layer.after == pytest.approx(np.hypot(gap, source[1].std(1) - target[1].std(1)).mean(), rel=1e-3)


def test_channels_go_from_the_most_shifted_to_the_middle(evaluated: Evaluation, blobs: dict[str, list[Floats]]) -> None:
    assert not isinstance(evaluated.features, Absent)
    _, mean, variance, normalizer = blobs["conv/dial"]
    mean, variance = mean.reshape(2, -1) / normalizer.item(), variance.reshape(2, -1) / normalizer.item()
    order = np.argsort(-np.abs(mean[0] - mean[1]) / np.sqrt(variance.mean(0) + EPS))
    shown = [channel.number for channel in evaluated.features[0].channels]
    # of six: at places 0, 0.83, 1.67 and 2.5 of the order
    assert shown == sorted(order[:3].tolist())


def test_the_nets_statistics_are_what_they_were(trained: Path) -> None:
    """Running the source's images must not change what the target's are predicted with."""
    run = Run.read(trained / "run")
    options: dict[str, Any] = {"images": 9, "device": torch.device("cpu"), "workers": 0}
    first, second = (evaluate(run, layers=layers, **options) for layers in (["conv/dial"], []))
    assert not isinstance(first.predictions, Absent)
    assert not isinstance(second.predictions, Absent)
    np.testing.assert_array_equal(first.predictions.probabilities, second.predictions.probabilities)
    assert first.predictions.positions == [i * 14 // 9 for i in range(9)]
    assert isinstance(second.features, Absent)


def test_workers_and_batches_change_nothing(trained: Path) -> None:
    run = Run.read(trained / "run")
    results = []
    for workers in (0, 2):
        result = evaluate(run, images=14, layers=["fc/dial"], device=torch.device("cpu"), workers=workers)
        assert not isinstance(result.predictions, Absent)
        results.append(result.predictions)
    np.testing.assert_array_equal(results[0].probabilities, results[1].probabilities)
    assert [row.path for row in results[0].rows] == [row.path for row in results[1].rows]


@pytest.fixture
def in_lmdb(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`in_lmdb(domain)` writes a domain's images into an LMDB of its name."""
    monkeypatch.chdir(tmp_path)

    def write(domain: str) -> None:
        labels = [line.split() for line in (trained / f"{domain}.txt").read_text().splitlines()]
        with lmdb.open(domain, map_size=1 << 24) as database, database.begin(write=True) as transaction:
            for i, (name, label) in enumerate(labels):
                image = cv2.imread(str(trained / name))
                datum = pb.Datum(channels=3, height=10, width=10, label=int(label))
                datum.data = image.transpose(2, 0, 1).tobytes()
                transaction.put(f"{i:08}".encode(), datum.SerializeToString())

    yield write


def test_databases_give_the_same(
    trained: Path, evaluated: Evaluation, in_lmdb: Callable[[str], None], tmp_path: Path
) -> None:
    for domain in ("source", "target"):
        in_lmdb(domain)
    run = Run.read(trained / "run")
    for layer in run.train_net.layer:
        if layer.type == "ImageData":
            domain = "source" if layer.name == "source" else "target"
            layer.type = "Data"
            batch_size = layer.image_data_param.batch_size
            layer.ClearField("image_data_param")
            layer.data_param.source = str(tmp_path / domain)
            layer.data_param.backend = pb.DataParameter.LMDB
            layer.data_param.batch_size = batch_size
    result = evaluate(run, images=100, layers=["conv/dial"], device=torch.device("cpu"), workers=0)
    assert not isinstance(result.predictions, Absent)
    assert not isinstance(evaluated.predictions, Absent)
    np.testing.assert_allclose(result.predictions.probabilities, evaluated.predictions.probabilities, rtol=1e-6)
    np.testing.assert_array_equal(result.source_shares, evaluated.source_shares)
    assert not isinstance(result.certain, Absent)
    assert not isinstance(evaluated.certain, Absent)
    assert [shown.image.data for shown in result.certain] == [shown.image.data for shown in evaluated.certain]
    # here the target's database has the labels of target.txt, which are all 0
    assert result.predictions.unlabelled is not None


def test_the_working_directory_is_left_as_it_was(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run.read(trained / "run")

    def interrupt(share: float) -> None:
        assert Path.cwd() == trained
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(run, images=5, layers=[], device=torch.device("cpu"), workers=0, progress=interrupt)
    assert os.fspath(Path.cwd()) == os.fspath(tmp_path)


def test_weights_that_diverged(trained: Path, tmp_path: Path) -> None:
    from autodial.report.run import LoggedSnapshot
    from autodial.system.hashing import file_hash

    weights = proto.read_weights(trained / "spots_iter_8.caffemodel")
    for layer in weights.layers:
        if layer.name == "fc":
            layer.blobs[0] = np.full_like(layer.blobs[0], np.nan)
    path = tmp_path / "x.caffemodel"
    proto.write_weights(weights, path)
    run = Run.read(trained / "run")
    event = {"event": "snapshot", "iteration": 9, "model": str(path), "sha256": file_hash(path)}
    spoilt = Run(**{**vars(run), "events": [*run.events, event]})
    result = evaluate(spoilt, images=5, layers=["fc/dial"], device=torch.device("cpu"), workers=0)
    assert isinstance(result.snapshot, LoggedSnapshot)
    assert isinstance(result.predictions, Absent)
    assert "not finite" in result.predictions.reason
    assert isinstance(result.features, Absent)

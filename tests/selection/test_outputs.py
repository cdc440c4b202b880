"""What is kept of a trained candidate."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from autodial.data.image_list import ImageList
from autodial.errors import DivergedError, InputError
from autodial.net.feed import sources
from autodial.net.net import Net
from autodial.netparam.variants import apply_variant
from autodial.project.source_rows import add_sources
from autodial.proto import messages as pb
from autodial.proto import read_net, read_solver, read_weights, write_weights
from autodial.selection.outputs import Outputs, TrainedNet
from autodial.training.solver import Solver

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def trained(stripes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Solver]:
    """Weights, and the solver that trained them."""
    prefix = tmp_path_factory.mktemp("trained") / "net"
    overrides = [f"solver.snapshot_prefix={prefix}", "conv/dial.param[0].lr_mult=0"]
    solver = Solver.from_file(stripes / "solver.prototxt", overrides=overrides)
    solver.step(12)
    model, _ = solver.snapshot()
    solver.close()
    return model, solver


def open_net(stripes: Path, weights: Path) -> TrainedNet:
    net = read_net(stripes / "net.prototxt")
    return TrainedNet(net, weights, base_dir=stripes, device=torch.device("cpu"), workers=0)


def blob(stripes: Path, solver: Solver, name: str, path: Path, statistics: int) -> Array:
    """A blob of every image of a list, through the TEST phase in one batch."""
    param = read_net(stripes / "net.prototxt")
    for layer in param.layer:
        layer.dial_param.test_stats = statistics
        if layer.name == "test":
            layer.image_data_param.source = str(path)
            layer.image_data_param.batch_size = len(ImageList.read(path))
    net = Net(param, pb.TEST)
    net.share_with(solver.net)
    data, _ = sources(net)["test"].batch(0)
    with torch.no_grad():
        values = net.blobs({"data": torch.from_numpy(data), "label": torch.zeros(len(data))}, [name])[name]
    return values.flatten(1).numpy()


def test_each_domain_goes_through_its_own_statistics(stripes: Path, trained: tuple[Path, Solver]) -> None:
    weights, solver = trained
    source, target = stripes / "source.txt", stripes / "target.txt"
    found = open_net(stripes, weights).outputs(source=None, held_out=source, target_labels=True, seed=3)
    for values, path, statistics in (
        (found.source_logits, source, pb.DialParameter.SOURCE),
        (found.held_out_logits, source, pb.DialParameter.SOURCE),
        (found.target_logits, target, pb.DialParameter.TARGET),
    ):
        np.testing.assert_allclose(values, blob(stripes, solver, "fc", path, statistics), rtol=1e-4, atol=1e-5)
    assert found.held_out_labels.tolist() == [entry.label for entry in ImageList.read(source)]
    np.testing.assert_array_equal(found.feature_rows, np.arange(40))
    features = blob(stripes, solver, "conv", target, pb.DialParameter.TARGET)
    np.testing.assert_allclose(found.features, features, rtol=1e-4, atol=1e-5)
    truth = [entry.label for entry in ImageList.read(stripes / "test.txt")]
    assert found.test_labels.tolist() == truth
    expected = torch.from_numpy(found.target_logits).softmax(1)  # the same images, in the same order
    np.testing.assert_allclose(found.test_probabilities, expected, rtol=1e-5)


def test_labels_and_held_out_images_are_left_alone_unless_asked_for(
    stripes: Path, trained: tuple[Path, Solver]
) -> None:
    found = open_net(stripes, trained[0]).outputs(
        source=stripes / "source.txt", held_out=None, target_labels=False, seed=3
    )
    assert (len(found.held_out_logits), len(found.held_out_labels)) == (0, 0)
    assert (len(found.test_probabilities), len(found.test_labels)) == (0, 0)


def test_whole_statistics_are_those_of_all_images(stripes: Path, trained: tuple[Path, Solver]) -> None:
    """The first Dial layer, whose alpha is 1: mean and variance of what the convolution makes of the target."""
    weights, solver = trained
    net = open_net(stripes, weights)
    net.recalibrate(None)
    (dial,) = (layer for layer in net.weights.layers if layer.name == "conv/dial")
    _, mean, variance, normalizer = dial.blobs
    assert mean is not None
    assert variance is not None
    assert normalizer is not None
    assert normalizer.tolist() == [1]
    param = read_net(stripes / "net.prototxt")
    kept = [layer for layer in param.layer if layer.name in ("test", "conv")]
    images = next(layer for layer in kept if layer.name == "test").image_data_param
    images.source, images.batch_size = str(stripes / "target.txt"), 40
    plain = Net(pb.NetParameter(layer=kept), pb.TEST)
    plain.share_with(solver.net)
    data, _ = sources(plain)["test"].batch(0)
    with torch.no_grad():
        values = plain.blobs({"data": torch.from_numpy(data), "label": torch.zeros(40)}, ["conv"])["conv"].double()
    np.testing.assert_allclose(mean[1], values.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance[1], values.var((0, 2, 3), correction=0), rtol=1e-4)


def test_outputs_survive_their_file(stripes: Path, trained: tuple[Path, Solver], tmp_path: Path) -> None:
    written = open_net(stripes, trained[0]).outputs(source=None, held_out=None, target_labels=True, seed=3)
    path = tmp_path / "outputs.npz"
    written.write(path)
    loaded = Outputs.read(path)
    for field in fields(Outputs):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(written, field.name))
    for damaged in (b"", path.read_bytes()[:100], b"PK\x03\x04 and so on"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"outputs\.npz is damaged: delete it"):
            Outputs.read(path)
    for change in (
        {"features": np.array([{}])},  # an array of objects; reading them would run code
        {"features": written.features[:, 0]},
        {"target_logits": written.target_logits * np.nan},
        {"target_logits": written.target_logits[:, :2]},
        {"test_labels": written.test_labels[1:]},
        {"test_labels": written.test_labels + 1},
        {"feature_rows": written.feature_rows + 1},
        {"feature_rows": written.feature_rows.astype(float)},
    ):
        replace(written, **change).write(path)
        with pytest.raises(InputError, match=r"outputs\.npz is damaged"):
            Outputs.read(path)


def test_scores_that_overflow_are_those_of_a_training_that_diverged(
    stripes: Path, trained: tuple[Path, Solver], tmp_path: Path
) -> None:
    """The weights are finite, so that there is a snapshot."""
    saved = read_weights(trained[0])
    weights = next(layer for layer in saved.layers if layer.name == "fc").blobs[0]
    assert weights is not None
    weights[:] = 3e38
    path = tmp_path / "huge.caffemodel"
    write_weights(saved, path)
    with pytest.raises(DivergedError, match=r'after training, scores in blob "fc" are not finite'):
        open_net(stripes, path).outputs(source=None, held_out=None, target_labels=False, seed=3)


def test_nets_without_alignment_are_measured_by_lists(stripes: Path, tmp_path: Path) -> None:
    """A net for the source alone: both domains are read from lists, as the TEST phase's data layer prepares them."""
    param = apply_variant(read_net(stripes / "net.prototxt"), "source-only")
    net = Net(param, pb.TEST, base_dir=stripes)
    write_weights(net.weights(), tmp_path / "weights.caffemodel")
    source, target = stripes / "source.txt", stripes / "target.txt"
    opened = TrainedNet(
        param,
        tmp_path / "weights.caffemodel",
        base_dir=stripes,
        device=torch.device("cpu"),
        workers=0,
        target=target,
    )
    found = opened.outputs(source=source, held_out=None, target_labels=True, seed=0)
    for values, path in ((found.source_logits, source), (found.target_logits, target)):
        entries = ImageList.read(path).entries
        images = np.stack([cv2.imread(str(stripes / entry.path)) for entry in entries])
        data = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32)) * 0.0078125
        with torch.no_grad():
            blobs = net.blobs({"data": data, "label": torch.zeros(len(data))}, ["fc", "conv"])
        np.testing.assert_allclose(values, blobs["fc"].numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(opened.features(path), blobs["conv"].flatten(1).numpy(), rtol=1e-4, atol=1e-5)
    assert found.test_labels.tolist() == [entry.label for entry in ImageList.read(stripes / "test.txt")]


def test_each_of_several_sources_goes_through_its_own_statistics(stripes: Path, tmp_path: Path) -> None:
    lines = (stripes / "source.txt").read_text().splitlines()
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path, part in zip(paths, (lines[:40], lines[40:]), strict=True):
        path.write_text("".join(f"{stripes / line.rpartition(' ')[0]} {line[-1]}\n" for line in part))
    param = read_net(stripes / "net.prototxt")
    rows = next(layer.dial_param.slice_point for layer in param.layer if layer.type == "Dial")
    add_sources(param, "source", [str(path) for path in paths], (rows - 2, 2))
    solver = read_solver(stripes / "solver.prototxt")
    solver.ClearField("net")
    solver.net_param.CopyFrom(param)
    trained = Solver(solver, base_dir=stripes, overrides=[f"solver.snapshot_prefix={tmp_path / 'net'}"])
    trained.step(3)
    weights, _ = trained.snapshot()
    trained.close()
    net = TrainedNet(param, weights, base_dir=stripes, device=torch.device("cpu"), workers=0)
    found = net.outputs(source=None, held_out=[None, paths[1]], target_labels=False, seed=3)

    test = Net(param, pb.TEST, base_dir=stripes)
    test.share_with(trained.net)
    for domain, path, values in (
        ("source 1", paths[0], found.source_logits[:40]),
        ("source 2", paths[1], found.source_logits[40:]),
        ("source 2", paths[1], found.held_out_logits),
    ):
        for name in trained.net.alphas():
            test.layer(name).test_stats = domain
        images = torch.from_numpy(_images(test, path))
        with torch.no_grad():
            expected = test.blobs({"data": images, "label": torch.zeros(len(images))}, ["fc"])["fc"]
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    assert found.held_out_labels.tolist() == [entry.label for entry in ImageList.read(paths[1])]
    net.recalibrate([paths[0], None])


def _images(net: Net, path: Path) -> Array:
    """The images of a list as the TEST phase prepares them."""
    param = pb.NetParameter()
    param.layer.add().CopyFrom(next(layer for layer in net.param.layer if layer.name == "test"))
    param.layer[0].image_data_param.source = str(path)
    param.layer[0].image_data_param.batch_size = len(ImageList.read(path))
    images: Array = sources(Net(param, pb.TEST))["test"].batch(0)[0]
    return images

"""Ensembles: files that average nets, against numpy's mean of ONNX Runtime's results on each net's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from trained_net import small_trained_net

from autodial.converters import TritonModel
from autodial.converters.destinations.caffe import CaffeFolder
from autodial.converters.metadata import weights_digest
from autodial.converters.net_export import export
from autodial.deploy import Predictor
from autodial.errors import InputError
from autodial.proto import Weights, write_text, write_weights

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Weights], Path]:
    """A net, weights of three trainings, and the folder with its lists, which also holds a file of each training."""
    folder = tmp_path_factory.mktemp("net")
    weights = []
    for seed in SEEDS:
        net, trained, _ = small_trained_net(folder, seed)
        export(net, trained, folder / f"{seed}.onnx", base_dir=folder)
        weights.append(trained)
    return net, weights, folder


def run(path: Path, images: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits", "probabilities"], {session.get_inputs()[0].name: images})


def images_of(folder: Path) -> Any:
    return np.stack([cv2.imread(str(path)) for path in sorted((folder / "images").iterdir())])


def mean_probabilities(folder: Path) -> Any:
    """The mean of what the single files say of the images."""
    return np.mean([run(folder / f"{seed}.onnx", images_of(folder))[1].astype(np.float64) for seed in SEEDS], axis=0)


def test_the_file_averages_what_the_single_files_say(nets: Any, tmp_path: Path) -> None:
    net, weights, folder = nets
    report = export(net, weights, tmp_path / "model.onnx", base_dir=folder)
    logits, probabilities = run(report.output, images_of(folder))
    expected = mean_probabilities(folder)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(logits, np.log(expected), atol=1e-4)
    single = [run(folder / f"{seed}.onnx", images_of(folder))[1] for seed in SEEDS]
    assert all(np.abs(other - single[0]).max() > 0.1 for other in single[1:])  # else the mean would say nothing
    assert any("averages the probabilities of 3 nets" in note for note in report.notes)
    assert report.metadata["weights_sha256"] == weights_digest(*weights)
    assert report.relative_difference <= report.tolerance


def test_it_predicts_and_knows_its_training_images_as_one_net_does(nets: Any, tmp_path: Path) -> None:
    net, weights, folder = nets
    labels = tmp_path / "labels.txt"
    labels.write_text("owl\ncat\nelk\nant\n")
    report = export(net, weights, tmp_path / "model.onnx", base_dir=folder, labels=labels)
    predictor = Predictor(report.output, "cpu")
    assert predictor.info.classes == ("owl", "cat", "elk", "ant")
    _, probabilities = predictor.predict(sorted((folder / "images").iterdir()))
    np.testing.assert_allclose(probabilities, mean_probabilities(folder), atol=1e-6)
    assert report.metadata["statistics"] == "target"
    reference = report.metadata["reference"]
    expected = mean_probabilities(folder)[:100].max(1).mean()  # the first 100 are the target's training list
    assert (reference["images"], reference["list"]) == (200, "target.txt")
    assert reference["figures"]["confidence"]["mean"] == pytest.approx(expected, abs=1e-5)


def test_its_hash_depends_on_every_net_and_their_order(nets: Any) -> None:
    _, weights, _ = nets
    chosen = (weights, weights[:2], weights[1::-1], weights[:1], weights[1:2])
    assert len({weights_digest(*nets) for nets in chosen}) == len(chosen)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_lower_precision(nets: Any, precision: Any, tmp_path: Path) -> None:
    net, weights, folder = nets
    report = export(net, weights, tmp_path / "model.onnx", base_dir=folder, precision=precision, min_agreement=0.8)
    logits, probabilities = run(report.output, images_of(folder))
    off = np.abs(probabilities - mean_probabilities(folder))
    assert 0 < off.max() < (0.004 if precision == "fp16" else 0.15)
    assert len(np.unique(logits[:, 0])) > len(logits) / 2  # neither the members' logits nor the mean are 8 bits wide
    assert report.agreement is not None and report.agreement.same_class >= 0.8


def test_classes_that_no_net_expects_have_finite_logits(nets: Any, tmp_path: Path) -> None:
    net, weights, folder = nets
    sure = []
    for one in weights[:2]:
        fc = next(layer for layer in one.layers if layer.name == "fc")
        blobs = [None if blob is None else 1000 * blob for blob in fc.blobs]
        sure.append(Weights("", [layer if layer is not fc else type(fc)(fc.param, blobs) for layer in one.layers]))
    report = export(net, sure, tmp_path / "model.onnx", base_dir=folder)
    logits, probabilities = run(report.output, images_of(folder))
    assert (probabilities == 0).any() and np.isfinite(logits).all()


def test_plain_caffe_is_refused(nets: Any, tmp_path: Path) -> None:
    net, weights, folder = nets
    with pytest.raises(InputError, match="plain Caffe holds one net"):
        export(net, weights, CaffeFolder(tmp_path / "out"), base_dir=folder)
    assert not list(tmp_path.iterdir())


def test_a_model_repository_holds_it(nets: Any, tmp_path: Path) -> None:
    net, weights, folder = nets
    export(net, weights, TritonModel(tmp_path / "models", "pets"), base_dir=folder)
    _, probabilities = run(tmp_path / "models" / "pets" / "1" / "model.onnx", images_of(folder))
    np.testing.assert_allclose(probabilities, mean_probabilities(folder), atol=1e-6)


def test_weights_that_do_not_fit_are_named(nets: Any, tmp_path: Path) -> None:
    net, weights, folder = nets
    broken = Weights("", [layer for layer in weights[1].layers if layer.name != "conv"])
    with pytest.raises(InputError, match=r"nothing for layer conv in .* \(in weights 2 of 3\)"):
        export(net, [weights[0], broken, weights[2]], tmp_path / "model.onnx", base_dir=folder)
    with pytest.raises(InputError, match="`weights` holds no caffemodel"):
        export(net, [], tmp_path / "model.onnx", base_dir=folder)


def test_the_command(nets: Any, tmp_path: Path, autodial: Any) -> None:
    net, weights, folder = nets
    write_text(net, folder / "net.prototxt")
    for seed, one in zip(SEEDS, weights, strict=True):
        write_weights(one, folder / f"{seed}.caffemodel")
    first, second, third = (folder / f"{seed}.caffemodel" for seed in SEEDS)
    words = ["export", "--net", folder / "net.prototxt", "-o", tmp_path / "model.onnx"]
    status, out, _ = autodial(*words, "--ensemble", "--weights", first, "--weights", second, "--weights", third)
    assert status == 0 and "averages the probabilities of 3 nets" in out
    _, probabilities = run(tmp_path / "model.onnx", images_of(folder))
    np.testing.assert_allclose(probabilities, mean_probabilities(folder), atol=1e-6)

    status, _, err = autodial(*words, "--weights", first, "--weights", second)
    assert status == 2 and "--weights is given 2 times: add --ensemble" in err
    status, _, err = autodial(*words, "--ensemble", "--weights", f"{first},{second}")
    assert status == 2 and "give --weights once for each" in err
    caffe = ["export", "--net", folder / "net.prototxt", "--caffe", tmp_path / "caffe", "--ensemble"]
    status, _, err = autodial(*caffe, "--weights", first, "--weights", second)
    assert status == 2 and "plain Caffe holds one net, and --ensemble averages several" in err

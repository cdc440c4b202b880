"""What export keeps of the training list: the same statistics that predict counts, of the target's images alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from torch import nn

from autodial.converters import export_module, file_batches, reference
from autodial.converters.net_export import export
from autodial.converters.reference import TrainingImages
from autodial.converters.verification import ExportReport
from autodial.deploy import PredictOptions, Predictor, predict_folder
from autodial.errors import InputError
from autodial.proto import LayerWeights, Weights, parse_net, write_text, write_weights

NET = """
layer { name: "one" type: "ImageData" top: "one" top: "labels" include { phase: TRAIN }
  image_data_param { source: "source.txt" batch_size: 2 new_height: 8 new_width: 6 } }
layer { name: "two" type: "ImageData" top: "two" top: "none" include { phase: TRAIN }
  transform_param { mirror: true crop_size: 4 } image_data_param { source: "target.txt" batch_size: 2 shuffle: true } }
layer { name: "silence" type: "Silence" bottom: "none" include { phase: TRAIN } }
layer { name: "both" type: "Concat" bottom: "one" bottom: "two" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "labels" include { phase: TEST }
  transform_param { scale: 0.01 } image_data_param { source: "test.txt" batch_size: 2 new_height: 8 new_width: 6 } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "dial" type: "Dial" bottom: "fc" top: "fc" dial_param { slice_point: 2 } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "labels" top: "accuracy" include { phase: TEST } }
"""
COUNTS = {"source": 9, "target": 12, "test": 3}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Lists of images in odd sizes, brighter from list to list."""
    for k, (name, count) in enumerate(COUNTS.items()):
        rng = np.random.default_rng(k)
        lines = []
        for i in range(count):
            pixels = rng.integers(40 * k, 60 + 60 * k, (9 + i, 14 - i, 3), dtype=np.uint8)
            cv2.imwrite(str(tmp_path / f"{name}{i}.png"), pixels)
            lines.append(f"{name}{i}.png 0\n")
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    return tmp_path


def weights() -> Weights:
    layers = {layer.name: layer for layer in parse_net(NET).layer}
    rng = np.random.default_rng(0)
    fc = [rng.normal(0, 0.2, (3, 144)), np.zeros(3)]
    dial = [[0.8], rng.normal(0, 1, (2, 3)), rng.uniform(0.5, 2, (2, 3)), [1]]
    return Weights(
        "", [LayerWeights(layers[name], list(map(np.float32, blobs))) for name, blobs in (("fc", fc), ("dial", dial))]
    )


def exported(project: Path, **options: Any) -> ExportReport:
    return export(parse_net(NET), weights(), project / "model.onnx", base_dir=project, **options)


def images_of(project: Path, name: str) -> list[Path]:
    return [project / f"{name}{i}.png" for i in range(COUNTS[name])]


def test_the_targets_training_list_is_measured(project: Path) -> None:
    kept = exported(project).metadata["reference"]
    assert (kept["domain"], kept["list"], kept["listed"], kept["images"]) == ("target", "target.txt", 12, 12)
    pixels = [cv2.resize(cv2.imread(str(path)), (6, 8)) for path in images_of(project, "target")]
    _, probabilities = Predictor(project / "model.onnx", "cpu").predict(pixels)
    assert kept["classes"] == " ".join(map(str, probabilities.argmax(axis=1)))
    means = {name: statistic["mean"] for name, statistic in kept["figures"].items()}
    assert means["confidence"] == pytest.approx(probabilities.max(axis=1).mean())
    exact = probabilities.astype(float)
    assert means["entropy"] == pytest.approx(-(exact * np.log(exact)).sum(axis=1).mean())
    grey = [cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) for image in pixels]
    assert means["brightness"] == pytest.approx(np.mean([image.mean() for image in grey]))
    assert means["contrast"] == pytest.approx(np.mean([image.std() for image in grey]))


def test_predict_finds_no_difference_to_the_list_itself(project: Path) -> None:
    """Both decode, resize and count alike."""
    exported(project)
    drift = predict_folder(
        project / "model.onnx",
        [project / "target.txt"],
        project / "a.csv",
        PredictOptions(batch_size=5, drift=project / "a.json"),
    ).drift
    assert drift is not None and drift.images == 12
    assert [statistic.distance for statistic in drift.statistics] == pytest.approx([0] * 8, abs=1e-12)
    assert [statistic.mean for statistic in drift.statistics] == pytest.approx(
        [f.reference_mean for f in drift.statistics]
    )
    assert drift.classes is not None and drift.classes.distance == 0


def test_the_model_itself_is_the_same_with_and_without(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [path for name in COUNTS for path in images_of(project, name)]
    exported(project)
    logits, _ = Predictor(project / "model.onnx", "cpu").predict(images)
    (project / "target.txt").unlink()
    report = exported(project)
    assert "reference" not in report.metadata
    np.testing.assert_array_equal(Predictor(project / "model.onnx", "cpu").predict(images)[0], logits)
    (note,) = (note for note in report.notes if "domain shift" in note)
    assert note.startswith("the file can't detect a domain shift") and "target.txt" in note


def test_a_long_list_is_measured_in_equal_steps(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "LIMIT", 5)
    monkeypatch.setattr(file_batches, "BATCH", 2)
    training = TrainingImages.of_caffe(parse_net(NET), "target", project)
    assert [path.name for path in training.files] == [f"target{i}.png" for i in (0, 2, 4, 7, 9)]
    seen: list[tuple[int, int]] = []
    kept = exported(project, progress=lambda done, total: seen.append((done, total))).metadata["reference"]
    assert (kept["listed"], kept["images"]) == (12, 5)
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_the_domain_is_that_of_the_statistics(project: Path) -> None:
    training = TrainingImages.of_caffe(parse_net(NET), "source", project)
    assert (training.domain, training.name, training.listed) == ("source", "source.txt", 9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda net: net.layer[1].image_data_param.ClearField("source"), "source, the list of images, is missing"),
        (lambda net: net.layer.remove(net.layer[3]), "no TRAIN phase that joins a source and a target"),
        (lambda net: net.layer.remove(net.layer[6]), "no Dial layer"),
        (lambda net: setattr(net.layer[1], "type", "Data"), r'"two" \(Data\) reads no list'),
    ],
)
def test_a_net_without_such_a_list_says_so(project: Path, change: Callable[[Any], object], reason: str) -> None:
    net = parse_net(NET)
    change(net)
    with pytest.raises(InputError, match=reason):
        TrainingImages.of_caffe(net, "target", project)


def test_images_that_are_gone_or_broken_are_left_out(project: Path) -> None:
    (project / "target3.png").unlink()
    (project / "target5.png").write_bytes(b"broken")
    report = exported(project)
    assert report.metadata["reference"]["images"] == 10
    assert any(
        "2 of 12 images of target.txt could not be measured" in note and "target5" in note for note in report.notes
    )
    for path in images_of(project, "target")[1:]:
        path.write_bytes(b"broken")
    cv2.imwrite(str(project / "target0.png"), np.zeros((9, 9, 3), np.uint8))
    assert exported(project).metadata["reference"]["images"] == 1


def test_nothing_is_kept_for_blobs(project: Path) -> None:
    assert "reference" not in exported(project, raw_input=True).metadata


def test_the_command_says_what_is_kept(project: Path, autodial: Callable[..., tuple[int, str, str]]) -> None:
    write_text(parse_net(NET), project / "net.prototxt")
    write_weights(weights(), project / "w.caffemodel")
    words = ["--net", project / "net.prototxt", "--weights", project / "w.caffemodel", "-o", project / "m.onnx"]
    status, out, _ = autodial("export", *words)
    assert status == 0 and "Kept for `autodial predict --drift`: statistics of 12 of 12 images of target.txt" in out
    for name in images_of(project, "target"):
        name.unlink()
    status, out, _ = autodial("export", *words, "--json")
    report = json.loads(out)
    assert status == 0 and "reference" not in report["metadata"]
    assert any("detect a domain shift" in note for note in report["notes"])


def test_torch_modules_may_name_their_target_images(project: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(8 * 6 * 3, 3))
    options: dict[str, Any] = {"size": (8, 6), "classes": list("abc")}
    assert "reference" not in export_module(module, project / "m.onnx", **options).metadata
    report = export_module(module, project / "m.onnx", target_images=images_of(project, "target"), **options)
    assert report.metadata["reference"]["images"] == 12 and report.notes == ()
    drift = predict_folder(
        project / "m.onnx", images_of(project, "target"), project / "a.csv", PredictOptions(drift=project / "a.json")
    ).drift
    assert drift is not None
    assert [statistic.distance for statistic in drift.statistics] == pytest.approx([0] * 8, abs=1e-12)

"""The model card of an exported file: what it says with and without a training's record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from cards import read_card, rows
from torch import nn
from trained_net import small_trained_net

from autodial.converters import TestScores, TrainedNet, TritonModel, export_module, write_card
from autodial.converters.card import check_card
from autodial.converters.destinations import ExportOptions, find_destination
from autodial.converters.destinations.onnx import OnnxFile
from autodial.converters.net_export import export
from autodial.errors import InputError

TRAINED = TrainedNet(
    iteration=850,
    seed=3,
    variants=["fixed-alpha"],
    sources=["amazon_1.txt"],
    target="webcam.txt",
    alphas={"conv1-dial": 1.0, "fc_8|dial": 0.625},
    scores=TestScores("webcam_test.txt", 300, 0.8125, 0.75, [1.0, None]),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a module without domain alignment layers."""
    path = tmp_path_factory.mktemp("module") / "pets.onnx"
    return export_module(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), path, size=(4, 4), classes=["a|b", "*c*"])


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a small net with target statistics."""
    net, weights, folder = small_trained_net(tmp_path_factory.mktemp("net"))
    return export(net, weights, folder / "target_predictor.onnx", base_dir=folder)


def test_without_a_record_a_card_says_what_is_not_known(report: Any, tmp_path: Path) -> None:
    write_card(report, tmp_path / "README.md")
    card = read_card(tmp_path / "README.md")
    assert card.head == {
        "library_name": "onnx",
        "pipeline_tag": "image-classification",
        "tags": ["autodial", "domain-adaptation", "image-classification", "onnx"],
    }
    assert card.text.count("no record of the training was found") == 2
    assert "The file itself has not been scored on labelled images" in card.text
    assert "has no domain alignment layers" in card.text and "--drift" not in card.text
    assert "| License | none is named |" in card.text
    assert rows(card, "Classes") == [[r"a\|b"], [r"\*c\*"]]


def test_a_record_gives_the_accuracy(report: Any, tmp_path: Path) -> None:
    write_card(report, tmp_path / "README.md", [TRAINED])
    card = read_card(tmp_path / "README.md")
    assert card.head["metrics"] == ["accuracy", "balanced_accuracy"]
    ((entry,),) = [card.head["model-index"]]
    (result,) = entry["results"]
    assert entry["name"] == "pets" and result["dataset"]["name"] == "labelled test images (webcam_test.txt)"
    assert [(metric["type"], metric["value"]) for metric in result["metrics"]] == [
        ("accuracy", 0.8125),
        ("balanced_accuracy", 0.75),
    ]
    assert rows(card, "Accuracy") == [[r"webcam\_test.txt", "300", "81.2%", "75.0%"]]
    assert rows(card, "Classes") == [[r"a\|b", "100.0%"], [r"\*c\*", "no images"]]
    assert "850 iterations, seed 3, as fixed-alpha; source: `amazon_1.txt`; target: `webcam.txt`." in card.text
    assert r"conv1-dial 1.00, fc\_8\|dial 0.62." in card.text
    assert "has not been scored" not in card.text


@pytest.mark.parametrize(
    ("changed", "trainings", "recalibrated", "words"),
    [
        ({}, [TRAINED, None], False, "averages 2 nets"),
        ({}, [TRAINED], True, "has statistics that were computed once more, over all training images"),
        ({"precision": "int8"}, [TRAINED], False, "computes in int8"),
        ({}, [replace(TRAINED, statistics="source")], False, "has no statistics"),
    ],
)
def test_what_another_file_scored_is_told_as_that(
    changed: dict[str, Any], trainings: Any, recalibrated: bool, words: str, report: Any, tmp_path: Path
) -> None:
    write_card(replace(report, **changed), tmp_path / "README.md", trainings, recalibrated=recalibrated)
    card = read_card(tmp_path / "README.md")
    assert f"This file {words}, and was not scored itself" in card.text
    assert "metrics" not in card.head and "model-index" not in card.head
    assert rows(card, "Accuracy")[0][2:] == ["81.2%", "75.0%"]
    assert rows(card, "Classes") == [[r"a\|b", "100.0%"], [r"\*c\*", "no images"]]
    assert "| class | recall in the test above |" in card.text
    assert ("For the other nets, no record was found" in card.text) == (len(trainings) == 2)


def test_what_a_file_keeps_of_its_training_images_is_told(adapted: Any, tmp_path: Path) -> None:
    write_card(adapted, tmp_path / "README.md")
    card = read_card(tmp_path / "README.md")
    kept = adapted.metadata["reference"]
    table = {row[0]: row[1:] for row in rows(card, "Training")}
    assert table.keys() == kept["figures"].keys()
    assert table["brightness"][0] == f"{kept['figures']['brightness']['mean']:.3g}"
    predicted = kept["classes"].split()
    shares = [f"{predicted.count(str(i)) / len(predicted):.1%}" for i in range(4)]
    assert rows(card, "Classes") == [[str(i), share] for i, share in enumerate(shares)]
    assert "It is for images of the target" in card.text and "predict --drift" in card.text


def test_several_sources_and_labels_of_the_target_are_told(adapted: Any, tmp_path: Path) -> None:
    trained = replace(
        TRAINED, sources=["a_1.txt", "a`2.txt"], labelled_target="few.txt", labelled_images=12, statistics="target"
    )
    write_card(adapted, tmp_path / "README.md", [trained])
    words = " ".join(read_card(tmp_path / "README.md").text.split())
    assert (
        "from labelled images of 2 domains, the sources, and images of another, the target, 12 of them with labels, "
        "with domain alignment layers between them. It is for images of the target" in words
    )
    assert (
        "sources: `a_1.txt` and `` a`2.txt ``; target: `webcam.txt`; target images with labels: `few.txt` (12 images)."
        in words
    )
    assert "Apart from the labelled training images, the labels of target images were used for scoring only." in words


def test_why_nothing_was_tested_is_told(report: Any, tmp_path: Path) -> None:
    write_card(report, tmp_path / "README.md", [replace(TRAINED, scores=None, untested="it tested other iterations")])
    words = " ".join(read_card(tmp_path / "README.md").text.split())
    assert "has no test of these weights, as it tested other iterations. `autodial test` scores weights" in words


def test_several_changes_are_listed(report: Any, tmp_path: Path) -> None:
    changed = replace(report, precision="fp16")
    write_card(changed, tmp_path / "README.md", [TRAINED, TRAINED], recalibrated=True)
    words = (
        "averages 2 nets, has statistics that were computed once more, over all training images and computes in fp16"
    )
    assert f"This file {words}, and was not scored itself" in read_card(tmp_path / "README.md").text


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("order", ["RGB", "GRAY"])
def test_its_programs_agree_with_each_other(
    order: Any, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16 * (1 if order == "GRAY" else 3), 2))
    made = export_module(module, tmp_path / "pets.onnx", size=(4, 4), channel_order=order, classes=["cat", "dog"])
    write_card(made, tmp_path / "README.md")
    pixels = np.random.default_rng(0).integers(0, 256, (23, 31, channels), dtype=np.uint8)
    written, encoded = cv2.imencode(".jpg" if channels == 3 else ".png", pixels)
    assert written
    (tmp_path / "photo.jpg").write_bytes(encoded.tobytes())
    monkeypatch.chdir(tmp_path)
    with_autodial, plain = read_card(tmp_path / "README.md").blocks["python"]
    printed = []
    for code in (with_autodial, plain):
        exec(compile(code, "README.md", "exec"), {})
        name, probability = capsys.readouterr().out.split()
        printed.append((name, float(probability)))
    assert printed[0][0] == printed[1][0] and printed[0][1] == pytest.approx(printed[1][1], abs=1e-6)


def test_of_many_classes_a_card_lists_the_first(report: Any, tmp_path: Path) -> None:
    many = replace(report, metadata={**report.metadata, "classes": [f"c{i}" for i in range(1000)]})
    write_card(many, tmp_path / "README.md")
    card = read_card(tmp_path / "README.md")
    assert len(rows(card, "Classes")) == 100 and "and 900 more" in card.text


@pytest.mark.parametrize(
    ("spdx", "head"),
    [
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("LicenseRef-Acme", {"license": "other", "license_name": "licenseref-acme"}),
        ("MIT OR Apache-2.0", {"license": "other", "license_name": "mit-or-apache-2.0"}),
    ],
)
def test_a_license_is_named_as_the_hub_names_it(spdx: str, head: dict[str, str], report: Any, tmp_path: Path) -> None:
    write_card(replace(report, license=spdx), tmp_path / "README.md")
    card = read_card(tmp_path / "README.md")
    assert {key: value for key, value in card.head.items() if "license" in key} == head
    assert f"| License | {spdx} |" in card.text


def test_the_hub_reads_a_card(report: Any, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, which reads cards as the Hub does")
    write_card(replace(report, license="MIT"), tmp_path / "README.md", [TRAINED])
    data = hub.ModelCard.load(tmp_path / "README.md").data
    assert (data.license, data.library_name, data.pipeline_tag) == ("mit", "onnx", "image-classification")
    assert [(one.metric_type, one.metric_value) for one in data.eval_results] == [
        ("accuracy", 0.8125),
        ("balanced_accuracy", 0.75),
    ]


def test_a_model_of_triton_s_repository_has_a_card(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    made = export_module(module, TritonModel(tmp_path / "models", "pets"), size=(4, 4))
    write_card(made, tmp_path / "README.md")
    card = read_card(tmp_path / "README.md")
    assert card.text.startswith("\n# pets\n") and 'Predictor("1/model.onnx")' in card.text


def test_no_other_file_is_replaced(report: Any, tmp_path: Path) -> None:
    path, place = tmp_path / "README.md", OnnxFile(tmp_path / "out.onnx")
    check_card(path, ExportOptions(), place)
    write_card(report, path)
    check_card(path, ExportOptions(), place)
    path.write_text("# My project\n")
    with pytest.raises(InputError, match="no card that an export wrote"):
        check_card(path, ExportOptions(), place)
    with pytest.raises(InputError, match=r"`card` .*labels.txt: name a file that ends in"):
        check_card(tmp_path / "labels.txt", ExportOptions(), place)
    with pytest.raises(InputError, match=r"`card` .*out.onnx: the exported file is written there: name another file"):
        check_card(tmp_path / "out.onnx", ExportOptions(), place, output=tmp_path / "out.onnx")


def test_a_file_without_images_has_no_card(report: Any, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    caffe = find_destination("caffe").at(tmp_path / "caffe", "net", ExportOptions())
    with pytest.raises(InputError, match="`card` describes an ONNX file that takes images"):
        check_card(path, ExportOptions(), caffe)
    with pytest.raises(InputError, match="`card` describes an ONNX file that takes images"):
        check_card(path, ExportOptions(raw_input=True), OnnxFile(tmp_path / "out.onnx"))
    with pytest.raises(InputError, match="takes the net's input blob"):
        write_card(replace(report, metadata={**report.metadata, "raw_input": True}), path)
    assert not path.exists()

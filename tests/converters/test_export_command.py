"""`autodial export` from files to a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import typer
from typer.testing import CliRunner

from autodial.commands.export import export
from autodial.errors import InputError
from autodial.proto import LayerWeights, Weights, parse_net, write_weights

NET = """
layer { name: "images" type: "ImageData" top: "data" top: "labels" image_data_param { source: "list.txt" } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 2 } }
layer { name: "fc2" type: "InnerProduct" bottom: "fc" top: "fc2" inner_product_param { num_output: 2 } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc2" bottom: "labels" top: "accuracy" }
"""

app = typer.Typer()
app.command()(export)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    messages = {layer.name: layer for layer in parse_net(NET).layer}
    rng = np.random.default_rng(0)
    for file, name, inputs in (("one", "fc", 48), ("two", "fc2", 2)):
        blobs = [rng.standard_normal((2, inputs)).astype(np.float32), np.zeros(2, np.float32)]
        write_weights(Weights("", [LayerWeights(messages[name], blobs)]), tmp_path / f"{file}.caffemodel")
    return tmp_path


def arguments(project: Path, *more: str) -> list[str]:
    weights = f"{project / 'one.caffemodel'},{project / 'two.caffemodel'}"
    return ["--net", str(project / "net.prototxt"), "--weights", weights, "-o", str(project / "out.onnx"), *more]


def test_writes_a_file_and_says_how_far_off_it_is(project: Path) -> None:
    size = ["--set", "images.image_data_param.new_height=4", "--set", "images.image_data_param.new_width=4"]
    result = CliRunner().invoke(app, arguments(project, *size), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for part in (
        "takes BGR images of 4 x 4 pixels and scores 2 classes",
        "Largest difference from the unfolded net",
        "labels.txt",
    ):
        assert part in result.output
    session = onnxruntime.InferenceSession(str(project / "out.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 4, 4, 3]
    assert '"classes": ["cat", "dog"]' in session.get_modelmeta().custom_metadata_map["autodial"]


def test_a_raw_input_is_described_by_its_name(project: Path) -> None:
    size = ["--set", "images.image_data_param.new_height=4", "--set", "images.image_data_param.new_width=4"]
    result = CliRunner().invoke(app, arguments(project, *size, "--raw-input"), catch_exceptions=False)
    assert result.exit_code == 0 and 'takes blob "data" and scores 2 classes' in result.output


def test_a_deploy_stage_is_exported(project: Path) -> None:
    text = NET.replace('type: "ImageData"', 'type: "ImageData" include { not_stage: "deploy" }')
    text = text.replace('type: "Accuracy"', 'type: "Accuracy" include { not_stage: "deploy" }')
    shape = "input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } }"
    text = f'layer {{ name: "in" type: "Input" top: "data" include {{ stage: "deploy" }} {shape} }}' + text
    text += 'layer { name: "prob" type: "Softmax" bottom: "fc2" top: "prob" include { stage: "deploy" } }'
    (project / "net.prototxt").write_text(text)
    result = CliRunner().invoke(app, arguments(project, "--stage", "deploy", "--raw-input"), catch_exceptions=False)
    assert result.exit_code == 0 and 'takes blob "data" and scores 2 classes' in result.output


def test_lower_precision_is_not_for_plain_caffe(project: Path) -> None:
    weights = f"{project / 'one.caffemodel'},{project / 'two.caffemodel'}"
    words = ["--net", str(project / "net.prototxt"), "--weights", weights, "--caffe", str(project / "out")]
    with pytest.raises(InputError, match="plain Caffe is float32"):
        CliRunner().invoke(app, [*words, "--precision", "fp16"], catch_exceptions=False)
    with pytest.raises(InputError, match="--caffe and --triton are two formats"):
        CliRunner().invoke(app, [*words, "--triton", str(project / "models")], catch_exceptions=False)


def test_json_is_the_whole_report(project: Path) -> None:
    size = ["--set", "images.image_data_param.new_height=4", "--set", "images.image_data_param.new_width=4"]
    result = CliRunner().invoke(app, arguments(project, *size, "--json"), catch_exceptions=False)
    report = json.loads(result.stdout)
    output = project / "out.onnx"
    assert (report["output"], report["file_size"]) == (str(output), output.stat().st_size)
    model = onnx.load(output)
    assert (report["opset"], report["ir_version"]) == (model.opset_import[0].version, model.ir_version)
    assert model.opset_import[0].version <= 18 and model.ir_version <= 8
    assert report["metadata"] == json.loads(model.metadata_props[0].value)
    assert 0 <= report["relative_difference"] <= report["tolerance"]
    assert report["batches"] == [1, 2, 7] and "ONNX Runtime" in report["runtime"]


def test_errors_reach_the_command_line(project: Path) -> None:
    with pytest.raises(InputError, match="size of its images is not known"):
        CliRunner().invoke(app, arguments(project), catch_exceptions=False)
    assert not (project / "out.onnx").exists()


@pytest.mark.parametrize("output", ["net.prototxt", "one.caffemodel", "labels.txt", "list.txt"])
def test_nothing_that_is_read_is_written_over(project: Path, output: str) -> None:
    (project / "list.txt").write_text("image.png 0\n")
    before = (project / output).read_bytes()
    weights = f"{project / 'one.caffemodel'},{project / 'two.caffemodel'}"
    words = ["--net", str(project / "net.prototxt"), "--weights", weights, "-o", str(project / output)]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, InputError) and "the same command reads this file" in str(result.exception)
    assert (project / output).read_bytes() == before


def test_the_domain_names_the_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    dial = 'layer { name: "dial" type: "Dial" bottom: "fc2" top: "fc2" }\nlayer { name: "accuracy"'
    (project / "net.prototxt").write_text(NET.replace('layer { name: "accuracy"', dial))
    message = parse_net((project / "net.prototxt").read_text()).layer[-2]
    stored = [np.float32([0.5]), np.float32([[0, 0], [9, 9]]), np.float32([[1, 1], [4, 4]]), np.float32([1])]
    write_weights(Weights("", [LayerWeights(message, stored)]), project / "dial.caffemodel")
    size = ["--set", "images.image_data_param.new_height=4", "--set", "images.image_data_param.new_width=4"]
    words = ["--net", "net.prototxt", "--weights", "one.caffemodel,two.caffemodel,dial.caffemodel", *size]
    logits = {}
    for domain, more in (("source", ["--domain", "source"]), ("target", [])):
        result = CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
        assert result.exit_code == 0 and f"with the {domain}'s statistics" in result.output
        session = onnxruntime.InferenceSession(f"{domain}_predictor.onnx", providers=["CPUExecutionProvider"])
        (logits[domain],) = session.run(["logits"], {"image": np.full((1, 4, 4, 3), 3, np.uint8)})
    # (x - 0) / 1 with the source's statistics, (x - 9) / 2 with the target's
    np.testing.assert_allclose(logits["target"], (logits["source"] - 9) / 2, rtol=0, atol=1e-3)

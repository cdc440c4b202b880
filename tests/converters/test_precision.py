"""fp16 and int8 exports, held against ONNX Runtime on the float32 file and against numpy's float16."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from trained_net import small_trained_net, write_images

from autodial.commands.export import describe
from autodial.converters import AutoDIAL, convert_batchnorm, export_module
from autodial.converters.net_export import export
from autodial.converters.onnx_float16 import rounding_to_float16, to_float16
from autodial.deploy import Predictor
from autodial.errors import InputError, WorkError
from autodial.proto import Weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Weights, Path]:
    """A net, weights with statistics of its images, and the folder with its lists."""
    return small_trained_net(tmp_path_factory.mktemp("net"))


def make(trained: tuple[Any, Weights, Path], output: Path, **options: Any) -> Any:
    message, weights, folder = trained
    return export(message, weights, output, base_dir=folder, **options)


def run(path: Path, images: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits", "probabilities"], {session.get_inputs()[0].name: images})


def read(folder: Path) -> Any:
    return np.stack([cv2.imread(str(path)) for path in sorted((folder / "images").iterdir())])


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_the_file_is_what_the_report_says(trained: Any, precision: Any, tmp_path: Path) -> None:
    plain = make(trained, tmp_path / "float32.onnx")
    report = make(trained, tmp_path / "model.onnx", precision=precision, min_agreement=0.9)
    assert (plain.precision, plain.agreement, plain.metadata["precision"]) == ("float32", None, "float32")
    agreement = report.agreement
    assert report.precision == report.metadata["precision"] == precision
    kept = len(json.dumps(plain.metadata["reference"]))
    assert agreement.float32_file_size == pytest.approx(plain.file_size - kept, abs=50)
    assert report.file_size == report.output.stat().st_size == report.files["model.onnx"]
    # 100 images, each twice in the list of the target that the net is trained on
    assert agreement.calibration_images == (50 if precision == "int8" else 0)
    assert agreement.images == 100 - agreement.calibration_images
    assert agreement.compared_on == f"{agreement.images} images of target.txt"

    model = onnx.load(report.output)
    assert [(put.domain, put.version) for put in model.opset_import] == [("", 18)] and model.ir_version <= 8
    assert model.metadata_props[0].key == "autodial"
    onnx.checker.check_model(model, full_check=True)
    images = read(trained[2])
    logits, probabilities = run(report.output, images)
    _, expected = run(plain.output, images)
    assert logits.dtype == probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    assert len(np.unique(expected.argmax(1))) > 2  # else agreement would say nothing
    off = np.abs(probabilities - expected)
    assert 0 < off.max() < (0.004 if precision == "fp16" else 0.15)
    assert abs(np.mean(probabilities.argmax(1) == expected.argmax(1)) - agreement.same_class) <= 0.05
    if precision == "int8":  # half of the first 100 were compared
        assert 0 < agreement.max_probability_difference <= off[:100].max() + 1e-6
    else:  # all of them, and as a GPU rounds
        assert off[:100].max() - 1e-6 <= agreement.max_probability_difference < 0.004

    predictor = Predictor(report.output, "cpu")
    np.testing.assert_array_equal(predictor.run(images)[0], logits)
    record = json.loads(json.dumps(report.record()))
    assert record["agreement"]["same_class"] == agreement.same_class
    text = describe(report)
    assert f"{precision} compared with float32" in text and f"the same class for {agreement.same_class:.2%}" in text


def test_fp16_holds_weights_and_values_in_float16(trained: Any, tmp_path: Path) -> None:
    report = make(trained, tmp_path / "model.onnx", precision="fp16", min_agreement=0)
    graph = onnx.load(report.output).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    half, full = TensorProto.FLOAT16, TensorProto.FLOAT
    by_type: dict[str, set[int]] = {}
    for node in graph.node:
        by_type.setdefault(node.op_type, set()).update(types.get(name, full) for name in node.output)
    assert by_type["Conv"] == by_type["Relu"] == by_type["MaxPool"] == by_type["Gemm"] == {half}
    # mean and scale work on bytes, and probabilities reach down to where float16 ends
    assert by_type["Sub"] == by_type["Softmax"] == {full}
    assert Counter(node.op_type for node in graph.node)["Cast"] == 4  # of bytes, into the net, of logits twice
    assert all(types[name] == half for node in graph.node if node.op_type == "Conv" for name in node.input)


def test_int8_quantizes_weights_per_channel_and_no_preprocessing(trained: Any, tmp_path: Path) -> None:
    report = make(trained, tmp_path / "model.onnx", precision="int8", min_agreement=0)
    graph = onnx.load(report.output).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    nodes = {kind: [node for node in graph.node if node.op_type == kind] for kind in ("Conv", "Gemm", "Sub", "Mul")}
    conv, window = nodes["Conv"]
    for node, channels in ((conv, 8), (nodes["Gemm"][0], 4)):
        weight = makers[node.input[1]]
        assert weight.op_type == "DequantizeLinear"
        quantized, scales = values[weight.input[0]], values[weight.input[1]]
        assert quantized.dtype == np.int8 and scales.shape == (channels,)
        assert np.abs(quantized).max() <= 64  # 7 bits, so that sums don't overflow without VNNI
        assert makers[node.input[0]].op_type == "DequantizeLinear"
    assert window.input[1] in values  # local response normalization keeps its squares in float32
    for node in nodes["Sub"]:
        assert makers[node.input[0]].op_type == "Cast"
    assert makers["logits"].op_type == "Gemm"
    assert len({value.name for value in graph.initializer} - {name for node in graph.node for name in node.input}) == 0


def test_too_little_agreement_writes_nothing(trained: Any, tmp_path: Path) -> None:
    message, weights, folder = trained
    # logits so close together that 8 bits can't tell them apart
    close = copy.deepcopy(weights)
    fc = next(layer for layer in close.layers if layer.name == "fc")
    fc.blobs[0] = fc.blobs[0][:1] + 1e-4 * fc.blobs[0]
    with pytest.raises(WorkError, match=r"nothing was written: int8 gives .* float32's class, and .* asks for 99.00%"):
        export(message, close, tmp_path / "model.onnx", base_dir=folder, precision="int8")
    assert not list(tmp_path.iterdir())
    report = export(message, close, tmp_path / "m.onnx", base_dir=folder, precision="int8", min_agreement=0.0)
    assert report.agreement is not None and report.agreement.same_class < 0.99


def test_what_gpus_overflow_stays_float32(trained: Any, tmp_path: Path) -> None:
    """Activations of 1000 in front of local response normalization, whose squares float16 can't hold."""
    message, weights, folder = trained
    large = copy.deepcopy(weights)
    conv = next(layer for layer in large.layers if layer.name == "conv")
    conv.blobs[0] *= 1000
    report = export(message, large, tmp_path / "model.onnx", base_dir=folder, precision="fp16", min_agreement=0.9)
    assert "nodes stayed float32, as fp16 could not hold the values" in report.notes[-1]
    model = onnx.load(report.output)
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:  # no cast to float16 and back, which would overflow between two of these nodes
        if node.op_type == "Cast" and node.input[0] in makers:
            assert makers[node.input[0]].op_type != "Cast"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    rounding = rounding_to_float16(model).SerializeToString()
    session = onnxruntime.InferenceSession(rounding, options, providers=["CPUExecutionProvider"])
    assert np.isfinite(session.run(["logits"], {"image": read(folder)})[0]).all()


def test_rounding_is_that_of_float16() -> None:
    """(x + 0.1) * 3, squared: each step rounded as numpy's float16 rounds it, with its overflow."""
    x = np.array([[0.1, 1.7, 33.3, 100.0]], np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    constants = [numpy_helper.from_array(np.float32(value), name) for value, name in ((3, "three"), (0.1, "tenth"))]
    nodes = [
        helper.make_node("Add", ["x", "tenth"], ["a"], name="a"),
        helper.make_node("Mul", ["a", "three"], ["b"], name="b"),
        helper.make_node("Mul", ["b", "b"], ["y"], name="y"),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    half, wide = to_float16(model, [x / 10])
    assert wide == []
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        rounding_to_float16(half).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(["y"], {"x": x})
    with np.errstate(over="ignore"):
        b = (x.astype(np.float16) + np.float16(0.1)) * np.float16(3)
        expected = b * b
    np.testing.assert_array_equal(y, expected.astype(np.float32))
    assert np.isinf(y[0, 3]) and np.isfinite(y[0, :3]).all()


def test_int8_of_a_pooling_that_is_padded_with_minus_infinity(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 60)
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ConstantPad2d((0, 1, 0, 1), float("-inf")),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3, bias=False),
    )
    report = export_module(
        module,
        tmp_path / "model.onnx",
        size=(12, 12),
        std=(0.2, 0.25, 0.3),
        precision="int8",
        calibration=tmp_path / "images",
        min_agreement=0.8,
    )
    assert report.agreement is not None
    assert (report.agreement.images, report.agreement.calibration_images) == (30, 30)
    assert report.agreement.max_probability_difference < 0.02


@pytest.mark.parametrize("given", ["folder", "list"])
def test_images_that_are_named(trained: Any, given: str, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "more", 61)
    paths[0].write_bytes(b"no image")
    (tmp_path / "more" / "notes.txt").write_text("neither")
    (tmp_path / "list").write_text("".join(f"more/{path.name}\n" for path in [*paths[:30], Path("missing.png")]))
    named = tmp_path / ("more" if given == "folder" else "list")
    report = make(trained, tmp_path / "m.onnx", precision="int8", calibration=named, min_agreement=0)
    agreement = report.agreement
    lost, left = (1, 60) if given == "folder" else (2, 29)
    assert agreement.images + agreement.calibration_images == left
    assert abs(agreement.images - agreement.calibration_images) <= 2
    assert f"{lost} image" in report.notes[-1] and "could not be read" in report.notes[-1]
    assert f"calibrated on {agreement.calibration_images} other images" in describe(report)


def test_int8_of_few_images_is_refused(trained: Any, tmp_path: Path) -> None:
    write_images(tmp_path / "few", 19)
    with pytest.raises(InputError, match="few has only 19: name 20 or more in `calibration`"):
        make(trained, tmp_path / "m.onnx", precision="int8", calibration=tmp_path / "few")
    assert not (tmp_path / "m.onnx").exists()


def test_without_images(trained: Any, tmp_path: Path) -> None:
    message, weights, _ = trained
    options: dict[str, Any] = {"base_dir": tmp_path}
    with pytest.raises(
        InputError,
        match=r'there are none: .*"test.txt" does not exist.*; name a folder or a list',
    ):
        export(message, weights, tmp_path / "model.onnx", precision="int8", **options)
    report = export(message, weights, tmp_path / "model.onnx", precision="fp16", min_agreement=0, **options)
    assert report.agreement is not None and report.agreement.compared_on.startswith("random images")
    assert any("fp16 was not compared on images of its domain" in note for note in report.notes)


def test_raw_input(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"int8 is calibrated on images, and there are none.*leave out `raw_input`"):
        make(trained, tmp_path / "model.onnx", precision="int8", raw_input=True)
    with pytest.raises(InputError, match="images can't be used: the file takes the net's input blob"):
        make(trained, tmp_path / "m.onnx", precision="fp16", raw_input=True, calibration=trained[2] / "images")
    report = make(trained, tmp_path / "model.onnx", precision="fp16", raw_input=True)
    blobs = (read(trained[2])[:, 1:11, 1:11].transpose(0, 3, 1, 2) - np.float32(115)) / np.float32(128)
    half, full = run(report.output, blobs), run(make(trained, tmp_path / "f.onnx", raw_input=True).output, blobs)
    np.testing.assert_allclose(half[1], full[1], atol=0.005)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "`precision` is one of float32, fp16, int8, not 'fp8'"),
        ({"min_agreement": 0.5}, "are for a `precision` of fp16 or int8"),
        ({"precision": "fp16", "min_agreement": 1.5}, "share of the images, 0 to 1, not 1.5"),
        ({"precision": "int8", "calibration": Path("missing")}, "missing: there is no such folder or list"),
    ],
)
def test_what_makes_no_sense_is_refused(trained: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        make(trained, tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_and_one_without_a_whole_image(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no images"):
        make(trained, tmp_path / "model.onnx", precision="int8", calibration=tmp_path / "empty")
    (tmp_path / "empty" / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"no image of .*empty can be read: .*a.png is empty"):
        make(trained, tmp_path / "model.onnx", precision="int8", calibration=tmp_path / "empty")


def test_a_torch_module_names_its_images(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 40)
    torch.manual_seed(0)
    module = convert_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()))
    net = AutoDIAL(nn.Sequential(module, nn.Linear(8 * 64, 5)))
    net(torch.rand(4, 3, 12, 12), torch.rand(4, 3, 12, 12))
    options: dict[str, Any] = {"size": (12, 12), "min_agreement": 0.8}
    with pytest.raises(InputError, match="no list of them is known; name a folder"):
        export_module(net, tmp_path / "model.onnx", precision="int8", **options)
    plain = export_module(net, tmp_path / "plain.onnx", size=(12, 12))
    for precision in ("fp16", "int8"):
        report = export_module(
            net, tmp_path / "model.onnx", precision=precision, calibration=str(tmp_path / "images"), **options
        )
        assert report.agreement is not None and report.file_size < plain.file_size
        images = read(tmp_path)
        found, expected = run(report.output, images)[1], run(plain.output, images)[1]
        np.testing.assert_allclose(found, expected, atol=0.002 if precision == "fp16" else 0.05)

"""Exports into a Triton model repository."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import nn

from autodial.converters import export_module
from autodial.converters.destinations import ExportOptions
from autodial.converters.destinations.triton import TritonModel
from autodial.deploy import Predictor
from autodial.errors import InputError, WorkError
from autodial.proto import LayerWeights, Weights, parse_net, write_weights

# What the model configuration's reference asks for, by hand.
CONFIG = """\
backend: "onnxruntime"
max_batch_size: 32
dynamic_batching { }
input {
  name: "image"
  data_type: TYPE_UINT8
  dims: [ 6, 5, 3 ]
  format: FORMAT_NHWC
}
output {
  name: "logits"
  data_type: TYPE_FP32
  dims: [ 2 ]
}
output {
  name: "probabilities"
  data_type: TYPE_FP32
  dims: [ 2 ]
  label_filename: "labels.txt"
}
"""

NET = """
name: "Cats & dogs/v2"
layer { name: "images" type: "ImageData" top: "data" top: "labels"
  image_data_param { source: "list.txt" new_height: 6 new_width: 5 } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 2 } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "labels" top: "accuracy" }
"""


CLASSES = ("cat", "chien étrange")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., onnx.ModelProto]:
    """`make(width=5, classes=CLASSES)`: an exported file of images of 6 x `width`, each exported once."""
    made: dict[int, onnx.ModelProto] = {}

    def exported(width: int = 5, classes: Sequence[str] = CLASSES) -> onnx.ModelProto:
        if width not in made:
            module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * width, 2))
            path = tmp_path_factory.mktemp("model") / "model.onnx"
            export_module(module, path, size=(6, width), classes=CLASSES)
            made[width] = onnx.load(path)
        model = onnx.ModelProto()
        model.CopyFrom(made[width])
        metadata = json.loads(model.metadata_props[0].value)
        onnx.helper.set_model_props(model, {"autodial": json.dumps(metadata | {"classes": list(classes)})})
        return model

    return exported


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_model_in_a_new_repository(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(90, 2))
    report = export_module(module, TritonModel(tmp_path / "models", "pets"), size=(6, 5), classes=CLASSES)
    folder = tmp_path / "models" / "pets"
    files = contents(tmp_path)
    assert files.keys() == {f"models/pets/{name}" for name in ("config.pbtxt", "labels.txt", "1/model.onnx")}
    assert (folder / "config.pbtxt").read_text() == CONFIG
    assert (folder / "labels.txt").read_text("utf-8") == "cat\nchien étrange\n"
    assert report.output == folder
    assert report.files == {str(Path(name).relative_to("models/pets")): len(data) for name, data in files.items()}
    assert report.files["1/model.onnx"] == (folder / "1" / "model.onnx").stat().st_size
    logits, _ = Predictor(folder / "1" / "model.onnx", "cpu").predict([np.zeros((9, 9, 3), np.uint8)])
    assert logits.shape == (1, 2)


def test_the_next_version_leaves_all_else_alone(make: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    model = TritonModel(tmp_path, "pets")
    model.add(make())
    (tmp_path / "other" / "7").mkdir(parents=True)
    (tmp_path / "other" / "config.pbtxt").write_text('name: "other"')
    (model.folder / "config.pbtxt").write_text(CONFIG + "instance_group [ { count: 4 } ]\n")
    for name in ("9", "010", "12.old"):  # Triton reads the first of them alone
        (model.folder / name).mkdir()
    (model.folder / "1" / "model.onnx").rename(model.folder / "9" / "model.onnx")
    before = contents(tmp_path)
    written = model.add(make())
    after = contents(tmp_path)
    assert after.keys() - before.keys() == {"pets/10/model.onnx"} and written.keys() == {"10/model.onnx"}
    assert all(after[name] == data for name, data in before.items())


def test_the_repository_may_be_a_str(tmp_path: Path) -> None:
    assert TritonModel(str(tmp_path), "pets") == TritonModel(tmp_path, "pets")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 4}, "1/model.onnx takes other images, and all versions of a model share one config.pbtxt"),
        ({"classes": ("dog", "cat")}, "1/model.onnx knows other classes"),
    ],
)
def test_another_model_is_no_version(
    changed: dict[str, Any], message: str, make: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    model = TritonModel(tmp_path, "pets")
    model.add(make())
    before = contents(tmp_path)
    with pytest.raises(InputError, match=message):
        model.add(make(**changed))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("data", [None, b"TensorRT", onnx.ModelProto().SerializeToString()])
def test_a_model_of_others_is_refused_before_any_work(data: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "pets" / "1").mkdir(parents=True)
    if data is not None:
        (tmp_path / "pets" / "1" / "model.onnx").write_bytes(data)
    with pytest.raises(InputError, match=r"1/model.onnx is not a model that `autodial export` wrote"):
        TritonModel(tmp_path, "pets").check(ExportOptions())


def test_settings_made_beforehand_are_not_written_over(make: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    model = TritonModel(tmp_path, "pets")
    model.folder.mkdir()
    (model.folder / "config.pbtxt").write_text("max_batch_size: 8")
    with pytest.raises(InputError, match=r"config.pbtxt is there without a version of the model, and differs"):
        model.add(make())
    (model.folder / "config.pbtxt").write_text(CONFIG)  # what an interrupted export leaves
    model.add(make())
    assert (model.folder / "1" / "model.onnx").is_file()


def test_the_version_appears_last_and_complete(
    make: Callable[..., onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    rename = Path.rename

    def watched(path: Path, target: Path) -> Path:
        seen.append((target.name, sorted(contents(tmp_path / "pets"))))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched)
    TritonModel(tmp_path, "pets").add(make())
    ((name, files),) = seen
    assert name == "1" and len(files) == 3 and files[1:] == ["config.pbtxt", "labels.txt"]
    assert files[0].startswith(".1.") and files[0].endswith("/model.onnx")


@pytest.mark.parametrize("before", [0, 1])
def test_what_fails_leaves_nothing_behind(
    before: int, make: Callable[..., onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TritonModel(tmp_path / "models", "pets")
    for _ in range(before):
        model.add(make())
    expected = contents(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(WorkError, match=rf"pets.{before + 1} can't be written: No space left on device"):
        model.add(make())
    assert contents(tmp_path) == expected
    assert [path.name for path in tmp_path.iterdir()] == (["models"] if before else [])
    assert not list(tmp_path.rglob("*.tmp"))


def test_of_two_exports_at_once_one_is_refused_and_the_other_whole(
    make: Callable[..., onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        TritonModel(tmp_path / "models", "pets").add(make())
        return path.rename(target)

    monkeypatch.setattr(Path, "rename", late)
    model = TritonModel(tmp_path / "models", "pets")
    with pytest.raises(WorkError, match=r"pets.1 was made by another process"):
        model.add(make())
    assert sorted(contents(model.folder)) == ["1/model.onnx", "config.pbtxt", "labels.txt"]
    model.check(ExportOptions())


def test_names(tmp_path: Path) -> None:
    names = ("digits", "Cats & dogs/v2", "../../x", "网络", "", ".hidden")
    found = [TritonModel.named(tmp_path, name).name for name in names]
    assert found == ["digits", "Cats_dogs_v2", "x", "target_predictor", "target_predictor", "hidden"]


def test_a_version_may_be_added_to_one_with_names_that_repeat(
    make: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    """As files have them that were exported before such names were told apart."""
    model = TritonModel(tmp_path, "pets")
    model.add(make(classes=("crane", "crane")))
    assert (model.folder / "labels.txt").read_text() == "crane_0\ncrane_1\n"
    model.add(make(classes=("crane_0", "crane_1")))


def test_a_class_that_is_no_line(make: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the class 'a\\nb' can't be a line of labels.txt"):
        TritonModel(tmp_path, "pets").add(make(classes=("a\nb", "c")))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def arguments(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "net.prototxt").write_text(NET)
    (layer,) = (layer for layer in parse_net(NET).layer if layer.name == "fc")
    blobs = [np.random.default_rng(0).standard_normal((2, 90)).astype(np.float32), np.zeros(2, np.float32)]
    write_weights(Weights("", [LayerWeights(layer, blobs)]), tmp_path / "net.caffemodel")
    return ["export", "--net", tmp_path / "net.prototxt", "--weights", tmp_path / "net.caffemodel"]


def test_from_the_command_line(
    autodial: Callable[..., tuple[int, str, str]], arguments: list[str | Path], tmp_path: Path
) -> None:
    status, out, _ = autodial(*arguments, "--triton", tmp_path / "models")
    assert status == 0 and f"Wrote {tmp_path / 'models' / 'Cats_dogs_v2'}" in out and "1/model.onnx" in out
    status, out, _ = autodial(*arguments, "--triton", tmp_path / "models", "--precision", "fp16", "--json")
    assert status == 0 and json.loads(out)["files"].keys() == {"2/model.onnx"}
    status, out, _ = autodial(*arguments, "--triton", tmp_path / "raw", "--raw-input")
    config = (tmp_path / "raw" / "Cats_dogs_v2" / "config.pbtxt").read_text()
    assert 'name: "data"\n  data_type: TYPE_FP32\n  dims: [ 3, 6, 5 ]\n  format: FORMAT_NCHW' in config
    status, out, _ = autodial(*arguments, "--triton", tmp_path / "models", "--name", "pets")
    assert status == 0 and (tmp_path / "models" / "pets" / "1" / "model.onnx").exists()
    status, _, err = autodial(*arguments, "--name", "pets")
    assert status == 2 and "--triton" in err
    for name in ("../pets", "", "pe ts"):
        status, _, err = autodial(*arguments, "--triton", tmp_path / "models", "--name", name)
        assert status == 2 and "can't be called" in err
    status, _, err = autodial(*arguments, "--triton", tmp_path / "models", "-o", "model.onnx")
    assert status == 2 and "one run writes one" in err
    status, _, err = autodial(*arguments, "--triton", tmp_path / "net.prototxt")
    assert status == 2 and "is not a folder" in err


PARSE = """
import sys
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

config = text_format.Parse(open(sys.argv[1], encoding="utf-8").read(), model_config_pb2.ModelConfig())
assert (config.backend, config.max_batch_size) == ("onnxruntime", 32) and config.HasField("dynamic_batching")
(put,) = config.input
assert (put.name, put.data_type, list(put.dims)) == ("image", model_config_pb2.TYPE_UINT8, [6, 5, 3])
assert put.format == model_config_pb2.ModelInput.FORMAT_NHWC
logits, probabilities = config.output
assert (logits.name, probabilities.name) == ("logits", "probabilities")
for output in config.output:
    assert output.data_type == model_config_pb2.TYPE_FP32 and list(output.dims) == [2]
assert (logits.label_filename, probabilities.label_filename) == ("", "labels.txt")
print("parsed")
"""


@pytest.mark.network
def test_tritonclient_parses_the_config(make: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    TritonModel(tmp_path, "pets").add(make())
    python = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    install = [python, "-m", "pip", "install", "--quiet", "tritonclient[grpc]==2.54.0"]
    subprocess.run(install, check=True, timeout=600)
    command = [python, "-c", PARSE, tmp_path / "pets" / "config.pbtxt"]
    result = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    assert result.stdout.strip() == "parsed"

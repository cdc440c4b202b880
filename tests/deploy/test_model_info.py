from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from autodial.deploy import Predictor
from autodial.errors import InputError

WriteModel = Callable[..., Path]


def test_reads_what_the_export_recorded(write_model: WriteModel) -> None:
    info = Predictor(write_model(mean=[104, 117.5, 123], scale=0.5, crop=[4, 5], statistics="source")).info
    assert info.classes == ("cat", "dog, big", 'the "other"', "Ødegård 猫")
    assert (info.size, info.channel_order, info.color, info.image_shape) == ((6, 9), "BGR", True, (6, 9, 3))
    assert (info.mean, info.scale, info.crop, info.statistics) == ((104.0, 117.5, 123.0), 0.5, (4, 5), "source")
    assert (info.weights_sha256, info.version) == ("0" * 64, "0.1.0")


def test_reads_grey_and_mean_file(write_model: WriteModel) -> None:
    info = Predictor(write_model(channels=1, channel_order="GRAY", mean="mean_file")).info
    assert (info.color, info.image_shape, info.mean) == (False, (6, 9, 1), "mean_file")


def test_the_first_files_said_nothing_about_alpha(write_model: WriteModel, model: Any) -> None:
    record = json.loads(onnx.load(model.path).metadata_props[0].value)
    del record["alpha"]
    assert Predictor(write_model(record=record)).info.size == (6, 9)


def test_fields_of_later_versions_are_ignored(write_model: WriteModel) -> None:
    assert Predictor(write_model(precision="float32")).info.size == (6, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record": None}, "`autodial export` writes, and `autodial convert` does not"),
        ({"schema": 2, "version": "3.4.5"}, r"newer AutoDIAL \(3.4.5.*upgrade autodial"),
        ({"raw_input": True, "size": None}, "exported with `raw_input`"),
        ({"record": {"schema": 1}}, r"can't be read \(the whole must be an object with"),
        ({"record": []}, "can't be read"),
        ({"size": None}, "can't be read"),
        ({"channel_order": "RGB"}, "channel_order 'RGB'"),
        ({"resize": "area"}, "resize 'area'"),
        ({"exif": "ignore"}, "exif 'ignore'"),
        ({"alpha": "black"}, "alpha 'black'"),
        ({"size": [9, 6]}, r"promises a uint8 batch 'image' of \(9, 6, 3\)"),
        ({"channel_order": "GRAY"}, r"\(6, 9, 1\)"),
        ({"classes": ["a", "b"]}, "of 2 classes"),
        ({"schema": float("nan")}, "it holds NaN"),
        ({"schema": "1"}, '"schema" must be a whole number, not "1"'),
        ({"schema": 0}, '"schema" must be from 1 to'),
        ({"crop": []}, '"crop" must be height and width, two whole numbers, not a list'),
        ({"crop": [7, 9]}, r"the crop \[7, 9\] is larger than the size \[6, 9\]"),
        ({"size": [6.5, 9]}, r'"size\[0\]" must be a whole number, not 6.5'),
        ({"size": [60000, 60000]}, '"size" must be height and width of at most 67,108,864 pixels'),
        ({"size": [6, 9, 3]}, '"size" must be height and width, two whole numbers'),
        ({"mean": [1, 2]}, 'the mean must be "mean_file" or 3 numbers'),
        ({"mean": "elsewhere"}, "the mean must be"),
        ({"scale": [1.0]}, "the scale must be one number or 3"),
        ({"scale": None}, '"scale" must be a number, not null'),
        ({"classes": []}, '"classes" must be a list of one or more'),
        ({"classes": ["a", "b", None, "d"]}, r'"classes\[2\]" must be a string'),
        ({"classes": ["a", "b\0", "c", "d"]}, r"the name of class 1, 'b\\x00', has a control character"),
        ({"classes": ["a", "b", "\x1b[2J", "d"]}, r"the name of class 2, '\\x1b\[2J', has a control character"),
        ({"classes": ["a", "b", "c", "\ud800"]}, "the name of class 3, .* is not Unicode text"),
        ({"reference": []}, '"reference" must be an object'),
        ({"version": {}}, '"version" must be a string'),
        ({"statistics": 1}, '"statistics" must be a string'),
    ],
)
def test_refuses_in_one_sentence(write_model: WriteModel, changes: dict[str, Any], message: str) -> None:
    path = write_model(**changes)
    with pytest.raises(InputError, match=message) as caught:
        Predictor(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("deep", ['{"schema": 1, "crop": ' + "[" * 100_000, "[" * 100_000, '{"a":' * 100_000])
def test_metadata_of_any_depth(write_model: WriteModel, deep: str) -> None:
    path = write_model()
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"autodial": deep})
    onnx.save(model, path)
    with pytest.raises(InputError, match=r"can't be read .*nested too deeply"):
        Predictor(path)


@pytest.mark.parametrize(
    ("name", "axis", "size", "message"),
    [
        ("image", 0, 1, "takes batches of 1 and gives"),
        ("logits", 0, 1, "gives 1 and . rows"),
        ("probabilities", 0, 32, "gives batch and 32 rows"),
    ],
)
def test_a_graph_with_other_axes_is_refused(
    write_model: WriteModel, name: str, axis: int, size: int, message: str
) -> None:
    path = write_model()
    model = onnx.load(path)
    (value,) = (value for value in (*model.graph.input, *model.graph.output) if value.name == name)
    value.type.tensor_type.shape.dim[axis].dim_value = size
    onnx.save(model, path)
    with pytest.raises(InputError, match=message):
        Predictor(path)


def test_a_name_of_any_length_is_shown_in_part(write_model: WriteModel) -> None:
    path = write_model()
    text = path.read_bytes()
    for name, message in (("image", "takes"), ("probabilities", "gives"), ("pixels", "can't load it")):
        model = onnx.load_from_string(text)
        model.graph.node[-1].op_type = "Unknown" if name == "pixels" else model.graph.node[-1].op_type
        for named in (*model.graph.input, *model.graph.output):
            named.name = named.name.replace(name, "x" * 100_000)
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = ["x" * 100_000 if used == name else used for used in names]
        onnx.save(model, path)
        with pytest.raises(InputError, match=message) as refusal:
            Predictor(path)
        assert len(str(refusal.value)) < 1000


def test_a_graph_whose_outputs_are_not_of_its_batch_is_refused(write_model: WriteModel) -> None:
    """The graph's metadata and axes promise a row per image, and it gives half of them."""
    path = write_model()
    model = onnx.load(path)
    (flatten,) = (node for node in model.graph.node if node.op_type == "Flatten")
    flatten.input[0] = "some"
    for name, values in (("starts", [0]), ("ends", [1])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values), name))
    model.graph.node.insert(1, onnx.helper.make_node("Slice", ["pixels", "starts", "ends"], ["some"]))
    onnx.save(model, path)
    with pytest.raises(InputError, match=r"logits of \(1, 4\) .* for 2 images, in place of \(2, 4\)"):
        Predictor(path).predict([np.zeros((6, 9, 3), np.uint8)] * 2)


def test_names_that_repeat_are_told_apart(write_model: WriteModel) -> None:
    assert Predictor(write_model(classes=["crane", "owl", "crane", "gull"])).info.classes == (
        "crane_0",
        "owl",
        "crane_2",
        "gull",
    )


@pytest.mark.parametrize("text", [b"classes", b"logits"])
def test_texts_in_no_encoding_are_damage(write_model: WriteModel, text: bytes) -> None:
    path = write_model()
    path.write_bytes(path.read_bytes().replace(text, b"\xae" + text[1:]))
    with pytest.raises(InputError, match=r"written\.onnx is damaged: its names or metadata are not in UTF-8"):
        Predictor(path)


def test_refuses_what_is_not_a_whole_onnx_file(write_model: WriteModel, tmp_path: Path) -> None:
    whole = write_model().read_bytes()
    path = tmp_path / "broken.onnx"
    for content in (b"not a model", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not an ONNX file, or it is cut short"):
            Predictor(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="can't load it"):
        Predictor(path)
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        Predictor(path)
    with pytest.raises(InputError, match="is a folder"):
        Predictor(tmp_path)

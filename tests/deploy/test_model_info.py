from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        ({"record": None}, "AutoDIAL didn't make"),
        ({"schema": 2, "version": "3.4.5"}, r"newer AutoDIAL \(3.4.5.*upgrade autodial"),
        ({"raw_input": True, "size": None}, "exported with --raw-input"),
        ({"record": {"schema": 1}}, "lacks 'channel_order'"),
        ({"record": []}, "can't be read"),
        ({"size": None}, "can't be read"),
        ({"channel_order": "RGB"}, "channel_order 'RGB'"),
        ({"resize": "area"}, "resize 'area'"),
        ({"exif": "ignore"}, "exif 'ignore'"),
        ({"alpha": "black"}, "alpha 'black'"),
        ({"size": [9, 6]}, r"promises a uint8 batch 'image' of \(9, 6, 3\)"),
        ({"channel_order": "GRAY"}, r"\(6, 9, 1\)"),
        ({"classes": ["a", "b"]}, "of 2 classes"),
    ],
)
def test_refuses_in_one_sentence(write_model: WriteModel, changes: dict[str, Any], message: str) -> None:
    path = write_model(**changes)
    with pytest.raises(InputError, match=message) as caught:
        Predictor(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


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
    with pytest.raises(InputError, match="no such file"):
        Predictor(tmp_path)

"""Destinations of an export: found by name, and closed at the door to what can't be written there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import nn

from autodial.converters import ExportReport, export_module
from autodial.converters.destinations import Destination, ExportOptions, find_destination
from autodial.converters.net_export import export
from autodial.converters.onnx_file import make_verified
from autodial.converters.prepared import Prepared
from autodial.errors import InputError
from autodial.proto import LayerWeights, Weights, parse_net

NET = """
name: "digits"
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 2 dim: 2 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def net_and_weights() -> tuple[Any, Weights]:
    net = parse_net(NET)
    blobs = [np.float32([[1, 2, 3, 4], [0, -1, 0, 1], [2, 0, 0, -2]]), np.float32([0, 1, 2])]
    return net, Weights("", [LayerWeights(net.layer[1], blobs)])


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))


class Shelf(Destination):
    """A destination of a user's own: it keeps what it was asked for, and the ONNX files, in memory."""

    def __init__(self) -> None:
        self.asked: list[tuple[ExportOptions, Any]] = []
        self.files: list[bytes] = []

    @classmethod
    def at(cls, place: Path, net: str, options: ExportOptions, name: str | None = None) -> Shelf:
        return cls()

    def check(self, options: ExportOptions, net: Any = None, inputs: Iterable[str | Path] = ()) -> None:
        self.asked.append((options, net))
        if options.precision == "int8":
            raise InputError("this shelf takes no int8")

    def write(self, prepared: Prepared) -> ExportReport:
        model = make_verified(prepared)
        self.files.append(model.data)
        return model.report(Path("shelf"), {"0": len(model.data)})


def test_a_destination_of_ones_own_takes_caffe_nets_and_torch_modules() -> None:
    shelf, (net, weights) = Shelf(), net_and_weights()
    report = export(net, weights, shelf, raw_input=True)
    assert shelf.asked == [(ExportOptions(raw_input=True), net)]
    assert (report.output, report.files, report.input) == (Path("shelf"), {"0": len(shelf.files[0])}, "x")
    export_module(flat(), shelf, size=(2, 2), domain=None)
    assert shelf.asked[1] == (ExportOptions(), None)
    assert [onnx.load_from_string(data).graph.input[0].name for data in shelf.files] == ["x", "image"]


def test_what_the_door_refuses_is_not_worked_on() -> None:
    shelf, net = Shelf(), parse_net(NET)
    with pytest.raises(InputError, match="no int8"):
        export(net, Weights(""), shelf, precision="int8")  # the weights are of no use, and were not looked at
    assert not shelf.files


@pytest.mark.parametrize("name", ["caffe", "onnx", "triton"])
def test_each_is_found_by_name_and_writes_what_it_reports(name: str, tmp_path: Path) -> None:
    net, weights = net_and_weights()
    place = tmp_path / ("out.onnx" if name == "onnx" else "out")
    options = ExportOptions(raw_input=name != "caffe")
    destination = find_destination(name).at(place, net.name, options)
    destination.check(options, net)
    report = export(net, weights, destination, raw_input=options.raw_input)
    folder = tmp_path if name == "onnx" else report.output
    written = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert report.files == written
    assert (report.metadata["classes"], report.metadata["raw_input"]) == (["0", "1", "2"], True)


@pytest.mark.parametrize("name", ["openvino", "", "__init__", "../onnx"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InputError, match="choose one of caffe, onnx, triton"):
        find_destination(name)


def test_a_torch_module_is_no_caffe_net(tmp_path: Path) -> None:
    folder = find_destination("caffe").at(tmp_path / "out", "", ExportOptions())
    with pytest.raises(InputError, match="a torch module is none"):
        export_module(flat(), folder, size=(2, 2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options", [{"precision": "fp16"}, {"calibration": Path("list.txt")}, {"min_agreement": 0.5}, {"raw_input": True}]
)
def test_plain_caffe_has_one_precision_and_one_input(options: dict[str, Any], tmp_path: Path) -> None:
    net, weights = net_and_weights()
    destination = find_destination("caffe").at(tmp_path / "out", net.name, ExportOptions())
    with pytest.raises(InputError, match="plain Caffe"):
        export(net, weights, destination, **options)
    assert not list(tmp_path.iterdir())


def test_no_destination_is_named_outside_of_its_file() -> None:
    """But for the command's options, and the names that the package offers."""
    import autodial.converters

    folder = Path(autodial.converters.__file__).parent
    classes = {find_destination(name).__name__ for name in ("caffe", "onnx", "triton")}
    for path in folder.glob("[!_]*.py"):
        text = path.read_text(encoding="utf-8")
        assert not {name for name in classes if f"import {name}" in text or f"{name})" in text}, path

"""What an exported file says about itself to programs that don't know AutoDIAL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from torch import nn
from trained_net import small_trained_net

from autodial import __version__
from autodial.converters import TritonModel, export_module
from autodial.converters.destinations import ExportOptions
from autodial.converters.destinations.caffe import CaffeFolder
from autodial.converters.net_export import export
from autodial.deploy.metadata import ModelInfo
from autodial.errors import InputError
from autodial.proto import LayerWeights, Weights, parse_net

STANDARD = {
    "Image.BitmapPixelFormat": "Bgr8",
    "Image.ColorSpaceGamma": "SRGB",
    "Image.NominalPixelRange": "NominalRange_0_255",
}
AXES = ["DATA_BATCH", "DATA_FEATURE", "DATA_FEATURE", "DATA_CHANNEL"]
DEPLOY = """
name: "deploy"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 2 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return small_trained_net(tmp_path_factory.mktemp("trained"))


def flat(channels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * channels, 2))


def deploy_net() -> tuple[Any, Weights]:
    net = parse_net(DEPLOY)
    return net, Weights("", [LayerWeights(net.layer[1], [np.ones((2, 48), np.float32), np.zeros(2, np.float32)])])


def of_net(trained: Any, path: Path, **options: Any) -> Path:
    net, weights, folder = trained
    return export(net, weights, path, base_dir=folder, license="apache-2.0", **options).output


def ensemble(trained: Any, path: Path) -> Path:
    net, weights, folder = trained
    return export(net, [weights, weights], path, base_dir=folder, license="apache-2.0").output


def triton(trained: Any, path: Path) -> Path:
    net, weights, folder = trained
    model = TritonModel(path.parent / "models", "small")
    export(net, weights, model, base_dir=folder, license="apache-2.0")
    return path.parent / "models" / "small" / "1" / "model.onnx"


WAYS: dict[str, Callable[[Any, Path], Path]] = {
    "float32": of_net,
    "fp16": lambda trained, path: of_net(trained, path, precision="fp16", min_agreement=0),
    "int8": lambda trained, path: of_net(trained, path, precision="int8", min_agreement=0),
    "ensemble": ensemble,
    "triton": triton,
    "deploy": lambda trained, path: export(*deploy_net(), path, size=(6, 6), license="apache-2.0").output,
    "module": lambda trained, path: export_module(flat(), path, size=(4, 4), license="apache-2.0").output,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_exporting_leaves_onnx_own_metadata(way: str, trained: Any, tmp_path: Path) -> None:
    path = WAYS[way](trained, tmp_path / "model.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    (taken,) = model.graph.input
    assert taken.type.denotation == "IMAGE"
    assert [axis.denotation for axis in taken.type.tensor_type.shape.dim] == AXES
    # What a runtime that loads the file says of it.
    meta = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_modelmeta()
    properties = dict(meta.custom_metadata_map)
    assert properties.pop("autodial")
    assert properties == {**STANDARD, "model_license": "Apache-2.0"}
    assert (model.producer_name, meta.producer_name, model.producer_version) == ("autodial", "autodial", __version__)
    assert "A classifier of images" in meta.description and "uint8 (batch, " in meta.description
    adapted = way not in ("deploy", "module")
    assert ("target domain's statistics" in meta.description) == adapted
    assert ("trained and exported with AutoDIAL" in meta.description) == adapted
    assert "exported with AutoDIAL" in meta.description
    assert ModelInfo.parse(meta.custom_metadata_map, path).license == "Apache-2.0"


def test_grey_images_are_grey_and_no_license_is_none(tmp_path: Path) -> None:
    path = export_module(flat(1), tmp_path / "grey.onnx", size=(4, 4), channel_order="GRAY").output
    properties = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert properties["Image.BitmapPixelFormat"] == "Gray8" and "model_license" not in properties
    assert ModelInfo.parse(properties, path).license is None


def test_the_net_s_own_blob_is_no_image(tmp_path: Path) -> None:
    path = export(*deploy_net(), tmp_path / "raw.onnx", raw_input=True, license="MIT").output
    model = onnx.load(path)
    assert model.graph.input[0].type.denotation == ""
    assert [entry.key for entry in model.metadata_props] == ["autodial", "model_license"]
    assert "A classifier of input blobs into 2 classes" in model.doc_string and "Input: x" in model.doc_string


def test_plain_caffe_names_the_license_in_a_comment(tmp_path: Path) -> None:
    export(*deploy_net(), CaffeFolder(tmp_path / "caffe"), license="MIT OR Apache-2.0")
    assert "# SPDX-License-Identifier: MIT OR Apache-2.0\n" in (tmp_path / "caffe" / "deploy.prototxt").read_text()


@pytest.mark.parametrize("license", ["my license", "", "Apache", "MIT AND"])
def test_a_license_is_one_of_spdx(license: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`license` is a name from https://spdx\.org/licenses"):
        export_module(flat(), tmp_path / "model.onnx", size=(4, 4), license=license)
    assert not list(tmp_path.iterdir())


def test_a_license_of_ones_own() -> None:
    assert ExportOptions(license="LicenseRef-Acme").license == "LicenseRef-Acme"

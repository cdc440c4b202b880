"""What is written into a model's file is what its readers take, and nothing else passes between the two."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import autodial.converters
import autodial.deploy
from autodial import model_file
from autodial.converters import export_module
from autodial.deploy import ModelInfo
from autodial.errors import InputError

METADATA: dict[str, Any] = {
    "schema": 1,
    "classes": ["cat", "dog"],
    "size": [6, 9],
    "resize": "bilinear",
    "crop": None,
    "exif": "apply",
    "alpha": "white",
    "mean": [],
    "scale": 1.0,
    "channel_order": "BGR",
    "raw_input": False,
    "statistics": "target",
    "weights_sha256": "0" * 64,
    "version": "0.1.0",
}


def imports(path: Path) -> set[str]:
    """All modules that a file imports, those in functions too."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize(("package", "other"), [(autodial.converters, "deploy"), (autodial.deploy, "converters")])
def test_writers_and_readers_do_not_know_each_other(package: Any, other: str) -> None:
    paths = list(Path(package.__file__).parent.rglob("*.py"))
    assert any("autodial.model_file" in imports(path) for path in paths)
    for path in paths:
        assert f"autodial.{other}" not in {
            name.removesuffix(".*")[: len(f"autodial.{other}")] for name in imports(path)
        }


def test_the_contract_knows_neither() -> None:
    assert not {name for name in imports(Path(model_file.__file__)) if "converters" in name or "deploy" in name}


def read(metadata: dict[str, Any]) -> ModelInfo:
    return ModelInfo.parse({"autodial": model_file.to_text(metadata)}, Path("model.onnx"))


def test_what_may_be_written_can_be_read() -> None:
    model_file.check_written(METADATA)
    info = read(METADATA)
    assert (info.classes, info.image_shape, info.statistics) == (("cat", "dog"), (6, 9, 3), "target")


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": []},
        {"size": [9000, 9000]},
        {"size": None},
        {"crop": [7, 9]},
        {"mean": [float("nan")] * 3},
        {"mean": [1.0, 2.0]},
        {"scale": [1.0]},
        {"scale": float("inf")},
        {"reference": []},
        {"schema": 0},
    ],
)
def test_what_no_reader_takes_is_not_written(changes: dict[str, Any]) -> None:
    (entry,) = changes
    with pytest.raises(InputError, match=entry):
        model_file.check_written(METADATA | changes)
    with pytest.raises(InputError):
        read(METADATA | changes)


def test_a_mean_that_is_no_number_is_named(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    with pytest.raises(InputError, match="mean"):
        export_module(module, tmp_path / "model.onnx", size=(6, 6), mean=[float("nan")] * 3)
    assert not list(tmp_path.iterdir())

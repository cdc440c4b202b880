"""The files of examples/ and the Dockerfile that start a service: their options exist, and their schemas hold."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from autodial.commands.serve import serve

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
FILES = [ROOT / "Dockerfile", ROOT / "examples" / "systemd" / "autodial.service", *KUBERNETES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_options_are_those_of_serve(path: Path) -> None:
    text = "\n".join(line for line in path.read_text("utf-8").splitlines() if not line.lstrip().startswith("#"))
    text = text[text.rindex("FROM") :] if path.name == "Dockerfile" else text
    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters}
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--from", "--interval", "--timeout", "--start-period"}
    assert used and used <= known


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_and_kserve_take_the_files(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    for found in yaml.safe_load_all(path.read_text("utf-8")):
        if found["apiVersion"].startswith("serving.kserve.io"):
            kserve = pytest.importorskip("kserve")
            check_names(found, "V1beta1InferenceService", [kserve, pytest.importorskip("kubernetes.client")])
        else:
            pytest.importorskip("kubernetes_validate").validate(found, "1.30", strict=True)


def check_names(value: Any, kind: str, modules: list[Any]) -> None:
    """Hold the members of an object, and of those in it, against a client's type."""
    if kind.startswith("list["):
        for part in value:
            check_names(part, kind[5:-1], modules)
        return
    types = [getattr(module, kind) for module in modules if hasattr(module, kind)]
    if types:
        names = {written: name for name, written in types[0].attribute_map.items()}
        assert value.keys() <= names.keys(), kind
        for written, part in value.items():
            if isinstance(part, (dict, list)):
                check_names(part, types[0].openapi_types[names[written]], modules)

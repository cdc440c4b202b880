"""Which part of the package may import which: the rooms of a house, from the top to the ground."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = {"autodial": "autodial", "converters": "autodial.converters", "deploy": "autodial.deploy"}
"""The folders of the one import package, and what they are there."""

ROOMS = (
    *("__main__", "cli", "commands"),
    *("demo", "comparison", "selection", "report", "project"),
    *("caffe", "converters"),
    *("evaluation", "training", "net", "layers", "netparam"),
    *("deploy", "data", "proto", "model_file", "system", "wording", "errors"),
)
"""A room imports from those that come after it alone."""
STRANGERS = {"converters", "deploy"}
"""Two that know nothing of each other: the ONNX file is all that passes between them."""


def imports(path: Path, module: str) -> Iterator[str]:
    """The modules of the package that a file imports, wherever in it; also those for types alone."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: 1 - node.level or None] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            names = [f"{source}.{alias.name}" for alias in node.names] if source == "autodial" else [source]
        else:
            continue
        yield from (name for name in names if name.startswith("autodial."))


def modules() -> Iterator[tuple[str, Path]]:
    """The name and the file of every module, but for the package itself."""
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            module = ".".join([package, *(part for part in parts if part != "__init__")])
            if module != "autodial":
                yield module, path


def arrows() -> set[tuple[str, str, str]]:
    """Each import of one room from another: the module that has it, its room, and the room that it imports from."""
    found = set()
    for module, path in modules():
        for name in imports(path, module):
            room, other = module.split(".")[1], name.split(".")[1]
            if room != other:
                found.add((module, room, other))
    return found


def test_rooms_import_from_rooms_below_them() -> None:
    place = {room: number for number, room in enumerate(ROOMS)}
    assert {module.split(".")[1] for module, _ in modules()} <= place.keys(), "a room that ROOMS has no place for"
    assert not {(module, other) for module, room, other in arrows() if place.get(other, len(place)) < place[room]}


def test_commands_are_imported_by_the_command_line_alone() -> None:
    assert {module for module, _, other in arrows() if other == "commands"} == {"autodial.cli"}


def test_converters_and_deploy_know_nothing_of_each_other() -> None:
    assert not {(module, other) for module, room, other in arrows() if {room, other} == STRANGERS}


def test_the_picture_of_the_rooms_is_as_they_are() -> None:
    picture = runpy.run_path(str(ROOT / "docs" / "architecture.py"))
    names = [", ".join(name for name, *_ in floor).split(", ") for floor in picture["FLOORS"]]
    floor = {room: number for number, rooms in enumerate(names) for room in rooms}
    assert floor.keys() == set(ROOMS) - {"__main__"}
    drawn = {(module, other) for module, room, other in arrows() if room != "__main__" and other in floor}
    assert not {(module, other) for module, other in drawn if floor[other] <= floor[module.split(".")[1]]}
    assert (ROOT / "docs" / "architecture.svg").read_text("utf-8") == picture["draw"]()

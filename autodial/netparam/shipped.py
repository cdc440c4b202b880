"""The nets that ship with AutoDIAL: a folder each, with train_val.prototxt and solver.prototxt."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from autodial.errors import InputError


def shipped_names() -> list[str]:
    """Names of the shipped nets, in alphabetical order."""
    return sorted(folder.name for folder in _root().iterdir() if (folder / "train_val.prototxt").is_file())


def shipped_folder(name: str) -> Path:
    """The folder of a shipped net, which may hold more: other schedules, and variants as NAME.settings.

    Raises:
        InputError: no net of this name ships; it lists those that do.
    """
    if name not in shipped_names():
        raise InputError(f'no net "{name}" ships with AutoDIAL; these do: {", ".join(shipped_names())}')
    return _root() / name


def shipped_net(name: str) -> Path:
    """The train_val.prototxt of a shipped net; raises what `shipped_folder` does."""
    return shipped_folder(name) / "train_val.prototxt"


def shipped_solver(name: str) -> Path:
    """The solver.prototxt of a shipped net; raises what `shipped_folder` does."""
    return shipped_folder(name) / "solver.prototxt"


def _root() -> Path:
    # a folder on disk, never inside a zip file: OpenCV and ONNX Runtime can't be imported from one either
    return Path(str(resources.files("autodial.prototxt")))

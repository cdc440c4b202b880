"""The files that a net's data layers read."""

from __future__ import annotations

from pathlib import Path

from autodial.data.source import FILE_OPTIONS
from autodial.proto import messages as pb


def files_of(net: pb.NetParameter, base_dir: Path) -> list[Path]:
    """The lists and mean files that a NetParameter's data layers name, under both folders they may be found in."""
    names: list[str] = []
    for layer in net.layer:
        sources = (getattr(layer, field).source for field in FILE_OPTIONS.values())
        names += filter(None, (layer.transform_param.mean_file, *sources))
    return [folder / name for name in names for folder in (Path(), base_dir)]

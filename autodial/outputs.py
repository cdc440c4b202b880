"""Where a command may write its result, found out before the work."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autodial.errors import InputError

_SOURCES = ("image_data_param", "data_param", "hdf5_data_param")


def check_output(output: str | Path, inputs: Iterable[str | Path] = ()) -> Path:
    """The file that `output` leads to, links followed.

    Args:
        inputs: files that the same command reads, and so must not write over.

    Raises:
        InputError: there is something else than a file under that name, no folder to put it in or no leave to write
            there, or it is one of the inputs.
    """
    final = Path(output).resolve()
    if final.exists() and not final.is_file():
        raise InputError(f"{output}: not a regular file; name a file to write.")
    if not final.parent.is_dir():
        raise InputError(f"{output}: there is no folder {final.parent}; make it first.")
    if not os.access(final.parent, os.W_OK):
        raise InputError(f"{output}: can't write to the folder {final.parent}; choose another one.")
    if final in {Path(used).resolve() for used in inputs}:
        raise InputError(f"{output}: the same command reads this file; choose another name for the output.")
    return final


def files_of(net: Any, base_dir: Path) -> list[Path]:
    """The lists and mean files that a NetParameter's data layers name, under both folders they may be found in."""
    names = [
        name
        for layer in net.layer
        for name in (layer.transform_param.mean_file, *(getattr(layer, field).source for field in _SOURCES))
        if name
    ]
    return [folder / name for name in names for folder in (Path(), base_dir)]

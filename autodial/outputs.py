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
    if str(output) == "-":
        raise InputError("-: this command writes a file and not to standard output; name one.")
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


def check_folder(folder: str | Path) -> None:
    """Raise InputError unless there is a folder of this name to write to, or it can be made."""
    if str(folder) == "-":
        raise InputError("-: this command writes a folder and not to standard output; name one.")
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise InputError(f"{folder}: {place} is not a folder; name another one to write to.")
    if not os.access(place, os.W_OK):
        raise InputError(f"{folder}: can't write to the folder {place}; choose another one.")


def files_of(net: Any, base_dir: Path) -> list[Path]:
    """The lists and mean files that a NetParameter's data layers name, under both folders they may be found in."""
    names = [
        name
        for layer in net.layer
        for name in (layer.transform_param.mean_file, *(getattr(layer, field).source for field in _SOURCES))
        if name
    ]
    return [folder / name for name in names for folder in (Path(), base_dir)]

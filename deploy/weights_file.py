"""The second file of a model, where `autodial export` puts weights above 2 GiB."""

from __future__ import annotations

import mmap
from pathlib import Path

_LOCATION = b"\n\x08location\x12"
"""How the entry of ONNX's `external_data` that names a file begins, up to the length of the name."""


def weights_file(model: Path) -> Path | None:
    """The file that has a model's weights, which need not exist; None if they are in the model's own file.

    It is found without the package onnx, which a serving machine does not need.
    """
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.find(_LOCATION) + len(_LOCATION)
            if start < len(_LOCATION) or start == len(content):
                return None
            length = content[start]
            if length > 127:  # it takes two bytes
                start += 1
                length += 128 * (content[start : start + 1] or b"\0")[0] - 128
            name = content[start + 1 : start + 1 + length].decode(errors="replace")
    except (OSError, ValueError):  # it can't be read, or is empty
        return None
    return model.parent / name

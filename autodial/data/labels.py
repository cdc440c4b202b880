"""The names of a net's classes, in a text file."""

from __future__ import annotations

from pathlib import Path

from autodial.data.text import read_text
from autodial.errors import InputError


def read_labels(path: Path) -> list[str]:
    """Class names, one per line of a text file in UTF-8; blank lines at its end are skipped.

    Raises:
        InputError: the file can't be read, has no names, or a blank line between them.
    """
    names = [line.strip() for line in read_text(path, "a list of class names").rstrip().splitlines()]
    if not names:
        raise InputError(f"{path} names no classes: write one name per line")
    if "" in names:
        raise InputError(f"{path}:{names.index('') + 1}: the line is blank where a class name belongs")
    return names

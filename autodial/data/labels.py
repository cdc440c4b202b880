"""The names of a net's classes, in a text file."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from autodial.data.text import read_text
from autodial.errors import InputError


def read_labels(path: Path) -> list[str]:
    """Class names, one per line of a text file in UTF-8; blank lines at its end are skipped.

    Raises:
        InputError: the file can't be read, has no names, a blank line between them, or a name with a character that
            names don't have (see `check_class_names`).
    """
    text = read_text(path, "a list of class names").rstrip()
    names = [line.strip() for line in text.split("\n")]
    if not text:
        raise InputError(f"{path} names no classes: write one name per line")
    if "" in names:
        raise InputError(f"{path}:{names.index('') + 1}: the line is blank where a class name belongs")
    check_class_names(names, str(path))
    return names


def labels_beside(folder: Path, count: int) -> tuple[str, ...] | None:
    """The names in a folder's labels.txt, told apart (see `tell_apart`); None unless there are `count` of them."""
    path = folder / "labels.txt"
    try:
        # reading a pipe would wait for a writer; pathlib's own test raises for folders that may not be looked into
        names = read_labels(path) if os.path.isfile(path) else []  # noqa: PTH113
    except InputError:
        return None
    return tell_apart(names) if len(names) == count else None


def check_class_names(names: Sequence[str], where: str) -> None:
    """Raise InputError, which begins with `where`, for a name with a control character other than tabs, or with half of
    a surrogate pair.

    No name needs them: they could control a terminal, or end a text in programs that end texts at NUL.
    """
    for number, name in enumerate(names):
        if has_control_character(name):
            raise InputError(f"{where}: the name of class {number}, {name!a}, has a control character: rename it")
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise InputError(f"{where}: the name of class {number}, {name!a}, is not Unicode text: rename it")


def has_control_character(name: str) -> bool:
    """Whether a name has a control character other than tabs."""
    return any(unicodedata.category(letter) == "Cc" and letter != "\t" for letter in name)


def tell_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Class names made unique: several classes with one name get their numbers, from 0, appended.

    ImageNet's two cranes, classes 134 and 517, become crane_134 and crane_517. A name that only one class has stays. If
    a new name is already taken, the number is appended again. Repeating the call changes nothing.
    """
    counts = Counter(names)
    taken = set(counts)
    told = list(names)
    for number, name in enumerate(names):
        if counts[name] > 1:
            while told[number] in taken:
                told[number] += f"_{number}"
            taken.add(told[number])
    return tuple(told)

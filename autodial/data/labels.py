"""The names of a net's classes, in a text file."""

from __future__ import annotations

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


def check_class_names(names: Sequence[str], where: str) -> None:
    """Raise InputError, which says `where` they are, for a name with control characters, but for tabs, or half of a
    surrogate pair.

    They are no part of any name: what they do to a terminal, or to a program that takes NUL for the end of a text, is
    not what a name should do.
    """
    for number, name in enumerate(names):
        if has_control_character(name):
            raise InputError(f"{where}: the name of class {number}, {name!a}, has a control character: rename it")
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise InputError(f"{where}: the name of class {number}, {name!a}, is not Unicode text: rename it")


def has_control_character(name: str) -> bool:
    """Whether a name has a control character, but for tabs."""
    return any(unicodedata.category(letter) == "Cc" and letter != "\t" for letter in name)


def tell_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Class names, all different: of several classes of one name, each gets its number, counted from 0, behind it.

    ImageNet's two cranes, classes 134 and 517, are crane_134 and crane_517. A name that only one class has stays as it
    is; where it is what another would become, the number is put behind that once more. Done again, nothing changes.
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

"""Lists and tables of images that people label: classes by name or number."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from autodial.data.text import read_text
from autodial.errors import InputError
from autodial.wording import shortened

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
_DELIMITERS = ",;\t"
"""What spreadsheets write between columns, depending on the country."""
_FEW = 5


class LabelledFile(NamedTuple):
    """A file, as the list or table names it.

    Attributes:
        path: of the file.
        label: the number of its class.
        line: where it stands, from 1.
    """

    path: str
    label: int
    line: int


def read_labelled_files(path: Path, classes: Sequence[str]) -> tuple[list[LabelledFile], int]:
    """Read a table in CSV, if the name ends in .csv, or a list.

    A table has the columns path and label, separated by commas, semicolons or tabs, and any others. A label is the name
    of a class, or its number from 0 if no class has that name. A list has a path and a label on each line. An integer
    behind the last space is a number, as in all lists; anything else is a name, which may have spaces.

    Args:
        path: the file, in UTF-8.
        classes: the names of the classes.

    Returns:
        the files with labels, and the number of a table's rows without a label, which are left out.

    Raises:
        InputError: the file can't be read, lacks a column, or has no labels; or a label is no class; it names the
            line.
    """
    text = read_text(path, "a list or table of labels")
    names = _Names(classes)
    skipped = 0
    if path.suffix.lower() == ".csv":
        found, skipped = _from_table(path, text, names)
    else:
        lines = [(number, line.rstrip(" \t\r")) for number, line in enumerate(text.split("\n"), 1)]
        found = [_from_line(f"{path}:{number}", number, line, names) for number, line in lines if line]
        if not found:
            raise InputError(f"{path} lists no images: write a path, a space and a class on each line")
    names.check_found(path)
    return found, skipped


class _Names:
    """The classes, by name or number."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._missed: list[tuple[int, str]] = []
        # names of files and folders that come from a Mac may be in form D
        self.numbers = {
            unicodedata.normalize(form, name): number for form in ("NFD", "NFC") for number, name in enumerate(classes)
        }

    def ending(self, line: str) -> str | None:
        """The longest class name that a line ends with, behind a space."""
        return max((name for name in self.numbers if line.endswith(f" {name}")), key=len, default=None)

    def near_ending(self, line: str) -> str | None:
        """What a line ends with, behind a space, that resembles a class's name."""
        words = line.split(" ")[1:]
        longest = max(name.count(" ") for name in self._classes) + 1
        endings = [" ".join(words[-length:]) for length in range(min(longest, len(words)), 0, -1)]
        return next((ending for ending in endings if self._near(ending)), None)

    def number(self, text: str, line: int) -> int:
        """The class with a number; -1 if there is none, which `check_found` reports."""
        if not _NUMBER.fullmatch(text) or not 0 <= int(text) < len(self._classes):
            self._missed.append((line, text))
            return -1
        return int(text)

    def check_found(self, path: Path) -> None:
        """Raise InputError if labels were no classes; it explains the first, and names the lines of others."""
        if not self._missed:
            return
        (line, text), *others = self._missed
        lines = ", ".join(str(number) for number, _ in others[:_FEW]) + (", ..." if len(others) > _FEW else "")
        nor = f", nor are {len(others)} others, in lines {lines}" if len(others) > 1 else ""
        nor = f", nor is that in line {lines}" if len(others) == 1 else nor
        raise InputError(f'{path}:{line}: the label "{shortened(text)}" is not a class{nor}: {self._choices(text)}')

    def _choices(self, text: str) -> str:
        if near := self._near(text):
            return f'did you mean "{near}"?'
        names = ", ".join(self._classes[:_FEW]) + (", ..." if len(self._classes) > _FEW else "")
        return f"write the name of a class ({names}), or a number from 0 to {len(self._classes) - 1}"

    def _near(self, text: str) -> str | None:
        """The class whose name resembles a text most, in capitals or not."""
        folded = {_folded(name): name for name in self._classes}
        return next((folded[near] for near in get_close_matches(_folded(text), folded, 1)), None)


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())


def _from_line(where: str, number: int, line: str, names: _Names) -> LabelledFile:
    path, _, last = line.rpartition(" ")
    name = None if _NUMBER.fullmatch(last) else names.ending(line)
    if name is not None:
        return LabelledFile(line[: -len(name) - 1], names.numbers[name], number)
    if not path:
        raise InputError(f'{where}: "{shortened(line)}" lacks a path or a label: write a path, a space and a class')
    if not _NUMBER.fullmatch(last) and (ending := names.near_ending(line)):
        last = ending
    return LabelledFile(path, names.number(last, number), number)


def _from_table(path: Path, text: str, names: _Names) -> tuple[list[LabelledFile], int]:
    header = text.split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=header.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restkey="")
    for column in ("path", "label"):
        if column not in (rows.fieldnames or ()):
            raise InputError(
                f"{path} has no column {column}: its first line must name the columns path and label, as `autodial "
                "predict --to-label` writes them"
            )
    found, skipped = [], 0
    try:
        for row in rows:
            where = f"{path}:{rows.line_num}"
            label = (row["label"] or "").strip()
            if not label:
                skipped += 1
                continue
            if not row["path"]:
                raise InputError(f"{where}: the row has a label and no path: fill it in")
            number = names.numbers.get(label)
            found.append(
                LabelledFile(
                    row["path"], names.number(label, rows.line_num) if number is None else number, rows.line_num
                )
            )
    except csv.Error as error:
        raise InputError(f"{path}:{rows.line_num} can't be read as CSV: {error}") from None
    if not found:
        raise InputError(f"{path} has no label: write the name of a class into the column label of some rows")
    return found, skipped

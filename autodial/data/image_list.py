"""Caffe's image lists: one `PATH LABEL` per line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from autodial.data.text import read_text
from autodial.errors import InputError
from autodial.wording import shortened

_LABEL = re.compile(r"[+-]?[0-9]{1,9}")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_LABEL_LIMIT = 2**24  # labels travel as float32, which holds every integer up to here
_FORM = "a line is a path, one space and an integer label"


class Entry(NamedTuple):
    """One image of a list: its path as the list states it, its label, and its line number, from 1."""

    path: str
    label: int
    line: int


@dataclass(frozen=True)
class ImageList:
    """The images of a list file, in its order."""

    path: Path
    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> ImageList:
        """Read a list in UTF-8, with or without a byte order mark, with Unix or Windows line ends.

        As in Caffe, a line is split at its last space, so that paths may contain spaces. Blank lines and white space
        at the end of a line are skipped. A label that is no integer is an error; Caffe reads it as 0.

        Raises:
            InputError: the file can't be read, is not text in UTF-8 or lists no image, or a line has no path, no
                label, or a label that is not an integer within 2^24; it names the file and the line.
        """
        path = Path(path)
        entries = []
        labels: dict[str, int] = {}  # those seen so far: a list has few, and each is parsed once
        for number, line in enumerate(read_text(path, "an image list").split("\n"), start=1):
            line = line.rstrip(" \t\r")
            if not line:
                continue
            name, _, text = line.rpartition(" ")
            if not name:
                raise InputError(f'{path}:{number}: "{shortened(line)}" lacks a path or a label: {_FORM}')
            if (label := labels.get(text)) is None:
                if not _LABEL.fullmatch(text) or abs(int(text)) > _LABEL_LIMIT:
                    raise InputError(
                        f'{path}:{number}: the label "{shortened(text)}" is not an integer within 2^24: {_FORM}'
                    )
                label = labels[text] = int(text)
            entries.append(Entry(name, label, number))
        if not entries:
            raise InputError(f"{path} lists no images: {_FORM}")
        return cls(path, tuple(entries))


def read_paths(path: Path) -> Iterator[str]:
    """The paths in a list, with or without labels, in its order, read line by line.

    An integer behind a line's last space is a label, and dropped. The bytes of names in other encodings than UTF-8
    reach the file system unchanged. Blank lines are skipped.

    Raises:
        InputError: while iterating: the file can't be read, or is not text.
    """
    try:
        with path.open("rb") as file:
            yield from paths_of(file, str(path))
    except OSError as error:
        raise InputError(f"{path}: can't read this list: {error.strerror}") from error


def paths_of(file: Iterable[bytes], name: str) -> Iterator[str]:
    """The paths in a list's lines, as in `read_paths`.

    Args:
        file: the lines.
        name: the list's name, for errors.
    """
    for number, line in enumerate(file):
        if b"\0" in line:
            raise InputError(f"{name}: this is not a list: it is binary, or text in UTF-16; save it as text in UTF-8")
        text = line.decode("utf-8" if number else "utf-8-sig", "surrogateescape").rstrip(" \t\r\n")
        if text:
            yield _without_label(text)


def _without_label(line: str) -> str:
    name, _, last = line.rpartition(" ")
    return name if name and _INTEGER.fullmatch(last) else line

"""The names of the classes, in the order of the logits, that an exported file carries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autodial.data.labels import read_labels, tell_apart
from autodial.errors import InputError
from autodial.wording import counted


def read_class_names(labels: Path | None, count: int, base_dir: Path | None) -> tuple[list[str], list[str]]:
    """The classes' names, and notes on their origin.

    Args:
        labels: file with one name per line; None: labels.txt in `base_dir` if it fits, else numbers are the names.
        count: number of classes.
        base_dir: the prototxt's folder.

    Raises:
        InputError: `labels` can't be read, or has another number of names.
    """
    if labels is not None:
        names = read_labels(labels)
        if len(names) != count:
            raise InputError(f"{labels} names {counted(len(names), 'class', 'classes')} and the logits have {count}")
        return list(tell_apart(names)), note_repeated(names, str(labels))
    beside = (base_dir or Path()) / "labels.txt"
    if not beside.is_file():
        return [str(i) for i in range(count)], ["the classes are named by their numbers: `labels` gives them names"]
    names = read_labels(beside)
    if len(names) == count:
        notes = [f"the classes' names are those of {beside}", *note_repeated(names, str(beside))]
        return list(tell_apart(names)), notes
    mismatch = f"{counted(len(names), 'name')} for {counted(count, 'class', 'classes')}"
    return [str(i) for i in range(count)], [f"the classes are named by their numbers: {beside} has {mismatch}"]


def note_repeated(classes: Sequence[str], where: str) -> list[str]:
    """A note on names that several classes share, to which their numbers are appended; none if names are unique."""
    of_name: dict[str, list[str]] = {}
    for name, told in zip(classes, tell_apart(classes), strict=True):
        of_name.setdefault(name, []).append(told)
    repeated = [f'"{name}" ({", ".join(told)})' for name, told in of_name.items() if len(told) > 1]
    if not repeated:
        return []
    return [f"{where} gives several classes one name, so their numbers are appended: {', '.join(repeated)}"]

"""The candidates of a selection: every combination of the values to try."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from autodial.errors import InputError

_SEPARATOR = re.compile(r",(?![^\[]*\])")
"""A comma that is not within the brackets of a list."""
_UNSAFE = re.compile(r"[^\w.=+-]+")
_NAME_LENGTH = 80


@dataclass(frozen=True)
class Candidate:
    """One way to train.

    Attributes:
        settings: `LAYER.FIELD=VALUE`, one per field tried, as `autodial train --set` takes them.
    """

    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """What tables call it."""
        return ", ".join(self.settings)

    @property
    def folder(self) -> str:
        """A folder's name for it, the same whichever other candidates there are."""
        readable = _UNSAFE.sub("_", "_".join(self.settings))[:_NAME_LENGTH]
        return f"{readable}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"


def grid(tries: Sequence[str]) -> list[Candidate]:
    """Every combination of `LAYER.FIELD=VALUE,VALUE,...`; a value that is a list stands in brackets: [104,117,123].

    Raises:
        InputError: a text of another form, a field that is named twice, or one with fewer than two different values.
    """
    choices: dict[str, list[str]] = {}
    for text in tries:
        path, equals, values = (part.strip() for part in text.partition("="))
        if not equals or "." not in path:
            raise InputError(f"--try {text}: must be LAYER.FIELD=VALUE,VALUE,... or solver.FIELD=VALUE,VALUE,...")
        if path in choices:
            raise InputError(f"--try {path} is given twice: give all its values in one, separated by commas")
        choices[path] = [value.strip() for value in _SEPARATOR.split(values)]
        if len(set(choices[path])) < len(choices[path]):
            raise InputError(f"--try {text}: a value is given twice")
        if len(choices[path]) < 2:
            raise InputError(f"--try {text}: one value leaves nothing to choose; set it with --set {text}")
    settings = ([f"{path}={value}" for value in values] for path, values in choices.items())
    return [Candidate(combination) for combination in product(*settings)]

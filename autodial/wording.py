"""Words of messages that depend on numbers and names."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_LISTED = 12
"""Names that a message lists at most."""
_LONGEST = 100
"""Characters of a file's own words that a message repeats at most."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and what it counts: `1 image`, `2 images`; `plural` is given where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def shortened(text: str) -> str:
    """A file's own words as a message repeats them: whole, or the first hundred characters and three dots."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def alternatives(wanted: str, names: Sequence[str]) -> str:
    """What to say behind a name that does not exist: those that are close, or else which there are.

    `; did you mean "conv1" or "conv2"?`, or ` (there are a, b, c)`.
    """
    if close := get_close_matches(wanted, names):
        quoted = " or ".join(f'"{name}"' for name in close)
        return f"; did you mean {quoted}?"
    listed = ", ".join(names[:_LISTED])
    more = f", ... {len(names)} in all" if len(names) > _LISTED else ""
    return f" (there are {listed}{more})" if names else ""

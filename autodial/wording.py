"""Words of messages that depend on numbers and names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

_LISTED = 12
"""Names that a message lists at most."""
_LONGEST = 100
"""Characters of a file's own words that a message repeats at most."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What terminals obey, ends of lines, what turns the direction of text, and what is no text: halves of pairs."""


def printable(text: str, *, but: str = "") -> str:
    """A text with escapes in place of what a terminal would obey, and of what can't be encoded: `\\x1b`, `\\u202e`.

    A byte of a file's name that isn't UTF-8 becomes `\\xe9`.

    Args:
        but: characters that stay, such as the end of a line.
    """

    def escape(match: re.Match[str]) -> str:
        number = ord(match[0])
        if match[0] in but:
            return match[0]
        number -= 0xDC00 if 0xDC80 <= number <= 0xDCFF else 0
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _UNPRINTABLE.sub(escape, text)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and what it counts: `1 image`, `2 images`; `plural` is given where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """A file's own words as a message repeats them: whole, or the first hundred characters and three dots.

    Args:
        longest: another number than a hundred.
    """
    return text if len(text) <= longest else f"{text[:longest]}..."


def command_line(command: str, options: Mapping[str, object]) -> str:
    """A command line for a POSIX shell: `autodial train --solver solver.prototxt --set a=1 --set b=2`.

    Args:
        command: the words in front, as they stand.
        options: values by option. An option whose value is None is left out, one with a list is repeated.
    """
    return " ".join([command, *map(shlex.quote, _words(options))])


def _words(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            yield from (name, str(item))


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

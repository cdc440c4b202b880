"""Parts of messages that depend on numbers and names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

_LISTED = 12
"""Most names that a message lists."""
_LONGEST = 100
"""Most characters that a message quotes from a file."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, ends of lines, characters that turn the direction of text, and unpaired surrogates."""


def printable(text: str, *, but: str = "") -> str:
    """A text with escapes, such as `\\x1b`, in place of control characters and of what can't be encoded.

    A byte in a file's name that isn't UTF-8 becomes an escape such as `\\xe9`.

    Args:
        but: characters to keep, such as the end of a line.
    """

    def escape(match: re.Match[str]) -> str:
        number = ord(match[0])
        if match[0] in but:
            return match[0]
        number -= 0xDC00 if 0xDC80 <= number <= 0xDCFF else 0
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _UNPRINTABLE.sub(escape, text)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun: `1 image`, `2 images`; give `plural` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def every(number: int, noun: str) -> str:
    """`every iteration`, `every 5 iterations`."""
    return f"every {noun}" if number == 1 else f"every {number} {noun}s"


def described_size(size: int) -> str:
    """A number of bytes: `1.5 MiB`, `2.0 KiB`."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Text from a file for a message: whole, or its first characters and three dots.

    Args:
        longest: most characters to keep.
    """
    return text if len(text) <= longest else f"{text[:longest]}..."


def command_line(command: str, options: Mapping[str, object]) -> str:
    """A command line for a POSIX shell: `autodial train --solver solver.prototxt --set a=1 --set b=2`.

    Args:
        command: the words in front, unchanged.
        options: values by option. An option with the value None is left out; an option with a list is repeated.
    """
    return " ".join([command, *map(shlex.quote, _words(options))])


def _words(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            yield from (name, str(item))


def alternatives(wanted: str, names: Sequence[str], *, most: int = _LISTED) -> str:
    """The end of a message about a name that does not exist: similar names, or else the existing ones.

    `; did you mean "conv1" or "conv2"?`, or ` (there are a, b, c)`.

    Args:
        wanted: the name.
        names: those that exist.
        most: how many of these are listed.
    """
    if close := get_close_matches(wanted, names):
        quoted = " or ".join(f'"{name}"' for name in close)
        return f"; did you mean {quoted}?"
    listed = ", ".join(names[:most])
    more = f", ... {len(names)} in all" if len(names) > most else ""
    return f" (there are {listed}{more})" if names else ""

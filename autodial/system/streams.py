"""Standard output and standard error of commands: they show control characters, and errors name them."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, ParamSpec, TextIO, TypeVar, cast

from autodial.wording import printable

_P = ParamSpec("_P")
_R = TypeVar("_R")

STANDARD_OUTPUT = "standard output"
"""The name of standard output in errors."""

_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
"""Escape sequences that set colours and other styles."""


class _Stream:
    """A text stream around another one, which does everything except writing and flushing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Named(_Stream):
    """A stream that names itself in the system's errors, as files do."""

    def __init__(self, stream: TextIO, name: str) -> None:
        super().__init__(stream)
        self._name = name

    def write(self, text: str) -> int:
        with self._named_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._named_errors():
            self._stream.flush()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = error.filename or self._name
            raise


class _Styled(_Stream):
    """A stream that passes on escape sequences for styles, and shows other control characters."""

    def write(self, text: str) -> int:
        shown = (part if _STYLE.fullmatch(part) else printable(part, but="\n\t") for part in _STYLE.split(text))
        return self._stream.write("".join(shown))


class _Plain(_Stream):
    """A stream that shows control characters, so that the terminal does not obey them."""

    def write(self, text: str) -> int:
        return self._stream.write(printable(text, but="\n\t"))

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream for rich's consoles, which style their text and move the cursor."""
        return self._stream._stream if isinstance(self._stream, _Styled) else self._stream


@contextmanager
def named() -> Iterator[None]:
    """Make errors in writing name standard output or standard error, and show control characters in usage errors."""
    with _replaced(lambda stream: _Named(stream, STANDARD_OUTPUT), lambda stream: _Styled(_text(stream))):
        yield


def harmless(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """A command whose output, warnings and logs can't control the terminal, whatever file names they contain."""

    @functools.wraps(command)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _R:
        with _replaced(_Plain, _Plain):
            return command(*arguments, **options)

    return run


def discard(*descriptors: int) -> None:
    """Discard everything written to these file descriptors from now on, including what streams still buffer."""
    with Path(os.devnull).open("wb") as nowhere:
        for descriptor in descriptors:
            os.dup2(nowhere.fileno(), descriptor)


@contextmanager
def _replaced(output: Callable[[TextIO], _Stream], error: Callable[[TextIO], _Stream]) -> Iterator[None]:
    """Replace standard output and standard error by what two functions make of them; a closed one stays closed."""
    out = sys.stdout and _text(output(sys.stdout))
    err = sys.stderr and _text(error(sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


def _text(stream: Any) -> TextIO:
    return cast(TextIO, stream)

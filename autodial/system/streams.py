"""Standard output and standard error as commands write to them: names of files are harmless, and failures are named."""

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
"""Its name in errors."""

_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
"""What sets colours and the like."""


class _Stream:
    """A text stream; all but writing and flushing is the wrapped one's."""

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
    """Names itself in the errors of the system, as files do."""

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
    """Lets through what sets colours, and shows other control characters."""

    def write(self, text: str) -> int:
        shown = (part if _STYLE.fullmatch(part) else printable(part, but="\n\t") for part in _STYLE.split(text))
        return self._stream.write("".join(shown))


class _Plain(_Stream):
    """Shows control characters in place of obeying them."""

    def write(self, text: str) -> int:
        return self._stream.write(printable(text, but="\n\t"))

    @property
    def rich_proxied_file(self) -> TextIO:
        """Where consoles of rich write, which style their text and move the cursor."""
        return self._stream._stream if isinstance(self._stream, _Styled) else self._stream


@contextmanager
def named() -> Iterator[None]:
    """Let errors in writing to standard output and standard error say so; usage errors show a name as it is."""
    with _replaced(lambda stream: _Named(stream, STANDARD_OUTPUT), lambda stream: _Styled(_text(stream))):
        yield


def harmless(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """A command whose printed text, warnings and logs can't give the terminal orders, whatever files are called."""

    @functools.wraps(command)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _R:
        with _replaced(_Plain, _Plain):
            return command(*arguments, **options)

    return run


def discard(*descriptors: int) -> None:
    """Let what is written to these file descriptors go nowhere from now on, also what a stream holds back."""
    with Path(os.devnull).open("wb") as nowhere:
        for descriptor in descriptors:
            os.dup2(nowhere.fileno(), descriptor)


@contextmanager
def _replaced(output: Callable[[TextIO], _Stream], error: Callable[[TextIO], _Stream]) -> Iterator[None]:
    """Standard output and standard error, each as a function makes it; one that is closed stays so."""
    out = sys.stdout and _text(output(sys.stdout))
    err = sys.stderr and _text(error(sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


def _text(stream: Any) -> TextIO:
    return cast(TextIO, stream)

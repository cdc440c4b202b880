"""The command `autodial`: each sub-command's module is light, and imports what it needs when it runs."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from autodial.commands.command import Command
from autodial.commands.compare import compare
from autodial.commands.convert import convert
from autodial.commands.demo import demo
from autodial.commands.dialize import dialize
from autodial.commands.doctor import doctor
from autodial.commands.export import export
from autodial.commands.init import init
from autodial.commands.predict import predict
from autodial.commands.recalibrate import recalibrate
from autodial.commands.report import report
from autodial.commands.select import select
from autodial.commands.serve import serve
from autodial.commands.test import test
from autodial.commands.time import time
from autodial.commands.train import train
from autodial.commands.upgrade import upgrade
from autodial.data.decoder_messages import watch_decoders
from autodial.errors import AutodialError
from autodial.system.streams import STANDARD_OUTPUT, discard, harmless, named
from autodial.wording import printable

_NO_MEMORY = "can't allocate memory"
"""What torch's RuntimeError says on the CPU."""
_LONGEST = 8000
"""Characters of a message: enough for two paths of the greatest length that Linux has."""
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start": (demo, init, dialize),
    "Train": (train, test, recalibrate),
    "Choose": (select, compare, report),
    "Export": (export, convert),
    "Use": (predict, serve),
    "Tools": (doctor, time, upgrade),
}
"""The commands as `autodial --help` groups them."""

app = typer.Typer(
    name="autodial",
    help="Train a classifier that adapts to unlabelled images of another domain, export it to ONNX, and label images.",
    epilog="`autodial COMMAND --help` explains a command. `--debug`, anywhere, shows the traceback of an error.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs of docstrings are filled to the terminal's width
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        from autodial import __version__

        typer.echo(f"autodial {__version__}")
        raise typer.Exit


@app.callback()
def set_up(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Show the version and exit.")
    ] = False,
) -> None:
    # OpenCV reports what it can't decode without the file's name: the commands do it better.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    # A small file may claim any size; the largest cameras take 200 million pixels.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(2**28))
    context.with_resource(watch_decoders())
    context.with_resource(told_once())


class _Once(logging.Filter):
    """Lets each message about a layer or a net through once: commands build a net several times."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("autodial.layers.", "autodial.net.")):
            return True
        message = record.getMessage()
        new = message not in self._told
        self._told.add(message)
        return new


@contextmanager
def told_once() -> Iterator[None]:
    """Filter what Python's logging prints where nobody has set it up otherwise."""
    once = _Once()
    handler = logging.lastResort
    assert handler is not None
    handler.addFilter(once)
    try:
        yield
    finally:
        handler.removeFilter(once)


for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_panel)(harmless(_command))


def main() -> None:
    """Run the command line; errors are one sentence, with exit status 2 for bad input and 1 for failed work."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    with named():
        status = _run(arguments, debug)
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            status = status or _report(error, debug)
            with suppress(OSError, ValueError):  # no file at all
                discard(sys.stdout.fileno())  # which the interpreter would flush once more
    sys.exit(status)


def _run(arguments: list[str], debug: bool) -> int | str | None:
    """Run a command line and report what goes wrong; the exit status."""
    try:
        app(arguments, prog_name="autodial")
    except SystemExit as stop:
        return stop.code
    except (AutodialError, OSError, ModuleNotFoundError, MemoryError, RecursionError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not (isinstance(error, RecursionError) or _NO_MEMORY in str(error)):
            raise
        return _report(error, debug)
    return 0


def _report(error: Exception, debug: bool) -> int:
    """Print an error in one sentence, unless whoever read the output is gone; returns the exit status."""
    message, status = _explain(error)
    if not isinstance(error, BrokenPipeError):
        with suppress(OSError):  # standard error can't be written
            if debug:
                traceback.print_exception(error)
            print(f"autodial: error: {printable(_bounded(message))}", file=sys.stderr)
    return status


def _bounded(message: str) -> str:
    """A message, without its middle where that fills screens, as the name of a layer may."""
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]}...{message[-_LONGEST // 2 :]}"


def _explain(error: Exception) -> tuple[str, int]:
    if isinstance(error, AutodialError):
        return str(error), error.exit_status
    if isinstance(error, ModuleNotFoundError):
        remedy = 'pip install ".[train]" in AutoDIAL\'s checkout brings it'
        return f"this needs {error.name}, which is not installed: {remedy}", 1
    if isinstance(error, RecursionError):
        return "a given file is nested too deeply to be read; it may be damaged", 2
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error), 1
    return "there is not enough memory: use smaller batches or images, or a machine with more memory", 1

"""The command `autodial`: each sub-command's module is light, and imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from autodial.converters.command import export
from autodial.converters.dialize_command import dialize
from autodial.data.decoder_messages import watch_decoders
from autodial.demo.command import demo
from autodial.deploy.command import predict
from autodial.doctor_command import doctor
from autodial.errors import AutodialError
from autodial.init_command import init
from autodial.recalibrate_command import recalibrate
from autodial.report_command import report
from autodial.select_command import select
from autodial.test_command import test
from autodial.time_command import time
from autodial.train_command import train
from autodial.upgrade_command import upgrade

app = typer.Typer(
    name="autodial",
    help="Train AutoDIAL networks from Caffe prototxts, export their target predictor, label folders of images.",
    epilog="--debug, anywhere, shows the traceback of an error.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs of docstrings are filled to the terminal's width
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def set_up(context: typer.Context) -> None:
    # OpenCV reports what it can't decode without the file's name: the commands do it better.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    # A small file may claim any size. The largest cameras make 200 million pixels.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(2**28))
    context.with_resource(watch_decoders())


for command in (demo, init, dialize, train, test, time, select, recalibrate, report, export, predict, doctor, upgrade):
    app.command()(command)


def main() -> None:
    """Run the command line; errors are one sentence, with exit status 2 for bad input and 1 for failed work."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments, prog_name="autodial")
    except (AutodialError, OSError, ModuleNotFoundError) as error:
        if debug:
            traceback.print_exc()
        message, status = _explain(error)
        print(f"autodial: error: {message}", file=sys.stderr)
        sys.exit(status)


def _explain(error: AutodialError | OSError | ModuleNotFoundError) -> tuple[str, int]:
    if isinstance(error, AutodialError):
        return str(error), error.exit_status
    if isinstance(error, ModuleNotFoundError):
        remedy = 'pip install ".[train]" in AutoDIAL\'s checkout brings it'
        return f"this needs {error.name}, which is not installed: {remedy}", 1
    return f"{error.filename}: {error.strerror}" if error.filename else str(error), 1

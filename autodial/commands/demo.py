"""The command `autodial demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodial.commands.options import DeviceOption, naming_options
from autodial.errors import INTERRUPTED


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to make for all results.")
    ] = Path("autodial-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rendered digits and of training.")] = 1,
    device: DeviceOption = "auto",
) -> None:
    """Train, choose without labels, export and predict on built-in images.

    The demo takes a minute or two and needs no network. The source domain is labelled digits, rendered from
    matplotlib's fonts; the target is scikit-learn's handwritten digits, unlabelled. One net is trained on the source
    alone, with AdaBN, and with AutoDIAL, with three seeds each. The demo then chooses one of the adapted runs without
    labels, exports it to ONNX, and labels the target's images with the file. Their true labels serve only for the
    printed scores. Every step is a command that you can type, and is shown.
    """
    from autodial.demo.story import LOG, run_demo

    try:
        with naming_options(output="-o"):
            run_demo(output, seed=seed, device=device)
    except KeyboardInterrupt:
        log = output / LOG
        printed = f", and {log} what its steps reported" if log.exists() else ""
        typer.echo(
            f"Interrupted: {output} holds what was done so far{printed}; the demo can't go on from there: delete that "
            "folder, or name another one with -o",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None

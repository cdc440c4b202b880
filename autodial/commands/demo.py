"""The command `autodial demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodial.commands.options import DeviceOption, naming_options
from autodial.errors import INTERRUPTED


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to make, with all that the demo writes.")
    ] = Path("autodial-demo"),
    seed: Annotated[int, typer.Option(min=0, help="For the rendered digits and for training.")] = 1,
    device: DeviceOption = "auto",
) -> None:
    """Show the whole of AutoDIAL in a few minutes, without a network: train, export, predict, compare.

    The source domain is digits rendered from matplotlib's fonts, labelled; the target is scikit-learn's handwritten
    digits, unlabelled. Four variants of one net are trained: on the source alone, and with ever more of AutoDIAL. Each
    is exported to ONNX and labels the target's images; their true labels serve for the printed score alone. Every
    step is a command that you could have typed, and is shown.
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

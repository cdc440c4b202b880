"""The command `autodial predict`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.errors import WorkError

if TYPE_CHECKING:
    from autodial.deploy.runner import Summary

CLASSES_SHOWN = 10


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The .onnx file that `autodial export` wrote.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Images, folders (searched recursively), .txt lists (a path per line, with or without a label), and "
            "quoted glob patterns ('photos/**/*.jpg').",
            show_default=False,
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT.csv", help="The table to write; - for standard output.")
    ],
    top_k: Annotated[int, typer.Option(min=1, help="Labels per image, the most probable first.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model sees at once.")] = 32,
    device: Annotated[
        str, typer.Option(help="auto (a GPU where one works, else the CPU), cpu, cuda, or cuda:N.")
    ] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that decode images.", show_default="one per CPU"),
    ] = None,
) -> None:
    """Label images with an exported model and write a CSV table: one row per image, in a fixed order.

    The columns are path, status, label_1, probability_1, ..., label_K,
    probability_K, error. An image that can't be read is a row with status
    "error", and the rest goes on.

    The exit status is 0 if at least one image got its labels, 1 if none did
    or the work failed, 2 if something given can't be used, and 130 after
    Ctrl-C. The rows of a run that was cut short stay in OUT.csv.partial, and
    an existing OUT.csv stays as it was.
    """
    # OpenCV reports what it can't decode, and without the file's name: the table does it better.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")

    from autodial.deploy.progress import show_progress
    from autodial.deploy.runner import predict_folder

    try:
        with show_progress() as progress:
            summary = predict_folder(
                model,
                inputs,
                output,
                top_k=top_k,
                batch_size=batch_size,
                device=device,
                workers=workers,
                progress=progress,
            )
    except KeyboardInterrupt as stop:
        typer.echo(f"Interrupted.{stop}", err=True)
        raise typer.Exit(130) from None
    typer.echo(describe(summary), err=True)
    if summary.errors == summary.images:
        raise WorkError(f"None of the {summary.images} images could be read: the table's column error says why.")


def describe(summary: Summary) -> str:
    """A Summary as a few lines of text."""
    lines = [
        f"{summary.images} images in {summary.seconds:.1f} s ({summary.images_per_second:.0f} images/s) "
        f"on {summary.provider}"
    ]
    if summary.cuda_failure is not None:
        lines.append(f"The GPU was not used: {summary.cuda_failure}.")
    if summary.errors:
        lines.append(f"{summary.errors} could not be read: their rows have status error and the reason")
    shown = list(summary.counts.items())[:CLASSES_SHOWN]
    lines += [f"{count:>9}  {label}" for label, count in shown]
    if len(shown) < len(summary.counts):
        lines.append(f"{'':>9}  and {len(summary.counts) - len(shown)} more classes")
    return "\n".join(lines)

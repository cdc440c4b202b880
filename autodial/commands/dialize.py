"""The command `autodial dialize`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.inputs import read_size, read_transform, split_names
from autodial.commands.options import LogitsOption, ResizeOption, TransformOption, naming_options, with_options
from autodial.errors import InputError

if TYPE_CHECKING:
    from autodial.converters.dialize import DialReport
    from autodial.proto import messages as pb

OPTIONS = {
    "after": "--after",
    "classes": "--classes",
    "source_batch": "--slice-point",
    "target_batch": "--batch-size",
    "size": "--resize",
    "transform": "--transform",
    "logits": "--logits",
}
"""Options of the command by the parameters of `autodial.converters.dialize.dialize`."""


def dialize(
    net: Annotated[
        Path, typer.Argument(metavar="NET.prototxt", help="A classification net: its train_val or deploy file.")
    ],
    weights: Annotated[
        Path | None, typer.Argument(metavar="W.caffemodel", help="The net's weights.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT.prototxt",
            help="The file to write; its weights become OUT.caffemodel in the same folder.",
            show_default="NET_autodial.prototxt",
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Give the net a new classifier of N classes, which learns ten times as fast.",
            show_default="the net's classifier and weights",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="conv|ip|NAME,...",
            help="Insert Dial and Scale after every Convolution, every InnerProduct, or the named layer; may be "
            "repeated.",
            show_default="ip in a net without BatchNorm",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=2, help="Images in a batch, source and target together.", show_default="the net's, or 64"),
    ] = None,
    slice_point: Annotated[
        int | None,
        typer.Option(min=1, help="Source images in a batch.", show_default="half of the batch"),
    ] = None,
    resize: ResizeOption = None,
    transform: TransformOption = None,
    no_dropout: Annotated[
        bool, typer.Option("--no-dropout", help="Remove Dropout layers, as the paper does for AlexNet.")
    ] = False,
    logits: LogitsOption = None,
) -> None:
    """Turn any Caffe classification net into an AutoDIAL net, with its weights.

    BatchNorm becomes Dial and starts from the stored statistics; a net without BatchNorm gets Dial and Scale behind its
    InnerProducts. The written net reads source.txt and target.txt in TRAIN, and target_test.txt in TEST, from its
    folder.
    """
    from autodial import proto
    from autodial.converters.dialize import dialize as dialize_net
    from autodial.converters.net_text import net_to_text, write_net
    from autodial.netparam.data_files import files_of
    from autodial.system.files import replacing_files
    from autodial.system.outputs import check_output

    if slice_point is not None and batch_size is None:
        raise InputError("--slice-point is a part of --batch-size: state --batch-size, too")
    source_batch = batch_size and (batch_size // 2 if slice_point is None else slice_point)
    if batch_size and source_batch and source_batch >= batch_size:
        raise InputError(f"--slice-point {source_batch} leaves no target images in a batch of {batch_size}")
    output = output or Path(f"{net.stem}_autodial.prototxt")
    param = proto.read_net(net)
    inputs = [net, *files_of(param, net.parent), *([weights] if weights else [])]
    final = check_output(output, inputs, suffixes=[".prototxt"])
    place = final if output.is_symlink() else output
    written = place.with_suffix(".caffemodel")
    if weights:
        check_output(written, inputs)

    stored = proto.read_weights(weights) if weights else None
    try:
        with naming_options(**OPTIONS):
            made = dialize_net(
                param,
                stored,
                after=[word for words in after for word in split_names(words)] if after else None,
                classes=classes,
                source_batch=source_batch,
                target_batch=batch_size and source_batch and batch_size - source_batch,
                size=read_size(resize),
                transform=read_transform(transform),
                dropout=not no_dropout,
                logits=logits,
                base_dir=net.parent,
            )
    except InputError as error:
        raise InputError(f"{net}: {error}") from error
    _move_mean_files(made.net, net.parent, output.parent)
    origin = f"{net.name} and {weights.name}" if weights else net.name
    header = [f"Made from {origin} by autodial dialize.", made.batches]
    text = net_to_text(made.net, header=header, sections=made.sections)
    if made.weights:
        with replacing_files(place.parent, last=place.name) as aside:
            proto.write_weights(made.weights, aside / written.name)
            write_net(aside / place.name, text)
    else:
        write_net(output, text)
    typer.echo(f"Wrote {output}" + (f" and {written}" if made.weights else ""))
    for line in describe(made.report):
        typer.echo(line)


def describe(report: DialReport) -> list[str]:
    """The report as lines of text."""
    lines = []
    if report.replaced:
        lines.append(f"BatchNorm layers that became Dial layers: {len(report.replaced)}")
    if report.inserted:
        lines.append(f"New Dial and Scale layers behind {', '.join(report.inserted)}")
    for name, new in report.renamed.items():
        lines.append(f"New classifier {new} replaces {name}, and learns at ten times the rate")
    if report.removed:
        lines.append(f"Removed: {', '.join(report.removed)}")
    if report.ignored:
        lines.append(f"Ignored weights of layers that the net lacks: {_counted(report.ignored)}")
    if report.missing:
        lines.append(f"Not in the weights, so fillers start them: {', '.join(report.missing)}")
    if report.max_difference is not None:
        lines.append(
            f'Largest difference between these logits ("{report.logits}", in TEST) and the original net\'s: '
            f"{report.max_difference:.2g}; the largest logit is {report.logits_range:.3g} (random images)"
        )
    return [*lines, *(f"Note: {with_options(note, OPTIONS)}" for note in report.notes)]


def _counted(names: tuple[str, ...]) -> str:
    return f"{len(names)} ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"


def _move_mean_files(net: pb.NetParameter, source: Path, destination: Path) -> None:
    """Rewrite relative paths that are found from the original's folder for the result's folder."""
    for layer in net.layer:
        name = layer.transform_param.mean_file
        if name and not Path(name).exists() and (source / name).exists():
            layer.transform_param.mean_file = Path(os.path.relpath(source / name, destination)).as_posix()

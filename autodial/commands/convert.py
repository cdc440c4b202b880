"""The command `autodial convert`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.inputs import read_net, read_weights, split_names
from autodial.commands.options import (
    JsonOption,
    LevelOption,
    PhaseChoice,
    SettingsOption,
    StageOption,
    naming_options,
    with_options,
)
from autodial.errors import InputError
from autodial.wording import described_size

if TYPE_CHECKING:
    from autodial.converters.net_convert import ConvertReport

OPTIONS = {
    "outputs": "--outputs",
    "dynamic": "--dynamic",
    "samples": "--sample",
    "shapes": "--shape",
    "align_crops": "--align-crops",
}
"""Options of the command by the parameters of `autodial.converters.net_convert.convert`."""


class DynamicChoice(StrEnum):
    """Which lengths of the inputs are left open."""

    batch = "batch"
    spatial = "spatial"
    none = "none"


def convert(
    net: Annotated[Path, typer.Argument(metavar="NET.prototxt", help="The net: its deploy or train_val file.")],
    weights: Annotated[
        str | None,
        typer.Argument(
            metavar="W.caffemodel",
            help="The net's trained weights; with commas, a later file's layers replace an earlier one's. Without "
            "any, the file holds random numbers or zeros, as the net's fillers say.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="MODEL.onnx", help="The file to write.", show_default="NET.onnx"),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BLOB,...",
            help="The blobs that the file gives as outputs; may be repeated.",
            show_default="those that no layer reads",
        ),
    ] = None,
    dynamic: Annotated[
        DynamicChoice,
        typer.Option(
            help="Which sizes of the inputs the file's user chooses: batch, how many images at once, if the net takes "
            "any number; spatial, also their height and width; none, only the prototxt's own sizes."
        ),
    ] = DynamicChoice.batch,
    sample: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[BLOB=]FILE",
            help="What the file and the net are compared on: a .npy array, or an image, which is resized to the "
            "input's size; BLOB names the input where there are several. May be repeated.",
            show_default="random numbers",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BLOB=N,C,H,W",
            help="The shape of an input, with the batch first. May be repeated.",
            show_default="the prototxt's, or that of its data",
        ),
    ] = None,
    align_crops: Annotated[
        bool,
        typer.Option(
            "--align-crops",
            help="Align Crop layers without options with their second blob, as HED's and the first FCNs' Caffe does.",
        ),
    ] = False,
    phase: Annotated[
        PhaseChoice,
        typer.Option(case_sensitive=False, help="The layers to convert: TEST, those that predict, or TRAIN."),
    ] = PhaseChoice.TEST,
    settings: SettingsOption = None,
    level: LevelOption = 0,
    stage: StageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write any Caffe net, as it is, as an ONNX file for any runtime.

    For example: `autodial convert deploy.prototxt net.caffemodel -o net.onnx`

    The file's inputs and outputs have the names of the net's blobs. BatchNorm, Dial and Scale layers become part of the
    layers before them where that is exact. ONNX Runtime runs the file beside the net, and nothing is written if their
    outputs differ. Without weights, or where outputs are zero throughout, the command says that this proves little.

    What was subtracted from images in training must be subtracted from the file's input, too. `autodial export` makes a
    predictor instead, which takes images as they are.
    """
    import json

    from autodial.converters.net_convert import convert as convert_net
    from autodial.netparam.data_files import files_of
    from autodial.proto import messages as pb

    output = output or Path(f"{net.stem}.onnx")
    param = read_net(net, None, settings, level, stage, keep_unknown=True)
    inputs: list[str | Path] = [net, *split_names(weights), *files_of(param, net.parent)]
    inputs += [file for _, file in map(_named_file, sample or ())]
    with naming_options(**OPTIONS):
        report = convert_net(
            param,
            None if weights is None else read_weights(weights),
            output,
            outputs=[name.strip() for names in outputs for name in split_names(names)] if outputs else None,
            phase=pb.TRAIN if phase == PhaseChoice.TRAIN else pb.TEST,
            dynamic=dynamic.value,
            samples=_samples(sample or ()),
            shapes=_shapes(shape or ()),
            align_crops=align_crops,
            base_dir=net.parent,
            inputs=inputs,
            net_name=str(net),
            weights_name=weights or "the weights",
        )
    typer.echo(json.dumps(report.record(), indent=2) if as_json else describe(report))


def describe(report: ConvertReport) -> str:
    """The report as a few lines of text."""
    from autodial.converters.net_comparison import describe_difference

    passes = " and ".join(", ".join(map(_shape, one.values())) for one in report.compared_shapes)
    size = ", ".join(f"{name} {described_size(size)}" for name, size in report.files.items())
    little = ", which proves little:" if report.unverified else ""
    lines = [
        f"Wrote {report.output}: {_ends(report.inputs)} to {_ends(report.outputs)}",
        f"Folded into other layers: {len(report.merged)}",
        f"Compared with the net on {report.compared_on} ({passes}), in {report.runtime}{little}",
        *(f"- {with_options(reason, OPTIONS)}" for reason in report.unverified),
        *(
            describe_difference(name, one)
            for name, one in report.compared.items()
            if one.own_change is None and one.empty is None
        ),
        f"{size}, opset {report.opset}, IR version {report.ir_version}",
        *(with_options(note, OPTIONS) for note in report.notes),
    ]
    return "\n".join(lines)


def _ends(shapes: dict[str, tuple[int | None, ...]]) -> str:
    return ", ".join(f'"{name}" {_shape(shape)}' for name, shape in shapes.items())


def _shape(shape: Sequence[int | None]) -> str:
    return " x ".join("any" if length is None else str(length) for length in shape)


def _named_file(given: str) -> tuple[str, Path]:
    """The blob that a sample is for, empty if it does not say, and its file."""
    name, equals, file = given.partition("=")
    return (name, Path(file)) if equals and not Path(given).exists() else ("", Path(given))


def _shapes(given: Sequence[str]) -> dict[str, list[int]]:
    """Shapes by input."""
    shapes: dict[str, list[int]] = {}
    for name, shape in map(_named_shape, given):
        if name in shapes:
            raise InputError(f"--shape gives two shapes for {name}: leave out one of them")
        shapes[name] = shape
    return shapes


def _named_shape(given: str) -> tuple[str, list[int]]:
    """An input and its shape."""
    parts = re.fullmatch(r"(.+)=([1-9][0-9]{0,9}(?:,[1-9][0-9]{0,9})*)", given)
    if parts is None:
        raise InputError(f"--shape {given}: write an input and its lengths, each at least 1, as in data=1,3,224,224")
    return parts[1], [int(length) for length in parts[2].split(",")]


def _samples(given: Sequence[str]) -> dict[str, list[Path]]:
    """Files by input."""
    samples: dict[str, list[Path]] = {}
    for name, file in map(_named_file, given):
        samples.setdefault(name, []).append(file)
    return samples

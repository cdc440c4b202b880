"""The command `autodial export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodial.commands.inputs import read_net, read_size, read_transform, read_weights, split_names
from autodial.commands.options import (
    JsonOption,
    LevelOption,
    LogitsOption,
    ResizeOption,
    SettingsOption,
    StageOption,
    TransformOption,
    VariantOption,
    naming_options,
    with_options,
)
from autodial.commands.progress import progress_bar
from autodial.commands.statistics import describe as describe_recalibration
from autodial.commands.statistics import recalibrate_all
from autodial.errors import InputError
from autodial.wording import counted, described_size

if TYPE_CHECKING:
    from autodial.converters.verification import ExportReport

OPTIONS = {
    "logits": "--logits",
    "labels": "--labels",
    "domain": "--domain",
    "raw_input": "--raw-input",
    "precision": "--precision",
    "calibration": "--calibration",
    "min_agreement": "--min-agreement",
    "ensemble": "--ensemble",
    "transform": "--transform",
    "size": "--resize",
    "weights": "--weights",
    "license": "--license",
    "card": "--card",
}
"""Options of the command by the parameters of `autodial.converters.net_export.export`."""


class PrecisionChoice(StrEnum):
    """The precision of weights and computation."""

    float32 = "float32"
    fp16 = "fp16"
    int8 = "int8"


class StatisticsDomain(StrEnum):
    """The domain with whose statistics the predictor normalizes."""

    source = "source"
    target = "target"


def export(
    net: Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net. Its TEST phase is exported.")],
    weights: Annotated[
        list[str],
        typer.Option(
            metavar="W1,W2",
            help="The trained .caffemodel, or several with commas: a later one's layers replace an earlier one's. With "
            "--ensemble, once for each net.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="MODEL.onnx",
            help="The ONNX file to write.",
            show_default="target_predictor.onnx, or source_predictor.onnx with --domain source",
        ),
    ] = None,
    caffe: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write plain Caffe files instead, for readers without Dial layers: deploy.prototxt, "
            "target_predictor.caffemodel and labels.txt.",
        ),
    ] = None,
    triton: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Add the net to this Triton model repository instead, as a model's next version, with config.pbtxt "
            "and labels.txt.",
        ),
    ] = None,
    ensemble: Annotated[
        bool,
        typer.Option(
            "--ensemble",
            help="Average the probabilities of the net with each --weights: one file of several trainings.",
        ),
    ] = False,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="First compute the Dial layers' statistics over all images of the TRAIN phase, as `autodial "
            "recalibrate` does; the weights' file stays as it is.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="The model's name in Triton's repository.", show_default="the net's name"),
    ] = None,
    domain: Annotated[
        StatisticsDomain | None,
        typer.Option(
            help="Whose statistics the Dial layers normalize with: target for target images, source for source images.",
            show_default="each layer's test_stats, which is target unless the net says otherwise",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="LABELS.txt",
            help="Names of the classes, one per line.",
            show_default="labels.txt in the net's folder, if it fits",
        ),
    ] = None,
    resize: ResizeOption = None,
    transform: TransformOption = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="B,G,R|FILE",
            help="For a deploy net: what is subtracted, a value per channel or a mean image (binaryproto).",
        ),
    ] = None,
    logits: LogitsOption = None,
    keep_affine: Annotated[
        bool,
        typer.Option("--keep-affine", help="Keep the folded statistics as Mul and Add nodes, or Scale layers."),
    ] = False,
    raw_input: Annotated[
        bool, typer.Option("--raw-input", help="The model takes the net's float32 input blob instead of uint8 images.")
    ] = False,
    precision: Annotated[
        PrecisionChoice,
        typer.Option(help="Precision of weights and computation; inputs and outputs keep their types."),
    ] = PrecisionChoice.float32,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|LIST",
            help="Target images on which int8 is calibrated, and on which fp16 and int8 are compared with float32.",
            show_default="the target's list in TRAIN, or the list in TEST",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Write fp16 or int8 only if at least this share of the images keeps its float32 class.",
            show_default="0.99",
        ),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(
            metavar="README.md",
            help="Also write a model card, as the Hugging Face Hub shows it: classes, accuracy from the training's "
            "record, limits, and how to use the file.",
        ),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(metavar="SPDX", help="The license that the file names, such as Apache-2.0.", show_default="none"),
    ] = None,
    settings: SettingsOption = None,
    variants: VariantOption = None,
    level: LevelOption = 0,
    stage: StageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained net as an ONNX file that labels images.

    The target domain's statistics are folded into the weights; crop, mean and scale are part of the graph. Before the
    file is written, it is compared with the original net on images of the net's list, if they are there.

    fp16 and int8 are compared with float32 on up to 500 target images, and refused if too many change their class. int8
    is calibrated on other images than it is compared on.

    With --recalibrate, the file has statistics of all images, as in the paper's inference step, instead of training's
    moving averages. A table shows what moved.

    A deploy net does not say how an image becomes its input: --transform, --resize and --mean do.

    With --ensemble, one file averages what several trainings of the net say of an image.

    With --caffe the net becomes a deploy.prototxt and a caffemodel for readers of Caffe files. Their input has the
    crop's size; comments in deploy.prototxt say how to prepare an image.
    """
    import json
    from dataclasses import asdict

    from autodial.converters.card import check_card, write_card
    from autodial.converters.destinations import ExportOptions, find_destination
    from autodial.converters.net_export import export_checked
    from autodial.netparam.data_files import files_of
    from autodial.report.trained_net import find_trained_net

    places = {"onnx": output, "caffe": caffe, "triton": triton}
    given = {form: place for form, place in places.items() if place is not None}
    if len(given) > 1:
        first, second = ("-o" if form == "onnx" else f"--{form}" for form in list(given)[:2])
        raise InputError(f"{first} and {second} are two formats, and one run writes one format: leave out one of them")
    if name is not None and triton is None:
        raise InputError("--name names a model in Triton's repository: give --triton, too, or leave out --name")
    if ensemble and len(weights) == 1:
        raise InputError("--ensemble averages several nets: give --weights once for each, or leave out --ensemble")
    if len(weights) > 1 and not ensemble:
        raise InputError(
            f"--weights is given {len(weights)} times: add --ensemble to average the nets, or write W1,W2 for later "
            "layers to replace earlier ones"
        )
    param = read_net(net, variants, settings, level, stage)
    with naming_options(**OPTIONS):
        options = ExportOptions(
            logits=logits,
            labels=labels,
            keep_affine=keep_affine,
            raw_input=raw_input,
            domain=domain.value if domain else None,
            precision=precision.value,
            calibration=calibration,
            min_agreement=min_agreement,
            base_dir=net.parent,
            ensemble=ensemble,
            transform=read_transform(transform, mean),
            size=read_size(resize),
            license=license,
        )
    form, place = next(iter(given.items()), ("onnx", Path(f"{options.domain or 'target'}_predictor.onnx")))
    inputs: list[str | Path] = [
        net,
        labels or net.parent / "labels.txt",
        *(name for names in weights for name in split_names(names)),
    ]
    inputs += files_of(param, net.parent)
    inputs += [calibration] if calibration else []
    inputs += [options.transform.mean_file] if options.transform is not None and options.transform.mean_file else []
    with naming_options(**OPTIONS):
        destination = find_destination(form).at(place, param.name, options, name)
        destination.check(options, param, inputs)
        if card is not None:
            check_card(card, options, destination, inputs, place)
        trained = [read_weights(names) for names in weights]
        moved = recalibrate_all(param, net, weights, trained) if recalibrate else []
        trained = [recalibrated.weights for recalibrated in moved] or trained
        with progress_bar("training images", transient=True) as progress:
            report = export_checked(
                *(param, trained, destination, options, progress),
                net_name=str(net),
                weights_names=weights,
            )
        if card is not None:
            known = [find_trained_net(names, report.logits) for names in weights]
            write_card(report, card, known, recalibrated=recalibrate)
    if as_json:
        more: dict[str, Any] = {} if card is None else {"card": str(card)}
        if moved:
            more["recalibration"] = [asdict(recalibrated.result) for recalibrated in moved]
        typer.echo(json.dumps({**report.record(), **more}, indent=2))
        return
    for recalibrated in moved:
        typer.echo("\n".join(describe_recalibration(recalibrated)))
    typer.echo(describe(report))
    if card is not None:
        unknown = "" if all(known) else "; it lacks the accuracy, as the training's record is not beside the weights"
        typer.echo(f"Wrote {card}: the model's card{unknown}")


def describe(report: ExportReport) -> str:
    """The report as a few lines of text."""
    metadata = report.metadata
    taken = f'blob "{report.input}"'
    if not metadata["raw_input"]:
        height, width = metadata["size"]
        color = "gray" if metadata["channel_order"] == "GRAY" else metadata["channel_order"]
        taken = f"{color} images of {height} x {width} pixels"
    classes = counted(len(metadata["classes"]), "class", "classes")
    statistics = f", with the {metadata['statistics']}'s statistics" if metadata["statistics"] else ""
    kept = f"; in the graph remain {', '.join(report.kept)}" if report.kept else ""
    return "\n".join(
        [
            f"Wrote {report.output}, which takes {taken} and scores {classes}{statistics}",
            f"Folded into other layers: {len(report.merged)}{kept}",
            f"Largest difference from the unfolded net: {report.max_difference:.2g}, {report.relative_difference:.1g} "
            f"of the logits' range {report.logits_range:.3g} (on {report.compared_on})",
            *_describe_agreement(report),
            *_describe_reference(metadata.get("reference")),
            _describe_files(report),
            *(with_options(note, OPTIONS) for note in report.notes),
        ]
    )


def _describe_reference(reference: dict[str, Any] | None) -> list[str]:
    if reference is None:
        return []
    kept = f"{reference['images']} of {counted(reference['listed'], 'image')} of {reference['list']}"
    return [f"Kept for `autodial predict --drift`: statistics of {kept}"]


def _describe_files(report: ExportReport) -> str:
    if report.opset is None:
        return ", ".join(f"{name} ({described_size(size)})" for name, size in report.files.items())
    names = "" if report.files.keys() == {report.output.name} else f"{', '.join(report.files)}: "
    return f"{names}{described_size(report.file_size)}, opset {report.opset}, IR version {report.ir_version}"


def _describe_agreement(report: ExportReport) -> list[str]:
    agreement = report.agreement
    if agreement is None:
        return []
    calibrated = ""
    if agreement.calibration_images:
        calibrated = f"; calibrated on {agreement.calibration_images} other images"
    return [
        f"{report.precision} compared with float32 ({described_size(agreement.float32_file_size)}): the same class for "
        f"{agreement.same_class:.2%}, probabilities within {agreement.max_probability_difference:.2g} (on "
        f"{agreement.compared_on}{calibrated})"
    ]

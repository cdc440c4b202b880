"""The command `autodial export`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.errors import InputError
from autodial.options import JsonOption, LogitsOption, SettingsOption, VariantOption, WeightsOption
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.converters.onnx_file import ExportReport


class PrecisionChoice(str, Enum):
    """Values of --precision."""

    float32 = "float32"
    fp16 = "fp16"
    int8 = "int8"


def export(
    net: Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net; its TEST phase is exported.")],
    weights: WeightsOption,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="MODEL.onnx", help="The file to write.", show_default="target_predictor.onnx"
        ),
    ] = None,
    triton: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Add the net to this Triton model repository instead, with config.pbtxt and labels, as the next "
            "version of the model of its name.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="LABELS.txt",
            help="Names of the classes, one per line.",
            show_default="labels.txt beside the net, where it fits",
        ),
    ] = None,
    logits: LogitsOption = None,
    keep_affine: Annotated[
        bool, typer.Option("--keep-affine", help="Leave the folded statistics in the graph, as Mul and Add.")
    ] = False,
    raw_input: Annotated[
        bool, typer.Option("--raw-input", help="Take the net's input blob, float32, instead of uint8 images.")
    ] = False,
    precision: Annotated[
        PrecisionChoice,
        typer.Option(help="Of weights and computation; images, logits and probabilities are of the same types in all."),
    ] = PrecisionChoice.float32,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|LIST",
            help="Images of the target, to calibrate int8 on and to compare fp16 and int8 with float32 on.",
            show_default="the target's list in TRAIN, or TEST's list",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Write fp16 or int8 only if this share of the images keeps float32's class.",
            show_default="0.99",
        ),
    ] = None,
    settings: SettingsOption = None,
    variants: VariantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained net as an ONNX file that labels images, for `autodial predict` and any ONNX runtime.

    The target domain's statistics are folded into the weights; crop, mean and scale are part of the graph. The file is
    compared with the net as it was, on images of its list where they are there, before it is written.

    fp16 and int8 are compared with float32 on up to 500 images of the target, int8 on others than those that it is
    calibrated on, and refused where too many change their class.
    """
    import json

    from autodial import proto
    from autodial.converters.onnx_export import export as export_onnx
    from autodial.converters.triton import TritonModel
    from autodial.outputs import check_output, files_of
    from autodial.overrides import apply_to_nets
    from autodial.variants import read_variant

    if output is not None and triton is not None:
        raise InputError("-o and --triton are two forms of the net, and one run writes one: leave out one of them")
    param = read_variant(net, variants or ())
    apply_to_nets(settings or (), [param])
    names = labels or net.parent / "labels.txt"
    destination: Path | TritonModel
    if triton is None:
        destination = output or Path("target_predictor.onnx")
        inputs: list[str | Path] = [net, names, *weights.split(","), *files_of(param, net.parent)]
        inputs += [calibration] if calibration else []
        check_output(destination, inputs, suffixes=[".onnx"])
    else:
        destination = TritonModel.named(triton, param.name)
    report = export_onnx(
        param,
        proto.merge_weights([proto.read_weights(name) for name in weights.split(",")]),
        destination,
        logits=logits,
        labels=labels,
        keep_affine=keep_affine,
        raw_input=raw_input,
        precision=precision.value,
        calibration=calibration,
        min_agreement=min_agreement,
        base_dir=net.parent,
    )
    typer.echo(json.dumps(report.record(), indent=2) if as_json else describe(report))


def describe(report: ExportReport) -> str:
    """An ExportReport as a few lines of text."""
    metadata = report.metadata
    size = metadata["size"]
    taken = f"images of {size[0]} x {size[1]}, {metadata['channel_order']}" if size else f'blob "{report.input}"'
    statistics = f", {metadata['statistics']} statistics" if metadata["statistics"] else ""
    kept = f"; in the graph remain {', '.join(report.kept)}" if report.kept else ""
    return "\n".join(
        [
            f"Wrote {report.output}: {taken} to {counted(len(metadata['classes']), 'class', 'classes')}{statistics}",
            f"Folded into other layers: {len(report.merged)}{kept}",
            f"Largest difference from the unfolded net: {report.max_difference:.2g}, {report.relative_difference:.1g} "
            f"of the logits' range {report.logits_range:.3g} (on {report.compared_on})",
            *_describe_agreement(report),
            f"{_describe_files(report)}, opset {report.opset}, IR version {report.ir_version}",
            *report.notes,
        ]
    )


def _describe_files(report: ExportReport) -> str:
    size = f"{report.file_size / 2**20:.1f} MiB"
    return size if report.files.keys() == {report.output.name} else f"{', '.join(report.files)}: {size}"


def _describe_agreement(report: ExportReport) -> list[str]:
    agreement = report.agreement
    if agreement is None:
        return []
    calibrated = ""
    if agreement.calibration_images:
        count = agreement.calibration_images
        calibrated = f"; calibrated on {count} others" if agreement.held_out else "; calibrated on the same"
    return [
        f"{report.precision} beside float32 ({agreement.float32_file_size / 2**20:.1f} MiB): the same class for "
        f"{agreement.same_class:.2%}, probabilities within {agreement.max_probability_difference:.2g} (on "
        f"{agreement.compared_on}{calibrated})"
    ]

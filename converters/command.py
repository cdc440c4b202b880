"""The command `autodial export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodial.errors import InputError
from autodial.options import JsonOption, LogitsOption, SettingsOption, VariantOption, WeightsOption
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.converters.fold import Domain
    from autodial.converters.onnx_file import ExportReport


class StatisticsDomain(str, Enum):
    """Whose statistics the predictor normalizes with."""

    source = "source"
    target = "target"


def export(
    net: Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net; its TEST phase is exported.")],
    weights: WeightsOption,
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
            help="Write plain Caffe instead, without the AutoDIAL fork's layers: deploy.prototxt, "
            "target_predictor.caffemodel, labels.txt.",
        ),
    ] = None,
    domain: Annotated[
        StatisticsDomain | None,
        typer.Option(
            help="Whose statistics the Dial layers normalize with: target for target images, source for a predictor of "
            "source images.",
            show_default="what their test_stats say, which is target unless the net states another",
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
        bool,
        typer.Option(
            "--keep-affine", help="Leave the folded statistics in the graph, as Mul and Add, or Scale layers."
        ),
    ] = False,
    raw_input: Annotated[
        bool, typer.Option("--raw-input", help="Take the net's input blob, float32, instead of uint8 images.")
    ] = False,
    settings: SettingsOption = None,
    variants: VariantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained net as an ONNX file that labels images, for `autodial predict` and any ONNX runtime.

    The target domain's statistics are folded into the weights; crop, mean and scale are part of the graph. The file is
    compared with the net as it was, on images of its list where they are there, before it is written.

    With --caffe the net becomes a deploy.prototxt and a caffemodel for readers of Caffe files, with the crop's size as
    its input; comments in deploy.prototxt say how an image is to be prepared.
    """
    import json

    from autodial import proto
    from autodial.converters.caffe_export import check_caffe_folder, export_caffe
    from autodial.converters.onnx_export import export as export_onnx
    from autodial.outputs import check_output, files_of
    from autodial.overrides import apply_to_nets
    from autodial.variants import read_variant

    if output is not None and caffe is not None:
        raise InputError("-o and --caffe are two forms of the net, and one run writes one: leave out one of them")
    if raw_input and caffe is not None:
        raise InputError(
            "--raw-input is for ONNX files: plain Caffe always takes the net's input blob, so leave it out"
        )
    param = read_variant(net, variants or ())
    apply_to_nets(settings or (), [param])
    statistics: Domain | None = domain.value if domain else None
    output = output or Path(f"{statistics or 'target'}_predictor.onnx")
    inputs: list[str | Path] = [net, labels or net.parent / "labels.txt", *weights.split(",")]
    inputs += files_of(param, net.parent)
    if caffe is None:
        check_output(output, inputs, suffixes=[".onnx"])
    else:
        check_caffe_folder(caffe, param, inputs, domain=statistics)
    trained = proto.merge_weights([proto.read_weights(name) for name in weights.split(",")])
    options: dict[str, Any] = {
        "logits": logits,
        "labels": labels,
        "keep_affine": keep_affine,
        "domain": statistics,
        "base_dir": net.parent,
    }
    if caffe is None:
        with _progress() as progress:
            report = export_onnx(param, trained, output, raw_input=raw_input, progress=progress, **options)
    else:
        report = export_caffe(param, trained, caffe, **options)
    typer.echo(json.dumps(report.record(), indent=2) if as_json else describe(report))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function of the training images done and of all, which shows them as a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("training images", visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def describe(report: ExportReport) -> str:
    """An ExportReport as a few lines of text."""
    metadata = report.metadata
    size = metadata["size"]
    taken = f"images of {size[0]} x {size[1]}, {metadata['channel_order']}"
    if metadata["raw_input"]:
        taken = f'blob "{report.input}"'
    statistics = f", {metadata['statistics']} statistics" if metadata["statistics"] else ""
    kept = f"; in the graph remain {', '.join(report.kept)}" if report.kept else ""
    return "\n".join(
        [
            f"Wrote {report.output}: {taken} to {counted(len(metadata['classes']), 'class', 'classes')}{statistics}",
            f"Folded into other layers: {len(report.merged)}{kept}",
            f"Largest difference from the unfolded net: {report.max_difference:.2g}, {report.relative_difference:.1g} "
            f"of the logits' range {report.logits_range:.3g} (on {report.compared_on})",
            *_describe_reference(metadata.get("reference")),
            _describe_files(report),
            *report.notes,
        ]
    )


def _describe_reference(reference: dict[str, Any] | None) -> list[str]:
    if reference is None:
        return []
    kept = f"{reference['images']} of {counted(reference['listed'], 'image')} of {reference['list']}"
    return [f"Kept for `autodial predict --drift`: figures of {kept}"]


def _describe_files(report: ExportReport) -> str:
    if report.opset is None:
        return ", ".join(f"{name} ({size / 2**20:.1f} MiB)" for name, size in report.files.items())
    return f"{report.file_size / 2**20:.1f} MiB, opset {report.opset}, IR version {report.ir_version}"

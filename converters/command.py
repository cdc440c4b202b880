"""The command `autodial export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodial.options import JsonOption, LogitsOption, SettingsOption, VariantOption, WeightsOption
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.converters.onnx_file import ExportReport


def export(
    net: Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net; its TEST phase is exported.")],
    weights: WeightsOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL.onnx", help="The file to write.")] = Path(
        "target_predictor.onnx"
    ),
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
    settings: SettingsOption = None,
    variants: VariantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained net as an ONNX file that labels images, for `autodial predict` and any ONNX runtime.

    The target domain's statistics are folded into the weights; crop, mean and scale are part of the graph. The file is
    compared with the net as it was, on images of its list where they are there, before it is written.
    """
    import json

    from autodial import proto
    from autodial.converters.onnx_export import export as export_onnx
    from autodial.outputs import check_output, files_of
    from autodial.overrides import apply_to_nets
    from autodial.variants import read_variant

    param = read_variant(net, variants or ())
    apply_to_nets(settings or (), [param])
    names = labels or net.parent / "labels.txt"
    check_output(output, (net, names, *weights.split(","), *files_of(param, net.parent)), suffixes=[".onnx"])
    with _progress() as progress:
        report = export_onnx(
            param,
            proto.merge_weights([proto.read_weights(name) for name in weights.split(",")]),
            output,
            logits=logits,
            labels=labels,
            keep_affine=keep_affine,
            raw_input=raw_input,
            base_dir=net.parent,
            progress=progress,
        )
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
    taken = f"images of {size[0]} x {size[1]}, {metadata['channel_order']}" if size else f'blob "{report.input}"'
    statistics = f", {metadata['statistics']} statistics" if metadata["statistics"] else ""
    kept = f"; in the graph remain {', '.join(report.kept)}" if report.kept else ""
    return "\n".join(
        [
            f"Wrote {report.output}: {taken} to {counted(len(metadata['classes']), 'class', 'classes')}{statistics}",
            f"Folded into other layers: {len(report.merged)}{kept}",
            f"Largest difference from the unfolded net: {report.max_difference:.2g}, {report.relative_difference:.1g} "
            f"of the logits' range {report.logits_range:.3g} (on {report.compared_on})",
            *_describe_reference(metadata.get("reference")),
            f"{report.file_size / 2**20:.1f} MiB, opset {report.opset}, IR version {report.ir_version}",
            *report.notes,
        ]
    )


def _describe_reference(reference: dict[str, Any] | None) -> list[str]:
    if reference is None:
        return []
    kept = f"{reference['images']} of {counted(reference['listed'], 'image')} of {reference['list']}"
    return [f"Kept for `autodial predict --drift`: figures of {kept}"]

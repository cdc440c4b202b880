"""The command `autodial recalibrate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.inputs import read_net, read_weights, split_names
from autodial.commands.options import (
    DeviceOption,
    JsonOption,
    LevelOption,
    SettingsOption,
    StageOption,
    VariantOption,
    WeightsOption,
    WorkersOption,
    naming_options,
)
from autodial.commands.progress import progress_bar
from autodial.errors import INTERRUPTED, InputError

if TYPE_CHECKING:
    from autodial.evaluation.recalibrate import Distance, Domain, Progress, Recalibration
    from autodial.proto import messages as pb


def recalibrate(
    net: Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net. Its TEST phase is run.")],
    weights: WeightsOption,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT.caffemodel", help="The file to write: the weights with new statistics."
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|LIST",
            help="The source images: a folder or a list; an LMDB or HDF5 list if the net reads one.",
            show_default="the source images of the TRAIN phase",
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|LIST",
            help="The target images, likewise.",
            show_default="the target images of the TRAIN phase",
        ),
    ] = None,
    device: DeviceOption = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Images per batch; only the speed depends on it.", show_default="TEST phase's"),
    ] = None,
    workers: WorkersOption = None,
    settings: SettingsOption = None,
    variants: VariantOption = None,
    level: LevelOption = 0,
    stage: StageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute the Dial layers' statistics over all source and target images.

    Training stores moving averages over small batches of augmented images, while the net is still changing. Here each
    image counts once, prepared as in the TEST phase, and the net is fixed. OUT.caffemodel differs from the weights
    only in the statistics.

    --target alone adapts a net to a new target without training, as AdaBN does. If every alpha is 1, this needs no
    source images, and the source's statistics stay as they are.

    Lists need no labels. For each Dial layer, the table shows how far the target's statistics moved, and how far apart
    the domains are at the layer's input and, aligned, at its output. Distances are differences of means and of
    standard deviations, in standard deviations, averaged over the channels.
    """
    import json
    import time
    from dataclasses import asdict

    from autodial import proto
    from autodial.evaluation.domain_lists import DomainLists, check_same_size
    from autodial.evaluation.domains import fed_net
    from autodial.evaluation.recalibrate import recalibrate as run
    from autodial.evaluation.recalibrate import with_statistics
    from autodial.net.feed import default_workers
    from autodial.net.net import Net
    from autodial.netparam.data_files import files_of
    from autodial.system.devices import choose_device, full_memory_errors
    from autodial.system.outputs import check_output

    param = read_net(net, variants, settings, level, stage)
    given = [path for path in (source, target) if path is not None]
    inputs: list[str | Path] = [net, *split_names(weights), *files_of(param, net.parent), *given]
    check_output(output, inputs, suffixes=[".caffemodel", ".caffemodel.h5"])
    chosen = choose_device(device)
    started = time.perf_counter()
    try:
        lists = DomainLists(
            param,
            base_dir=net.parent,
            device=chosen,
            batch_size=batch_size,
            workers=default_workers() if workers is None else workers,
        )
    except InputError as error:
        raise InputError(f"{net}: {error}") from error
    saved = read_weights(weights)
    size = None if source is None and target is None else _image_size(param, lists.test.layer, net.parent)
    with naming_options(source="--source", target="--target", workers="--workers"), lists:
        target_images = lists.open("target", target, size=size)
        pruned, logits = fed_net(param, lists.test.blob, target_images.shape)
        try:
            built = Net(pruned, proto.messages.TEST, base_dir=net.parent).to(chosen)
        except InputError as error:
            raise InputError(f"{net}, TEST phase: {error}") from error
        if missing := built.load_weights(saved, weights):
            raise InputError(
                f"{weights} has nothing for {', '.join(missing)}, on which the statistics depend: name the weights "
                "from this net's training"
            )
        source_images = None
        if source is not None or target is None or min(built.alphas().values()) < 1:
            source_images = lists.open("source", source, size=size)
            source_images.check()
            check_same_size(source_images, target_images)
        target_images.check()
        if unstored := built.without_statistics():
            typer.echo(f"{', '.join(unstored)} had no statistics stored: there is nothing to compare with.", err=True)
        try:
            with _shown_progress() as report, full_memory_errors():
                result = run(built, source_images, target_images, logits=logits, report=report)
        except KeyboardInterrupt:
            typer.echo("Interrupted: nothing was written.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    proto.write_weights(with_statistics(saved, built), output)
    seconds = time.perf_counter() - started
    if not as_json:
        typer.echo("\n".join(_describe(result, output, lists.names, seconds)))
        return
    record = {
        "net": str(net),
        "weights": split_names(weights),
        "output": str(output),
        "settings": settings or [],
        "source": lists.names.get("source"),
        "target": lists.names["target"],
        "device": str(chosen),
        "seconds": seconds,
        **asdict(result),
    }
    typer.echo(json.dumps(record, indent=2))


def _image_size(param: pb.NetParameter, layer: pb.LayerParameter, base_dir: Path) -> tuple[int, int] | None:
    """Height and width of the net's own images, to which `autodial predict` also resizes."""
    from autodial.converters.image_input import ImageInput

    if layer.type != "ImageData":
        return None
    others = [other for other in param.layer if other.type == "ImageData"]
    try:
        images = ImageInput.from_caffe(layer, others, base_dir)
    except InputError:
        return None
    return images.height, images.width


@contextmanager
def _shown_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows progress on standard error: a bar on a terminal, a line per pass elsewhere."""
    from autodial.system.terminal import Console

    shown: set[int] = set()
    lines = not Console(stderr=True).is_terminal
    with progress_bar("reading") as show:

        def report(progress: Progress) -> None:
            name = f"pass {progress.number} of {progress.passes}"
            show(progress.share, 1.0, f"{name}, {progress.domain}")
            if lines and progress.number not in shown:
                shown.add(progress.number)
                typer.echo(name.capitalize(), err=True)

        yield report


def _describe(result: Recalibration, output: Path, names: Mapping[Domain, str], seconds: float) -> list[str]:
    """A Recalibration as lines of text."""
    target = f"{result.target_samples:,} target images ({names['target']})"
    source = f"{result.source_samples:,} source images ({names['source']}) and " if "source" in names else ""
    lines = [
        f"{len(result.layers)} Dial layers over {source}{target}: {result.passes} passes, {seconds:.1f} s",
        "",
        *_table(result),
        "",
    ]
    if "source" not in names:
        lines.append("Every alpha is 1: the source images were not needed, and the source's statistics are unchanged.")
    if result.changed is not None:
        lines.append(f"The most probable class changed for {result.changed:.1%} of the target images.")
    return [*lines, f"Wrote {output}"]


def _table(result: Recalibration) -> list[str]:
    """A line per layer."""
    header = ("layer", "alpha", "source values", "target values", "moved", "worst channel", "apart", "aligned")
    rows = [
        (
            layer.name,
            f"{layer.alpha:.4f}",
            "-" if layer.source_values is None else str(layer.source_values),
            str(layer.target_values),
            _mean(layer.moved_target),
            "-" if layer.moved_target is None else f"{layer.moved_target.worst:.3f} ({layer.moved_target.channel})",
            _mean(layer.apart),
            _mean(layer.aligned),
        )
        for layer in result.layers
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(f"{cell:{'>' if i else '<'}{widths[i]}}" for i, cell in enumerate(row)) for row in (header, *rows)
    ]


def _mean(distance: Distance | None) -> str:
    return "-" if distance is None else f"{distance.mean:.3f}"

"""How commands show the progress and the result of a recalibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autodial.commands.options import naming_options
from autodial.commands.progress import progress_bar
from autodial.errors import INTERRUPTED, InputError

if TYPE_CHECKING:
    from autodial.evaluation.recalibrate import Progress
    from autodial.evaluation.statistics import Distance
    from autodial.evaluation.whole_statistics import RecalibratedWeights
    from autodial.proto import Weights
    from autodial.proto import messages as pb


def image_size(param: pb.NetParameter, net: Path) -> tuple[int, int] | None:
    """Height and width of a net's images, to which other images are resized, as in `autodial predict`.

    Args:
        net: the net's file.

    Raises:
        InputError: no data layer for the Dial layers.
    """
    from autodial.converters.image_input import ImageInput
    from autodial.evaluation.domains import data_in_test

    try:
        layer = data_in_test(param).layer
    except InputError as error:
        raise InputError(f"{net}: {error}") from error
    if layer.type != "ImageData":
        return None
    others = [other for other in param.layer if other.type == "ImageData"]
    try:
        images = ImageInput.from_caffe(layer, others, net.parent)
    except InputError:
        return None
    return images.height, images.width


@contextmanager
def shown_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows progress on standard error: a bar on a terminal, a line per pass elsewhere.

    Ctrl-C says that nothing was written, and exits.
    """
    from autodial.system.terminal import Console

    shown: set[int] = set()
    lines = not Console(stderr=True).is_terminal
    try:
        with progress_bar("reading") as show:

            def report(progress: Progress) -> None:
                name = f"pass {progress.number} of {progress.passes}"
                show(progress.share, 1.0, f"{name}, {progress.domain}")
                if lines and progress.number not in shown:
                    shown.add(progress.number)
                    typer.echo(name.capitalize(), err=True)

            yield report
    except KeyboardInterrupt:
        typer.echo("Interrupted: nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None


def recalibrate_all(
    param: pb.NetParameter, net: Path, names: Sequence[str], trained: Sequence[Weights]
) -> list[RecalibratedWeights]:
    """Recalibrate weights of a net over the images of its TRAIN phase, on a GPU if there is one.

    Args:
        param: the net.
        net: its file.
        names: the weights' names, as `read_weights` takes them.
        trained: the weights.
    """
    import torch

    from autodial.evaluation.whole_statistics import recalibrate_weights
    from autodial.net.feed import default_workers
    from autodial.system.devices import choose_device

    device = choose_device("auto" if torch.cuda.is_available() else "cpu")
    options = {name: f"`autodial recalibrate --{name}`" for name in ("source", "target")}
    with naming_options(**options), shown_progress() as report:
        return [
            recalibrate_weights(
                param,
                weights,
                net_name=str(net),
                weights_name=name,
                base_dir=net.parent,
                device=device,
                workers=default_workers(),
                report=report,
            )
            for name, weights in zip(names, trained, strict=True)
        ]


def describe(recalibrated: RecalibratedWeights) -> list[str]:
    """What a recalibration changed, as lines of text with a table of the layers."""
    result, names, sources = recalibrated.result, recalibrated.names, recalibrated.sources
    target = f"{result.target_samples:,} target images ({names['target']})"
    source = f"{result.source_samples:,} source images ({', '.join(sources)}) and " if sources else ""
    lines = [
        f"{len(result.layers)} Dial layers over {source}{target}: {result.passes} passes, {recalibrated.seconds:.1f} s",
        "",
        *_table(recalibrated),
        "",
    ]
    if not sources:
        lines.append("Every alpha is 1, so the source's images were not needed; its statistics stay as they were")
    if result.changed is not None:
        lines.append(f"{result.changed:.1%} of the target images have another most probable class now")
    return lines


def _table(recalibrated: RecalibratedWeights) -> list[str]:
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
        for layer in recalibrated.result.layers
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(f"{cell:{'>' if i else '<'}{widths[i]}}" for i, cell in enumerate(row)) for row in (header, *rows)
    ]


def _mean(distance: Distance | None) -> str:
    return "-" if distance is None else f"{distance.mean:.3f}"

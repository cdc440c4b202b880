"""The command `autodial recalibrate`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
)
from autodial.commands.progress import progress_bar
from autodial.errors import INTERRUPTED, InputError

if TYPE_CHECKING:
    from autodial.evaluation.domains import DataTop, DomainBatches
    from autodial.evaluation.recalibrate import Distance, Domain, Progress, Recalibration


def recalibrate(
    net: Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net; its TEST phase is run.")],
    weights: WeightsOption,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.caffemodel", help="The weights with the new statistics.")
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|LIST",
            help="The source's images: a folder, a list, or the LMDB or HDF5 list that the net reads instead.",
            show_default="those of the TRAIN phase",
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER|LIST", help="The target's, likewise.", show_default="those of the TRAIN phase"),
    ] = None,
    device: DeviceOption = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Images per batch, which changes nothing but the speed.", show_default="TEST phase's"),
    ] = None,
    workers: WorkersOption = None,
    settings: SettingsOption = None,
    variants: VariantOption = None,
    level: LevelOption = 0,
    stage: StageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the Dial layers' statistics anew, over all source and target images, with everything else fixed.

    Training stores moving averages over small batches of augmented images and of a net that was changing. Here each
    image counts once, prepared as in the TEST phase. OUT.caffemodel differs in the statistics alone.

    --target by itself adapts a net to a new target without training it, as AdaBN does. If every alpha is 1, the
    source's images are not needed for that, and the source's statistics stay as they are.

    Lists need no labels. The table shows for each Dial layer how far the target's statistics moved, and how far the
    domains are apart as they enter the layer and, aligned, as they leave it: differences of means and deviations, in
    deviations, averaged over the channels.
    """
    import json
    import time
    from dataclasses import asdict

    from autodial import proto
    from autodial.evaluation.domains import fed_net
    from autodial.evaluation.recalibrate import recalibrate as run
    from autodial.evaluation.recalibrate import with_statistics
    from autodial.net.feed import default_workers
    from autodial.net.net import Net
    from autodial.netparam.data_files import files_of
    from autodial.system.devices import choose_device, naming_full_memory
    from autodial.system.outputs import check_output

    param = read_net(net, variants, settings, level, stage)
    given = [path for path in (source, target) if path is not None]
    inputs: list[str | Path] = [net, *split_names(weights), *files_of(param, net.parent), *given]
    check_output(output, inputs, suffixes=[".caffemodel", ".caffemodel.h5"])
    chosen = choose_device(device)
    started = time.perf_counter()
    try:
        lists = _Lists(param, net.parent, chosen, batch_size, default_workers() if workers is None else workers)
    except InputError as error:
        raise InputError(f"{net}: {error}") from error
    saved = read_weights(weights)
    with lists:
        target_images = lists.open("target", target)
        pruned, logits = fed_net(param, lists.test.blob, target_images.shape)
        try:
            built = Net(pruned, proto.messages.TEST, base_dir=net.parent).to(chosen)
        except InputError as error:
            raise InputError(f"{net}, TEST phase: {error}") from error
        if missing := built.load_weights(saved, weights):
            raise InputError(
                f"{weights} holds nothing for {', '.join(missing)}, which the statistics depend on: name the weights "
                "that this net was trained to"
            )
        source_images = None
        if source is not None or target is None or min(built.alphas().values()) < 1:
            source_images = lists.open("source", source)
            source_images.check()
            _check_same_size(source_images, target_images)
        target_images.check()
        if unstored := built.without_statistics():
            typer.echo(f"No statistics were ever stored in {', '.join(unstored)}: nothing to compare with.", err=True)
        try:
            with _shown_progress() as report, naming_full_memory():
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


class _Lists:
    """Opens the lists of a net's two domains.

    As a context, it keeps the lists that it makes of folders, and takes them out of messages about their images.

    Attributes:
        test: what the Dial layers depend on in the TEST phase.
        names: what was opened, by domain.
    """

    def __init__(self, param: Any, base_dir: Path, device: Any, batch_size: int | None, workers: int) -> None:
        from autodial.evaluation.domains import data_in_test, data_in_train

        self._param, self._base_dir = param, base_dir
        self._device, self._batch_size, self._workers = device, batch_size, workers
        self.test = data_in_test(param)
        self._trained = dict(zip(("source", "target"), data_in_train(param) or (), strict=False))
        self.names: dict[Domain, str] = {}

    def __enter__(self) -> _Lists:
        self._folder = tempfile.TemporaryDirectory(prefix="autodial-")
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._folder.cleanup()
        if isinstance(error, InputError):
            line = re.escape(self._folder.name + os.sep) + r"\w+\.txt:\d+: "
            raise InputError(re.sub(line, "", str(error))) from error

    def open(self, domain: Domain, given: Path | None) -> DomainBatches:
        """A domain's images: those of a folder, list or database, or for None those of the TRAIN phase."""
        from autodial.evaluation.domains import DomainBatches, reading, without_augmentation

        data = self._trained.get(domain, self.test)
        if given is not None:
            data = reading(data, self._list(domain, given, data), self._size())
        elif not self._trained:
            raise InputError(
                "the TRAIN phase does not say which images are the source's and which the target's, with a data layer "
                f"for each and a Concat layer along axis 0 behind both: name the {domain}'s with --{domain}"
            )
        data = without_augmentation(data, self.test, self._batch_size)
        try:
            images = DomainBatches(
                data, self.test.blob, device=self._device, workers=self._workers, base_dir=self._base_dir
            )
        except InputError as error:
            hint = "" if given is not None else f"; --{domain} names other images"
            raise InputError(f"{error}{hint}") from error
        self.names[domain] = images.path if given is None else str(given)
        if images.rows < 2:
            raise InputError(f"{self.names[domain]}: one image alone has no statistics to align: name more")
        return images

    def _list(self, domain: Domain, given: Path, data: DataTop) -> Path:
        """`given`, or a list of its images if it is a folder or a list without labels."""
        from autodial.data.image_list import ImageList
        from autodial.data.paths import find
        from autodial.deploy.inputs import expand

        if data.layer.type != "ImageData":
            return given
        if given.is_file():
            try:
                return ImageList.read(given).path
            except InputError:
                pass  # without labels, or an image
        path = Path(self._folder.name) / f"{domain}.txt"
        with path.open("wb") as file:
            for image in expand([given]):
                if image.error is not None:
                    raise InputError(f"{image.path}: {image.error}")
                try:
                    name = os.fsencode(find(image.path, image.base_dir).absolute())
                except InputError as error:
                    raise InputError(f"{given}: {error}") from error
                if not _stands_in_a_list(name):
                    raise InputError(f"{name!r}: the name is not in UTF-8, or has a line break: rename the file")
                file.write(name + b" 0\n")
        return path

    def _size(self) -> tuple[int, int] | None:
        """Height and width of the net's own images, to which `autodial predict` resizes others, too."""
        from autodial.converters.image_input import ImageInput

        if self.test.layer.type != "ImageData":
            return None
        others = [layer for layer in self._param.layer if layer.type == "ImageData"]
        try:
            images = ImageInput.from_caffe(self.test.layer, others, self._base_dir)
        except InputError:
            return None
        return images.height, images.width


def _stands_in_a_list(name: bytes) -> bool:
    try:
        return "\n" not in name.decode()
    except UnicodeDecodeError:
        return False


def _check_same_size(source: DomainBatches, target: DomainBatches) -> None:
    if source.shape[1:] != target.shape[1:]:
        sizes = (" x ".join(map(str, images.shape[1:])) for images in (source, target))
        raise InputError(
            "the net gets the source's images as {} (channels x height x width) and the target's as {}: state one "
            "new_height and new_width for both in their data layers".format(*sizes)
        )


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
        lines.append("Every alpha is 1, so the source's images were not needed; its statistics stay as they were.")
    if result.changed is not None:
        lines.append(f"{result.changed:.1%} of the target images have another most probable class now.")
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

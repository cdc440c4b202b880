"""The command `autodial recalibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodial.commands.inputs import read_net, read_weights, split_names
from autodial.commands.options import (
    DeviceOption,
    JsonOption,
    LevelOption,
    SettingsOption,
    StageOption,
    TestNetOption,
    VariantOption,
    WeightsOption,
    WorkersOption,
    naming_options,
)
from autodial.commands.statistics import describe, image_size, shown_progress


def recalibrate(
    net: TestNetOption,
    weights: WeightsOption,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT.caffemodel", help="The file to write: the weights with new statistics."
        ),
    ],
    source: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER|LIST",
            help="The source images: a folder or a list; an LMDB or HDF5 list if the net reads one. Repeat it for a "
            "net with several sources.",
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
    from dataclasses import asdict

    from autodial import proto
    from autodial.evaluation.whole_statistics import recalibrate_weights
    from autodial.net.feed import default_workers
    from autodial.netparam.data_files import files_of
    from autodial.report.trained_net import find_record
    from autodial.system.devices import choose_device, warn_of_cpu
    from autodial.system.outputs import check_output
    from autodial.training.run_log import log_recalibration

    param = read_net(net, variants, settings, level, stage)
    given = [*(source or ()), *([] if target is None else [target])]
    inputs: list[str | Path] = [net, *split_names(weights), *files_of(param, net.parent), *given]
    check_output(output, inputs, suffixes=[".caffemodel", ".caffemodel.h5"])
    chosen = choose_device(device)
    saved = read_weights(weights)
    with naming_options(source="--source", target="--target", workers="--workers"), shown_progress() as report:
        recalibrated = recalibrate_weights(
            param,
            saved,
            net_name=str(net),
            weights_name=weights,
            base_dir=net.parent,
            device=chosen,
            source=source,
            target=target,
            size=image_size(param, net) if given else None,
            batch_size=batch_size,
            workers=default_workers() if workers is None else workers,
            begun=lambda: warn_of_cpu(device, chosen),
            report=report,
        )
    trained = find_record(weights)
    proto.write_weights(recalibrated.weights, output)
    sources = recalibrated.sources
    if trained is not None:
        images = [*sources, recalibrated.names["target"]]
        log_recalibration(trained.run.folder, output, of=trained.written.sha256, images=images)
    if not as_json:
        typer.echo("\n".join([*describe(recalibrated), f"Wrote {output}"]))
        return
    record = {
        "net": str(net),
        "weights": split_names(weights),
        "output": str(output),
        "settings": settings or [],
        "source": sources if len(sources) > 1 else next(iter(sources), None),
        "target": recalibrated.names["target"],
        "device": str(chosen),
        "seconds": recalibrated.seconds,
        **asdict(recalibrated.result),
    }
    typer.echo(json.dumps(record, indent=2))

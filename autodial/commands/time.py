"""The command `autodial time`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodial.commands.inputs import read_net, split_names
from autodial.commands.options import (
    DeviceOption,
    JsonOption,
    LevelOption,
    PhaseChoice,
    SettingsOption,
    StageOption,
    VariantOption,
)
from autodial.commands.progress import tracked
from autodial.errors import InputError
from autodial.wording import counted

if TYPE_CHECKING:
    import torch

    from autodial.evaluation.timing import LayerTime


def time(
    net: Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net.")],
    weights: Annotated[
        str | None, typer.Option(metavar="W1,W2", help="The .caffemodel files; times hardly depend on them.")
    ] = None,
    phase: Annotated[PhaseChoice, typer.Option(case_sensitive=False, help="The phase to run.")] = PhaseChoice.TRAIN,
    iterations: Annotated[int, typer.Option(min=1, help="Passes to average over.")] = 50,
    device: DeviceOption = "auto",
    settings: SettingsOption = None,
    variants: VariantOption = None,
    level: LevelOption = 0,
    stage: StageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time a net layer by layer, forward and backward.

    The command corresponds to `caffe time`. A layer that passes no gradient has no backward time; the table calls it
    frozen if its parameters have lr_mult 0. The time of a data layer is that of reading a batch in this process,
    without workers. If its files are missing, random images of the size in the prototxt replace them.
    """
    import json
    from dataclasses import asdict

    from autodial import proto
    from autodial.evaluation.timing import replace_missing_data, time_layers
    from autodial.net.net import Net, of_another_net
    from autodial.netparam.net_state import filter_net
    from autodial.system.devices import choose_device, full_memory_errors, warn_of_cpu
    from autodial.training.solver import load_weights

    param = read_net(net, variants, settings, level, stage)
    chosen = choose_device(device)
    try:
        filtered = filter_net(param, getattr(proto.messages, phase.value))
        filtered, synthetic = replace_missing_data(filtered, net.parent)
        built = Net(filtered, filtered.state.phase, base_dir=net.parent)
    except InputError as error:
        raise InputError(f"{net}, {phase.value} phase: {error}") from error
    for name, shapes in synthetic.items():
        sizes = ", ".join(" x ".join(map(str, shape)) for shape in shapes)
        typer.echo(f'layer "{name}": its data is missing; random numbers are used instead: {sizes}', err=True)
    load_weights(built, split_names(weights), advice=of_another_net(str(net)))
    warn_of_cpu(device, chosen)
    with full_memory_errors():
        times = time_layers(built.to(chosen), chosen, tracked(range(iterations), "timing", iterations))

    forward = sum(row.forward_ms for row in times)
    backward = sum(row.backward_ms or 0.0 for row in times)
    machine = _machine(chosen)
    if not as_json:
        typer.echo(f"{net}, {phase.value} phase on {machine['device']}: mean of {counted(iterations, 'iteration')}")
        for line in _table(times, forward, backward):
            typer.echo(line)
        return
    record = {
        "net": str(net),
        "name": built.param.name,
        "phase": phase.value,
        "level": built.param.state.level,
        "stages": list(built.param.state.stage),
        "variants": variants or [],
        "settings": settings or [],
        "iterations": iterations,
        **machine,
        "inputs": {blob: list(built.blob_shapes[blob]) for blob in built.inputs},
        "synthetic": list(synthetic),
        "layers": [asdict(row) for row in times],
        "forward_ms": forward,
        "backward_ms": backward,
        "total_ms": forward + backward,
    }
    typer.echo(json.dumps(record, indent=2))


def _machine(device: torch.device) -> dict[str, Any]:
    """The machine and the versions that the times belong to."""
    import platform

    import torch

    from autodial import __version__
    from autodial.system.devices import describe_device

    return {
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
        "versions": {
            "autodial": __version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
        },
    }


def _table(times: Sequence[LayerTime], forward: float, backward: float) -> list[str]:
    """A line per layer, then the sums."""
    rows = [
        (
            row.name,
            row.type,
            f"{row.forward_ms:.3f}",
            f"{row.backward_ms:.3f}" if row.backward_ms is not None else "frozen" if row.frozen else "-",
        )
        for row in times
    ]
    header = ("layer", "type", "forward ms", "backward ms")
    sums = ("total", f"{forward + backward:.3f} ms", f"{forward:.3f}", f"{backward:.3f}")
    widths = [max(map(len, column)) for column in zip(header, sums, *rows, strict=True)]
    return [
        f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {ahead:>{widths[2]}}  {back:>{widths[3]}}"
        for name, kind, ahead, back in (header, *rows, sums)
    ]

"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autodial.errors import AutodialError

TestNetOption = Annotated[Path, typer.Option(metavar="NET.prototxt", help="The net. Its TEST phase is run.")]
SolverOption = Annotated[Path, typer.Option(metavar="SOLVER.prototxt", help="The solver; it names the net.")]
StartOption = Annotated[
    str | None,
    typer.Option(
        metavar="W1,W2",
        help="Start from these .caffemodel files; layers are matched by name.",
        show_default="those that the solver names",
    ),
]
"""Files that a training starts from, separated by commas."""
VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        # the names are those of autodial.netparam.variants, which takes too long to import for a help text
        help="Turn the net into another method: source-only, entropy-only, adabn or fixed-alpha, or NAME for "
        "NAME.settings beside the net. --set applies afterwards; may be repeated.",
        show_default="the net as it is",
    ),
]
"""Names for `autodial.netparam.variants.apply_variants`."""
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="LAYER.FIELD=VALUE", help="Change a field of the net; may be repeated."),
]
"""Settings for `autodial.netparam.overrides.apply_to_nets`."""
LevelOption = Annotated[int, typer.Option(metavar="N", help="The level for include and exclude rules.")]
"""A level for `autodial.netparam.net_state.put_in_state`."""
StageOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A stage for include and exclude rules, in addition to those of the net's state; may be repeated.",
    ),
]
"""Stages for the same; each may be a comma-separated list, as in Caffe's -stage."""
WeightsOption = Annotated[
    str,
    typer.Option(
        metavar="W1,W2",
        help="The trained .caffemodel files; layers in later files replace those in earlier ones.",
    ),
]
"""Files for `autodial.proto.read_weights`, separated by commas."""
LogitsOption = Annotated[
    str | None,
    typer.Option(
        metavar="BLOB",
        help="The blob with the class scores.",
        show_default="the blob that the loss, Accuracy or Softmax layer reads",
    ),
]
"""A name for `autodial.netparam.graph.Graph.logits`."""
ResizeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE|HEIGHTxWIDTH",
        help="Size that images are resized to.",
        show_default="the mean image's, or what suits crop or input",
    ),
]
"""A size for `autodial.commands.inputs.read_size`."""
TransformOption = Annotated[
    str | None,
    typer.Option(
        metavar="FIELDS",
        help='How images become blobs: a transform_param, such as "crop_size: 224 mean_value: 104".',
        show_default="the net's data layer",
    ),
]
"""Fields for `autodial.commands.inputs.read_transform`."""
TARGET = typer.Option(metavar="T", help="The unlabelled images of the target domain: any folder, or a list.")
EpochsOption = Annotated[
    float | None, typer.Option(help="Passes over the source.", show_default="the net's own schedule")
]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that can't be decoded. Otherwise they are an error.")
]
DeviceOption = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]
"""A name for `autodial.system.devices.choose_device`."""
SolverDeviceOption = Annotated[
    str, typer.Option(help="auto (as solver_mode says, but the CPU if there is no GPU), cpu, cuda or cuda:N.")
]
"""The same for commands that have a solver, whose solver_mode counts."""
ModelDeviceOption = Annotated[
    str, typer.Option(help="auto (a GPU where one works, else the CPU), cpu, cuda, or cuda:N.")
]
"""The same for an exported model: a device for `autodial.deploy.Predictor`."""
WorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="Processes that read images ahead.", show_default="one less than the CPUs, 1 to 8"),
]
"""A number for `autodial.net.feed.Feed`; None stands for `default_workers`."""
SeedOption = Annotated[
    int | None,
    typer.Option(min=0, help="The seed, instead of the solver's random_seed.", show_default="random_seed, or 0"),
]
"""A seed for `autodial.training.solver.Solver`."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
"""Whether to print JSON instead of text."""


class PhaseChoice(StrEnum):
    """The phase of a net."""

    TRAIN = "TRAIN"
    TEST = "TEST"


@contextmanager
def naming_options(**options: str) -> Iterator[None]:
    """Replace the library's parameter names, which errors have in backticks, by the command's options.

    Args:
        options: the option of each parameter, such as `folder="-o"`.
    """
    try:
        yield
    except (AutodialError, KeyboardInterrupt) as error:
        error.args = (with_options(str(error), options),)
        raise


def with_options(text: str, options: Mapping[str, str]) -> str:
    """Replace parameter names in backticks by the options that `options` has for them."""
    return re.sub(r"`(\w+)`", lambda match: options.get(match[1], match[0]), text)

"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from autodial.errors import AutodialError

VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        # the names are those of autodial.netparam.variants, which takes too long to import for a help text
        help="Another method, from the same net: source-only, entropy-only, adabn, fixed-alpha, or X for X.settings "
        "beside the net. --set applies after it; may be repeated.",
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
        metavar="NAME", help="A stage for include and exclude rules, beside those of the net's state; may be repeated."
    ),
]
"""Stages for the same, any of which may be several with commas between, as Caffe's -stage."""
WeightsOption = Annotated[
    str,
    typer.Option(
        metavar="W1,W2", help="The trained .caffemodel, or several: a later one's layers replace an earlier one's."
    ),
]
"""Files for `autodial.proto.read_weights`, separated by commas."""
LogitsOption = Annotated[
    str | None,
    typer.Option(
        metavar="BLOB",
        help="The blob of class scores.",
        show_default="what the loss, Accuracy or Softmax layer reads",
    ),
]
"""A name for `autodial.netparam.graph.Graph.logits`."""
DeviceOption = Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu, cuda, or cuda:N.")]
"""A name for `autodial.system.devices.choose_device`."""
SolverDeviceOption = Annotated[
    str, typer.Option(help="auto (what solver_mode says, the CPU where there is no GPU), cpu, cuda, or cuda:N.")
]
"""The same, where a solver has a say."""
WorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="Processes that read images ahead.", show_default="one less than the CPUs, 1 to 8"),
]
"""Number for `autodial.net.feed.Feed`; None for `default_workers`."""
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Replaces the solver's random_seed.", show_default="random_seed, or 0")
]
"""Seed for `autodial.training.solver.Solver`."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
"""Whether to print JSON instead of text."""


@contextmanager
def naming_options(**options: str) -> Iterator[None]:
    """Let an error's message name options where the library, between backticks, names its parameters.

    Args:
        options: the option of each parameter, such as `folder="-o"`.
    """
    try:
        yield
    except (AutodialError, KeyboardInterrupt) as error:
        error.args = (re.sub(r"`(\w+)`", lambda match: options.get(match[1], match[0]), str(error)),)
        raise

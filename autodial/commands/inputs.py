"""Inputs that several commands take: a net in a state, and trained weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodial.proto import Weights
    from autodial.proto import messages as pb


def read_net(
    path: Path, variants: Sequence[str] | None, settings: Sequence[str] | None, level: int, stages: Sequence[str] | None
) -> pb.NetParameter:
    """Read a net, and apply --variant, --set, --level and --stage to it, in this order.

    Raises:
        InputError: the file is not a net, or an option does not fit it.
    """
    from autodial.netparam.net_state import put_in_state
    from autodial.netparam.overrides import apply_to_nets
    from autodial.netparam.variants import read_variant

    param: pb.NetParameter = read_variant(path, variants or ())
    apply_to_nets(settings or (), [param])
    put_in_state(param, level, stages or ())
    return param


def split_names(names: str | None) -> list[str]:
    """The names in a comma-separated list, as in Caffe's -weights; none for None."""
    return [] if names is None else names.split(",")


def read_weights(names: str) -> Weights:
    """Read several .caffemodel files as one: later files' layers replace those of earlier files.

    Raises:
        InputError: a file is not a caffemodel.
    """
    from autodial import proto

    return proto.merge_weights([proto.read_weights(name) for name in split_names(names)])

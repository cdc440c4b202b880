"""What several commands are given: a net in a state, and trained weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autodial.proto import Weights


def read_net(
    path: Path, variants: Sequence[str] | None, settings: Sequence[str] | None, level: int, stages: Sequence[str] | None
) -> Any:
    """The NetParameter in a file as --variant, --set, --level and --stage, in this order, turn it.

    Raises:
        InputError: a file that is no net, or an option that does not fit it.
    """
    from autodial.netparam.net_state import put_in_state
    from autodial.netparam.overrides import apply_to_nets
    from autodial.netparam.variants import read_variant

    param = read_variant(path, variants or ())
    apply_to_nets(settings or (), [param])
    put_in_state(param, level, stages or ())
    return param


def split_names(names: str | None) -> list[str]:
    """Names with commas between, as Caffe's -weights has them; None gives none."""
    return [] if names is None else names.split(",")


def read_weights(names: str) -> Weights:
    """Several .caffemodel files as one: a later file's layers replace an earlier one's.

    Raises:
        InputError: a file that is no caffemodel.
    """
    from autodial import proto

    return proto.merge_weights([proto.read_weights(name) for name in split_names(names)])

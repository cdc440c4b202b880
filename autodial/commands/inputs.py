"""Inputs that several commands take: a net in a state, and trained weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autodial.errors import InputError

if TYPE_CHECKING:
    from autodial.proto import Weights
    from autodial.proto import messages as pb


def read_net(
    path: Path,
    variants: Sequence[str] | None,
    settings: Sequence[str] | None,
    level: int,
    stages: Sequence[str] | None,
    *,
    keep_unknown: bool = False,
) -> pb.NetParameter:
    """Read a net, and apply --variant, --set, --level and --stage to it, in this order.

    For `keep_unknown` see `autodial.proto.read_net`.

    Raises:
        InputError: the file is not a net, or an option does not fit it.
    """
    from autodial.netparam.net_state import put_in_state
    from autodial.netparam.overrides import apply_to_nets
    from autodial.netparam.variants import read_variant

    param: pb.NetParameter = read_variant(path, variants or (), keep_unknown=keep_unknown)
    try:
        apply_to_nets(settings or (), [param])
    except InputError as error:
        raise InputError(f"--set {error}") from error
    put_in_state(param, level, stages or ())
    return param


def different(folders: Sequence[Path], noun: str) -> list[Path]:
    """The folders, refused if one is given twice, under any name.

    Args:
        noun: what a folder is.

    Raises:
        InputError: two are the same.
    """
    seen: dict[Path, Path] = {}
    for folder in folders:
        if (real := folder.resolve()) in seen:
            same = "is given twice" if str(folder) == str(seen[real]) else f"and {seen[real]} are the same folder"
            raise InputError(f"{folder} {same}: name each {noun} once")
        seen[real] = folder
    return list(folders)


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


def read_size(text: str | None) -> tuple[int, int] | None:
    """Height and width in a --resize; None if there is none."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if match is None:
        raise InputError(f"--resize {text}: write a number of pixels or HEIGHTxWIDTH, such as 256 or 240x320")
    return int(match[1]), int(match[2] or match[1])


def read_transform(fields: str | None, mean: str | None = None) -> pb.TransformationParameter | None:
    """The fields of a --transform, and the values or the file of a --mean; None if there is neither.

    Raises:
        InputError: they are no fields, or both state a mean.
    """
    from autodial import proto
    from autodial.proto.parser import Parser

    if fields is None and mean is None:
        return None
    stated = proto.messages.TransformationParameter()
    if fields is not None:
        Parser(fields, "--transform").parse_into(stated)
    if mean is None:
        return stated
    if stated.mean_file or stated.mean_value:
        raise InputError("--transform and --mean both state a mean: keep one")
    if re.fullmatch(r"[-+.\d]+(,[-+.\d]+)*", mean) and not Path(mean).exists():
        Parser(" ".join(f"mean_value: {value}" for value in mean.split(",")), "--mean").parse_into(stated)
    else:
        stated.mean_file = mean
    return stated

"""The nets that the demo compares, all made from one AutoDIAL net."""

from __future__ import annotations

from typing import Any

from autodial.proto import messages as pb


def with_fixed_alphas(net: Any) -> list[str]:
    """`--set` settings that keep every Dial layer's alpha where its filler puts it."""
    return [f"{layer.name}.param[0].lr_mult=0" for layer in net.layer if layer.type == "Dial"]


def without_entropy(net: Any) -> list[str]:
    """`--set` settings that leave the target's entropy out of the loss."""
    return [f"{layer.name}.loss_weight=0" for layer in net.layer if layer.type == "EntropyLoss"]


def without_dial(net: Any) -> Any:
    """The net that an AutoDIAL net was before: trained on the source's images alone, without alignment.

    The Dial layers go, each with the Scale layers that read its output, and so does the target's branch of the TRAIN
    phase: its data, the Concat and Slice layers that join and part the two domains along the batch axis, and the
    EntropyLoss. Whatever read a blob of these reads the source's in its place.

    Args:
        net: a NetParameter whose batches hold the source's samples first, as Dial layers have it; it is not changed.

    Returns:
        a new NetParameter.
    """
    alignment = _alignment_layers(net)
    joins = [layer for layer in net.layer if layer.type == "Concat" and layer.concat_param.axis == 0]
    splits = [layer for layer in net.layer if layer.type == "Slice" and layer.slice_param.axis == 0]
    bypassed = [*alignment, *joins, *splits]
    kept = [layer for layer in net.layer if layer not in bypassed]

    target = {blob for join in joins for blob in join.bottom[1:]} | {blob for split in splits for blob in split.top[1:]}
    while branch := [layer for layer in kept if target.intersection((*layer.bottom, *layer.top))]:
        target.update(top for layer in branch for top in layer.top)
        kept = [layer for layer in kept if layer not in branch]

    # the source's data takes the name of the joined batch, as the TEST phase's data has that name too
    renamed = {join.bottom[0]: join.top[0] for join in joins}
    renamed |= {layer.top[0]: layer.bottom[0] for layer in (*alignment, *splits) if layer.top[0] != layer.bottom[0]}

    plain = pb.NetParameter()
    plain.CopyFrom(net)
    del plain.layer[:]
    for layer in kept:
        copy = plain.layer.add()
        copy.CopyFrom(layer)
        copy.bottom[:] = [_resolve(blob, renamed) for blob in layer.bottom]
        copy.top[:] = [_resolve(blob, renamed) for blob in layer.top]
    return plain


def _alignment_layers(net: Any) -> list[Any]:
    """The Dial layers, and the Scale layers that read what a Dial layer left."""
    found = []
    aligned: set[str] = set()
    for layer in net.layer:
        if layer.type == "Dial" or (layer.type == "Scale" and aligned.issuperset(layer.bottom)):
            found.append(layer)
        aligned.difference_update(layer.top)
        if layer.type == "Dial":
            aligned.update(layer.top)
    return found


def _resolve(blob: str, renamed: dict[str, str]) -> str:
    while blob in renamed:
        blob = renamed[blob]
    return blob

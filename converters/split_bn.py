"""BN layers as Caffe's own: a BatchNorm layer, where there is something to normalize with, and a Scale layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.errors import InputError
from autodial.netparam.bn import read_bn
from autodial.netparam.names import free_name
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb

Arrays = Sequence[NDArray[np.floating[Any]]]


def split_bn(net: pb.NetParameter, blobs: Mapping[str, Arrays]) -> tuple[pb.NetParameter, dict[str, Arrays]]:
    """Replace each BN layer NAME by a BatchNorm layer NAME and a Scale layer NAME-scale that compute the same.

    Where the net has a layer NAME-scale already, the Scale layer gets another name.

    Args:
        net: not changed.
        blobs: blobs by layer name; those of BN layers may be missing.

    Returns:
        the net and the blobs; a BatchNorm has no blobs where the BN stores no statistics.

    Raises:
        InputError: the blobs of a BN layer are too many or too few.
    """
    split = pb.NetParameter()
    split.CopyFrom(net)
    del split.layer[:]
    held = dict(blobs)
    for layer in net.layer:
        if layer.type != "BN":
            split.layer.add().CopyFrom(layer)
            continue
        held.pop(layer.name, None)
        parts, arrays = _parts(layer, blobs.get(layer.name, ()), net)
        split.layer.extend(parts)
        held |= arrays
    return split, held


def split_weights(net: pb.NetParameter, weights: Weights) -> Weights:
    """The weights of a net whose BN layers are split; raises as `split_bn`."""
    bns = {layer.name: layer for layer in net.layer if layer.type == "BN"}
    split = Weights(weights.name)
    for layer in weights.layers:
        if layer.name not in bns:
            split.layers.append(layer)
            continue
        blobs = [blob for blob in layer.blobs if blob is not None]
        parts, arrays = _parts(bns[layer.name], blobs, net)
        split.layers.extend(LayerWeights(part, list(arrays[part.name])) for part in parts if part.name in arrays)
    return split


def _parts(
    layer: pb.LayerParameter, stored: Arrays, net: pb.NetParameter
) -> tuple[list[pb.LayerParameter], dict[str, Arrays]]:
    """The layers in the place of a BN layer of a net, and their blobs by name; raises as `split_bn`."""
    options = read_bn(layer.bn_param)
    count = 4 if options.stores else 2
    if stored and len(stored) != count:
        raise InputError(
            f'layer "{layer.name}" (BN) needs {count} blobs by its bn_param, and the weights hold {len(stored)}'
        )
    norm, scale = _norm(layer), _scale(layer)
    if norm is None:
        scale.name = layer.name
        scale.bottom[:] = layer.bottom
    else:
        scale.name = free_name(scale.name, {other.name for other in net.layer})
    arrays: dict[str, Arrays] = {}
    if norm is not None and len(stored) == 4:
        arrays[norm.name] = [*(blob.ravel() for blob in stored[2:]), np.ones(1, np.float32)]
    if stored:
        arrays[scale.name] = [blob.ravel() for blob in stored[:2]]
    return [scale] if norm is None else [norm, scale], arrays


def _norm(layer: pb.LayerParameter) -> pb.LayerParameter | None:
    """The BatchNorm layer; None if the BN layer normalizes with nothing."""
    options = read_bn(layer.bn_param)
    if "none" in options.uses.values():
        return None
    norm = _like(layer, layer.name, "BatchNorm", layer.bottom)
    norm.batch_norm_param.eps = options.eps
    if options.stores:
        norm.batch_norm_param.moving_average_fraction = options.kept
    if options.uses[pb.TRAIN] == options.uses[pb.TEST]:
        norm.batch_norm_param.use_global_stats = options.uses[pb.TEST] == "stored"
    names = [spec.name for spec in layer.param[2:]]
    if any(names):
        norm.param.extend(pb.ParamSpec(name=name or None, lr_mult=0) for name in names)
    return norm


def _scale(layer: pb.LayerParameter) -> pb.LayerParameter:
    """The Scale layer behind the BatchNorm layer."""
    options = read_bn(layer.bn_param)
    scale = _like(layer, f"{layer.name}-scale", "Scale", layer.top)
    scale.scale_param.bias_term = True
    filler, bias_filler = (getattr(layer.bn_param, name) for name in options.fillers)
    if layer.bn_param.HasField(options.fillers[0]):
        scale.scale_param.filler.CopyFrom(filler)
    if layer.bn_param.HasField(options.fillers[1]):
        scale.scale_param.bias_filler.CopyFrom(bias_filler)
    scale.param.extend(layer.param[:2])
    if not options.learned:  # as the forks do, whatever the prototxt states
        while len(scale.param) < 2:
            scale.param.add()
        for spec in scale.param:
            spec.lr_mult = spec.decay_mult = 0
    return scale


def _like(layer: pb.LayerParameter, name: str, kind: str, bottoms: Sequence[str]) -> pb.LayerParameter:
    """A layer in the place of another one, with its top."""
    made = pb.LayerParameter(
        name=name, type=kind, bottom=bottoms, top=layer.top, include=layer.include, exclude=layer.exclude
    )
    if layer.HasField("phase"):
        made.phase = layer.phase
    return made

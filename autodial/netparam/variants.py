"""Named variants of an AutoDIAL net for comparisons, made from the net itself instead of a copy of its file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from autodial.data.text import read_text
from autodial.errors import InputError
from autodial.netparam.layer_types import READS_SCORES
from autodial.netparam.overrides import apply_to_nets
from autodial.proto import messages as pb
from autodial.proto.text import read_net
from autodial.proto.weights import LayerWeights, Weights
from autodial.wording import counted

_log = logging.getLogger(__name__)

VARIANTS = {
    "source-only": "the network without alignment, trained on the images with labels alone",
    "entropy-only": "the network without alignment, trained with the source's labels and the target's entropy",
    "adabn": "each domain normalized with its own statistics (alpha fixed to 1), without the entropy loss",
    "fixed-alpha": "AutoDIAL with alpha fixed to 1",
}
"""Names of the variants that every AutoDIAL net has, with their meanings. The unchanged net has no name."""

UNALIGNED = ("source-only", "entropy-only")
"""Variants without Dial layers."""

FIXING = ("adabn", "fixed-alpha")
"""Variants that fix alpha, whatever alpha the initial weights hold."""

_SUFFIX = ".settings"
_BIAS_TERMS = {
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "InnerProduct": "inner_product_param",
}
"""For each layer type that Dial layers follow, the message that says whether the layer has a bias."""


def apply_variant(net: pb.NetParameter, name: str) -> pb.NetParameter:
    """A variant of an AutoDIAL net.

    "fixed-alpha" and "adabn" start every Dial layer's alpha at 1 and keep it there, even where the net fixes alpha to
    another value. "adabn" (Li et al., 2016) also gives EntropyLoss layers the weight 0 and takes the target's
    statistics in TEST.

    "source-only" and "entropy-only" undo the alignment:

    - A Dial layer that was added to a network is removed, together with the Scale layer that reads it. These are the
      Dial layers that follow a layer with a bias, and those that make the logits.
    - A Dial layer that replaces batch normalization becomes a BatchNorm layer of the same name, over the whole batch,
      and its Scale layer stays. These are the Dial layers that follow a layer without a bias; where such a layer is a
      convolution, also those that follow other convolutions; and those that `autodial dialize` made from BatchNorm
      layers and named "X-dial", where no layer is called "X".
    - A Scale layer stays without its Dial layer, as a bias, if the layer before it has no bias.

    "source-only" also removes what only the target's samples pass through: their data, the Concat and Slice layers that
    join and split the domains along axis 0, the EntropyLoss. Target samples with labels, which a Concat layer joins
    with those without, stay: the net learns from them as from the source's. All other layers stay unchanged.

    Args:
        net: a NetParameter of any phases, whose batches hold the source's samples first; it is not changed.
        name: a key of VARIANTS.

    Returns:
        a new NetParameter.

    Raises:
        InputError: no such variant; a net without Dial layers; or, for "source-only", domains that no pair of layers
            with two bottoms and two tops joins and splits.
    """
    if name not in VARIANTS:
        raise InputError(f'no variant "{name}"; there are {", ".join(VARIANTS)}')
    if not any(layer.type == "Dial" for layer in net.layer):
        raise InputError(f'variant "{name}" changes Dial layers, and the net has none: give an AutoDIAL net')
    if name in FIXING:
        return _with_alpha_1(net, without_entropy=name == "adabn")
    plain = _without_alignment(net)
    return _without_target(plain) if name == "source-only" else plain


def read_variant(path: Path, names: Sequence[str], *, keep_unknown: bool = False) -> pb.NetParameter:
    """The net in a file, turned into variants of it (see `apply_variants`); errors name the file.

    For `keep_unknown` see `autodial.proto.read_net`.
    """
    net = read_net(path, keep_unknown=keep_unknown)
    try:
        return apply_variants(net, names, path.parent)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def apply_variants(net: pb.NetParameter, names: Sequence[str], folder: Path | None) -> pb.NetParameter:
    """Apply several variants to a net, one after the other.

    Args:
        net: a NetParameter; it is not changed.
        names: keys of VARIANTS, and NAME for a file NAME.settings in the folder. Each line of the file is a setting
            (see autodial.netparam.overrides), empty, or a comment that starts with "#".
        folder: the folder of the net's file; None for a net without a file.

    Returns:
        a new NetParameter; `net` itself if there are no names.

    Raises:
        InputError: no such variant, a file that can't be read, or what `apply_variant` or a setting raises.
    """
    for name in names:
        files = {path.stem: path for path in sorted(folder.glob(f"*{_SUFFIX}"))} if folder else {}
        if name in VARIANTS:
            net = apply_variant(net, name)
        elif name in files:
            net = _with_settings(net, files[name])
        else:
            others = "".join(f", {other} ({path})" for other, path in files.items())
            raise InputError(f'no variant "{name}"; there are {", ".join(VARIANTS)}{others}')
    return net


def fit_weights(weights: Weights, net: pb.NetParameter, source: str) -> Weights:
    """Convert an AutoDIAL net's weights for its variants without alignment.

    Where the net has a BatchNorm layer and the weights have a Dial layer, the Dial layer's blobs become BatchNorm's:
    the statistics of one domain. Both domains must still have equal statistics, as in a net that was just made from one
    with BatchNorm layers.

    Args:
        net: the variant, a NetParameter.
        source: the weights' file, for messages.

    Raises:
        InputError: the domains' statistics are no longer the same.
    """
    normalizing = {layer.name for layer in net.layer if layer.type == "BatchNorm"}
    return Weights(
        weights.name,
        [
            _as_batch_norm(layer, source) if layer.name in normalizing and len(layer.blobs) == 4 else layer
            for layer in weights.layers
        ],
    )


def warn_of_lost_alignment(weights: Weights, net: pb.NetParameter) -> None:
    """Warn if weights were trained with Dial layers that a net has in no phase."""
    held = {layer.name for layer in net.layer}
    lost = [layer.name for layer in weights.layers if layer.name not in held and _is_trained_dial(layer)]
    if lost:
        _log.warning(
            "The weights were trained with %s that the net lacks, %s first; without alignment the other layers' "
            "weights give other results",
            *(counted(len(lost), "Dial layer"), lost[0]),
        )


def _is_trained_dial(layer: LayerWeights) -> bool:
    """Whether it is a Dial layer whose statistics come from more than the one batch that `dialize` gives them."""
    if layer.type != "Dial" or len(layer.blobs) != 4:
        return False
    normalizer = layer.blobs[3]
    return normalizer is not None and float(normalizer.max()) > 1


def _as_batch_norm(layer: LayerWeights, source: str) -> LayerWeights:
    _, mean, variance, normalizer = layer.blobs
    statistics = []
    for blob in (mean, variance):
        if blob is None or blob.ndim != 2 or not np.array_equal(blob[0], blob[-1]):
            raise InputError(
                f'layer "{layer.name}": {source} holds statistics of two domains, and the net has a BatchNorm layer: '
                "start from the weights that the AutoDIAL net started from"
            )
        statistics.append(blob[0])
    return LayerWeights(layer.param, [*statistics, normalizer])


def _with_settings(net: pb.NetParameter, path: Path) -> pb.NetParameter:
    lines = read_text(path, "a list of settings").splitlines()
    changed = _copy(net)
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("solver."):
            raise InputError(f"{path}:{number}: {line}: a variant changes a net, not a solver: remove this line")
        try:
            apply_to_nets([line], [changed])
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from error
    return changed


def _with_alpha_1(net: pb.NetParameter, *, without_entropy: bool) -> pb.NetParameter:
    changed = _copy(net)
    for layer in changed.layer:
        if layer.type == "Dial":
            if not layer.param:
                layer.param.add(decay_mult=0)
            layer.param[0].lr_mult = 0
            layer.dial_param.weight_filler.CopyFrom(pb.FillerParameter(type="constant", value=1))
            if without_entropy:
                layer.dial_param.ClearField("test_stats")
        elif layer.type == "EntropyLoss" and without_entropy:
            layer.loss_weight[:] = [0]
    return changed


# --- without alignment


def _without_alignment(net: pb.NetParameter) -> pb.NetParameter:
    dials = [i for i, layer in enumerate(net.layer) if layer.type == "Dial"]
    fed_by = {i: _weighted_layer_before(net, i) for i in dials}
    # a convolution lacks a bias only where a normalization with a shift follows
    batch_normalized = any(
        layer is not None and layer.type == "Convolution" and not _has_bias(layer) for layer in fed_by.values()
    )
    dropped: set[int] = set()
    normalized: set[int] = set()
    for i, layer in fed_by.items():
        scale = _scale_behind(net, i)
        biased = layer if layer is not None and _has_bias(layer) else None
        if _makes_logits(net, i if scale is None else scale):
            stands_in = False
        elif _replaces_batch_norm(net, i):
            stands_in = True
        else:
            stands_in = biased is None or (batch_normalized and biased.type != "InnerProduct")
        if stands_in:
            normalized.add(i)
        else:
            dropped.update((i, scale) if biased and scale is not None else (i,))
    renamed = {net.layer[i].top[0]: net.layer[i].bottom[0] for i in dropped}

    plain = _copy(net, layers=False)
    for i, layer in enumerate(net.layer):
        if i not in dropped:
            kept = _add(plain, layer, renamed)
            if i in normalized:
                _become_batch_norm(kept)
    return plain


def _weighted_layer_before(net: pb.NetParameter, dial: int) -> pb.LayerParameter | None:
    """The convolution or inner product that makes what a Dial layer reads; None if another kind of layer does."""
    blob = net.layer[dial].bottom[0]
    maker = next((layer for layer in reversed(net.layer[:dial]) if blob in layer.top), None)
    return maker if maker is not None and maker.type in _BIAS_TERMS else None


def _replaces_batch_norm(net: pb.NetParameter, dial: int) -> bool:
    """Whether a Dial layer has the name that dialize gives it for a BatchNorm layer "X": "X-dial", without an "X"."""
    name, dash, _ = net.layer[dial].name.rpartition("-dial")
    return bool(dash) and all(layer.name != name for layer in net.layer)


def _has_bias(layer: pb.LayerParameter) -> bool:
    return bool(getattr(layer, _BIAS_TERMS[layer.type]).bias_term)


def _scale_behind(net: pb.NetParameter, dial: int) -> int | None:
    """Number of the Scale layer that is the first to read what a Dial layer makes; None if another kind of layer is."""
    blob = net.layer[dial].top[0]
    for i, layer in enumerate(net.layer[dial + 1 :], dial + 1):
        if blob in layer.bottom:
            return i if layer.type == "Scale" and list(layer.bottom) == [blob] else None
    return None


def _makes_logits(net: pb.NetParameter, number: int) -> bool:
    """Whether a layer's top is what losses read, or what is split into domains for them."""
    blob = net.layer[number].top[0]
    for layer in net.layer[number + 1 :]:
        if blob in layer.bottom and (layer.type in READS_SCORES or (layer.type == "Slice" and _axis(layer) == 0)):
            return True
        if blob in layer.top:
            return False
    return False


def _become_batch_norm(layer: pb.LayerParameter) -> None:
    layer.type = "BatchNorm"
    for field in ("eps", "moving_average_fraction", "use_global_stats"):
        if layer.dial_param.HasField(field):
            setattr(layer.batch_norm_param, field, getattr(layer.dial_param, field))
    for field in ("dial_param", "param", "blobs"):
        layer.ClearField(field)


# --- without the target


def _without_target(net: pb.NetParameter) -> pb.NetParameter:
    splits = [layer for layer in net.layer if layer.type == "Slice" and _axis(layer) == 0]
    among_sources = _joins_of_sources(net)
    joins = [
        layer for layer in net.layer if layer.type == "Concat" and _axis(layer) == 0 and layer not in among_sources
    ]
    _check_two_domains(joins, splits)
    staying = _joins_of_labelled(net, joins)
    joins = [join for join in joins if join not in staying]
    kept = [layer for layer in net.layer if layer not in (*joins, *splits)]
    target = {join.bottom[1] for join in joins} | {split.top[1] for split in splits}
    gone: list[pb.LayerParameter] = []
    while branch := [layer for layer in kept if target.intersection((*layer.bottom, *layer.top))]:
        target.update(top for layer in branch for top in layer.top)
        gone += branch
        kept = [layer for layer in kept if layer not in branch]
        # blobs that only removed layers read, such as target images that a layer crops before they are joined
        target.update(top for layer in kept for top in layer.top if _is_idle(top, kept, gone))

    # the source's data takes the name of the joined batch, as the TEST phase's data has that name too
    renamed = {join.bottom[0]: join.top[0] for join in joins} | {split.top[0]: split.bottom[0] for split in splits}
    source = _copy(net, layers=False)
    for layer in kept:
        _add(source, layer, renamed)
    return source


def _joins_of_sources(net: pb.NetParameter) -> list[pb.LayerParameter]:
    """The Concat layers that join several sources' images, before these are joined with the target's, or labels.

    No Slice layer along axis 0 splits what they join, but for what another Concat layer joins with more.
    """
    joins = [layer for layer in net.layer if layer.type == "Concat" and _axis(layer) == 0]
    names = {layer.name for layer in joins}
    with_target = [layer for layer in joins if _is_split(net, layer.top[0], names)]
    if not with_target:
        return []
    of_target = {name for layer in with_target for name in _behind(net, layer.bottom[-1])}
    return [layer for layer in joins if layer not in with_target and layer.name not in of_target]


def _is_split(net: pb.NetParameter, blob: str, but_not_by: Collection[str]) -> bool:
    """Whether a Slice layer along axis 0 depends on a blob in another way than by these layers."""
    reached = {blob}
    for layer in net.layer:
        if layer.name not in but_not_by and reached.intersection(layer.bottom):
            if layer.type == "Slice" and _axis(layer) == 0:
                return True
            reached.update(layer.top)
    return False


def _joins_of_labelled(net: pb.NetParameter, joins: Sequence[pb.LayerParameter]) -> list[pb.LayerParameter]:
    """The layers that join the source's samples, or their labels, with those of target samples that have labels.

    A net has such samples if the second bottom of a Concat layer comes from another one, which joins target samples
    with labels and without.
    """
    behind = {join.name: _behind(net, join.bottom[1]) for join in joins}
    inner = [join for join in joins if any(join.name in behind[other.name] for other in joins)]
    labelled = {name for join in inner for name in _behind(net, join.bottom[0])}
    return [
        join
        for join in joins
        if inner
        and join not in inner
        and (behind[join.name] <= labelled or any(one.name in behind[join.name] for one in inner))
    ]


def _behind(net: pb.NetParameter, blob: str) -> set[str]:
    """The names of the layers that a blob depends on, in all phases."""
    names: set[str] = set()
    blobs = [blob]
    while blobs:
        one = blobs.pop()
        for layer in net.layer:
            if one in layer.top and layer.name not in names:
                names.add(layer.name)
                blobs += layer.bottom
    return names


def _check_two_domains(joins: Sequence[pb.LayerParameter], splits: Sequence[pb.LayerParameter]) -> None:
    if bool(joins) != bool(splits):
        have, lack = ("Concat", "Slice") if joins else ("Slice", "Concat")
        raise InputError(
            'variant "source-only" needs Concat layers that join the domains along axis 0 and Slice layers that split '
            f"them, and the net has such a {have} layer and no such {lack} layer"
        )
    for layer in (*joins, *splits):
        blobs = layer.bottom if layer.type == "Concat" else layer.top
        if len(blobs) != 2:
            raise InputError(
                f'layer "{layer.name}" ({layer.type}): variant "source-only" needs two blobs here, the source\'s and '
                f"then the target's, not {len(blobs)}"
            )


def _is_idle(blob: str, kept: Sequence[pb.LayerParameter], gone: Sequence[pb.LayerParameter]) -> bool:
    """Whether only removed layers read a blob, apart from layers that write it themselves."""
    return any(blob in layer.bottom for layer in gone) and not any(
        blob in layer.bottom and blob not in layer.top for layer in kept
    )


# --- messages


def _axis(layer: pb.LayerParameter) -> int:
    param, old = (layer.concat_param, "concat_dim") if layer.type == "Concat" else (layer.slice_param, "slice_dim")
    return int(getattr(param, old if param.HasField(old) else "axis"))


def _copy(net: pb.NetParameter, *, layers: bool = True) -> pb.NetParameter:
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    if not layers:
        del copy.layer[:]
    return copy


def _add(net: pb.NetParameter, layer: pb.LayerParameter, renamed: Mapping[str, str]) -> pb.LayerParameter:
    """Add a copy of a layer to a net, its blobs renamed; returns the copy."""
    copy = net.layer.add()
    copy.CopyFrom(layer)
    copy.bottom[:] = [_resolve(blob, renamed) for blob in layer.bottom]
    copy.top[:] = [_resolve(blob, renamed) for blob in layer.top]
    return copy


def _resolve(blob: str, renamed: Mapping[str, str]) -> str:
    while renamed.get(blob, blob) != blob:
        blob = renamed[blob]
    return blob

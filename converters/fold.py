"""Folding: with frozen statistics, a Dial or BatchNorm layer is an affine function of each channel.

The target predictor (paper, section 3.1, inference) normalizes channel c with the stored mean m_c and variance v_c,

    y_c = (x_c - m_c) / sqrt(v_c + eps) = a_c * x_c + b_c,   a_c = 1 / sqrt(v_c + eps),   b_c = -a_c * m_c.

A Scale layer behind it multiplies and adds once more, which composes into one pair (a, b). A Convolution or
InnerProduct in front computes x_c = W_c . u + w_c, so that the weights a_c * W_c and a_c * w_c + b_c replace the
affine layer. All of this is computed in float64 and rounded to float32 once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.converters.split_bn import split_bn
from autodial.errors import InputError
from autodial.netparam.bn import read_bn
from autodial.netparam.graph import Graph, Node
from autodial.proto import messages as pb

Blobs = dict[str, list[NDArray[np.floating[Any]]]]


@dataclass(frozen=True)
class Folded:
    """A net without Dial, BatchNorm and Dropout, and what folding did.

    Attributes:
        net: its layers are named as in the unfolded net; a remaining affine is a Scale layer.
        blobs: float32 blobs by layer name, in the order of a caffemodel.
        outputs: names of the blobs that hold the net's outputs, in the order asked for.
        statistics: domain of the Dial layers' statistics: "target" or "source", "mixed" where they differ, None
            without Dial layers.
        merged: names of the removed layers, with the layer that each was merged into.
        kept: names of the remaining Scale layers.
    """

    net: pb.NetParameter
    blobs: dict[str, list[NDArray[np.float32]]]
    outputs: tuple[str, ...]
    statistics: str | None
    merged: dict[str, str]
    kept: tuple[str, ...]

    @property
    def logits(self) -> str:
        """Name of the logits' blob, of a net with this one output."""
        (logits,) = self.outputs
        return logits


def fold(
    net: pb.NetParameter,
    blobs: Mapping[str, Sequence[NDArray[np.floating[Any]]]],
    *,
    outputs: Sequence[str],
    keep_affine: bool = False,
    keep_of_batch: bool = False,
) -> Folded:
    """Replace each Dial, BatchNorm and BN layer by an affine, compose it with Scale layers, merge it where it is exact.

    An affine merges into the Convolution or InnerProduct that makes its bottom if no other layer reads that blob, the
    blob is no output, the affine's axis is the output channels, and neither layer shares parameters with others.
    Otherwise it stays as a Scale layer with bias. Dropout does nothing in TEST and is removed.

    Args:
        net: one phase's layers up to the outputs.
        blobs: each layer's blobs, by layer name, in the net's shapes.
        outputs: names of the outputs' blobs.
        keep_affine: leave the composed affines as Scale layers.
        keep_of_batch: leave BatchNorm and BN layers that normalize with the statistics of the batch instead of refusing
            them; a BN becomes a BatchNorm layer with a Scale layer behind it.

    Raises:
        InputError: a Dial or BatchNorm layer (named) uses batch statistics, has blobs missing, never stored its
            statistics, or holds a variance that is negative or not a number.
    """
    for layer in net.layer:
        if not (keep_of_batch and is_of_batch(layer)):
            check_frozen(layer)
    net, blobs = split_bn(net, blobs)
    graph = Graph(net.layer)
    ends: list[int] = []
    for name in outputs:
        value = graph.last(name)
        if value is None:
            raise InputError(f'the net has no blob "{name}"')
        ends.append(value)
    names = [node.param.name for node in graph.nodes]
    work: Blobs = {name: [np.asarray(blob) for blob in blobs.get(name, ())] for name in names}
    for node in graph.nodes:
        if node.param.type in ("Convolution", "InnerProduct") and not work[node.param.name]:
            raise InputError(f'layer "{node.param.name}" ({node.param.type}) has no blobs in the weights')
    for node in [node for node in graph.nodes if node.param.type == "Dropout"]:
        if not node.param.dropout_param.scale_train:
            _become_power(node.param)
            continue
        graph.bypass(node)
        ends = [node.bottoms[0] if value in node.tops else value for value in ends]
    for node in graph.nodes:
        if node.param.type == "MultiModalBatchNorm":  # stays, as its weights come with each image
            _stored(node.param, work)
    frozen = [node for node in graph.nodes if node.param.type in ("Dial", "BatchNorm") and not is_of_batch(node.param)]
    domains = {_freeze(node.param, work) for node in frozen} - {None}

    shares = Counter(spec.name for node in graph.nodes for spec in node.param.param if spec.name)
    for node in graph.nodes:
        _keep_shared_names(node.param, shares)
    merged: dict[str, str] = {}
    for node in [node for node in graph.nodes if _is_affine(node, work)]:
        into = _absorber(graph, node, work, ends, keep_affine)
        if into is None:
            continue
        _multiply_add(into.param, work[into.param.name], *_affine(node.param, work))
        graph.absorb(into, node)
        merged[node.param.name] = into.param.name

    return Folded(
        net=graph.net(net.name, *ends),
        blobs={
            node.param.name: [blob.astype(np.float32, copy=False) for blob in work[node.param.name]]
            for node in graph.ancestors(*ends)
            if work[node.param.name]
        },
        outputs=tuple(graph.names[value] for value in ends),
        statistics=None if not domains else domains.pop() if len(domains) == 1 else "mixed",
        merged=merged,
        kept=tuple(node.param.name for node in graph.ancestors(*ends) if node.param.type == "Scale"),
    )


def is_of_batch(layer: pb.LayerParameter) -> bool:
    """Whether a layer is a BatchNorm or BN that normalizes with the statistics of the batch."""
    phase = layer.phase if layer.HasField("phase") else pb.TEST
    if layer.type == "BN":
        return read_bn(layer.bn_param).uses[phase] == "batch"
    if layer.type != "BatchNorm":
        return False
    options = layer.batch_norm_param
    return not options.use_global_stats if options.HasField("use_global_stats") else phase == pb.TRAIN


def check_frozen(layer: pb.LayerParameter) -> None:
    """Raise InputError, naming the layer, if it normalizes with the statistics of the batch or drops values."""
    if layer.type == "BN":
        if is_of_batch(layer):
            raise InputError(
                f'layer "{layer.name}" (BN) normalizes with the statistics of the batch, so its output depends on the '
                "other images of the batch and it can't be folded: in TEST, state bn_mode: INFERENCE for SegNet's "
                "version, with weights made for it, or moving_average: true"
            )
        return
    by_type: dict[str, pb.DialParameter | pb.BatchNormParameter | pb.MultiModalBatchNormParameter] = {
        "Dial": layer.dial_param,
        "BatchNorm": layer.batch_norm_param,
        "MultiModalBatchNorm": layer.multimodal_batch_norm_param,
    }
    options = by_type.get(layer.type)
    if options is not None and options.HasField("use_global_stats"):
        if options.use_global_stats:
            return
        cause = "use_global_stats: false"
    elif (options is not None or layer.type == "Dropout") and layer.HasField("phase") and layer.phase == pb.TRAIN:
        cause = "phase: TRAIN"
    else:
        return
    depends = "is drawn at random" if layer.type == "Dropout" else "depends on the other images of the batch"
    raise InputError(
        f'layer "{layer.name}" ({layer.type}) has {cause}, so its output {depends} and it can\'t be folded: '
        "leave that out for the TEST phase"
    )


def _become_power(layer: pb.LayerParameter) -> None:
    """Turn a Dropout layer that multiplies by a factor in TEST into a Power layer that does the same, in place."""
    ratio = layer.dropout_param.dropout_ratio
    layer.CopyFrom(pb.LayerParameter(name=layer.name, type="Power"))
    layer.power_param.scale = 1 - ratio


def _freeze(layer: pb.LayerParameter, blobs: Blobs) -> str | None:
    """Turn a Dial or BatchNorm layer into a Scale layer with bias, in place; return the domain of Dial's statistics."""
    options = layer.dial_param if layer.type == "Dial" else layer.batch_norm_param
    mean, variance = _stored(layer, blobs)
    domain = None
    if layer.type == "Dial":
        domain = "source" if layer.dial_param.test_stats == pb.DialParameter.SOURCE else "target"
    scale = 1 / np.sqrt(variance + options.eps)
    blobs[layer.name] = [scale, -scale * mean]

    frozen = pb.LayerParameter(name=layer.name, type="Scale")
    if layer.HasField("phase"):
        frozen.phase = layer.phase
    frozen.scale_param.bias_term = True
    layer.CopyFrom(frozen)
    return domain


def _stored(layer: pb.LayerParameter, blobs: Blobs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the variance that a layer normalizes with, (C,) each; InputError if they are of no use."""
    where = f'layer "{layer.name}" ({layer.type})'
    stored = [blob.astype(np.float64) for blob in blobs[layer.name]]
    count = 4 if layer.type == "Dial" else 3
    if len(stored) != count:
        raise InputError(
            f"{where} needs {count} blobs and the weights hold {len(stored)}: its statistics come from a training run"
        )
    mean, variance, normalizer = stored[-3:]
    if layer.type == "Dial":
        of_source = layer.dial_param.test_stats == pb.DialParameter.SOURCE
        if of_source and len(mean) > 2:
            raise InputError(
                f"{where} has statistics of {len(mean) - 1} sources, and a file has those of one domain: take the "
                "target's"
            )
        row = 0 if of_source else -1
        mean, variance = mean[row], variance[row]
    total = normalizer.item()
    if total == 0:
        raise InputError(f"{where}: no statistics were ever stored (its normalizer is 0): train the net first")
    mean, variance = mean / total, variance / total
    broken = np.flatnonzero(~(np.isfinite(mean) & np.isfinite(variance) & (variance >= 0)))
    if broken.size:
        channel = broken[0]
        raise InputError(
            f"{where}: channel {channel} has the stored mean {mean[channel]:g} and variance {variance[channel]:g}: "
            "the weights are damaged, or the training diverged"
        )
    return mean, variance


def _keep_shared_names(layer: pb.LayerParameter, shares: Counter[str]) -> None:
    """Drop from `param` what only training reads: all but names that layers share."""
    names = [spec.name if shares[spec.name] > 1 else "" for spec in layer.param]
    del layer.param[:]
    if any(names):
        layer.param.extend(pb.ParamSpec(name=name) if name else pb.ParamSpec() for name in names)


def _is_affine(node: Node, blobs: Blobs) -> bool:
    """Whether a node is a Scale layer with its own factor for each channel (axis 1)."""
    layer = node.param
    return (
        layer.type == "Scale"
        and len(node.bottoms) == 1
        and layer.scale_param.axis == 1
        and bool(blobs[layer.name])
        and blobs[layer.name][0].ndim == 1
        and not layer.param
    )


def _affine(layer: pb.LayerParameter, blobs: Blobs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Factors and shifts of an affine node, (C,) each."""
    scale, *shift = (blob.astype(np.float64) for blob in blobs[layer.name])
    return scale, shift[0] if layer.scale_param.bias_term else np.zeros_like(scale)


def _absorber(graph: Graph, node: Node, blobs: Blobs, ends: Sequence[int], keep_affine: bool) -> Node | None:
    """The node in front of an affine, if merging the affine into it is exact."""
    before = graph.producer(node.bottoms[0])
    read = graph.consumers(before.tops[0]) != [node] or before.tops[0] in ends
    if len(before.tops) != 1 or read or before.param.param:
        return None
    channels = len(blobs[node.param.name][0])
    if before.param.type == "Scale":
        fits = _is_affine(before, blobs) and len(blobs[before.param.name][0]) == channels
    elif keep_affine:
        fits = False
    elif before.param.type == "Convolution":
        fits = before.param.convolution_param.axis == 1 and before.param.convolution_param.num_output == channels
    elif before.param.type == "InnerProduct":
        fits = before.param.inner_product_param.axis == 1 and before.param.inner_product_param.num_output == channels
    else:
        fits = False
    return before if fits else None


def _multiply_add(
    layer: pb.LayerParameter,
    blobs: list[NDArray[np.floating[Any]]],
    scale: NDArray[np.float64],
    shift: NDArray[np.float64],
) -> None:
    """Change a layer's blobs so that its output channels are multiplied by `scale` and `shift` is added, (C,) each."""
    by_type: dict[str, pb.ScaleParameter | pb.ConvolutionParameter | pb.InnerProductParameter] = {
        "Scale": layer.scale_param,
        "Convolution": layer.convolution_param,
        "InnerProduct": layer.inner_product_param,
    }
    options = by_type[layer.type]
    out_axis = 1 if layer.type == "InnerProduct" and layer.inner_product_param.transpose else 0
    blobs[0] = blobs[0] * scale.reshape([-1 if axis == out_axis else 1 for axis in range(blobs[0].ndim)])
    if options.bias_term:
        blobs[1] = blobs[1] * scale + shift
    else:
        options.bias_term = True
        blobs.append(shift)

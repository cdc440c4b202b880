"""Makes an AutoDIAL net from any Caffe classification net: Dial layers, two domains' data, the target's entropy.

Section 3.1 of the paper puts a domain alignment layer in the place of every batch normalization (its Inception-BN), or
behind chosen layers of a network that has none (its AlexNet), and adds the target's entropy to the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from autodial.converters.classification import Classification, read_classification
from autodial.converters.dial_layers import Body, carry_weights, choose_layers
from autodial.converters.domain_data import DomainData, read_domain_data
from autodial.converters.split_bn import split_bn, split_weights
from autodial.errors import InputError, WorkError
from autodial.layers import layer_class
from autodial.net.net import Net
from autodial.netparam.layer_types import PARAMETRIZED
from autodial.proto import Weights
from autodial.proto import messages as pb

BATCH_SIZE = 64
"""Samples in a batch, source and target together, if the net does not say."""
ENTROPY_WEIGHT = 0.1
"""lambda, the weight of the target's entropy loss, as in the authors' released nets."""
TOLERANCE = 1e-4
"""Largest difference of the logits from the original net's, as a fraction of the largest magnitude."""

_REPLACED = ("SoftmaxWithLoss", "Accuracy", "Softmax", "Silence")
"""Types of layers that `DialReport.removed` leaves out."""


@dataclass(frozen=True)
class DialReport:
    """What was done to a net.

    Attributes:
        logits: name of the main logits' blob.
        replaced: names of the BatchNorm layers, with the names of the Dial layers that replace them.
        inserted: names of the layers that a Dial and a Scale layer were put behind.
        renamed: names of the layers with the classes' weights, with their new names; empty without `classes`.
        removed: names of the layers that were left out, besides data, losses on labels, accuracies and Softmax.
        missing: names of layers whose parameters the weights lack; empty without weights.
        ignored: names of layers in the weights that the net lacks.
        max_difference: largest absolute difference of a logit from the original net's in TEST, on random images; None
            if the nets need not agree, or nothing was compared.
        logits_range: largest magnitude of the original net's logits on these images.
        notes: further sentences for the user; they name parameters of `dialize` in backticks.
    """

    logits: str
    replaced: dict[str, str]
    inserted: tuple[str, ...]
    renamed: dict[str, str]
    removed: tuple[str, ...]
    missing: tuple[str, ...]
    ignored: tuple[str, ...]
    max_difference: float | None
    logits_range: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Dialized:
    """An AutoDIAL net.

    Attributes:
        net: a train_val net; its lists are source.txt, target.txt and target_test.txt.
        weights: what the net starts from, without layers that start from their fillers; None if none were given.
        batches: what a batch holds, in a sentence.
        sections: titles of the net's parts by their first layer's name, for `net_to_text`.
        report: what was done.
    """

    net: pb.NetParameter
    weights: Weights | None
    batches: str
    sections: dict[str, str]
    report: DialReport


def dialize(
    net: pb.NetParameter,
    weights: Weights | None = None,
    *,
    after: Sequence[str] | None = None,
    classes: int | None = None,
    source_batch: int | None = None,
    target_batch: int | None = None,
    size: tuple[int, int] | None = None,
    transform: pb.TransformationParameter | None = None,
    dropout: bool = True,
    logits: str | None = None,
    base_dir: Path | None = None,
) -> Dialized:
    """Turn a classification net, train_val or deploy, into its AutoDIAL net.

    - A BatchNorm layer becomes a Dial layer NAME-dial with the same eps. Both domains start from the statistics in
      `weights`, divided by their normalizer, with a normalizer of 1. A Scale or Bias behind it stays. No layer keeps
      the old name, so training can also start from the original's weights; statistics then start with the training.
    - A BN layer of SegNet, PSPNet or temporal segment networks counts as a BatchNorm and a Scale layer, NAME-scale.
    - A Dial and a Scale layer, NAME-dial and NAME-scale, are inserted behind each layer that `after` chooses.
    - Data layers and losses are replaced. In TRAIN, a batch holds the source's samples first; SoftmaxWithLoss reads
      the source's logits, EntropyLoss the target's. Auxiliary classifiers, in TRAIN alone, keep their losses on the
      source and get no entropy loss, because the paper's entropy is that of the net's prediction. In TEST,
      Accuracy and the net's own Softmax read the logits.
    - With `classes`, every classifier's layer is renamed to NAME-new, so that no weights are copied into it, and learns
      with lr_mult 10 and 20 for the bias (paper, section 4.1).

    Nothing else changes: frozen layers stay frozen.

    The result is built in both phases, unless a layer is of a type that AutoDIAL does not compute; such layers stay as
    they are, and a note names them. If it keeps the original's weights and classifier, and no Dial layer was
    inserted, both nets run in TEST on random images, and must agree.

    Args:
        net: upgraded to current Caffe; it is not changed.
        weights: the net's weights; layers that the net lacks are ignored.
        after: names of layers, "conv" and "ip" for every Convolution or InnerProduct; layers before
            a BatchNorm get no second Dial. None: no layer if the net has BatchNorm layers, else every InnerProduct.
        classes: number of classes, at least 2, of a new classifier; None keeps the net's own.
        source_batch, target_batch: samples of each domain in a batch; None for both: half of the net's batch each, or
            of 64.
        size: height and width that images are resized to; None: see read_domain_data.
        transform: replaces the transform_param of the net's data layer.
        dropout: False removes Dropout (or sets its ratio to 0 if it doesn't work in place), as the paper does in
            AlexNet: statistics stored under dropout are not those of TEST.
        logits: name of the main logits' blob, where the net leaves a choice.
        base_dir: folder of the net's file.

    Raises:
        InputError: the net can't be dialized, or weights or options don't fit.
        WorkError: the net differs from the original where they must agree.
    """
    if classes is not None and classes < 2:
        raise InputError(f"`classes` must be at least 2, not {classes}")
    for layer in net.layer:
        if layer.type == "Dial":
            raise InputError(f'layer "{layer.name}" is a Dial layer already, so the net is an AutoDIAL net')
    weights = None if weights is None else split_weights(net, weights)
    net, _ = split_bn(net, {})
    parts = read_classification(net, logits)
    unknown = _unknown(net, parts)
    data = read_domain_data(net, parts, weights, size=size, transform=transform, base_dir=base_dir)
    source_batch, target_batch = _batches(source_batch, target_batch, data.batch_size)
    body = Body(net, parts, source_batch, classes, dropout)
    body.build(choose_layers(net, parts, after))

    result = pb.NetParameter()
    result.CopyFrom(net)
    result.name = f"AutoDIAL-{net.name}" if net.name else "AutoDIAL"
    del result.layer[:]
    readers = data.layers(source_batch, target_batch, data.test_batch_size or source_batch + target_batch)
    losses = _losses(parts, data.label, source_batch)
    result.layer.extend([*readers, *body.layers, *losses])
    carried, ignored = (None, []) if weights is None else carry_weights(weights, net, body)

    missing: list[str] = []
    difference = spread = None
    if data.shape is not None and not unknown:
        original = _original(net, parts, data)
        train, test = _build(result, data)
        if weights is not None and carried is not None:
            missing = [name for name in train.load_weights(carried) if name not in body.fresh]
            if not (missing or body.fresh or _batch_statistics_in_test(parts)):
                original.load_weights(weights)
                test.load_weights(carried)
                difference, spread = _compare(original, test, data, parts)
    if unknown and carried is not None:
        kept = {layer.name for layer in carried.layers} | body.fresh
        # a Scale or Bias with two bottoms has no parameters
        alone = [one for one in body.layers if len(one.bottom) == 1 and one.type in PARAMETRIZED]
        missing = [one.name for one in alone if one.name not in kept]
    report = DialReport(
        logits=parts.heads[0].logits,
        replaced=body.replaced,
        inserted=tuple(body.inserted),
        renamed=body.renamed,
        removed=_removed(net, parts),
        missing=tuple(missing),
        ignored=tuple(ignored),
        max_difference=difference,
        logits_range=spread,
        notes=(*data.notes, *unknown, *([] if weights else _unfilled(body.layers))),
    )
    sections = {
        readers[0].name: "Data",
        body.layers[0].name: "The network",
        losses[0].name: "The source's labels and the target's entropy",
    }
    batches = (
        f"Every batch holds {source_batch} labelled source samples, then {target_batch} unlabelled target samples."
    )
    return Dialized(result, carried, batches, sections, report)


def _batches(source: int | None, target: int | None, total: int | None) -> tuple[int, int]:
    if source is None and target is None:
        total = max(total or BATCH_SIZE, 2)
        source, target = total // 2, total - total // 2
    elif source is None or target is None:
        raise InputError("`source_batch` and `target_batch` belong together: state both or neither")
    if min(source, target) < 1:
        raise InputError(f"a batch of {source} source and {target} target samples lacks a domain: both need at least 1")
    return source, target


def _unknown(net: pb.NetParameter, parts: Classification) -> list[str]:
    """A note on layers of types that can't be computed here; none if there are none."""
    layers: dict[str, str] = {}
    for layer in (net.layer[number] for number in parts.body):
        try:
            layer_class(layer.type)
        except InputError:
            layers.setdefault(layer.type, layer.name)
    if not layers:
        return []
    types = ", ".join(f'{kind} (layer "{name}")' for kind, name in layers.items())
    return [
        f"AutoDIAL does not compute layers of the types {types}: they stay as they are, the net was neither built nor "
        "compared with the original, and only a Caffe that has these layers and Dial trains it"
    ]


def _removed(net: pb.NetParameter, parts: Classification) -> tuple[str, ...]:
    kept = {net.layer[number].name for number in parts.body}
    kept.update(layer.name for layer, _ in parts.data.values())
    others = (layer.name for layer in net.layer if layer.type not in _REPLACED)
    return tuple(dict.fromkeys(name for name in others if name not in kept))


def _unfilled(layers: Sequence[pb.LayerParameter]) -> list[str]:
    """A note on layers without a weight_filler, as in deploy files: their weights would start at 0."""
    names = [
        layer.name
        for layer in layers
        if (layer.type == "Convolution" and not layer.convolution_param.HasField("weight_filler"))
        or (layer.type == "InnerProduct" and not layer.inner_product_param.HasField("weight_filler"))
    ]
    if not names:
        return []
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [f"{some} state no weight_filler and start at 0, so the net needs weights to train from"]


# --- the losses


def _losses(parts: Classification, label: str, slice_point: int) -> list[pb.LayerParameter]:
    """The layers that read each head's logits, starting with the main head."""
    layers = []
    for i, head in enumerate(parts.heads):
        source, target = f"{head.logits}-source", f"{head.logits}-target"
        split = _layer("Slice", f"{head.logits}-slice", [head.logits], [source, target], pb.TRAIN)
        split.slice_param.axis = 0
        split.slice_param.slice_point.append(slice_point)
        name = "loss-source" if i == 0 or head.loss is None else head.loss.name
        loss = _layer("SoftmaxWithLoss", name, [source, label], [name], pb.TRAIN)
        if head.loss is not None:
            loss.loss_weight.extend(weight for weight in head.loss.loss_weight[:1] if weight != 1)
            for field in ("loss_param", "softmax_param"):
                if head.loss.HasField(field):
                    getattr(loss, field).CopyFrom(getattr(head.loss, field))
        if i == 0:
            entropy = _layer("EntropyLoss", "loss-target", [target], ["loss-target"], pb.TRAIN)
            entropy.loss_weight.append(ENTROPY_WEIGHT)
        else:
            entropy = _layer("Silence", f"{target}-silence", [target], [], pb.TRAIN)
        layers += [split, loss, entropy]
    layers.append(_layer("Accuracy", "accuracy", [parts.heads[0].logits, label], ["accuracy"], pb.TEST))
    for softmax in parts.softmax:
        layers.append(_layer("Softmax", softmax.name, softmax.bottom, softmax.top, pb.TEST))
        if softmax.HasField("softmax_param"):
            layers[-1].softmax_param.CopyFrom(softmax.softmax_param)
    return layers


def _layer(kind: str, name: str, bottoms: Sequence[str], tops: Sequence[str], phase: pb.Phase) -> pb.LayerParameter:
    return pb.LayerParameter(name=name, type=kind, bottom=bottoms, top=tops, include=[pb.NetStateRule(phase=phase)])


# --- the check


def _original(net: pb.NetParameter, parts: Classification, data: DomainData) -> Net:
    """The original's TEST phase up to the logits, fed with two samples; InputError unless logits are (N, classes)."""
    assert data.shape is not None
    graph, name = parts.test, parts.test.names[parts.scores]
    graph.feed(graph.names.index(data.blobs[pb.TEST]), (2, *data.shape))
    built = Net(graph.net(net.name, parts.scores), pb.TEST)
    shape = built.blob_shapes[name]
    if len(shape) < 2 or any(extent != 1 for extent in shape[2:]):
        raise InputError(
            f'the logits "{name}" have the shape {shape} rather than (N, classes), so the net does not give one set of '
            "class scores for each image"
        )
    return built


def _build(net: pb.NetParameter, data: DomainData) -> tuple[Net, Net]:
    """The nets for TRAIN and TEST, with Input layers in place of data layers that read files."""
    assert data.shape is not None
    fed = pb.NetParameter()
    fed.CopyFrom(net)
    for layer in fed.layer:
        if layer.type in ("ImageData", "HDF5Data"):
            options = layer.image_data_param if layer.type == "ImageData" else layer.hdf5_data_param
            replacement = pb.LayerParameter(name=layer.name, type="Input", top=layer.top, include=layer.include)
            for shape in ((options.batch_size, *data.shape), (options.batch_size,)):
                replacement.input_param.shape.add(dim=shape)
            layer.CopyFrom(replacement)
    nets = []
    for phase, name in ((pb.TRAIN, "TRAIN"), (pb.TEST, "TEST")):
        try:
            nets.append(Net(fed, phase))
        except InputError as error:
            raise InputError(f"the net would not run in the {name} phase: {error}") from error
    train, test = nets
    return train, test


def _batch_statistics_in_test(parts: Classification) -> bool:
    """Whether a BatchNorm of the original normalizes with the batch's own statistics in TEST."""
    options = (node.param.batch_norm_param for node in parts.test.ancestors(parts.scores))
    return any(param.HasField("use_global_stats") and not param.use_global_stats for param in options)


def _compare(original: Net, test: Net, data: DomainData, parts: Classification) -> tuple[float, float]:
    """The largest difference of a logit on random images, and the original's largest logit.

    Raises:
        WorkError: they differ by more than TOLERANCE.
    """
    assert data.shape is not None
    blob, theirs, ours = data.blobs[pb.TEST], parts.test.names[parts.scores], parts.heads[0].logits
    images = torch.from_numpy(np.random.default_rng(0).normal(0, 64, (2, *data.shape)).astype(np.float32))
    with torch.no_grad():
        expected = original.blobs({blob: images}, [theirs])[theirs]
        logits = test.blobs({blob: images, data.label: torch.zeros(2)}, [ours])[ours]
    difference, spread = (logits - expected).abs().max().item(), expected.abs().max().item()
    if not difference <= TOLERANCE * spread:
        raise WorkError(
            f"the dialized net's logits differ from the original's by {difference:.3g}, where the largest is "
            f"{spread:.3g}, on random images: are the weights damaged, or their statistics not finite?"
        )
    return difference, spread

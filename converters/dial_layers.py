"""The layers of an AutoDIAL net between data and logits, and their weights: Dial replaces BatchNorm or is inserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autodial.converters.classification import Classification
from autodial.data.sequences import is_one_name
from autodial.errors import InputError
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb

KINDS = {"conv": "Convolution", "ip": "InnerProduct"}
"""Words for all layers of a type, where layers to put Dial behind are chosen."""

_FRACTION = 0.95
"""Dial's moving_average_fraction where a BatchNorm states none, as in the nets that ship. Fine-tuning is short: with
Caffe's 0.999, the first iterations' statistics would still count at the end."""


def choose_layers(net: pb.NetParameter, parts: Classification, after: Sequence[str] | None) -> set[int]:
    """Numbers of the layers that a Dial layer is put behind; `after` as in `dialize`."""
    layers = {number: net.layer[number] for number in parts.body}
    types = {layer.type for layer in layers.values()}
    if after is None:
        if "BatchNorm" in types:
            return set()
        if "InnerProduct" not in types:
            raise InputError(
                "the net has neither BatchNorm nor InnerProduct layers: name the layers that Dial goes behind in "
                '`after`, or "conv" for every Convolution'
            )
        after = ("ip",)
    if is_one_name(after):
        raise InputError(f"`after` is a list of layers' names, not one name: [{after!r}]")
    chosen: set[int] = set()
    for word in after:
        kind = KINDS.get(word)
        found = {n for n, layer in layers.items() if (layer.type == kind if kind else layer.name == word)}
        if not found:
            what = f"{kind} layer" if kind else f'layer "{word}"'
            names = ", ".join(dict.fromkeys(layer.name for layer in layers.values()))
            raise InputError(f"`after` {word}: no {what} lies between the data and the logits; there are {names}")
        chosen |= found
    for number in sorted(chosen):
        layer = layers[number]
        if len(layer.top) != 1:
            raise InputError(
                f'`after`: layer "{layer.name}" ({layer.type}) has {len(layer.top)} tops, and Dial takes one'
            )
        readers = (other for n, other in layers.items() if n > number and layer.top[0] in other.bottom)
        if next((other.type for other in readers), None) == "BatchNorm":
            chosen.remove(number)
    return chosen


class Body:
    """The layers between data and logits.

    Attributes:
        layers: in order.
        origins: by layer name, the name of the original layer whose weights it starts from.
        fresh: names of the layers whose parameters start from their fillers.
        replaced, inserted, renamed: see DialReport.
    """

    def __init__(
        self, net: pb.NetParameter, parts: Classification, slice_point: int, classes: int | None, dropout: bool
    ) -> None:
        self.layers: list[pb.LayerParameter] = []
        self.origins: dict[str, str] = {}
        self.fresh: set[str] = set()
        self.replaced: dict[str, str] = {}
        self.inserted: list[str] = []
        self.renamed: dict[str, str] = {}
        self._net, self._parts, self._slice_point = net, parts, slice_point
        self._classes, self._dropout = classes, dropout

    def build(self, chosen: set[int]) -> None:
        """Make the layers, with Dial behind the chosen ones."""
        classifiers = {head.classifier for head in self._parts.heads}
        renewed = {*classifiers, *(number for head in self._parts.heads for number in head.per_class)}
        for number in self._parts.body:
            original = self._net.layer[number]
            layer = pb.LayerParameter()
            layer.CopyFrom(original)
            if number in self._parts.auxiliary and not layer.include:
                layer.ClearField("exclude")
                layer.include.add(phase=pb.TRAIN)
            in_place = list(layer.bottom) == list(layer.top)
            if layer.type == "Dropout" and not self._dropout:
                layer.dropout_param.dropout_ratio = 0
            if layer.type == "BatchNorm":
                self._become_dial(layer)
                self.replaced[original.name] = layer.name
            if self._classes is not None and number in renewed:
                layer.name += "-new"
                self.fresh.add(layer.name)
                if number in classifiers:
                    _renew(layer, self._classes)
                    self.renamed[original.name] = layer.name
            else:
                self.origins[layer.name] = original.name
            if layer.type != "Dropout" or self._dropout or not in_place:
                self.layers.append(layer)
            if number in chosen:
                self._insert_behind(original, layer.include, layer.exclude)

    def _become_dial(self, layer: pb.LayerParameter) -> None:
        stated = layer.batch_norm_param
        dial = _dial(f"{layer.name}-dial", layer.bottom[0], layer.top[0], self._slice_point)
        if stated.HasField("eps"):
            dial.dial_param.eps = stated.eps
        if stated.HasField("moving_average_fraction"):
            dial.dial_param.moving_average_fraction = stated.moving_average_fraction
        # layers that share their statistics share the alpha that mixes them
        names = [spec.name for spec in layer.param]
        if any(names):
            dial.param[0].name = f"{next(filter(None, names))}-alpha"
            for name in names:
                dial.param.add(name=name or None, lr_mult=0, decay_mult=0)
        dial.include.extend(layer.include)
        dial.exclude.extend(layer.exclude)
        layer.CopyFrom(dial)

    def _insert_behind(
        self, original: pb.LayerParameter, include: Sequence[pb.NetStateRule], exclude: Sequence[pb.NetStateRule]
    ) -> None:
        blob = original.top[0]
        scale = pb.LayerParameter(
            name=f"{original.name}-scale",
            type="Scale",
            bottom=[blob],
            top=[blob],
            param=[pb.ParamSpec(lr_mult=1, decay_mult=0)] * 2,
            scale_param=pb.ScaleParameter(bias_term=True),
        )
        for layer in (_dial(f"{original.name}-dial", blob, blob, self._slice_point), scale):
            layer.include.extend(include)
            layer.exclude.extend(exclude)
            self.layers.append(layer)
            self.fresh.add(layer.name)
        self.inserted.append(original.name)


def _dial(name: str, bottom: str, top: str, slice_point: int) -> pb.LayerParameter:
    return pb.LayerParameter(
        name=name,
        type="Dial",
        bottom=[bottom],
        top=[top],
        param=[pb.ParamSpec(lr_mult=1, decay_mult=0)],
        dial_param=pb.DialParameter(
            slice_point=slice_point,
            moving_average_fraction=_FRACTION,
            weight_filler=pb.FillerParameter(type="constant", value=1),
        ),
    )


def _renew(layer: pb.LayerParameter, classes: int) -> None:
    """Change the classifier's number of classes, and multiply its learning rates by ten."""
    options = layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param
    options.num_output = classes
    if not options.HasField("weight_filler"):
        options.weight_filler.CopyFrom(pb.FillerParameter(type="gaussian", std=0.01))
    blobs = 2 if options.bias_term else 1
    while len(layer.param) < blobs:
        layer.param.add(decay_mult=1 - len(layer.param))
    for spec, lr_mult in zip(layer.param, (10, 20), strict=False):
        spec.lr_mult = lr_mult


# --- the weights


def carry_weights(weights: Weights, net: pb.NetParameter, body: Body) -> tuple[Weights, list[str]]:
    """The weights of the layers that keep their weights, and the names of weights without a layer.

    Raises:
        InputError: no weights have a layer, or a BatchNorm's blobs are not Caffe's.
    """
    stored = {layer.name: layer for layer in weights.layers if layer.blobs}
    shared = _shared_blobs(net, stored)
    originals = {layer.name: layer for layer in net.layer}
    carried = Weights(weights.name)
    for layer in {layer.name: layer for layer in body.layers}.values():
        origin = body.origins.get(layer.name)
        if origin is None:
            continue
        found = stored.get(origin, LayerWeights(layer, []))
        blobs = list(found.blobs)
        for i, spec in enumerate(originals[origin].param):
            if spec.name in shared and (i >= len(blobs) or blobs[i] is None):
                blobs[i : i + 1] = [shared[spec.name]]
        if blobs and layer.type == "Dial":
            carried.layers.append(LayerWeights(layer, _dial_blobs(origin, blobs)))
        elif blobs:
            carried.layers.append(LayerWeights(layer, blobs, found.legacy))
    if not carried.layers:
        raise InputError("no layer of the weights has the name of one of the net's: are they another net's?")
    known = {*body.origins.values(), *body.renamed}
    return carried, [name for name in stored if name not in known]


def _shared_blobs(net: pb.NetParameter, stored: Mapping[str, LayerWeights]) -> dict[str, NDArray[np.float32]]:
    """Shared blobs by the name that layers share them under; HDF5 files store them with the first layer only."""
    shared: dict[str, NDArray[np.float32]] = {}
    for layer in net.layer:
        for spec, blob in zip(layer.param, stored[layer.name].blobs if layer.name in stored else (), strict=False):
            if spec.name and blob is not None:
                shared.setdefault(spec.name, blob)
    return shared


def _dial_blobs(name: str, blobs: Sequence[NDArray[np.float32] | None]) -> list[NDArray[np.float32]]:
    """Dial's four blobs from BatchNorm's three: both domains start from the stored statistics."""
    values = [blob.astype(np.float64).ravel() for blob in blobs if blob is not None]
    if len(values) != 3:
        raise InputError(
            f'layer "{name}" (BatchNorm) needs mean, variance and normalizer, and the weights hold {len(values)} blobs '
            "for it: one with a scale and a shift inside must be split into BatchNorm and Scale first"
        )
    mean, variance, normalizer = values
    total = normalizer.item()
    # a normalizer of 0, nothing stored yet, means the same to both layers
    rows = [np.stack([row, row]) / (total or 1) for row in (mean, variance)]
    return [np.ones(1, np.float32), *(row.astype(np.float32) for row in rows), np.array([total != 0], np.float32)]

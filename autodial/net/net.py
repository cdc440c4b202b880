"""A NetParameter and a phase, as a torch module that runs, trains, traces and exports."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from google.protobuf.message import Message
from torch import Tensor, nn

from autodial.errors import InputError
from autodial.layers import Layer, LayerContext, LayerError, Shape, layer_class
from autodial.layers.base import check_size
from autodial.layers.dial import DomainAlignment
from autodial.net.fusion import fusible, is_watched, run_fused
from autodial.netparam.entropies import settle_entropies
from autodial.netparam.net_state import filter_net, insert_splits
from autodial.proto import LayerWeights, Weights, fork_fields
from autodial.proto import messages as pb
from autodial.system.seeding import derive_seed
from autodial.wording import alternatives, counted

_log = logging.getLogger(__name__)

_MULTIPLIERS = ("lr_mult", "decay_mult")


@dataclass(eq=False)
class Param:
    """A blob that the solver may change; a blob that layers share is listed once.

    Attributes:
        layer: name of the layer that owns it.
        index: its place among that layer's blobs.
        lr_mult, decay_mult: multipliers of the solver's learning rate and weight decay.
        module: the layer.
        stated: which of the two a layer that shares the blob has stated; others may only state the same.
    """

    layer: str
    index: int
    lr_mult: float
    decay_mult: float
    module: Layer
    stated: set[str]

    @property
    def tensor(self) -> Tensor:
        return self.module.blobs[self.index]


RENAME = "rename the layer to train it from its fillers"
"""What to do in training where a layer's blobs don't fit."""


def of_another_net(net: str) -> str:
    """What it means elsewhere, and what to do there.

    Args:
        net: the net's file.
    """
    return (
        f"these are another net's weights, or another version's: name weights of {net}, or the net that these belong to"
    )


class Net(nn.Module):
    """A Caffe net in one phase.

    The layers that the phase's rules leave are built in the order of the prototxt, with a Split layer behind every
    blob that has several consumers, as Caffe does. Blobs that data layers (Input, ImageData) produce are fed:
    `net({"data": x, "label": y})` returns the output blobs, those that no layer consumes. Layers read the latest blob
    of a name, so tops that are named like a bottom work in place in effect; no tensor is overwritten.

    Parameters with lr_mult 0 do not require a gradient, and none goes to bottoms with propagate_down false. With
    `force_backward: true` in the prototxt all parameters do, and gradients go to all bottoms that can have one.

    Args:
        param: the NetParameter; it is not changed.
        phase: pb.TRAIN or pb.TEST.
        level, stages: for the include and exclude rules; the level None is that of the prototxt's `state`, whose
            stages count, too.
        seed: the solver's random_seed; fillers, dropout masks and data layers draw from it and their layer's name.
        base_dir: folder of the prototxt; relative paths in it mean the working directory, then this folder.

    Attributes:
        param: the net as it was built: filtered, with splits, every layer's phase filled in.
        phase: as given.
        layer_names: in order.
        inputs: blobs that must be fed.
        outputs: blobs that no layer consumes, in alphabetical order, as Caffe reports them.
        blob_shapes: shapes at set-up, by blob name; the batch axis may differ in each call.
        loss_weights: weight in the loss of each blob that has one.
        params: what the solver may change, in order.

    Raises:
        InputError: naming the layer, for all that Caffe refuses and for layer types that do not exist here.
    """

    def __init__(
        self,
        param: pb.NetParameter,
        phase: pb.Phase,
        *,
        level: int | None = None,
        stages: Collection[str] = (),
        seed: int = 0,
        base_dir: Path | None = None,
    ) -> None:
        super().__init__()
        self.phase = phase
        self.seed = seed
        self.base_dir = base_dir
        if param.debug_info:
            _log.warning("The net's debug_info is ignored: there is no trace of every blob")
        for path in fork_fields(param):
            if "." not in path:  # a layer's come later, with its name
                raise InputError(f"the net's {path}, which only other versions of Caffe have, is not supported")
        filtered = filter_net(param, phase, level=level, stages=stages)
        _check_types(filtered)
        for name in settle_entropies(filtered):
            _log.warning(
                'Layer "%s" (EntropyLoss) reads what a Softmax makes and is taken for Xlearn\'s, of probabilities: '
                "state entropy_param { } to say so, or loss_param { } for AutoDIAL's, of scores",
                name,
            )
        self.param = insert_splits(_with_automatic_tops(filtered))
        self.layer_names: list[str] = [layer.name for layer in self.param.layer]
        self._namesakes = Counter(self.layer_names)
        self.blob_shapes: dict[str, Shape] = {}
        self.loss_weights: dict[str, float] = {}
        self.params: list[Param] = []
        self.layers = nn.ModuleDict()
        self._order: list[Layer] = []
        self._shared: dict[str, Param] = {}
        self._reshaped: dict[Layer, list[tuple[str, Param, Shape]]] = {}
        self._plans: dict[tuple[tuple[str, ...], bool], list[tuple[range, list[str]]]] = {}
        for message in self.param.layer:
            try:
                self._add(message)
            except LayerError as error:
                raise InputError(f"{_describe(message)}: {error}") from error
        self._by_name = dict(zip(self.layer_names, self._order, strict=True))
        # The first of each name; only layers without blobs and data may share one.
        self._places = {name: i for i, name in reversed(list(enumerate(self.layer_names)))}
        self.inputs: tuple[str, ...] = tuple(top for name in self.data_layers for top in self.tops(name))
        available: set[str] = set()
        for message in self.param.layer:
            available.difference_update(message.bottom)
            available.update(message.top)
        self.outputs: tuple[str, ...] = tuple(sorted(available))
        self._overwritten = self._find_overwritten()
        self._fusible_up_to = self._find_fusible() if phase == pb.TRAIN else {}
        # not train(), which would undo what a layer's own phase says
        self.training = self.layers.training = phase == pb.TRAIN

    # --- construction

    def _add(self, message: pb.LayerParameter) -> None:
        cls = layer_class(message.type)
        for option in cls.unread_options(message):
            _log.warning("%s: %s does nothing in a layer of this type", _describe(message), option)
        for path in fork_fields(message):
            if path not in cls.fork_fields:
                raise LayerError(f"{path}, which only other versions of Caffe have, is not supported here")
        if message.blobs:
            raise LayerError("blobs in a prototxt are not read: give weights as a caffemodel")
        for field, value in _numbers(message):
            if not isfinite(value):
                raise LayerError(f"{field} must be a finite number, and is {value}")
        _check_count("bottom", len(message.bottom), cls.bottoms)
        _check_count("top", len(message.top), cls.tops)
        named: set[str] = set()
        for j, top in enumerate(message.top):
            in_place = j < len(message.bottom) and message.bottom[j] == top
            if top in self.blob_shapes and not in_place:
                raise LayerError(f'top blob "{top}" is already produced by an earlier layer')
            if in_place and not cls.in_place:
                raise LayerError(f"can't work in place: give its top another name than its bottom's, \"{top}\"")
            if top in named:
                raise LayerError(f'top blob "{top}" is named twice')
            named.add(top)
        if message.propagate_down and len(message.propagate_down) != len(message.bottom):
            raise LayerError("propagate_down must be given for no bottom or for each")
        for j in sorted(cls.without_gradient(len(message.bottom))):
            if j < len(message.propagate_down) and message.propagate_down[j]:
                raise LayerError(
                    f'propagate_down is true for bottom "{message.bottom[j]}", to which this type has no gradient'
                )
        shapes = tuple(self.blob_shapes[bottom] for bottom in message.bottom)
        context = LayerContext(
            param=message,
            phase=message.phase,
            bottom_shapes=shapes,
            num_tops=len(message.top),
            generator=torch.Generator().manual_seed(derive_seed(self.seed, message.name, "fill")),
            seed=self.seed,
            base_dir=self.base_dir,
        )
        with _impossible_size_errors(message, shapes):
            layer = cls.from_caffe(context)
            layer.train(message.phase == pb.TRAIN)
            top_shapes = dict(zip(message.top, layer.top_shapes(shapes), strict=True))
        for top, shape in top_shapes.items():
            check_size(f'top blob "{top}"', shape)
        self.blob_shapes.update(top_shapes)
        self.layers.add_module(_module_name(message.name, self.layers), layer)
        self._order.append(layer)
        self._add_loss_weights(message, layer)
        self._add_params(message, layer)

    def _add_loss_weights(self, message: pb.LayerParameter, layer: Layer) -> None:
        if layer.is_loss and not message.loss_weight:
            message.loss_weight.extend([1.0] + [0.0] * (len(message.top) - 1))
        if message.loss_weight and len(message.loss_weight) != len(message.top):
            raise LayerError("loss_weight must be given for no top or for each")
        reachable = set(range(len(message.bottom))) - layer.without_gradient(len(message.bottom))
        if any(message.loss_weight) and self.phase == pb.TRAIN and message.bottom and not reachable:
            raise LayerError("loss_weight must be 0, as no gradient comes from this type of layer")
        weights = message.loss_weight or [0.0] * len(message.top)
        self.loss_weights.update((top, weight) for top, weight in zip(message.top, weights, strict=True) if weight)

    def _add_params(self, message: pb.LayerParameter, layer: Layer) -> None:
        blobs = layer.blobs
        if (blobs or layer.is_data) and self._namesakes[message.name] > 1:
            raise LayerError(
                "another layer has the same name; weights and data are found by name, so give each its own"
            )
        if len(message.param) > len(blobs):
            raise LayerError(
                f"param is given {counted(len(message.param), 'time')} and the layer has {counted(len(blobs), 'blob')}"
            )
        for i in layer.statistics:
            # as the original does, so that snapshots state what the solver leaves alone
            while len(message.param) <= i:
                spec = message.param.add()
                if len(message.param) - 1 in layer.statistics:
                    spec.lr_mult = 0
            if message.param[i].lr_mult:
                raise LayerError(f"param {i} holds statistics, which are not learned; its lr_mult must be 0")
        for i, blob in enumerate(blobs):
            spec = message.param[i] if i < len(message.param) else pb.ParamSpec()
            owner = self._shared.get(spec.name) if spec.name else None
            if owner is not None:
                self._share(layer, i, spec, owner)
                continue
            stated = {field for field in _MULTIPLIERS if spec.HasField(field)}
            param = Param(message.name, i, spec.lr_mult, spec.decay_mult, layer, stated)
            self.params.append(param)
            if spec.name:
                self._shared[spec.name] = param
            if isinstance(blob, nn.Parameter):
                blob.requires_grad_(param.lr_mult != 0 or self.param.force_backward)

    def _share(self, layer: Layer, index: int, spec: pb.ParamSpec, owner: Param) -> None:
        blob, owned = layer.blobs[index], owner.tensor
        if blob.shape != owned.shape and (spec.share_mode != pb.ParamSpec.PERMISSIVE or blob.numel() != owned.numel()):
            raise LayerError(
                f'param "{spec.name}" has shape {tuple(blob.shape)} here and {tuple(owned.shape)} '
                f'in layer "{owner.layer}", which owns it'
            )
        for field in _MULTIPLIERS:
            if not spec.HasField(field):
                continue
            value = getattr(spec, field)
            if field in owner.stated and getattr(owner, field) != value:
                raise LayerError(
                    f'param "{spec.name}" has {field} {value:g} here and {getattr(owner, field):g} '
                    "in an earlier layer that shares it"
                )
            setattr(owner, field, value)
            owner.stated.add(field)
        if isinstance(owned, nn.Parameter):
            owned.requires_grad_(owner.lr_mult != 0 or self.param.force_backward)
        name = _attribute(layer, blob)
        assert name is not None, "a blob is a parameter or a buffer"
        if blob.shape == owned.shape:
            setattr(layer, name, owned)
        else:
            delattr(layer, name)
            self._reshaped.setdefault(layer, []).append((name, owner, tuple(blob.shape)))
            setattr(layer, name, owned.view(blob.shape))

    def _find_overwritten(self) -> set[str]:
        """Loss blobs without a gradient of their own, because a layer that reads them gives them another.

        Where the loss_weight is stated, a Split adds the two (Caffe: InsertSplits).
        """
        found: set[str] = set()
        under_loss = set(self.loss_weights)
        for message, layer in zip(reversed(self.param.layer), reversed(self._order), strict=True):
            if under_loss.intersection(message.top):
                under_loss.update(message.bottom)
                stopped = {j for j, propagate in enumerate(message.propagate_down) if not propagate}
                stopped |= layer.without_gradient(len(message.bottom))
                reached = {name for j, name in enumerate(message.bottom) if j not in stopped}
                for blob in sorted(self.loss_weights.keys() & reached - set(message.top) - found):
                    found.add(blob)
                    if self.phase == pb.TRAIN:
                        _log.warning(
                            '%s: reads the loss "%s", whose loss_weight is not stated, and its gradient takes the '
                            "place of the loss's own, as in Caffe: state loss_weight to have both added",
                            _describe(message),
                            blob,
                        )
        return found

    def _find_fusible(self) -> dict[int, range]:
        """Ranges of layers that can be run as one, by the number of the last layer."""
        found = {}
        for i in range(len(self._order)):
            layers = range(i, i + fusible(self.param.layer, self._order, i))
            if len(layers) > 1 and not any(self._order[k] in self._reshaped for k in layers):
                found[layers[-1]] = layers
        return found

    # --- running

    def layer(self, name: str) -> Layer:
        """The layer of that name."""
        return self._by_name[name]

    @property
    def data_layers(self) -> dict[str, Layer]:
        """The layers whose tops are fed, by name, in order."""
        return {name: layer for name, layer in self._by_name.items() if layer.is_data}

    def tops(self, layer: str) -> tuple[str, ...]:
        """The blobs that a layer produces."""
        return tuple(self.param.layer[self._places[layer]].top)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run every layer on `inputs`, which holds a tensor for each of `self.inputs`; the output and loss blobs."""
        return self._run(inputs, tuple(dict.fromkeys((*self.outputs, *self.loss_weights))), everything=True)

    def blobs(self, inputs: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        """The named blobs, each as its last layer leaves it; only the layers that these need are run.

        Raises:
            InputError: the net has no such blob.
        """
        wanted = tuple(names)
        unknown = [name for name in wanted if name not in self.blob_shapes]
        if unknown:
            raise InputError(f'the net has no blob "{unknown[0]}"{alternatives(unknown[0], list(self.blob_shapes))}')
        return self._run(inputs, wanted, everything=False)

    def _run(self, inputs: Mapping[str, Tensor], wanted: tuple[str, ...], *, everything: bool) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for layers, release in self._plan(wanted, everything):
            if len(layers) > 1 and not any(is_watched(self._order[i]) for i in layers):
                self._run_fused(layers, values)
            else:
                for i in layers:
                    if self._order[i].is_data:
                        self._feed(i, inputs, values)
                    else:
                        self.run_layer(i, values)
            for name in release:
                values.pop(name, None)
        return {name: values[name] for name in wanted}

    def _feed(self, i: int, inputs: Mapping[str, Tensor], values: MutableMapping[str, Tensor]) -> None:
        message = self.param.layer[i]
        for top in message.top:
            if top not in inputs:
                raise InputError(f'{_describe(message)}: blob "{top}" must be fed')
            values[top] = inputs[top]

    def _plan(self, wanted: tuple[str, ...], everything: bool) -> list[tuple[range, list[str]]]:
        """The layers to run, in order, each with the blobs that can be freed after it.

        Either every layer, or those that the wanted blobs depend on; no tensor outlives its last use. In a TRAIN net,
        layers that can be run as one are together, unless a blob between them is wanted.
        """
        if (wanted, everything) not in self._plans:
            needed = set(wanted)
            plan: list[tuple[range, list[str]]] = []
            i = len(self._order)
            while i:
                i -= 1
                layers = self._fusible_up_to.get(i, range(i, i + 1))
                tops = set(self.param.layer[i].top)
                between = {top for k in layers[:-1] for top in self.param.layer[k].top} - tops
                if not needed.isdisjoint(between):
                    layers, between = range(i, i + 1), set()
                if everything or not needed.isdisjoint(tops):
                    i = layers[0]
                    bottoms = set(self.param.layer[i].bottom)
                    plan.append((layers, sorted((bottoms | between | tops) - needed)))
                    needed.difference_update(tops)
                    needed.update(bottoms)
            self._plans[wanted, everything] = plan[::-1]
        return self._plans[wanted, everything]

    def run_layer(self, i: int, values: MutableMapping[str, Tensor]) -> None:
        """Run layer number `i` on the blobs in `values` and put its tops there."""
        message, layer = self.param.layer[i], self._order[i]
        for name, owner, shape in self._reshaped.get(layer, ()):
            setattr(layer, name, owner.tensor.view(shape))
        bottoms = self._bottoms(i, values)
        with _layer_errors(message):
            if (layer.is_loss or layer.full_precision) and any(map(_is_half, bottoms)):
                with torch.autocast(bottoms[0].device.type, enabled=False):
                    tops = layer(*(bottom.float() if _is_half(bottom) else bottom for bottom in bottoms))
            else:
                tops = layer(*bottoms)
        values.update(zip(message.top, (tops,) if isinstance(tops, Tensor) else tops, strict=True))

    def _run_fused(self, layers: range, values: MutableMapping[str, Tensor]) -> None:
        """Run several layers as one and put the last one's top into `values`."""
        (bottom,) = self._bottoms(layers[0], values)
        with _layer_errors(self.param.layer[layers[0]]):
            values[self.param.layer[layers[-1]].top[0]] = run_fused([self._order[i] for i in layers], bottom)

    def _bottoms(self, i: int, values: Mapping[str, Tensor]) -> list[Tensor]:
        message = self.param.layer[i]
        bottoms = [values[name] for name in message.bottom]
        for j, propagate in enumerate(message.propagate_down):
            without = self._order[i].without_gradient(len(bottoms))
            forced = self.param.force_backward and j not in without  # Layer::AllowForceBackward
            if not propagate and not forced:
                bottoms[j] = bottoms[j].detach()
        return bottoms

    def loss(self, blobs: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of all loss blobs, a scalar; `blobs` must hold each of them."""
        losses = [
            (blobs[name].detach() if name in self._overwritten else blobs[name]).sum() * weight
            for name, weight in self.loss_weights.items()
        ]
        return torch.stack(losses).sum()

    def seed_pass(self, iteration: int, pass_: int = 0) -> None:
        """Restart every random layer for one forward pass: their draws depend on seed, layer, iteration, pass alone."""
        seen: Counter[str] = Counter()
        for name, layer in zip(self.layer_names, self._order, strict=True):
            if layer.is_random:
                # Caffe lets layers without blobs share a name; what tells them apart is their order
                namesakes = (seen[name],) if seen[name] else ()
                layer.reseed(derive_seed(self.seed, name, iteration, pass_, *namesakes))
                seen[name] += 1

    def begin_iteration(self, iteration: int) -> None:
        """Tell the layers that follow a schedule which iteration of the solver begins, from 0."""
        for layer in self._order:
            if layer.is_scheduled:
                layer.begin_iteration(iteration)

    # --- parameters

    def alphas(self) -> dict[str, float]:
        """alpha of each Dial layer by name, in order, clipped as its forward pass uses it (`mixing`)."""
        return {name: layer.mixing for name, layer in self._by_name.items() if isinstance(layer, DomainAlignment)}

    def without_statistics(self) -> list[str]:
        """Names of the Dial layers that have never stored statistics, with which they would normalize in TEST."""
        dials = ((name, layer) for name, layer in self._by_name.items() if isinstance(layer, DomainAlignment))
        return [name for name, layer in dials if not layer.normalizer.any()]

    def share_with(self, other: Net) -> None:
        """Use the blobs of another net's layers of the same names, now and as they change (ShareTrainedLayersWith).

        Moving a net to another device ends the sharing of statistics: share after both are where they stay.

        Raises:
            InputError: a layer with another number of blobs or other shapes.
        """
        for name, layer in self._by_name.items():
            if name not in other._by_name or not layer.blobs:
                continue
            theirs = other.layer(name)
            _check_shapes(name, _shapes(theirs.blobs), _shapes(layer.blobs), "the net that it shares with")
            views = {key: (owner, shape) for key, owner, shape in other._reshaped.get(theirs, ())}
            keys, their_keys = self._attributes(layer), other._attributes(theirs)
            self._reshaped.pop(layer, None)
            for key, their_key, blob in zip(keys, their_keys, theirs.blobs, strict=True):
                if their_key in views:
                    delattr(layer, key)  # a view is no parameter and can't take the place of one
                    self._reshaped.setdefault(layer, []).append((key, *views[their_key]))
                setattr(layer, key, blob)

    def _attributes(self, layer: Layer) -> list[str]:
        """The names under which a layer keeps its blobs, in order."""
        views = [key for key, _, _ in self._reshaped.get(layer, ())]
        return [
            _attribute(layer, blob) or next(key for key in views if getattr(layer, key) is blob) for blob in layer.blobs
        ]

    @torch.no_grad()
    def load_weights(self, weights: Weights, source: str = "the weights", *, advice: str = RENAME) -> list[str]:
        """Copy blobs by layer name (Caffe: Net::CopyTrainedLayersFrom); layers that are not in the net are ignored.

        Args:
            source: the file's name, for messages.
            advice: what to do where blobs don't fit, as the end of a sentence.

        Returns:
            names of the net's layers with blobs that the weights do not hold.

        Raises:
            InputError: a layer with another number of blobs or other shapes.
        """
        found = set()
        for saved in weights.layers:
            if saved.name not in self._by_name:
                continue
            layer = self.layer(saved.name)
            blobs = layer.blobs
            saved = replace(saved, blobs=layer.taken(saved.blobs))
            arrays = {i: array for i, array in enumerate(saved.blobs) if array is not None}
            owned = {param.index for param in self.params if param.layer == saved.name}
            # HDF5 files hold a shared blob once, with its owner.
            if not owned <= arrays.keys() <= set(range(len(blobs))):
                raise _wrong_count(saved.name, len(blobs), len(arrays), source, advice)
            for i, array in arrays.items():
                if not saved.fits(i, tuple(blobs[i].shape)):
                    raise _wrong_shape(saved.name, i, tuple(blobs[i].shape), array.shape, source, advice)
                blobs[i].copy_(torch.from_numpy(np.ascontiguousarray(array)).view(blobs[i].shape))
            found.add(saved.name)
        return [name for name in self.with_blobs() if name not in found]

    def with_blobs(self) -> list[str]:
        """Names of the layers that have blobs."""
        return [name for name, layer in self._by_name.items() if layer.blobs]

    def weights(self) -> Weights:
        """The net as a caffemodel holds it: every layer's message and blobs, in order."""
        layers = [
            LayerWeights(message, [blob.detach().cpu().numpy() for blob in layer.blobs])
            for message, layer in zip(self.param.layer, self._order, strict=True)
        ]
        return Weights(self.param.name, layers)


@contextmanager
def _impossible_size_errors(message: pb.LayerParameter, bottom_shapes: Sequence[Shape]) -> Iterator[None]:
    """Turn what Python and torch raise for sizes that no layer can have into a LayerError."""
    try:
        yield
    except (ArithmeticError, MemoryError, RuntimeError) as error:
        if message.type == "Python":  # the user's own code
            raise
        bottoms = f" on bottoms of the shapes {', '.join(map(str, bottom_shapes))}" if bottom_shapes else ""
        raise LayerError(f"can't be made{bottoms}: {str(error).partition(chr(10))[0] or 'out of memory'}") from error


@contextmanager
def _layer_errors(message: pb.LayerParameter) -> Iterator[None]:
    """Turn a LayerError into an InputError that names the layer."""
    try:
        yield
    except LayerError as error:
        raise InputError(f"{_describe(message)}: {error}") from error


def _numbers(message: Message) -> Iterator[tuple[str, float]]:
    """The decimal numbers in a message and in the messages inside it, each with the path of its field."""
    for field, value in message.ListFields():
        for item in [value] if field.has_presence else value:
            if field.message_type is not None:
                yield from ((f"{field.name}.{inner}", number) for inner, number in _numbers(item))
            elif isinstance(item, float):
                yield field.name, item


def _is_half(blob: Tensor) -> bool:
    return blob.dtype in (torch.bfloat16, torch.float16)


def _describe(message: pb.LayerParameter) -> str:
    return f'layer "{message.name}" ({message.type})'


def _check_count(what: str, count: int, limits: tuple[int, int | None]) -> None:
    least, most = limits
    if count < least or (most is not None and count > most):
        more = "" if least == most else " or more" if most is None else f" to {most}"
        wanted = f"{least}{more} {what} blobs" if more else counted(least, f"{what} blob")
        raise LayerError(f"takes {wanted} and the prototxt names {count}")


def _shapes(blobs: Iterable[Tensor]) -> list[Shape]:
    return [tuple(blob.shape) for blob in blobs]


def _check_shapes(name: str, given: Sequence[Shape], wanted: Sequence[Shape], source: str) -> None:
    if len(given) != len(wanted):
        raise _wrong_count(name, len(wanted), len(given), source)
    for i, (ours, theirs) in enumerate(zip(wanted, given, strict=True)):
        if ours != theirs:
            raise _wrong_shape(name, i, ours, theirs, source)


def _wrong_count(name: str, wanted: int, given: int, source: str, advice: str = RENAME) -> InputError:
    return InputError(f'layer "{name}" has {counted(wanted, "blob")} and {source} has {given} for it; {advice}')


def _wrong_shape(name: str, index: int, wanted: Shape, given: Shape, source: str, advice: str = RENAME) -> InputError:
    return InputError(
        f'layer "{name}", blob {index}: the net\'s shape is {wanted} and that of {source} is {given}; {advice}'
    )


def _attribute(layer: Layer, blob: Tensor) -> str | None:
    """The name under which a layer keeps one of its blobs; None for a view of another layer's."""
    tensors = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    return next((name for name, tensor in tensors if tensor is blob), None)


def _module_name(name: str, modules: nn.ModuleDict) -> str:
    """A layer's name as torch takes it for a submodule, which allows no dots and no attribute's name."""
    name = name.replace(".", "_") or "_"
    if hasattr(modules, name):
        # Layers without blobs may share a name: counting them is faster than trying one "_" after the other.
        name = f"{name}_{len(modules)}"
    while hasattr(modules, name):
        name += "_"
    return name


def _check_types(param: pb.NetParameter) -> None:
    for message in param.layer:
        try:
            layer_class(message.type)
        except InputError as error:
            raise InputError(f'layer "{message.name}": {error}') from None


def _with_automatic_tops(param: pb.NetParameter) -> pb.NetParameter:
    """Give loss layers without a top one, as Caffe does (Layer::AutoTopBlobs); changes and returns `param`."""
    for message in param.layer:
        if not message.top and layer_class(message.type).is_loss:
            message.top.append(f"{message.name} (automatic)")
    return param

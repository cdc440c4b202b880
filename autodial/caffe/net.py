"""pycaffe's Net."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike

import autodial.layers.user_layer
import autodial.net.net
from autodial.caffe import mode
from autodial.caffe.steps import Fresh, Step, step_class
from autodial.errors import InputError
from autodial.layers import Layer, PythonLayer
from autodial.layers.data_sources import MemoryDataLayer
from autodial.layers.user_blobs import Array, Blob, LayerBlobs, ParamBlob, download, share_memory, upload
from autodial.proto import binary, hdf5, read_net, read_weights

if TYPE_CHECKING:
    from autodial.proto import messages as pb


class NetLayer:
    """A layer of a net that is not written in Python.

    Attributes:
        type: its Caffe type.
        blobs: its parameters and statistics.
    """

    def __init__(self, type_name: str, blobs: LayerBlobs) -> None:
        self.type = type_name
        self.blobs = blobs


class Net:
    """A net with access to all its blobs: `blobs[name].data`, `params[layer][i].diff`, `forward()`, `backward()`.

    Layers run one by one, each with its own graph for the backward pass, so that every blob and gradient between them
    can be read and written. The arrays outlive the net. After `set_mode_gpu` the net is on the GPU, and the arrays are
    copies that are synchronized around each pass.

    Args:
        network_file: prototxt; relative paths in it mean the working directory, then its folder.
        phase: caffe.TRAIN or caffe.TEST.
        level, stages: for the layers' include and exclude rules.
        weights: caffemodel to load, binary or HDF5.

    The order of older scripts, `Net(network_file, weights, phase)`, works too.

    Attributes:
        blobs: activations by name, in the order in which layers produce them.
        params: parameters and statistics by layer name, for layers that have any.
        layers: every layer, in order, with `type` and `blobs`; a layer written in Python is the user's own object.
        layer_dict: the layers by name.
        top_names, bottom_names: each layer's blobs, by layer name.
        inputs: tops of the Input layers.
        outputs: blobs that no layer consumes, in alphabetical order.
        blob_loss_weights: each blob's weight in the loss, by name.

    Raises:
        InputError: Caffe would refuse the net, or a layer type is not supported; names the file and the layer.
    """

    def __init__(
        self,
        network_file: str | os.PathLike[str],
        phase: int | str,
        level: int = 0,
        stages: Collection[str] | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(phase, (str, os.PathLike)):
            weights, phase, level = phase, level, 0
        path = Path(network_file)
        try:
            module = autodial.net.net.Net(
                read_net(path),
                cast("pb.Phase", phase),
                level=level,
                stages=tuple(stages or ()),
                seed=mode.draw_seed(),
                base_dir=path.parent,
            )
        except InputError as error:
            raise error if str(path) in str(error) else InputError(f"{path}: {error}") from error
        self._show(module.to(mode.device()), mode.device())
        if weights is not None:
            self.copy_from(weights)

    @classmethod
    def of(cls, module: autodial.net.net.Net, device: torch.device) -> Net:
        """The pycaffe interface to a net that is on `device`."""
        net = cls.__new__(cls)
        net._show(module, device)
        return net

    def _show(self, module: autodial.net.net.Net, device: torch.device) -> None:
        self.module = module
        self._passes = 0
        self._seedings = mode.seedings()
        messages = list(module.param.layer)
        layers: list[Any] = list(module.layers.values())
        self._layer_names = [message.name for message in messages]
        self.blobs: OrderedDict[str, Blob] = OrderedDict()
        self.layers: list[NetLayer | autodial.layers.user_layer.Layer] = []
        self._steps: list[Step] = []
        for i, (message, layer, needed) in enumerate(zip(messages, layers, _needed_gradients(module), strict=True)):
            for j, name in enumerate(message.top):
                if name not in self.blobs:
                    self.blobs[name] = _top_blob(layer, j, module.blob_shapes[name], module.loss_weights.get(name, 0.0))
            bottoms, tops = ([self.blobs[name] for name in names] for names in (message.bottom, message.top))
            is_python = isinstance(layer, PythonLayer)
            shown = layer.user if is_python else NetLayer(message.type, LayerBlobs(layer))
            self._steps.append(step_class(layer)(module, i, layer, bottoms, tops, shown.blobs, needed, device))
            self.layers.append(shown)
        self.layer_dict = OrderedDict(zip(self._layer_names, self.layers, strict=True))
        self.params: OrderedDict[str, LayerBlobs] = OrderedDict(
            (name, layer.blobs) for name, layer in zip(self._layer_names, self.layers, strict=True) if layer.blobs
        )
        self.top_names = OrderedDict((message.name, list(message.top)) for message in messages)
        self.bottom_names = OrderedDict((message.name, list(message.bottom)) for message in messages)
        self.inputs: list[str] = [top for message in messages if message.type == "Input" for top in message.top]
        self.outputs: list[str] = list(module.outputs)
        self.blob_loss_weights = OrderedDict((name, module.loss_weights.get(name, 0.0)) for name in self.blobs)

    # --- older scripts use these names, which pycaffe gets from C++

    @property
    def _blob_names(self) -> list[str]:
        return list(self.blobs)

    @property
    def _blobs(self) -> list[Blob]:
        return list(self.blobs.values())

    @property
    def _blob_loss_weights(self) -> list[float]:
        return list(self.blob_loss_weights.values())

    @property
    def _inputs(self) -> list[int]:
        return self._blob_ids(self.inputs)

    @property
    def _outputs(self) -> list[int]:
        return self._blob_ids(self.outputs)

    def _bottom_ids(self, layer: int) -> list[int]:
        return self._blob_ids(self.module.param.layer[layer].bottom)

    def _top_ids(self, layer: int) -> list[int]:
        return self._blob_ids(self.module.param.layer[layer].top)

    def _blob_ids(self, names: Iterable[str]) -> list[int]:
        order = {name: i for i, name in enumerate(self.blobs)}
        return [order[name] for name in names]

    # --- weights

    def copy_from(self, path: str | os.PathLike[str]) -> None:
        """Load the blobs of a caffemodel's layers, binary or HDF5, into the layers of the same names.

        Raises:
            InputError: not a caffemodel, or a layer with another number of blobs or other shapes.
        """
        self.module.load_weights(read_weights(path), str(path))
        self.download()

    def load_hdf5(self, path: str | os.PathLike[str]) -> None:
        """`copy_from` for an HDF5 caffemodel."""
        self.copy_from(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a binary caffemodel.

        Raises:
            WorkError: the file can't be written.
        """
        self.upload()
        binary.write_weights(self.module.weights(), path)

    def save_hdf5(self, path: str | os.PathLike[str]) -> None:
        """Write an HDF5 caffemodel.

        Raises:
            InputError: h5py is not installed.
            WorkError: the file can't be written.
        """
        self.upload()
        hdf5.write_weights(self.module.weights(), path)

    def share_with(self, other: Net) -> None:
        """Share the other net's parameters and statistics, without gradients, for layers of the same names.

        Raises:
            InputError: a layer with another number of blobs or other shapes.
        """
        pairs = [(name, blobs, other.params[name]) for name, blobs in self.params.items() if name in other.params]
        for name, ours, theirs in pairs:
            here, there = ([blob.shape for blob in blobs] for blobs in (ours, theirs))
            if here != there:
                raise InputError(f'layer "{name}" has blobs of shapes {here}, and those to share have {there}')
        for _, ours, theirs in pairs:
            for blob, shared in zip(ours, theirs, strict=True):
                share_memory(blob.tensor, shared.tensor)

    def clear_param_diffs(self) -> None:
        """Set the gradients of all parameters to zero."""
        for blob in self._param_blobs():
            if blob.gradient is not None:
                blob.gradient.zero_()
        self.download()

    def _param_blobs(self) -> Iterator[ParamBlob]:
        for blobs in self.params.values():
            yield from blobs

    def upload(self) -> None:
        """Copy the parameters' arrays, which scripts may have changed, to the GPU."""
        upload(self._param_blobs())

    def download(self) -> None:
        """Copy the parameters from the GPU to their arrays."""
        download(self._param_blobs())

    # --- passes

    def reshape(self) -> None:
        """Adapt all blobs to the shapes that `blobs[name].reshape` gave the inputs.

        Raises:
            InputError: a layer can't take the shapes.
        """
        for step in self._steps:
            step.reshape()

    def set_input_arrays(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Set the arrays from which the net's first layer, a MemoryData layer, reads its batches in turn.

        Args:
            data: (rows, C, H, W), rows a multiple of the batch size.
            labels: one per row.

        Raises:
            InputError: the first layer has another type, or the arrays do not fit it.
        """
        layer = next(iter(self.module.layers.values()))
        if not isinstance(layer, MemoryDataLayer):
            raise InputError(f'set_input_arrays needs a net that begins with MemoryData, not "{self._layer_names[0]}"')
        layer.source.set(data, labels)

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: Any,
    ) -> dict[str, Array]:
        """Run the layers from `start` to `end`, both included.

        Args:
            blobs: names of blobs to return in addition to the outputs.
            inputs: arrays for the net's inputs.

        Returns:
            the blobs' own arrays by name: the outputs (with `end`, that layer's tops) and the blobs of `blobs`.

        Raises:
            ValueError: the inputs' names or shapes are not those of the net, or a layer does not exist.
        """
        if inputs:
            if set(inputs) != set(self.inputs):
                raise ValueError(f"the net's inputs are {self.inputs} and {sorted(inputs)} are given")
            for name, value in inputs.items():
                _assign(name, self.blobs[name].data, value)
        if self._seedings != mode.seedings():
            self._seedings, self._passes, self.module.seed = mode.seedings(), 0, mode.draw_seed()
        first, last = self._index(start, 0), self._index(end, len(self._steps) - 1)
        self.run(seed=(self._passes, 0), layers=range(first, last + 1))
        self._passes += 1
        outputs = self.outputs if end is None else self.top_names[end]
        return {name: self.blobs[name].data for name in dict.fromkeys((*outputs, *(blobs or ())))}

    def run(
        self,
        *,
        seed: tuple[int, int],
        layers: Iterable[int] | None = None,
        batch: int | None = None,
        grad: bool = True,
    ) -> None:
        """Run layers forward.

        Args:
            seed: iteration and pass; they seed random layers.
            layers: numbers of the layers to run; None for all.
            batch: number of the batch that the data layers read; None for the next.
            grad: whether to keep what a backward pass needs; otherwise that pass recomputes it.
        """
        self.upload()
        self.module.seed_pass(*seed)
        fresh: Fresh = {}
        for step in self._steps if layers is None else (self._steps[i] for i in layers):
            step.forward(fresh, batch, grad)
        self.download()

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **outputs: Any,
    ) -> dict[str, Array]:
        """Run the layers backwards from `start` to `end`, both included; the parameters' gradients accumulate.

        Args:
            diffs: names of blobs whose gradients to return in addition to the inputs'.
            outputs: gradients for the net's outputs; for a loss the default is its loss_weight.

        Returns:
            the blobs' own arrays by name: the gradients of the inputs (with `end`, of that layer's bottoms) and of
            `diffs`.

        Raises:
            ValueError: a gradient is for a blob that is no output, or has another shape, or a layer does not exist.
        """
        for name, value in outputs.items():
            if name not in self.outputs:
                raise ValueError(f'"{name}" is not an output; the outputs are {self.outputs}')
            _assign(name, self.blobs[name].diff, value)
        first, last = self._index(start, len(self._steps) - 1), self._index(end, 0)
        self.upload()
        for i in range(first, last - 1, -1):
            self._steps[i].backward()
        self.download()
        inputs = self.inputs if end is None else self.bottom_names[end]
        return {name: self.blobs[name].diff for name in dict.fromkeys((*inputs, *(diffs or ())))}

    def _index(self, layer: str | None, default: int) -> int:
        if layer is None:
            return default
        if layer not in self._layer_names:
            raise ValueError(f'the net has no layer "{layer}"; it has {", ".join(self._layer_names)}')
        return self._layer_names.index(layer)

    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: Any) -> dict[str, Array]:
        """Run `forward` for any number of rows, batch by batch; the last batch is padded with zeros, which are cut off.

        Args:
            blobs: names of blobs to return in addition to the outputs.
            inputs: arrays for the net's inputs, all with the same number of rows.

        Returns:
            new arrays by name, with as many rows as the inputs.

        Raises:
            ValueError: as `forward`.
        """
        if not inputs:
            raise ValueError(f"forward_all needs arrays for the net's inputs {self.inputs}")
        parts = [_copies(self.forward(blobs, **batch)) for batch in self._batches(inputs)]
        return _joined(parts, len(next(iter(inputs.values()))))

    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **arrays: Any
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run `forward` and `backward` for any number of rows, batch by batch, as `forward_all`.

        Args:
            blobs, diffs: names of blobs whose values and gradients to return in addition to the outputs and inputs.
            arrays: for the net's inputs, and gradients for its outputs, all with the same number of rows.

        Returns:
            two dicts of new arrays by name: values and gradients.

        Raises:
            ValueError: as `forward` and `backward`.
        """
        inputs = {name: arrays[name] for name in self.inputs if name in arrays}
        if not inputs:
            raise ValueError(f"forward_backward_all needs arrays for the net's inputs {self.inputs}")
        values, gradients = [], []
        for batch in self._batches(arrays):
            given = {name: batch.pop(name) for name in inputs}
            values.append(_copies(self.forward(blobs, **given)))
            gradients.append(_copies(self.backward(diffs, **batch)))
        rows = len(next(iter(inputs.values())))
        return _joined(values, rows), _joined(gradients, rows)

    def _batches(self, arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        size = self.blobs[next(iter(arrays))].shape[0]
        counts = {name: len(array) for name, array in arrays.items()}
        rows = counts[next(iter(arrays))]
        if len(set(counts.values())) > 1:
            raise ValueError(f"the arrays must have the same number of rows, not {counts}")
        for start in range(0, rows, size):
            batch: dict[str, Any] = {}
            for name, array in arrays.items():
                part = np.asarray(array[start : start + size], np.float32)
                batch[name] = np.concatenate((part, np.zeros((size - len(part), *part.shape[1:]), np.float32)))
            yield batch


def _top_blob(layer: Layer, index: int, shape: tuple[int, ...], loss_weight: float) -> Blob:
    """A blob for a new top; a Python layer has its own, to which its set-up may have written."""
    if not isinstance(layer, PythonLayer):
        return Blob(shape, loss_weight)
    blob: Blob = layer.top[index]
    if loss_weight:
        blob.diff[...] = loss_weight
    return blob


def _assign(name: str, array: Array, value: Any) -> None:
    given = np.shape(value)
    if given != array.shape:
        raise ValueError(f'blob "{name}" has shape {array.shape}, and the array given has {given}')
    array[...] = value


def _copies(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.atleast_1d(array).copy() for name, array in arrays.items()}


def _joined(parts: Sequence[Mapping[str, Array]], rows: int) -> dict[str, Array]:
    """All batches of each blob as one array, without the rows that padded the last batch."""
    return {name: np.concatenate([part[name] for part in parts])[:rows] for name in (parts[0] if parts else ())}


def _needed_gradients(module: autodial.net.net.Net) -> list[list[bool] | None]:
    """For each layer which bottoms' gradients are needed; None where the backward pass skips the layer (Net::Init).

    A layer runs backwards if a loss depends on it and the layer, or a layer before it, learns something. With
    force_backward all layers do.
    """
    force = module.param.force_backward
    needs: dict[str, bool] = {}
    result: list[list[bool] | None] = []
    layers: Iterable[Any] = module.layers.values()
    for message, layer in zip(module.param.layer, layers, strict=True):
        bottoms = [
            j not in layer.without_gradient(len(message.bottom))
            and (force or (message.propagate_down[j] if message.propagate_down else needs[name]))
            for j, name in enumerate(message.bottom)
        ]
        # whatever propagate_down says
        behind = any(bottoms) if force else any(needs[name] for name in message.bottom)
        learns = behind or any(blob.requires_grad for blob in layer.blobs)
        needs.update((top, learns) for top in message.top)
        result.append(bottoms if learns else None)
    if force:
        return result
    under_loss: set[str] = set()
    for i in range(len(result) - 1, -1, -1):
        message = module.param.layer[i]
        if under_loss.isdisjoint(message.top) and not any(top in module.loss_weights for top in message.top):
            result[i] = None
        else:
            under_loss.update(message.bottom)
    return result

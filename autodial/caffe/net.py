"""pycaffe's Net."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import autodial.net
from autodial.caffe.blob import Array, Blob, ParamBlob, to_tensor
from autodial.proto import read_net, read_weights


class Net:
    """A net with all its blobs at hand: `blobs[name].data`, `params[layer][i].diff`, `forward()`, `backward()`.

    Layers are run one by one, each with a graph of its own for the backward pass, so that every blob and gradient
    between them can be read and written.

    Args:
        network_file: prototxt, or an autodial.net.Net to show.
        phase: caffe.TRAIN or caffe.TEST.
        weights: caffemodel to load.
    """

    def __init__(self, network_file: str | autodial.net.Net, phase: int = 1, weights: str | None = None) -> None:
        if isinstance(network_file, autodial.net.Net):
            self.module = network_file
        else:
            path = Path(network_file)
            self.module = autodial.net.Net(read_net(path), phase, base_dir=path.parent)
        self._layers = list(self.module.param.layer)
        self._indices = {message.name: i for i, message in enumerate(self._layers)}
        self._passes = 0
        self._needed = _needed_gradients(self.module)
        self._graphs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        loss_weights = self.module.loss_weights
        self.blobs: OrderedDict[str, Blob] = OrderedDict(
            (name, Blob(shape, loss_weights.get(name, 0.0))) for name, shape in self.module.blob_shapes.items()
        )
        self.params: OrderedDict[str, list[ParamBlob]] = OrderedDict(
            (name, [ParamBlob(blob) for blob in layer.blobs])
            for name, layer in ((name, self.module.layer(name)) for name in self._indices)
            if layer.blobs
        )
        if weights is not None:
            self.copy_from(weights)

    @property
    def inputs(self) -> list[str]:
        """Tops of the Input layers."""
        return [top for message in self._layers if message.type == "Input" for top in message.top]

    @property
    def outputs(self) -> list[str]:
        """Blobs that no layer consumes."""
        return list(self.module.outputs)

    def copy_from(self, path: str) -> None:
        """Load the blobs of a caffemodel's layers into the layers of the same names."""
        self.module.load_weights(read_weights(path), str(path))

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: Any,
    ) -> dict[str, Array]:
        """Run the layers from `start` to `end`, both included.

        Args:
            blobs: names of blobs to return besides the outputs.
            inputs: arrays for the net's inputs.

        Returns:
            arrays by name: the outputs (or, with `end`, that layer's tops) and the blobs asked for.
        """
        if inputs:
            if set(inputs) != set(self.inputs):
                raise ValueError(f"the net's inputs are {self.inputs} and {sorted(inputs)} are given")
            for name, value in inputs.items():
                self.blobs[name].values.set(to_tensor(value, self.module.blob_shapes[name], name))
        first = 0 if start is None else self._indices[start]
        last = len(self._layers) - 1 if end is None else self._indices[end]
        self.run(self._passes, seed=(self._passes, 0), layers=range(first, last + 1))
        self._passes += 1
        outputs = self.outputs if end is None else list(self._layers[last].top)
        return {name: self.blobs[name].data for name in dict.fromkeys((*outputs, *(blobs or ())))}

    def run(self, batch: int, *, seed: tuple[int, int], layers: Iterable[int] | None = None) -> None:
        """Run layers forward, all unless their numbers are given.

        Args:
            batch: number of the batch that the data layers read.
            seed: iteration and pass, which random layers draw from.
        """
        self.module.seed_pass(*seed)
        values: dict[str, Tensor] = {}
        for i in range(len(self._layers)) if layers is None else layers:
            self._forward_layer(i, batch, values)

    def _forward_layer(self, i: int, batch: int, values: dict[str, Tensor]) -> None:
        message = self._layers[i]
        layer = self.module.layer(message.name)
        if layer.is_data:
            source = getattr(layer, "source", None)
            arrays = source.batch(batch) if source is not None else ()
            for top, array in zip(message.top, arrays, strict=source is not None):
                self.blobs[top].values.set(torch.from_numpy(array))
            return
        needed = self._needed[i] or [False] * len(message.bottom)
        bottoms = []
        for j, name in enumerate(message.bottom):
            value = values[name] if name in values else self.blobs[name].values.tensor
            # a leaf of this layer's own graph
            bottoms.append(value.detach().requires_grad_(needed[j]))
        run = dict(zip(message.bottom, bottoms, strict=True))
        with torch.set_grad_enabled(self._needed[i] is not None):
            self.module.run_layer(i, run)
        tops = [run[name] for name in message.top]
        self._graphs[i] = bottoms, tops
        for name, top in zip(message.top, tops, strict=True):
            values[name] = top
            self.blobs[name].values.set(top)

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **outputs: Any,
    ) -> dict[str, Array]:
        """Run the layers backwards from `start` to `end`, both included; parameters' gradients are added up.

        Args:
            diffs: names of blobs whose gradients to return besides the inputs'.
            outputs: gradients for the net's outputs; a loss's own is its loss_weight.

        Returns:
            gradients by name: the inputs' (or, with `end`, that layer's bottoms') and those asked for.
        """
        for name, value in outputs.items():
            if name not in self.outputs:
                raise ValueError(f'"{name}" is not an output; the outputs are {self.outputs}')
            self.blobs[name].gradients.set(to_tensor(value, self.blobs[name].data.shape, name))
        first = len(self._layers) - 1 if start is None else self._indices[start]
        last = 0 if end is None else self._indices[end]
        for i in range(first, last - 1, -1):
            if i in self._graphs:
                self._backward_layer(i)
        inputs = self.inputs if end is None else list(self._layers[last].bottom)
        return {name: self.blobs[name].diff for name in dict.fromkeys((*inputs, *(diffs or ())))}

    def _backward_layer(self, i: int) -> None:
        message = self._layers[i]
        bottoms, tops = self._graphs[i]
        layer = self.module.layer(message.name)
        pairs = [
            (top, self.blobs[name].gradients.tensor)
            for name, top in zip(message.top, tops, strict=True)
            if top.requires_grad
        ]
        wanted = [bottom for bottom in bottoms if bottom.requires_grad]
        learned = [blob for blob in layer.blobs if blob.requires_grad]
        if not pairs or not wanted + learned:
            return
        losses, diffs = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(losses, wanted + learned, diffs, retain_graph=True, allow_unused=True)
        names = [name for name, bottom in zip(message.bottom, bottoms, strict=True) if bottom.requires_grad]
        for name, bottom, gradient in zip(names, wanted, gradients[: len(wanted)], strict=True):
            self.blobs[name].gradients.set(torch.zeros_like(bottom) if gradient is None else gradient)
        for blob, gradient in zip(learned, gradients[len(wanted) :], strict=True):
            if gradient is not None:
                blob.grad = gradient.clone() if blob.grad is None else blob.grad.add_(gradient)


def _needed_gradients(module: autodial.net.Net) -> list[list[bool] | None]:
    """For each layer whether each bottom's gradient is needed, None where its backward pass is skipped (Net::Init).

    A layer is run backwards when a loss depends on it and it has something to learn, or a layer before it has; with
    force_backward all are.
    """
    force = module.param.force_backward
    needs: dict[str, bool] = {}
    result: list[list[bool] | None] = []
    for message in module.param.layer:
        layer = module.layer(message.name)
        bottoms = [
            j not in layer.no_gradient
            and (force or (message.propagate_down[j] if message.propagate_down else needs[name]))
            for j, name in enumerate(message.bottom)
        ]
        learns = any(bottoms) or any(blob.requires_grad for blob in layer.blobs)
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

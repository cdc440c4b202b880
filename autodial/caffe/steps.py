"""How a pycaffe net runs its layers: one step each, on the net's blobs, with its own graph for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import autodial.net.net
from autodial.errors import InputError
from autodial.layers import DummyData, Layer, LayerError, PythonLayer, Shape, Split
from autodial.layers.user_blobs import Blob, LayerBlobs
from autodial.proto import messages as pb

Fresh = dict[str, Tensor]
"""The tensors that this pass has computed so far, by blob name; other blobs are read from their arrays."""


class Step:
    """One layer of a net. The base class computes nothing.

    Args:
        module: the net.
        index: the layer's number.
        layer: the layer.
        bottoms, tops: the net's blobs that the layer reads and writes.
        params: the layer's parameters and statistics.
        needed: for each bottom whether its gradient is needed; None if the backward pass skips the layer.
        device: where the layer is.
    """

    def __init__(
        self,
        module: autodial.net.net.Net,
        index: int,
        layer: Layer,
        bottoms: Sequence[Blob],
        tops: Sequence[Blob],
        params: LayerBlobs,
        needed: list[bool] | None,
        device: torch.device,
    ) -> None:
        self.module = module
        self.index = index
        self.message: pb.LayerParameter = module.param.layer[index]
        self.layer: Any = layer
        self.bottoms = bottoms
        self.tops = tops
        self.params = params
        self.needed = needed
        self.device = device

    def reshape(self) -> None:
        """Give the tops the shapes that follow from the bottoms' shapes."""

    def forward(self, fresh: Fresh, batch: int | None, grad: bool) -> None:
        """Compute the tops.

        Args:
            fresh: see Fresh; receives the tops.
            batch: number of the batch for a layer that reads data; None for the next.
            grad: whether to keep what the backward pass needs.
        """

    def backward(self) -> None:
        """Compute the bottoms' gradients where they are needed, and add to the parameters' gradients."""


class SourceStep(Step):
    """A layer that reads batches."""

    _next = 0

    def forward(self, fresh: Fresh, batch: int | None, grad: bool) -> None:
        index = self._next if batch is None else batch
        for blob, array in zip(self.tops, self.layer.source.batch(index), strict=True):
            blob.values.set(torch.from_numpy(array))
        self._next = index + 1


class DummyStep(Step):
    """A DummyData layer. Its constants are set once; a script may overwrite them."""

    layer: DummyData

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._refilled = [filler.type != "constant" for filler in self.layer.fillers]
        for blob, refilled, data in zip(self.tops, self._refilled, self.layer.buffers(), strict=True):
            if not refilled:
                blob.values.set(data.clone())

    def forward(self, fresh: Fresh, batch: int | None, grad: bool) -> None:
        for blob, (name, data) in zip(self.tops, self.layer.named_buffers(), strict=True):
            if blob.shape != data.shape:
                setattr(self.layer, name, data.new_zeros(blob.shape))
        values = self.layer()
        for name, blob, refilled, value in zip(self.message.top, self.tops, self._refilled, values, strict=True):
            if refilled:
                blob.values.set(value)
                fresh[name] = value


class SplitStep(Step):
    """A Split layer: its tops share the bottom's values, and the bottom's gradient is the sum of theirs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for blob in self.tops:
            blob.values = self.bottoms[0].values

    def forward(self, fresh: Fresh, batch: int | None, grad: bool) -> None:
        value = fresh.get(self.message.bottom[0])
        if value is not None:
            fresh.update(dict.fromkeys(self.message.top, value))

    def backward(self) -> None:
        if self.needed is not None:
            gradients = [blob.gradients.tensor(self.device) for blob in self.tops]
            self.bottoms[0].gradients.set(torch.stack(gradients).sum(0))


class PythonStep(Step):
    """A layer written in Python, which works directly on the net's blobs."""

    layer: PythonLayer

    def reshape(self) -> None:
        with self.layer.blobs_on_host():
            self.layer.user.reshape(self.bottoms, self.tops)

    def forward(self, fresh: Fresh, batch: int | None, grad: bool) -> None:
        with self.layer.blobs_on_host():
            self.layer.user.reshape(self.bottoms, self.tops)
            self.layer.user.forward(self.bottoms, self.tops)
        for name in (*self.message.bottom, *self.message.top):  # the layer may have changed any of them
            fresh.pop(name, None)

    def backward(self) -> None:
        if self.needed is not None:
            with self.layer.blobs_on_host():
                self.layer.user.backward(self.tops, self.needed, self.bottoms)


class TorchStep(Step):
    """A layer that is a torch module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shapes: list[Shape] = [blob.shape for blob in self.bottoms]
        self._names = list(self.message.bottom)
        self._top_names = list(self.message.top)
        read = _read_backward(self.layer, len(self.bottoms))
        # a layer keeps what it overwrites in place
        self._read_backward = [j for j in read if self._names[j] not in self._top_names]
        self._graph: tuple[list[Tensor], list[Tensor]] | None = None
        self._versions: tuple[list[int], list[int]] = [], []

    def reshape(self) -> None:
        shapes = [blob.shape for blob in self.bottoms]
        if shapes == self._shapes:
            return
        try:
            tops = self.layer.top_shapes(shapes)
        except LayerError as error:
            raise InputError(f'layer "{self.message.name}" ({self.message.type}): {error}') from error
        self._shapes, self._graph = shapes, None
        for blob, shape in zip(self.tops, tops, strict=True):
            blob.reshape(*shape)

    def forward(self, fresh: Fresh, batch: int | None, grad: bool) -> None:
        self._graph = None
        self.reshape()
        bottoms = [
            fresh[name] if name in fresh else blob.values.snapshot(self.device)
            for name, blob in zip(self._names, self.bottoms, strict=True)
        ]
        grad = grad and self.needed is not None
        bottoms, tops = self._run(bottoms, grad)
        for name, blob, top in zip(self._top_names, self.tops, tops, strict=True):
            fresh[name] = top
            blob.values.set(top)
        if grad:
            self._keep(bottoms, tops)

    def _run(self, bottoms: list[Tensor], grad: bool) -> tuple[list[Tensor], list[Tensor]]:
        """The bottoms as they are in the graph, and the tops."""
        if grad and self.needed is not None:  # leaves of this layer's own graph
            pairs = zip(bottoms, self.needed, strict=True)
            bottoms = [bottom.detach().requires_grad_(needed) for bottom, needed in pairs]
        run = dict(zip(self._names, bottoms, strict=True))
        with torch.set_grad_enabled(grad):
            self.module.run_layer(self.index, run)
        return bottoms, [run[name] for name in self._top_names]

    def backward(self) -> None:
        if self.needed is None:
            return
        if self._graph is None or self._versions != self._current_versions() or self._has_edited_bottoms():
            self._rerun()
        assert self._graph is not None
        bottoms, tops = self._graph
        pairs = [
            (top, blob.gradients.tensor(self.device).clone())  # a clone, as it may become a bottom's gradient unchanged
            for blob, top in zip(self.tops, tops, strict=True)
            if top.requires_grad
        ]
        wanted = [(blob, bottom) for blob, bottom in zip(self.bottoms, bottoms, strict=True) if bottom.requires_grad]
        learned = [(blob, tensor) for blob in self.params if (tensor := blob.tensor).requires_grad]
        if not pairs or not (wanted or learned):
            return
        losses, diffs = zip(*pairs, strict=True)
        inputs = [tensor for _, tensor in (*wanted, *learned)]
        gradients = torch.autograd.grad(losses, inputs, diffs, retain_graph=True, allow_unused=True)
        for (bottom_blob, bottom), gradient in zip(wanted, gradients, strict=False):
            bottom_blob.gradients.set(torch.zeros_like(bottom) if gradient is None else gradient)
        for (param, _), gradient in zip(learned, gradients[len(wanted) :], strict=True):
            if gradient is not None:
                param.add_gradient(gradient)

    def _keep(self, bottoms: list[Tensor], tops: list[Tensor]) -> None:
        self._graph, self._versions = (bottoms, tops), self._current_versions()

    def _current_versions(self) -> tuple[list[int], list[int]]:
        """Version counters of the bottoms and parameters; a change of either makes the graph unusable."""
        read = [self.bottoms[j].values.version for j in self._read_backward]
        return read, [tensor._version for tensor in self.layer.blobs if tensor.requires_grad]

    def _has_edited_bottoms(self) -> bool:
        """Whether a script has changed a bottom that the backward pass reads, since the graph was made."""
        assert self._graph is not None
        bottoms, _ = self._graph
        return any(self.bottoms[j].values.written(bottoms[j]) for j in self._read_backward)

    def _rerun(self) -> None:
        """Build the graph for a backward pass if forward left none, or if its inputs have changed since.

        The graph is built from the blobs' current values, which stay unchanged; bottoms that Caffe's backward pass does
        not read keep the values of the forward pass, if there was one.
        """
        self.reshape()
        kept = None if self._graph is None else self._graph[0]
        bottoms = [
            blob.values.snapshot(self.device) if kept is None or j in self._read_backward else kept[j]
            for j, blob in enumerate(self.bottoms)
        ]
        statistics = [self.params[i].tensor for i in self.layer.statistics]
        before = [tensor.clone() for tensor in statistics]
        self.layer.rewind()
        self._keep(*self._run(bottoms, grad=True))
        with torch.no_grad():
            for tensor, values in zip(statistics, before, strict=True):
                tensor.copy_(values)


def _read_backward(layer: Layer, bottoms: int) -> Sequence[int]:
    """The numbers of the bottoms whose data Caffe's Backward reads."""
    if layer.backward_reads_bottoms:
        return range(bottoms)
    return layer.no_gradient if layer.is_loss else ()  # labels


def step_class(layer: Layer) -> type[Step]:
    """The kind of step that runs a layer."""
    if isinstance(layer, PythonLayer):
        return PythonStep
    if isinstance(layer, DummyData):
        return DummyStep
    if isinstance(layer, Split):
        return SplitStep
    if layer.is_data:
        return SourceStep if hasattr(layer, "source") else Step
    return TorchStep

"""How long each layer of a net takes, forward and backward, as `caffe time` measures it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from autodial.data.paths import find
from autodial.data.source import FILE_OPTIONS
from autodial.errors import InputError
from autodial.layers import Shape
from autodial.layers.data_sources import SourceLayer
from autodial.net.net import Net
from autodial.proto import messages as pb


@dataclass(frozen=True)
class LayerTime:
    """How long a layer takes.

    Attributes:
        name, type: the layer's.
        forward_ms: mean milliseconds of a forward pass; for a data layer, of reading a batch in this process and moving
            it to the device.
        backward_ms: mean milliseconds of a backward pass; None if there is none: no loss depends on the layer, or
            neither the layer nor one before it learns anything.
        frozen: whether the layer has parameters and all have lr_mult 0.
    """

    name: str
    type: str
    forward_ms: float
    backward_ms: float | None
    frozen: bool


def time_layers(net: Net, device: torch.device, batches: Iterable[int]) -> list[LayerTime]:
    """Run a net forward and backward, layer by layer, once for each of `batches`, after an uncounted first pass.

    Data layers read their files. Blobs that a program would feed hold random numbers in [0, 1), which also serve as
    labels 0. A layer's time begins at the end of the layer before it, so that the times of a pass add up to its total.

    Args:
        net: a net on `device`; the statistics that its layers keep change as in training.
        device: the device; CUDA's own clock is read.
        batches: numbers of the batches that the data layers read, at least one.

    Returns:
        the layers in order, including the Split layers that the net adds.

    Raises:
        InputError: a batch can't be read, or a layer can't be run on it.
    """
    passes = _Passes(net, device)
    passes.forward(0)
    passes.backward()
    rows = [(passes.forward(batch), passes.backward()) for batch in batches]
    forward = [fmean(column) for column in zip(*(row[0] for row in rows), strict=True)]
    return [
        LayerTime(
            message.name,
            message.type,
            forward[i],
            fmean(row[1][i] for row in rows) if i in rows[0][1] else None,
            _is_frozen(net.layer(message.name).blobs),
        )
        for i, message in enumerate(net.param.layer)
    ]


def replace_missing_data(
    param: pb.NetParameter, base_dir: Path | None
) -> tuple[pb.NetParameter, dict[str, list[Shape]]]:
    """Replace data layers whose source is missing by Input layers.

    Args:
        param: a NetParameter filtered for its phase (`autodial.netparam.net_state.filter_net`); it is not changed.
        base_dir: folder of the prototxt.

    Returns:
        a copy of `param`, and the shapes of the replaced layers' tops by layer name. They follow from crop_size, or
        from new_height and new_width, with three channels unless the prototxt asks for grey images.

    Raises:
        InputError: a source is missing and the prototxt does not state the size of what it would hold.
    """
    result = pb.NetParameter()
    result.CopyFrom(param)
    replaced: dict[str, list[Shape]] = {}
    for layer in result.layer:
        if layer.type not in FILE_OPTIONS:
            continue
        try:
            find(getattr(layer, FILE_OPTIONS[layer.type]).source, base_dir)
        except InputError as error:
            shapes = _stated_shapes(layer)
            if shapes is None:
                remedy = "" if layer.type == "HDF5Data" else " (crop_size would)"
                raise InputError(
                    f'layer "{layer.name}" ({layer.type}): {error}, and without it nothing states the size of its data'
                    f"{remedy}"
                ) from None
            replaced[layer.name] = shapes[: len(layer.top)]
            layer.ClearField(FILE_OPTIONS[layer.type])
            layer.ClearField("transform_param")
            layer.type = "Input"
            for shape in replaced[layer.name]:
                layer.input_param.shape.add(dim=shape)
    return result, replaced


def _stated_shapes(layer: pb.LayerParameter) -> list[Shape] | None:
    """The shapes of a data layer's images and labels by its prototxt; None if it states none."""
    images = layer.image_data_param
    crop = layer.transform_param.crop_size
    height, width = (crop, crop) if crop else (images.new_height, images.new_width)
    if layer.type == "HDF5Data" or not height:
        return None
    grey = not images.is_color if layer.type == "ImageData" else layer.transform_param.force_gray
    batch: int = getattr(layer, FILE_OPTIONS[layer.type]).batch_size
    return [(batch, 1 if grey else 3, height, width), (batch,)]


def _is_frozen(blobs: Sequence[Tensor]) -> bool:
    learnable = [blob for blob in blobs if isinstance(blob, nn.Parameter)]
    return bool(learnable) and not any(blob.requires_grad for blob in learnable)


class _Passes:
    """Passes of a net in which every layer has its own autograd graph, so that its backward pass can be timed."""

    def __init__(self, net: Net, device: torch.device) -> None:
        self._net = net
        self._device = device
        self._fed = {
            top: torch.rand(net.blob_shapes[top], device=device)
            for name, layer in net.data_layers.items()
            if not isinstance(layer, SourceLayer)
            for top in net.tops(name)
        }
        self._graphs: list[tuple[list[Tensor], list[Tensor]]] = []
        """Bottoms and tops of each layer."""

    def forward(self, batch: int) -> list[float]:
        """Milliseconds of every layer."""
        net = self._net
        net.seed_pass(batch)
        values: dict[str, Tensor] = {}
        self._graphs = []
        marks = [self._mark()]
        with torch.set_grad_enabled(bool(net.loss_weights)):
            for i, message in enumerate(net.param.layer):
                layer = net.layer(message.name)
                for bottom in message.bottom:
                    # a leaf of this layer's own graph; it needs a gradient where autograd would have passed one on
                    values[bottom] = values[bottom].detach().requires_grad_(values[bottom].requires_grad)
                bottoms = [values[bottom] for bottom in message.bottom]
                if isinstance(layer, SourceLayer):
                    arrays = layer.source.batch(batch)
                    tensors = (torch.from_numpy(array).to(self._device) for array in arrays)
                    values.update(zip(message.top, tensors, strict=True))
                elif layer.is_data:
                    values.update((top, self._fed[top]) for top in message.top)
                else:
                    net.run_layer(i, values)
                self._graphs.append((bottoms, [values[top] for top in message.top]))
                marks.append(self._mark())
        return self._intervals(marks)

    def backward(self) -> dict[int, float]:
        """Milliseconds by number of layer, for the layers that a gradient goes through."""
        net = self._net
        diffs: dict[str, Tensor] = {}
        numbers = []
        marks = [self._mark()]
        for i in range(len(self._graphs) - 1, -1, -1):
            message = net.param.layer[i]
            bottoms, tops = self._graphs.pop()
            pairs = [
                (top, diff)
                for name, top in zip(message.top, tops, strict=True)
                if (diff := self._diff(name, top, diffs)) is not None
            ]
            wanted = [bottom for bottom in bottoms if bottom.requires_grad]
            learned = [blob for blob in net.layer(message.name).blobs if blob.requires_grad]
            if pairs and wanted + learned:
                outputs, gradients = zip(*pairs, strict=True)
                found = torch.autograd.grad(outputs, wanted + learned, gradients, allow_unused=True)
                names = [name for name, bottom in zip(message.bottom, bottoms, strict=True) if bottom.requires_grad]
                diffs.update(
                    (name, diff) for name, diff in zip(names, found[: len(names)], strict=True) if diff is not None
                )
                numbers.append(i)
                marks.append(self._mark())
        return dict(zip(numbers, self._intervals(marks), strict=True))

    def _diff(self, name: str, top: Tensor, diffs: dict[str, Tensor]) -> Tensor | None:
        """The gradient that reaches a top, removed from `diffs`; None if there is none, or the top needs none."""
        diff = diffs.pop(name, None)
        weight = self._net.loss_weights.get(name)
        if weight is not None:
            diff = torch.full_like(top, weight) if diff is None else diff + weight
        return diff if top.requires_grad else None

    def _mark(self) -> Any:
        """The current time, or on CUDA an event that marks the end of the work queued so far."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _intervals(self, marks: Sequence[Any]) -> list[float]:
        """Milliseconds from each mark to the next."""
        if self._device.type != "cuda":
            return [(end - start) * 1000 for start, end in pairwise(marks)]
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

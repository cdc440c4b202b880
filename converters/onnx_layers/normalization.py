"""Layers that normalize by neighbours, channels or images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value
from autodial.layers import LRN, MVN, BatchNorm, DomainAlignment
from autodial.layers.bn import BN
from autodial.layers.group_norm import GroupNorm
from autodial.layers.multimodal_batch_norm import MultiModalBatchNorm
from autodial.layers.normalize import Normalize, UnitRows

Bottoms = Sequence[Value]
Tops = Sequence[Shape]


@writes(LRN)
def lrn(graph: GraphWriter, layer: LRN, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    if not layer.within_channel:
        return [graph.node("LRN", x.name, size=layer.local_size, alpha=layer.alpha, beta=layer.beta, bias=layer.k)]
    energy = graph.node(
        "AveragePool",
        graph.node("Mul", x.name, x.name),
        kernel_shape=[layer.local_size] * 2,
        pads=[layer.local_size // 2] * 4,
        count_include_pad=1,
    )
    factor = graph.node("Pow", graph.scaled(energy, layer.alpha, layer.k), graph.constant(-layer.beta))
    return [graph.node("Mul", x.name, factor)]


@writes(MVN)
def mvn(graph: GraphWriter, layer: MVN, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    name = graph.unsqueezed(x.name, *range(x.ndim, 4))
    axes = graph.integers([1, 2, 3] if layer.across_channels else [2, 3])
    centred = graph.node("Sub", name, graph.node("ReduceMean", name, axes))
    if not layer.normalize_variance:
        return [centred]
    variance = graph.node("ReduceMean", graph.node("Mul", centred, centred), axes)
    return [graph.node("Div", centred, graph.scaled(graph.node("Sqrt", variance), shift=layer.eps))]


@writes(Normalize)
def normalize(graph: GraphWriter, layer: Normalize, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    axes = graph.integers(range(1, x.ndim) if layer.across_spatial else [1])
    squares = graph.node("ReduceSum", graph.node("Mul", x.name, x.name), axes)
    norm = graph.node("Sqrt", graph.scaled(squares, shift=layer.eps))
    scale = layer.scale.detach().numpy()
    if layer.channels is not None:
        scale = scale.reshape(-1, *[1] * (x.ndim - 2))
    return [graph.node("Mul", graph.node("Div", x.name, norm), graph.weight(scale, "scale"))]


@writes(GroupNorm)
def group_norm(graph: GraphWriter, layer: GroupNorm, bottoms: Bottoms, tops: Tops) -> list[str]:
    """InstanceNormalization of groups that are laid out as channels; opset 18's GroupNormalization scales groups."""
    (x,) = bottoms
    unit, zero = (graph.constant([value] * layer.groups) for value in (1, 0))
    grouped = graph.node("Reshape", x.name, graph.integers([0, layer.groups, -1]))
    y = graph.node("InstanceNormalization", grouped, unit, zero, epsilon=layer.eps)
    y = graph.node("Reshape", y, graph.node("Shape", x.name))
    if layer.channels is None:
        return [y]
    scale, shift = (blob.detach().numpy().reshape(-1, *[1] * (x.ndim - 2)) for blob in layer.blobs)
    return [graph.node("Add", graph.node("Mul", y, graph.weight(scale, "scale")), graph.weight(shift, "shift"))]


@writes(UnitRows)
def unit_rows(graph: GraphWriter, layer: UnitRows, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    norm = graph.node("ReduceL2", x.name, graph.integers([1]))
    zero = graph.node("Equal", norm, graph.constant(0))
    return [graph.node("Div", x.name, graph.node("Where", zero, graph.constant(1), norm))]


@writes(MultiModalBatchNorm)
def multimodal_batch_norm(graph: GraphWriter, layer: MultiModalBatchNorm, bottoms: Bottoms, tops: Tops) -> list[str]:
    x, weights = bottoms
    if not layer.uses_stored:
        raise NoOnnxFormError("it normalizes with the statistics of the batch")
    if any(length != 1 for length in weights.shape[1:]):
        raise NoOnnxFormError("its second bottom has more weights than rows")
    mean, variance = (statistic.numpy().reshape(-1, *[1] * (x.ndim - 2)) for statistic in layer.stored())
    centred = graph.node("Sub", x.name, graph.weight(mean, "mean"))
    scaled = graph.node("Mul", centred, graph.weight(1 / np.sqrt(variance + np.float32(layer.eps)), "scale"))
    weight = graph.node("Reshape", weights.name, graph.integers([-1, *[1] * (x.ndim - 1)]))
    return [graph.node("Mul", scaled, weight)]


@writes(BatchNorm)
def batch_norm(graph: GraphWriter, layer: BatchNorm, bottoms: Bottoms, tops: Tops) -> list[str]:
    """With the statistics of the batch; folding removes layers with stored ones."""
    (x,) = bottoms
    if layer.uses_stored:
        return statistics(graph, layer, bottoms, tops)
    axes = graph.integers([0, *range(2, x.ndim)])
    centred = graph.node("Sub", x.name, graph.node("ReduceMean", x.name, axes))
    variance = graph.node("ReduceMean", graph.node("Mul", centred, centred), axes)
    return [graph.node("Div", centred, graph.node("Sqrt", graph.scaled(variance, shift=layer.eps)))]


@writes(BN, DomainAlignment)
def statistics(graph: GraphWriter, layer: BatchNorm | BN | DomainAlignment, bottoms: Bottoms, tops: Tops) -> list[str]:
    raise NoOnnxFormError("its statistics have not been folded")

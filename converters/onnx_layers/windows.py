"""Layers whose windows move over spatial axes: convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from autodial.converters.onnx_layers.registry import writes
from autodial.converters.onnx_layers.writer import GraphWriter, NoOnnxFormError, Shape, Value
from autodial.layers import Convolution, Deconvolution, Pooling
from autodial.layers.convolution import BaseConvolution
from autodial.layers.im2col import Im2col
from autodial.layers.pooling import Pooling3D
from autodial.layers.spp import SPP
from autodial.layers.windows import Windows

Bottoms = Sequence[Value]
Tops = Sequence[Shape]

_MOST_AXES = 3
"""Spatial axes of the operator Conv in ONNX Runtime."""


@writes(Convolution)
def convolution(graph: GraphWriter, layer: Convolution, bottoms: Bottoms, tops: Tops) -> list[str]:
    return _convolutions(graph, "Conv", layer, bottoms, tops)


@writes(Deconvolution)
def deconvolution(graph: GraphWriter, layer: Deconvolution, bottoms: Bottoms, tops: Tops) -> list[str]:
    return _convolutions(graph, "ConvTranspose", layer, bottoms, tops)


def _convolutions(graph: GraphWriter, operator: str, layer: BaseConvolution, bottoms: Bottoms, tops: Tops) -> list[str]:
    windows = layer.windows
    weight = layer.weight.detach().numpy()
    if not windows.kernel_size:  # as over one axis of length 1
        weight, windows = weight[:, :, None], Windows((1,), (1,), (0,), (1,))
    inputs = [graph.weight(weight, "weight")]
    if layer.bias is not None:
        inputs.append(graph.weight(layer.bias.detach().numpy(), "bias"))
    over = [0] * len(windows.pad) if operator == "ConvTranspose" else _overhang(layer.windows, bottoms[0])
    made = []
    for bottom, top in zip(bottoms, tops, strict=True):
        x = bottom.name
        if layer.axis != 1:
            x = graph.reshaped(x, (None, *bottom.lengths(layer.axis)))
        if not layer.windows.kernel_size:
            x = graph.unsqueezed(x, 2)
        y = _windowed(graph, operator, [x, *inputs], windows, layer.group, over or [0])
        if not layer.windows.kernel_size:
            y = graph.squeezed(y, 2)
        made.append(y if layer.axis == 1 else graph.reshaped(y, top))
    return made


def _windowed(
    graph: GraphWriter, operator: str, inputs: Sequence[str], windows: Windows, group: int, over: Sequence[int]
) -> str:
    """A convolution; `over` is the padding at each axis' end in addition to the windows' own."""
    if len(windows.kernel_size) > _MOST_AXES:
        raise NoOnnxFormError(f"ONNX runtimes know at most {_MOST_AXES} spatial axes")
    ends = [pad + more for pad, more in zip(windows.pad, over, strict=True)]
    pads = [*windows.pad, *ends]
    return graph.nodes_of(
        operator,
        inputs,
        1,
        kernel_shape=list(windows.kernel_size),
        strides=list(windows.stride),
        pads=pads if any(pads) else None,
        dilations=list(windows.dilation) if max(windows.dilation) > 1 else None,
        group=group,
    )[0]


def _overhang(windows: Windows, bottom: Value) -> list[int]:
    """How far a window reaches beyond the padded bottom along each axis; an unknown length has room for it."""
    lengths = bottom.shape[bottom.ndim - len(windows.kernel_size) :]
    if None in lengths:
        return [0] * len(lengths)
    return list(windows.overhang([length or 0 for length in lengths]))


@writes(Im2col)
def im2col(graph: GraphWriter, layer: Im2col, bottoms: Bottoms, tops: Tops) -> list[str]:
    """A depthwise convolution whose kernels are 1 in one place each."""
    (x,) = bottoms
    if layer.axis != 1:
        raise NoOnnxFormError("its channels must be axis 1")
    channels, places = x.length(1), prod(layer.windows.kernel_size)
    kernels = np.tile(np.eye(places, dtype=np.float32), (channels, 1))
    weight = graph.weight(kernels.reshape(channels * places, 1, *layer.windows.kernel_size), "places")
    return [_windowed(graph, "Conv", [x.name, weight], layer.windows, channels, _overhang(layer.windows, x))]


@writes(Pooling)
def pooling(graph: GraphWriter, layer: Pooling, bottoms: Bottoms, tops: Tops) -> list[str]:
    return _pooled(graph, layer, bottoms[0], tops[0])


@writes(Pooling3D)
def pooling_3d(graph: GraphWriter, layer: Pooling3D, bottoms: Bottoms, tops: Tops) -> list[str]:
    """The windows that reach beyond the bottom are spelled out as padding."""
    (x,) = bottoms
    over = [
        max(((count or 0) - 1) * stride + extent - length, 0)
        for count, stride, extent, length in zip(
            tops[0][2:], layer.stride, layer.kernel_size, x.lengths(2), strict=True
        )
    ]
    options = {
        "kernel_shape": list(layer.kernel_size),
        "strides": list(layer.stride),
        "pads": [0, 0, 0, *over] if any(over) else None,
    }
    return [graph.node("MaxPool" if layer.method == "MAX" else "AveragePool", x.name, **options)]


@writes(SPP)
def spp(graph: GraphWriter, layer: SPP, bottoms: Bottoms, tops: Tops) -> list[str]:
    (x,) = bottoms
    height, width = x.lengths(2)
    levels = []
    for level in range(layer.levels):
        bins = 2**level
        kernel = -(-height // bins), -(-width // bins)
        pad = (kernel[0] * bins - height + 1) // 2, (kernel[1] * bins - width + 1) // 2
        one = Pooling(layer.method, kernel, stride=kernel, pad=pad)
        (y,) = _pooled(graph, one, x, (*x.shape[:2], bins, bins))
        levels.append(y)
    if layer.levels == 1:
        return levels
    return [graph.node("Concat", *(graph.node("Flatten", y, axis=1) for y in levels), axis=1)]


def _pooled(graph: GraphWriter, layer: Pooling, x: Value, top: Shape) -> list[str]:
    if layer.kernel_size is None:
        return _pooled_globally(graph, layer, x)
    if None in x.shape[2:]:
        return _pooled_at_any_size(graph, layer, x)
    size, counts = x.lengths(2), [length or 0 for length in top[2:]]
    after = [
        max((count - 1) * stride + extent - pad - length, 0)
        for count, stride, extent, pad, length in zip(
            counts, layer.stride, layer.kernel_size, layer.pad, size, strict=True
        )
    ]
    # The padding is spelled out, as runtimes differ in what ceil_mode means at the edge. If it is as wide as a window,
    # which the poolings refuse, a Pad adds it.
    name, pads = x.name, [*layer.pad, *after]
    if any(pad >= extent for pad, extent in zip(pads, layer.kernel_size * 2, strict=True)):
        if layer.mask:
            raise NoOnnxFormError("windows without pixels have no place of a maximum")
        filler = [graph.constant(np.finfo(np.float32).min)] if layer.method == "MAX" else []
        name = graph.node("Pad", name, graph.integers([0, 0, *layer.pad, 0, 0, *after]), *filler)
        pads = [0] * len(pads)
    if layer.method == "MAX":
        return _maxima(graph, layer, x, name, pads=pads)
    if layer.method == "STOCHASTIC":
        return _expected(graph, *(_average(graph, layer, y, pads=pads) for y in (name, graph.node("Mul", name, name))))
    y = _average(graph, layer, name, pads=pads)
    if all(extra <= pad for extra, pad in zip(after, layer.pad, strict=True)):
        return [y]
    # Windows that are cut off at the pad's edge are divided by what is left of them.
    factors = (
        np.array([extent / min(extent, length + 2 * pad - i * stride) for i in range(count)])
        for count, stride, extent, pad, length in zip(
            counts, layer.stride, layer.kernel_size, layer.pad, size, strict=True
        )
    )
    return [graph.node("Mul", y, graph.constant(reduce(np.multiply.outer, factors)))]


def _pooled_globally(graph: GraphWriter, layer: Pooling, x: Value) -> list[str]:
    if layer.method == "MAX":
        if layer.mask:
            return _maxima(graph, layer, x, x.name, kernel=x.lengths(2))
        return [graph.node("GlobalMaxPool", x.name)]
    if layer.method == "STOCHASTIC":
        means = (graph.node("GlobalAveragePool", y) for y in (x.name, graph.node("Mul", x.name, x.name)))
        return _expected(graph, *means)
    return [graph.node("GlobalAveragePool", x.name)]


def _pooled_at_any_size(graph: GraphWriter, layer: Pooling, x: Value) -> list[str]:
    pads = [*layer.pad, *layer.pad]
    if layer.method == "MAX":
        return _maxima(graph, layer, x, x.name, pads=pads, ceil_mode=int(layer.ceil))
    if layer.method == "STOCHASTIC":
        squares = graph.node("Mul", x.name, x.name)
        return _expected(
            graph, *(_average(graph, layer, y, pads=pads, ceil_mode=int(layer.ceil)) for y in (x.name, squares))
        )
    return [_average(graph, layer, x.name, pads=pads, ceil_mode=int(layer.ceil))]


def _maxima(
    graph: GraphWriter,
    layer: Pooling,
    x: Value,
    name: str,
    *,
    kernel: Sequence[int] | None = None,
    pads: Sequence[int] = (),
    ceil_mode: int = 0,
) -> list[str]:
    """Maxima and, if the layer gives them, their places in the channel."""
    tops = graph.nodes_of(
        "MaxPool",
        [name],
        1 + layer.mask,
        kernel_shape=list(kernel or layer.kernel_size or ()),
        strides=list(layer.stride),
        pads=list(pads) if any(pads) else None,
        ceil_mode=ceil_mode or None,
    )
    if layer.mask:  # the operator counts through the whole tensor
        pixels = graph.node("ReduceProd", graph.axis_lengths(x, 2), keepdims=0)
        tops[1] = graph.as_floats(graph.node("Mod", tops[1], pixels))
    return tops


def _average(graph: GraphWriter, layer: Pooling, name: str, *, pads: Sequence[int], ceil_mode: int = 0) -> str:
    return graph.node(
        "AveragePool",
        name,
        kernel_shape=list(layer.kernel_size or ()),
        strides=list(layer.stride),
        pads=list(pads) if any(pads) else None,
        count_include_pad=1 if any(pads) else None,
        ceil_mode=ceil_mode or None,
    )


def _expected(graph: GraphWriter, sums: str, squares: str) -> list[str]:
    """STOCHASTIC pooling's mean, the sum of squares over the sum; 0 where the sum is 0."""
    zero = graph.constant(0)
    positive = graph.node("Greater", sums, zero)
    divisor = graph.node("Where", positive, sums, graph.constant(1))
    return [graph.node("Where", positive, graph.node("Div", squares, divisor), zero)]

"""pycaffe's coord_map: how the pixels of two blobs of a NetSpec correspond, and the Crop layer that aligns them.

A map is a triple (axis, scale, offset): along the spatial axes, which follow `axis`, pixel x of a layer's bottom is
pixel scale * x + offset of its top, centre on centre. Scale and offset are numbers, or arrays with one value for all
spatial axes or one for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.caffe.net_spec import Function, Top, layers
from autodial.netparam.layer_types import PIXELWISE

Array = NDArray[Any]
Map = tuple[int | None, Any, Any]

PASS_THROUGH_LAYERS = PIXELWISE
"""Layer types whose tops match their bottoms pixel by pixel."""
_LEGACY = {f"{stem}_{axis}" for stem in ("pad", "kernel", "stride") for axis in "hw"}


class UndefinedMapException(Exception):  # noqa: N818 - pycaffe's name
    """The pixels of a layer's tops and bottoms do not correspond, as with InnerProduct."""


class AxisMismatchException(Exception):  # noqa: N818 - pycaffe's name
    """Two maps begin at different axes."""


def conv_params(fn: Function) -> tuple[int, Array, Array, Array]:
    """Axis of the channels, stride, extent of the dilated kernel, and pad of a convolution or pooling layer.

    Raises:
        AssertionError: the sizes are given by the old fields kernel_h, kernel_w and so on.
        UndefinedMapException: the layer pools globally.
    """
    own = "pooling_param" if fn.type_name == "Pooling" else "convolution_param"
    params = fn.params.get(own, fn.params)
    if _LEGACY & set(params):
        raise AssertionError("the sizes must be given by kernel_size, stride and pad, not by their _h and _w")
    kernel, stride, pad, dilation = (
        np.array(params.get(name, default), ndmin=1)
        for name, default in (("kernel_size", 1), ("stride", 1), ("pad", 0), ("dilation", 1))
    )
    if params.get("global_pooling"):
        raise UndefinedMapException("a Pooling layer with global_pooling leaves no pixels")
    return params.get("axis", 1), stride, (kernel - 1) * dilation + 1, pad


def crop_params(fn: Function) -> tuple[int, Array]:
    """The first cropped axis of a Crop layer, and its offset."""
    params = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.array(params.get("offset", 0), ndmin=1)


def coord_map(fn: Function) -> Map:
    """The map of a layer; axis is None where the map holds for any axis.

    Raises:
        UndefinedMapException: the layer has no map.
    """
    if fn.type_name in ("Convolution", "Pooling", "Im2col"):
        axis, stride, extent, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (extent - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, extent, pad = conv_params(fn)
        return axis, stride, (extent - 1) / 2 - pad
    if fn.type_name in PASS_THROUGH_LAYERS:
        return None, 1, 0
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset
    raise UndefinedMapException(f"a {fn.type_name} layer does not keep its pixels in place")


def compose(outer: Map, inner: Map) -> Map:
    """The map that does `inner` first and then `outer`.

    Raises:
        AxisMismatchException: the maps begin at different axes.
    """
    (axis, scale, offset), (inner_axis, inner_scale, inner_offset) = outer, inner
    if axis is None:
        axis = inner_axis
    elif inner_axis not in (None, axis):
        raise AxisMismatchException(f"the spatial axes begin behind axis {axis} here and {inner_axis} there")
    return axis, scale * inner_scale, scale * inner_offset + offset


def inverse(coordinates: Map) -> Map:
    """The map from top to bottom."""
    axis, scale, offset = coordinates
    return axis, 1 / scale, -offset / scale


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """The map from the pixels of one blob to the pixels of another, through a blob from which both are computed.

    Raises:
        RuntimeError: spatial layers connect them to no common blob.
        AxisMismatchException: the layers between have their channels along different axes.
    """
    maps = dict(_ancestors(top_from))
    for top, coordinates in _ancestors(top_to):
        if top in maps:
            return compose(coordinates, inverse(maps[top]))
    raise RuntimeError("spatial layers connect the two tops to no common blob")


def crop(top_from: Top, top_to: Top) -> Top:
    """The top of a Crop layer that gives `top_from` the size and place of `top_to`.

    Raises:
        AssertionError: the scales differ, or the offset is negative or fractional.
        RuntimeError: as coord_map_from_to.
    """
    axis, scale, offset = coord_map_from_to(top_from, top_to)
    offset = np.atleast_1d(offset)
    if not np.all(np.equal(scale, 1)):
        raise AssertionError(f"the tops differ in scale, by {scale}")
    if not np.all(offset <= 0):
        raise AssertionError(f"the top begins {offset} pixels inside the reference, so there is nothing to crop")
    if not np.all(np.round(offset) == offset):
        raise AssertionError(f"the tops lie {offset} pixels apart, which is no whole number")
    first = 2 if axis is None else axis + 1
    cropped: Top = layers.Crop(
        top_from, top_to, crop_param={"axis": first, "offset": [-int(pixels) for pixels in offset]}
    )
    return cropped


def _ancestors(top: Top) -> Iterator[tuple[Top, Map]]:
    """The blob itself and all blobs it is computed from by spatial layers, each with the map from its pixels."""
    maps: dict[Top, Map] = {top: (None, 1, 0)}
    waiting = [top]
    while waiting:
        top = waiting.pop(0)
        yield top, maps[top]
        # The second bottom of a Crop layer only says how large the top is.
        bottoms = top.fn.inputs[:1] if top.fn.type_name == "Crop" else top.fn.inputs
        try:
            step = coord_map(top.fn) if bottoms else None
        except UndefinedMapException:
            continue
        for bottom in bottoms:
            if bottom not in maps and step is not None:
                maps[bottom] = compose(maps[top], step)
                waiting.append(bottom)

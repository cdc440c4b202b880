"""The two layers called Upsample, SegNet's, with a second bottom, and that of the ports of YOLO; and Unpooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.labels import check_indices
from autodial.layers.shares import Rows
from autodial.proto import messages as pb

Pair = tuple[int, int]


@register("Upsample")
class Upsample(Layer):
    """With one bottom, every pixel as a square; with two, every value in its place (upsample_layer.cpp of SegNet).

    One bottom, (N, C, H, W): the value at (y, x) of the top is that at (y div scale, x div scale).

    Two bottoms, values and places, both (N, C, H, W): the top is 0 but for the places, each row * width + column in its
    channel of the top, as the second top of a MAX Pooling gives them. Of several values for one place the last one
    counts, and the gradient goes to that one alone. No gradient flows to the places, which are floats, exact up to
    2^24.

    Args:
        scale: (vertical, horizontal) factor.
        less: rows and columns that the scaled size is short of.
        size: (height, width) of the top, which replaces both; None to scale.
        places: whether there is the second bottom.
    """

    bottoms = (1, 2)
    no_gradient = (1,)
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(
        self, scale: Pair = (2, 2), *, less: Pair = (0, 0), size: Pair | None = None, places: bool = False
    ) -> None:
        super().__init__()
        self.scale, self.less, self.size, self.places = scale, less, size, places

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Upsample:
        param = context.param.upsample_param
        if len(context.bottom_shapes) > 1:
            return _segnet(param)
        for field, _ in param.ListFields():
            if field.name != "scale":
                raise LayerError(f"upsample_param.{field.name} does nothing with one bottom: remove it")
        scale = param.scale if param.HasField("scale") else 1
        if scale < 1:
            raise LayerError(f"upsample_param.scale must be positive, not {scale}")
        return cls((scale, scale))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, *others = bottom_shapes
        if len(shape) != 4:
            raise LayerError(f"Upsample needs a bottom of 4 axes (N, C, H, W), not {shape}")
        if others and others[0] != shape:
            raise LayerError(f"values {shape} and places {others[0]} must have the same shape")
        size = self._out_size(shape)
        if min(size) < 1:
            raise LayerError(f"nothing is left of bottom {shape}")
        return [(*shape[:2], *size)]

    def forward(self, bottom: Tensor, places: Tensor | None = None) -> Tensor:
        if places is None:
            squares = bottom[:, :, :, None, :, None].expand(-1, -1, -1, self.scale[0], -1, self.scale[1])
            return squares.flatten(4, 5).flatten(2, 3)
        size = self._out_size(tuple(bottom.shape))
        index = places.detach().long().flatten(2)
        check_indices(index, size[0] * size[1], "place", "pixels of the top")
        values = bottom.flatten(2)
        top = values.new_zeros(*values.shape[:2], size[0] * size[1])
        if torch.compiler.is_compiling():  # where there is no gradient, and every runtime lets the last value win
            top = top.scatter(2, index, values)
        else:
            top = top.scatter_add(2, index, values.where(_is_last(index, top.shape[2]), 0))
        return top.reshape(*bottom.shape[:2], *size)

    def _out_size(self, shape: Shape) -> Pair:
        if self.size is not None:
            return self.size
        height, width = (
            length * scale - less for length, scale, less in zip(shape[2:], self.scale, self.less, strict=True)
        )
        return height, width


@register("Unpooling")
class Unpooling(Upsample):
    """Upsample with two bottoms, values and places, by another name (unpooling_layer.cpp of DeconvNet's fork).

    The top's height is that which is stated, or else, for the bottom with which the net is built, the larger one of
    (H - 1) stride + kernel - 2 pad and H stride - pad + 1; and likewise its width.

    For a single image the places may have more channels than the values have. The fork reads the first ones then.
    """

    bottoms = (2, 2)
    options = ("unpooling_param",)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Unpooling:
        param = context.param.unpooling_param
        if param.unpool != pb.UnpoolingParameter.MAX:
            name = pb.UnpoolingParameter.UnpoolMethod.Name(param.unpool)
            raise LayerError(f"unpooling_param.unpool: {name} is not supported: only MAX is")
        kernel, stride, pad = (_pair(param, *names) for names in (("kernel_size", "kernel"), ("stride",), ("pad",)))
        if param.HasField("unpool_size"):
            size = param.unpool_size, param.unpool_size
        elif param.HasField("unpool_h") and param.HasField("unpool_w"):
            size = param.unpool_h, param.unpool_w
        else:
            if min(*kernel, *stride) < 1:
                raise LayerError("unpooling_param needs unpool_size, or kernel_size and stride from 1 on")
            height, width = (
                max((length - 1) * step + extent - 2 * edge, length * step - edge + 1)
                for length, extent, step, edge in zip(context.bottom_shapes[0][2:], kernel, stride, pad, strict=True)
            )
            size = height, width
        return cls(size=size, places=True)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, places = bottom_shapes
        if len(shape) == len(places) == 4 and shape[0] == 1 and shape[1] < places[1]:
            places = (places[0], shape[1], *places[2:])
        return super().top_shapes([shape, places])

    def forward(self, bottom: Tensor, places: Tensor | None = None) -> Tensor:
        return super().forward(bottom, None if places is None else places[:, : bottom.shape[1]])


@register("UnPooling")
class UnPooling(Unpooling):
    """Unpooling by another name, in nets for lanes; told from other forks' UnPooling by the size that it states."""

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Unpooling:
        param = context.param.unpooling_param
        if not (param.HasField("unpool_size") or (param.HasField("unpool_h") and param.HasField("unpool_w"))):
            raise LayerError(
                "forks compute different things under this name: state unpool_size, or unpool_h and unpool_w, for "
                "DeconvNet's Unpooling"
            )
        return super().from_caffe(context)


def _pair(param: pb.UnpoolingParameter, field: str, stem: str | None = None) -> Pair:
    """(height, width) from one field for both, or from STEM_h and STEM_w; STEM is the field's name unless stated."""
    both = [f"{stem or field}_{side}" for side in "hw"]
    if any(param.HasField(name) for name in both):
        return getattr(param, both[0]), getattr(param, both[1])
    return (getattr(param, field),) * 2


def _segnet(param: pb.UpsampleParameter) -> Upsample:
    """The layer with places, from the fields that it has."""
    sides = [param.HasField("scale_h"), param.HasField("scale_w")]
    if param.HasField("upsample_h") and param.HasField("upsample_w"):
        size = param.upsample_h, param.upsample_w
        if min(size) < 2:
            raise LayerError(f"upsample_h and upsample_w must be at least 2, not {size[0]} and {size[1]}")
        # SegNet's own nets state a scale in addition, which these replace.
        return Upsample(size=size, places=True)
    if param.HasField("upsample_h") or param.HasField("upsample_w"):
        raise LayerError("upsample_param needs upsample_h and upsample_w together")
    if any(sides) and (not all(sides) or param.HasField("scale")):
        raise LayerError("upsample_param needs scale_h and scale_w together, or scale alone")
    both = param.scale if param.HasField("scale") else 2
    scale = (param.scale_h, param.scale_w) if all(sides) else (both, both)
    if min(scale) < 2:
        raise LayerError(f"the scale must be at least 2, not {scale[0]} x {scale[1]}")
    less = int(param.pad_out_h), int(param.pad_out_w)
    for field, each, factor in zip(("pad_out_h", "pad_out_w"), less, scale, strict=True):
        if each and factor != 2:
            raise LayerError(f"{field} goes with a scale of 2, not of {factor}: give upsample_h and upsample_w")
    return Upsample(scale, less=less, places=True)


def _is_last(index: Tensor, count: int) -> Tensor:
    """Which values of (N, C, values) no later value with the same index follows."""
    order = torch.arange(index.shape[2], device=index.device).expand_as(index)
    last = order.new_full((*index.shape[:2], count), -1).scatter_reduce(2, index, order, "amax")
    return last.gather(2, index) == order

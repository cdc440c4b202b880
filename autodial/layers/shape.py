"""Layers of Caffe and its forks that move data without computing: Concat, Slice, Crop, CropCenter, Flatten, Reshape,
Permute, Transpose, Reverse, ShuffleChannel, Tile, Split, Silence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, canonical_axis, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted


@register("Concat")
class Concat(Layer):
    """The bottoms joined along `axis` (concat_layer.cpp); their other axes agree."""

    bottoms = (1, None)
    rows = Rows.INDEPENDENT

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Concat:
        return cls(_axis(context.param.concat_param, "concat_dim"))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        first = bottom_shapes[0]
        axis = canonical_axis(self.axis, len(first))
        for shape in bottom_shapes:
            if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
                raise LayerError(f"bottoms {first} and {shape} must agree in every axis but axis {axis}")
        return [(*first[:axis], sum(shape[axis] for shape in bottom_shapes), *first[axis + 1 :])]

    def forward(self, *bottoms: Tensor) -> Tensor:
        return torch.cat(bottoms, self.axis)


@register("Slice")
class Slice(Layer):
    """The bottom cut along `axis` (slice_layer.cpp); the tops are views.

    Args:
        num_tops: number of pieces.
        slice_point: index at which each piece after the first starts, increasing; empty for equal pieces.
        axis: the axis that is cut.
    """

    tops = (1, None)
    rows = Rows.INDEPENDENT

    def __init__(self, num_tops: int, slice_point: Sequence[int] = (), axis: int = 1) -> None:
        super().__init__()
        if slice_point and len(slice_point) != num_tops - 1:
            raise LayerError(
                f"{counted(num_tops, 'top')} must have {counted(num_tops - 1, 'slice point')}, not {len(slice_point)}"
            )
        if any(start >= end for start, end in pairwise((0, *slice_point))):
            raise LayerError(f"slice points {list(slice_point)} must be positive and increase")
        self.num_tops, self.slice_point, self.axis = num_tops, tuple(slice_point), axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Slice:
        param = context.param.slice_param
        return cls(context.num_tops, list(param.slice_point), _axis(param, "slice_dim"))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        axis = canonical_axis(self.axis, len(shape))
        if self.slice_point and self.slice_point[-1] >= shape[axis]:
            raise LayerError(f"slice point {self.slice_point[-1]} leaves nothing of axis {axis} of bottom {shape}")
        if not self.slice_point and shape[axis] % self.num_tops:
            raise LayerError(f"axis {axis} of bottom {shape} can't be cut into {self.num_tops} equal tops")
        return [(*shape[:axis], size, *shape[axis + 1 :]) for size in self._sizes(shape[axis])]

    def forward(self, bottom: Tensor) -> tuple[Tensor, ...]:
        if self.shares is not None and self.axis % bottom.ndim == 0:
            starts = [0, *(self.shares.before(point) for point in self.points(self.shares.rows)), len(bottom)]
            return torch.split(bottom, [end - start for start, end in pairwise(starts)])
        return torch.split(bottom, self._sizes(bottom.shape[self.axis]), self.axis)

    def points(self, length: int) -> list[int]:
        """Where, along an axis of that length, the second and later pieces start."""
        return list(accumulate(self._sizes(length)))[:-1]

    def _sizes(self, length: int) -> list[int]:
        if not self.slice_point:
            return [length // self.num_tops] * self.num_tops
        return [end - start for start, end in pairwise((0, *self.slice_point, length))]


@register("Crop")
class Crop(Layer):
    """The part of the first bottom that has the second one's size from `axis` on (crop_layer.cpp).

    Args:
        axis: first axis that is cropped.
        offset: where the part starts, one number for all cropped axes or one each.
    """

    bottoms = (2, 2)
    no_gradient = (1,)
    rows = Rows.INDEPENDENT

    def __init__(self, axis: int = 2, offset: Sequence[int] = (0,)) -> None:
        super().__init__()
        self.axis, self.offset = axis, tuple(offset)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Crop:
        param = context.param.crop_param
        return cls(param.axis, list(param.offset) or [0])

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, reference = bottom_shapes
        if len(shape) != len(reference):
            raise LayerError(f"bottom {shape} and reference {reference} must have the same number of axes")
        axis = canonical_axis(self.axis, len(shape))
        if len(self.offset) not in (1, len(shape) - axis):
            axes = counted(len(shape) - axis, "axis", "axes")
            raise LayerError(f"{len(self.offset)} offsets don't fit the {axes} from axis {axis} on")
        for i, offset in self._offsets(len(shape)):
            if offset + reference[i] > shape[i]:
                raise LayerError(f"reference {reference} at offset {offset} exceeds axis {i} of bottom {shape}")
        return [(*shape[:axis], *reference[axis:])]

    def forward(self, bottom: Tensor, reference: Tensor) -> Tensor:
        for i, offset in self._offsets(bottom.ndim):
            bottom = bottom.narrow(i, offset, reference.shape[i])
        return bottom

    def _offsets(self, num_axes: int) -> list[tuple[int, int]]:
        """(axis, offset) of every cropped axis."""
        axes = range(canonical_axis(self.axis, num_axes), num_axes)
        offsets = self.offset * len(axes) if len(self.offset) == 1 else self.offset
        return list(zip(axes, offsets, strict=True))


@register("CropCenter")
class CropCenter(Layer):
    """The bottom without its rim (crop_center_layer.cpp of waifu2x's fork).

    Args:
        crop_size: for each axis, how many places are cut off at both of its ends.
    """

    in_place = False
    rows = Rows.INDEPENDENT

    def __init__(self, crop_size: Sequence[int]) -> None:
        super().__init__()
        self.crop_size = tuple(crop_size)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> CropCenter:
        return cls(context.param.crop_center_param.crop_size)

    @property
    def axis(self) -> int | None:
        """0 if rows of the batch are cut off, so that rows are no longer rows; else None."""
        return 0 if self.crop_size and self.crop_size[0] else None

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(self.crop_size) != len(shape):
            raise LayerError(f"crop_size {list(self.crop_size)} must have a number for each axis of bottom {shape}")
        if any(length <= 2 * cut for length, cut in zip(shape, self.crop_size, strict=True)):
            raise LayerError(f"crop_size {list(self.crop_size)} leaves nothing of bottom {shape}")
        return [tuple(length - 2 * cut for length, cut in zip(shape, self.crop_size, strict=True))]

    def forward(self, bottom: Tensor) -> Tensor:
        for axis, cut in enumerate(self.crop_size):
            bottom = bottom.narrow(axis, cut, bottom.shape[axis] - 2 * cut)
        return bottom


@register("Flatten")
class Flatten(Layer):
    """Axes `axis` to `end_axis`, both included, made one (flatten_layer.cpp)."""

    in_place = False
    rows = Rows.INDEPENDENT

    def __init__(self, axis: int = 1, end_axis: int = -1) -> None:
        super().__init__()
        self.axis, self.end_axis = axis, end_axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Flatten:
        param = context.param.flatten_param
        return cls(param.axis, param.end_axis)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        first, last = canonical_axis(self.axis, len(shape)), canonical_axis(self.end_axis, len(shape))
        if first > last:
            raise LayerError(f"axis {self.axis} comes after end_axis {self.end_axis} in bottom {shape}")
        return [(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])]

    def forward(self, bottom: Tensor) -> Tensor:
        return bottom.flatten(self.axis, self.end_axis)


@register("Reshape")
class Reshape(Layer):
    """Other lengths for some of the axes, the same data (reshape_layer.cpp).

    Args:
        shape: lengths that replace those of the axes in question: 0 copies the bottom's axis in the same place, one -1
            stands for what is left.
        axis: the first axis that is replaced; counted from the end, -1 is behind the last one.
        num_axes: how many axes are replaced; -1 for all from `axis` on, 0 inserts axes.
    """

    in_place = False
    rows = Rows.INDEPENDENT

    def __init__(self, shape: Sequence[int], *, axis: int = 0, num_axes: int = -1) -> None:
        super().__init__()
        self.shape, self.axis, self.num_axes = tuple(shape), axis, num_axes
        if min(self.shape, default=0) < -1 or self.shape.count(-1) > 1:
            raise LayerError(f"shape {self.shape} must have lengths from 0 on and at most one -1")
        if num_axes < -1:
            raise LayerError(f"num_axes must be at least 0, or -1 for all axes, not {num_axes}")

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Reshape:
        param = context.param.reshape_param
        return cls(param.shape.dim, axis=param.axis, num_axes=param.num_axes)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (bottom,) = bottom_shapes
        start, end = self._replaced(len(bottom))
        if not 0 <= start <= end <= len(bottom):
            raise LayerError(f"axis {self.axis} and num_axes {self.num_axes} are out of range for bottom {bottom}")
        if any(length == 0 and start + i >= len(bottom) for i, length in enumerate(self.shape)):
            raise LayerError(f"shape {self.shape} from axis {start} copies an axis that bottom {bottom} doesn't have")
        top = self._shape(bottom)
        count, given = math.prod(bottom), math.prod(length for length in top if length != -1)
        if count % given or (-1 not in top and count != given):
            raise LayerError(f"bottom {bottom} has {counted(count, 'element')}, which don't make {tuple(top)}")
        return [tuple(count // given if length == -1 else length for length in top)]

    def forward(self, bottom: Tensor) -> Tensor:
        return bottom.reshape(self._shape(bottom.shape))

    def _replaced(self, num_axes: int) -> tuple[int, int]:
        """The range of axes that is replaced."""
        start = self.axis if self.axis >= 0 else num_axes + self.axis + 1
        return start, num_axes if self.num_axes == -1 else start + self.num_axes

    def _shape(self, bottom: Sequence[int]) -> list[int]:
        """The top's shape, a -1 still in it."""
        start, end = self._replaced(len(bottom))
        new = [length if length else bottom[start + i] for i, length in enumerate(self.shape)]
        return [*bottom[:start], *new, *bottom[end:]]


@register("Permute")
class Permute(Layer):
    """The axes in another order (permute_layer.cpp of SSD), as numpy.transpose has them.

    Args:
        order: axis i of the top is axis order[i] of the bottom; axes that are not named follow in ascending order.
    """

    in_place = False
    rows = Rows.INDEPENDENT

    def __init__(self, order: Sequence[int] = ()) -> None:
        super().__init__()
        if len(set(order)) != len(order):
            raise LayerError(f"order {list(order)} names an axis twice")
        self.order = tuple(order)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Permute:
        return cls(context.param.permute_param.order)

    @property
    def axis(self) -> int | None:
        """0 if the batch's axis moves, so that rows are no longer rows; else None."""
        moves = self.order[0] != 0 if self.order else False
        return 0 if moves else None

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if max(self.order, default=-1) >= len(shape):
            raise LayerError(f"order {list(self.order)} names an axis that bottom {shape} does not have")
        return [tuple(shape[axis] for axis in self._whole(len(shape)))]

    def forward(self, bottom: Tensor) -> Tensor:
        return bottom.permute(self._whole(bottom.ndim))

    def _whole(self, num_axes: int) -> tuple[int, ...]:
        return (*self.order, *(axis for axis in range(num_axes) if axis not in self.order))


@register("Transpose")
class Transpose(Permute):
    """The axes in another order (transpose_layer.cpp of CTPN): Permute with `dim`, which names all axes."""

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Transpose:
        dim = list(context.param.transpose_param.dim)
        if sorted(dim) != list(range(len(context.bottom_shapes[0]))):
            raise LayerError(f"dim {dim} must name each axis of bottom {context.bottom_shapes[0]} once")
        return cls(dim)


@register("Reverse")
class Reverse(Layer):
    """An axis backwards (reverse_layer.cpp of CTPN).

    Args:
        axis: from 0 on.
    """

    in_place = False
    rows = Rows.INDEPENDENT

    def __init__(self, axis: int = 0) -> None:
        super().__init__()
        self.axis = axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Reverse:
        return cls(context.param.reverse_param.axis)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if not 0 <= self.axis < len(shape):
            raise LayerError(f"axis {self.axis} is out of range for bottom {shape}")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        return bottom.flip(self.axis)


@register("Reorg")
class Reorg(Layer):
    """Squares of pixels as channels, or back, in Darknet's order (reorg_layer.cpp of ports of YOLO 2).

    (N, C, H, W) -> (N, C * stride^2, H / stride, W / stride). Darknet reads the bottom as if it had C / stride^2
    channels of (H * stride, W * stride) pixels, and fills the top as if it had the bottom's shape: the pixels at place
    (i, j) of all squares of stride x stride pixels become C / stride^2 channels, from channel
    (i * stride + j) * C / stride^2 on.

    With `reverse`, (N, C, H, W) -> (N, C / stride^2, H * stride, W * stride), and these channels of the bottom become
    the pixels at place (i, j) of the top's squares.

    Args:
        stride: side of a square, from 1 on.
        reverse: see above.
    """

    rows = Rows.INDEPENDENT
    in_place = False

    def __init__(self, stride: int, *, reverse: bool = False) -> None:
        super().__init__()
        if stride < 1:
            raise LayerError("reorg_param.stride is missing or 0")
        self.stride, self.reverse = stride, reverse

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Reorg:
        param = context.param.reorg_param
        return cls(param.stride, reverse=param.reverse)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 4:
            raise LayerError(f"Reorg needs a bottom of 4 axes (N, C, H, W), not {shape}")
        count, channels, height, width = shape
        stride, square = self.stride, self.stride**2
        if channels % square:
            raise LayerError(f"bottom {shape} has {channels} channels, which is not a multiple of stride^2, {square}")
        if self.reverse:
            return [(count, channels // square, height * stride, width * stride)]
        if height % stride or width % stride:
            raise LayerError(f"height and width of bottom {shape} must be multiples of stride {stride}")
        return [(count, channels * square, height // stride, width // stride)]

    def forward(self, bottom: Tensor) -> Tensor:
        (top,) = self.top_shapes([tuple(bottom.shape)])
        count, channels, height, width = bottom.shape
        stride, own = self.stride, channels // self.stride**2
        if self.reverse:
            squares = bottom.reshape(count, stride, stride, own, height, width).permute(0, 3, 4, 1, 5, 2)
        else:
            squares = bottom.reshape(count, own, height, stride, width, stride).permute(0, 3, 5, 1, 2, 4)
        return squares.reshape(top)


@register("ShuffleChannel")
class ShuffleChannel(Layer):
    """Channels interleaved (shuffle_channel_layer.cpp of ShuffleNet): (N, C, ...) -> the same shape.

    Channel i * C / group + j becomes channel j * group + i.

    Args:
        group: a divisor of C.
    """

    rows = Rows.INDEPENDENT

    def __init__(self, group: int = 1) -> None:
        super().__init__()
        if group < 1:
            raise LayerError(f"group must be positive, not {group}")
        self.group = group

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ShuffleChannel:
        return cls(context.param.shuffle_channel_param.group)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) < 2:
            raise LayerError(f"ShuffleChannel needs a bottom of at least 2 axes (N, C, ...), not {shape}")
        if shape[1] % self.group:
            raise LayerError(f"bottom {shape} has {shape[1]} channels, which is not a multiple of group {self.group}")
        return [shape]

    def forward(self, bottom: Tensor) -> Tensor:
        count, channels, *rest = bottom.shape
        groups = bottom.reshape(count, self.group, channels // self.group, *rest)
        return groups.transpose(1, 2).reshape(bottom.shape)


@register("Tile")
class Tile(Layer):
    """The bottom several times, one after the other along `axis` (tile_layer.cpp).

    Args:
        tiles: how many times, from 1 on.
        axis: the axis that gets longer.
    """

    rows = Rows.INDEPENDENT

    def __init__(self, tiles: int, axis: int = 1) -> None:
        super().__init__()
        if tiles < 1:
            raise LayerError(f"tiles must be positive, not {tiles}")
        self.tiles, self.axis = tiles, axis

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Tile:
        param = context.param.tile_param
        return cls(param.tiles, param.axis)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        axis = canonical_axis(self.axis, len(shape))
        return [(*shape[:axis], shape[axis] * self.tiles, *shape[axis + 1 :])]

    def forward(self, bottom: Tensor) -> Tensor:
        return torch.cat([bottom] * self.tiles, self.axis)


@register("Split")
class Split(Layer):
    """The bottom given to every top; its gradient is the sum of the tops' gradients (split_layer.cpp)."""

    tops = (1, None)
    rows = Rows.PASSED_ON

    def __init__(self, num_tops: int) -> None:
        super().__init__()
        self.num_tops = num_tops

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Split:
        return cls(context.num_tops)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [bottom_shapes[0]] * self.num_tops

    def forward(self, bottom: Tensor) -> tuple[Tensor, ...]:
        return (bottom,) * self.num_tops


@register("Silence")
class Silence(Layer):
    """Consumes bottoms that nobody else reads (silence_layer.cpp)."""

    bottoms = (1, None)
    tops = (0, 0)
    rows = Rows.PASSED_ON

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Silence:
        return cls()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return []

    def forward(self, *bottoms: Tensor) -> tuple[()]:
        return ()


def _axis(param: pb.ConcatParameter | pb.SliceParameter, old_name: str) -> int:
    """The option `axis`, which may have its old name."""
    if param.HasField("axis") and param.HasField(old_name):
        raise LayerError(f"axis and {old_name} are two names for the same: keep axis")
    axis: int = getattr(param, old_name) if param.HasField(old_name) else param.axis
    return axis

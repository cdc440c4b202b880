"""Resample, Downsample and Accum of FlowNet 2.0: maps at another resolution.

What is linear along each axis by itself is two products of matrices here: rows' weights @ map @ columns' weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb

Pair = tuple[int, int]
Floats = NDArray[np.float32]
Matrices = tuple[Floats, Floats]


def along_both_axes(bottom: Tensor, weights: Matrices) -> Tensor:
    """(N, C, H, W) -> (N, C, H', W'), by weights of the rows (H', H) and of the columns (W', W)."""
    rows, columns = (torch.from_numpy(each).to(bottom) for each in weights)
    return rows @ (bottom @ columns.T)


def check_weights(bottom: Shape, size: Pair) -> None:
    """Raise LayerError if the weights that change a bottom (N, C, H, W) to this size take too much memory."""
    for old, new in zip(bottom[2:], size, strict=True):
        check_size("the weights of an axis", (new, old))


@register("Resample")
class Resample(Layer):
    """A map in another size (resample_layer.cu of FlowNet 2.0): (N, C, H, W) -> (N, C, H', W').

    With fy = H / H' and fx = W / W', column i of the top lies at x = i fx + fy / 2 - 1/2 of the bottom, and row j at
    y = j fy + fx / 2 - 1/2. (Each takes the other axis' factor for half a pixel; it is the fork's.)

    - NEAREST takes the pixel at that place, rounded, halves away from 0.
    - LINEAR takes the mean of the pixels around it with the weights max(0, 1 - |d|) of their distance d; CUBIC with
      those of the cubic of a = -1/2, within 2 pixels. Pixels beyond the borders do not count. With `antialias`, if H'
      < H or W' < W, distances are divided by fx and fy. Where no pixel is near enough, the value is 0.

    A second bottom, if there is one, gives H' and W', and no gradient flows through the layer, as in the fork.

    Args:
        size: (H', W'); None for those of the second bottom.
        kind: NEAREST, LINEAR or CUBIC of ResampleParameter.
        antialias: see above.
    """

    bottoms = (1, 2)
    no_gradient = (0, 1)
    in_place = False
    options = ("resample_param",)
    rows = Rows.INDEPENDENT

    def __init__(
        self, size: Pair | None = None, *, kind: int = pb.ResampleParameter.LINEAR, antialias: bool = True
    ) -> None:
        super().__init__()
        self.size, self.kind, self.antialias = size, kind, antialias

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Resample:
        param = context.param.resample_param
        if param.type == pb.ResampleParameter.AREA:
            raise LayerError("resample_param.type: AREA is not supported, as in FlowNet's own code")
        if param.factor != 1:
            raise LayerError(
                f"resample_param.factor {param.factor:g} is not supported, as FlowNet's code does not read it: give "
                "height and width, or a second bottom of the size wanted"
            )
        size = _size(param, ("height", "width"), "resample_param", len(context.bottom_shapes))
        return cls(size, kind=param.type, antialias=param.antialias)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, size = bottom_shapes[0], _out_size(self.size, bottom_shapes)
        top = check_size("the top", (*shape[:2], *size))
        if self.kind == pb.ResampleParameter.NEAREST:
            self.places((shape[2], shape[3]), size)
        else:
            check_weights(shape, size)
        return [top]

    def places(self, old: Pair, new: Pair) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For NEAREST, the row and the column that each row and column of the top is taken from.

        Raises:
            LayerError: the fork would read beyond the map.
        """
        rows, columns = (
            np.trunc(np.float64(centre) + np.copysign(0.5, centre)).astype(np.int64) for centre in _centres(old, new)
        )
        for taken, length in ((rows, old[0]), (columns, old[1])):
            if taken[0] < 0 or taken[-1] >= length:
                raise LayerError(
                    f"resample_param.type NEAREST from {old[0]} x {old[1]} to {new[0]} x {new[1]} pixels reads beyond "
                    "the map in FlowNet's own code: change both axes by more similar factors"
                )
        return rows, columns

    def weights(self, old: Pair, new: Pair) -> Matrices:
        """For LINEAR and CUBIC, the weights of rows (H', H) and columns (W', W), whose sums are 1, or 0."""
        factors = _factors(old, new)
        narrowed = self.antialias and max(factors) > 1
        made = []
        for centre, length, factor in zip(_centres(old, new), old, factors, strict=True):
            distance = centre[:, None] - np.arange(length, dtype=np.float32)
            scale = np.float32(1) / factor if narrowed else np.float32(1)
            weight = self._kernel(np.abs(distance * scale))
            total = weight.sum(1, keepdims=True)
            made.append(np.divide(weight, total, out=np.zeros_like(weight), where=total != 0))
        return made[0], made[1]

    def _kernel(self, distance: Floats) -> Floats:
        if self.kind == pb.ResampleParameter.LINEAR:
            return np.maximum(1 - distance, np.float32(0))
        near = distance * distance * (np.float32(1.5) * distance - np.float32(2.5)) + 1
        far = distance * (distance * (np.float32(-0.5) * distance + np.float32(2.5)) - 4) + 2
        return np.where(distance <= 1, near, np.where(distance < 2, far, np.float32(0)))

    @torch.no_grad()
    def forward(self, bottom: Tensor, reference: Tensor | None = None) -> Tensor:
        shapes = [tuple(each.shape) for each in (bottom, reference) if each is not None]
        old, new = (bottom.shape[2], bottom.shape[3]), _out_size(self.size, shapes)
        if self.kind == pb.ResampleParameter.NEAREST:
            rows, columns = (torch.from_numpy(each).to(bottom.device) for each in self.places(old, new))
            return bottom[:, :, rows[:, None], columns]
        return along_both_axes(bottom, self.weights(old, new))


@register("Downsample")
class Downsample(Layer):
    """A smaller map, without what is NaN (downsample_layer.cu of FlowNet 2.0): (N, C, H, W) -> (N, C, H', W').

    Corners stay in their places: row i of the top lies at i (H - 1) / (H' - 1) of the bottom. A value is the mean of
    the bottom's, with the weights max(0, 1 - |dy| / sy) max(0, 1 - |dx| / sx) for rows dy and columns dx away, sy =
    (H - 1) / (H' - 1), and likewise sx. A NaN does not count; where the weights of NaNs are more than half of those of
    the numbers, or there is no number, the value is NaN. A bottom of the size wanted stays as it is.

    A second bottom, if there is one, gives H' and W', and no gradient flows through the layer, as in the fork.

    Args:
        size: (H', W'); None for those of the second bottom.
    """

    bottoms = (1, 2)
    no_gradient = (0, 1)
    in_place = False
    options = ("downsample_param",)
    rows = Rows.INDEPENDENT

    def __init__(self, size: Pair | None = None) -> None:
        super().__init__()
        self.size = size

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Downsample:
        fields = ("top_height", "top_width")
        return cls(_size(context.param.downsample_param, fields, "downsample_param", len(context.bottom_shapes)))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, size = bottom_shapes[0], _out_size(self.size, bottom_shapes)
        if size != shape[2:]:
            if min(*shape[2:], *size) < 2:
                raise LayerError(
                    f"{shape[2]} x {shape[3]} pixels can't become {size[0]} x {size[1]}: the fork divides by 0 along "
                    "an axis of one pixel"
                )
            check_weights(shape, size)
        return [(*shape[:2], *size)]

    def weights(self, old: Pair, new: Pair) -> Matrices:
        """The weights of rows (H', H) and columns (W', W)."""
        made = []
        for length, wanted in zip(old, new, strict=True):
            ratio = np.float32(length - 1) / np.float32(wanted - 1)
            centre = np.arange(wanted, dtype=np.float32) / np.float32(wanted - 1) * np.float32(length - 1)
            distance = np.abs(np.arange(length, dtype=np.float32) - centre[:, None])
            made.append(np.maximum(1 - distance / ratio, np.float32(0)))
        return made[0], made[1]

    @torch.no_grad()
    def forward(self, bottom: Tensor, reference: Tensor | None = None) -> Tensor:
        shapes = [tuple(each.shape) for each in (bottom, reference) if each is not None]
        old, new = (bottom.shape[2], bottom.shape[3]), _out_size(self.size, shapes)
        if old == new:
            return bottom
        weights = self.weights(old, new)
        missing = bottom.isnan()
        lost = along_both_axes(missing.to(bottom), weights)
        counted = along_both_axes((~missing).to(bottom), weights)
        mean = along_both_axes(bottom.where(~missing, 0), weights) / counted
        return mean.where(lost <= counted / 2, torch.nan)


@register("Accum")
class Accum(Layer):
    """Maps of several sizes, enlarged to one and put together (accum_layer.cpp of FlowNet 2.0).

    Bottoms: maps (N, Ci, Hi, Wi). Top: (N, sum of Ci, H', W'), each map interpolated linearly between pixels, with the
    corners in their places.

    With `have_reference` the last bottom only gives H' and W'. Otherwise these are the largest of the bottoms' heights
    and widths; or those that are stated, if both are larger; or, with `size_divisible_by`, the next multiples of that.

    Args:
        reference: whether the last bottom is one.
        size: (height, width) stated.
        divisor: size_divisible_by; None without.
    """

    bottoms = (1, None)
    in_place = False
    options = ("accum_param",)
    rows = Rows.INDEPENDENT

    def __init__(self, *, reference: bool = False, size: Pair = (0, 0), divisor: int | None = None) -> None:
        super().__init__()
        self.reference, self.size, self.divisor = reference, size, divisor

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Accum:
        param = context.param.accum_param
        divisor = param.size_divisible_by if param.HasField("size_divisible_by") else None
        if divisor == 0:
            raise LayerError("accum_param.size_divisible_by must be positive, not 0")
        if param.have_reference and len(context.bottom_shapes) < 2:
            raise LayerError("accum_param.have_reference needs a bottom more, whose height and width the top gets")
        return cls(reference=param.have_reference, size=(param.top_height, param.top_width), divisor=divisor)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        for shape in bottom_shapes:
            if len(shape) != 4:
                raise LayerError(f"needs bottoms of 4 axes (N, C, H, W), not {shape}")
        maps = bottom_shapes[:-1] if self.reference else bottom_shapes
        for shape in maps:
            if shape[0] != maps[0][0]:
                raise LayerError(f"bottoms {maps[0]} and {shape} must have as many rows")
        size = self.out_size(bottom_shapes)
        if min(size) < 2:
            raise LayerError(f"a top of {size[0]} x {size[1]} pixels is not supported: the fork divides by 0 there")
        return [(maps[0][0], sum(shape[1] for shape in maps), *size)]

    def out_size(self, bottom_shapes: Sequence[Shape]) -> Pair:
        """(H', W')."""
        if self.reference:
            return bottom_shapes[-1][2], bottom_shapes[-1][3]
        height, width = (max(shape[axis] for shape in bottom_shapes) for axis in (2, 3))
        stated = self.size
        if self.divisor is not None:
            stated = -(-height // self.divisor) * self.divisor, -(-width // self.divisor) * self.divisor
        return stated if stated[0] > height and stated[1] > width else (height, width)

    def forward(self, *bottoms: Tensor) -> Tensor:
        size = self.out_size([tuple(bottom.shape) for bottom in bottoms])
        maps = bottoms[:-1] if self.reference else bottoms
        return torch.cat([F.interpolate(each, size, mode="bilinear", align_corners=True) for each in maps], 1)


def _size(param: Any, fields: tuple[str, str], message: str, bottoms: int) -> Pair | None:
    """(height, width) as stated; None where a second bottom gives them."""
    if bottoms > 1:
        return None
    height, width = (getattr(param, field) for field in fields)
    if min(height, width) < 1:
        raise LayerError(
            f"{message} needs {fields[0]} and {fields[1]} from 1 on, or a second bottom of the size wanted"
        )
    return height, width


def _out_size(size: Pair | None, shapes: Sequence[Shape]) -> Pair:
    """(H', W') for these bottoms."""
    for shape in shapes:
        if len(shape) != 4:
            raise LayerError(f"needs bottoms of 4 axes (N, C, H, W), not {shape}")
    return size if size is not None else (shapes[1][2], shapes[1][3])


def _factors(old: Pair, new: Pair) -> tuple[np.float32, np.float32]:
    """(fy, fx), pixels of the bottom for each of the top."""
    return np.float32(old[0]) / np.float32(new[0]), np.float32(old[1]) / np.float32(new[1])


def _centres(old: Pair, new: Pair) -> tuple[Floats, Floats]:
    """Where rows and columns of the top lie in the bottom, in the steps and the precision of the fork."""
    fy, fx = _factors(old, new)
    half = np.float32(0.5)
    rows = np.arange(new[0], dtype=np.float32) * fy + fx / 2 - half
    columns = np.arange(new[1], dtype=np.float32) * fx + fy / 2 - half
    return rows, columns

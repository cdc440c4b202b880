"""Caffe's Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.draws import Draws
from autodial.layers.shares import Rows
from autodial.layers.windows import Lengths, lengths
from autodial.proto import messages as pb

Triple = tuple[int, int, int]


@register("Pooling")
class Pooling(Layer):
    """Maximum, average or random value over windows (pooling_layer.cpp): (N, C, H, W) -> (N, C, H', W').

    Videos and volumes, (N, C, D, H, W), are pooled by the same rules along all three axes (pooling_layer.cpp of BVLC's
    pull request 3983, pooling_nd_layer.cpp of 3D-Caffe).

    Tops: the values and, if asked for, each maximum's place in its channel, row * W + column, -1 over a window without
    real pixels; no gradient flows through the places.

    H' = ceil((H + 2 pad - kernel) / stride) + 1, or with floor in the place of ceil. With a pad, a last window that
    would start beyond the image and its left pad is dropped. A maximum takes real pixels only, and is -FLT_MAX over a
    window without any. An average is divided by the window's size after clipping it to the image and its pads.

    STOCHASTIC pooling takes non-negative values. In training it draws each top from its window, a value with the
    probability of its share in the window's sum. In evaluation it takes the mean that these probabilities give,
    sum(x^2) / sum(x), or 0 where the sum is 0. `reseed(seed)` restarts the draws, as for Dropout.

    Torch's ceil_mode differs from this rule in a few shapes and ONNX runtimes differ from each other, so the image is
    padded to what the windows cover and pooled without ceil_mode.

    Args:
        method: "MAX", "AVE" or "STOCHASTIC"; the last takes no pad.
        kernel_size: (height, width) in pixels, or (depth, height, width); None pools the whole image.
        stride, pad: as many numbers, in pixels; pad < kernel_size.
        mask: whether there is a second top, the places; of maxima only.
        ceil: whether a window that begins inside the image counts although it ends beyond. BVLC calls it round_mode,
            other forks ceil_mode.
    """

    tops = (1, 2)
    fork_fields = ("pooling_param.round_mode", "pooling_param.ceil_mode")
    rows = Rows.INDEPENDENT
    is_random = True

    def __init__(
        self,
        method: str,
        kernel_size: Lengths | None,
        *,
        stride: Lengths = (1, 1),
        pad: Lengths = (0, 0),
        mask: bool = False,
        ceil: bool = True,
    ) -> None:
        super().__init__()
        if method not in ("MAX", "AVE", "STOCHASTIC"):
            raise LayerError(f"pool must be MAX, AVE or STOCHASTIC, not {method}")
        if mask and method != "MAX":
            raise LayerError(f"a second top, the places of the maxima, goes with pool MAX, not with {method}")
        if min(stride) < 1:
            raise LayerError(f"stride must be positive, not {_by(stride)}")
        if kernel_size is None:
            if max(stride) > 1 or any(pad):
                raise LayerError("global_pooling takes neither a stride nor a pad")
        elif min(kernel_size) < 1:
            raise LayerError(f"kernel_size must be positive, not {_by(kernel_size)}")
        elif any(margin >= extent for margin, extent in zip(pad, kernel_size, strict=True)):
            raise LayerError(f"pad {_by(pad)} must be smaller than kernel_size {_by(kernel_size)}")
        if method == "STOCHASTIC" and any(pad):
            raise LayerError("pool STOCHASTIC takes no pad: pad the images before")
        self.method, self.kernel_size, self.stride, self.pad, self.mask = method, kernel_size, stride, pad, mask
        self.ceil = ceil
        self._draws = Draws()

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Pooling:
        param = context.param.pooling_param
        axes = 3 if len(context.bottom_shapes[0]) == 5 else 2
        kernel = _lengths(param, "kernel_size", "kernel", None, axes)
        if param.global_pooling and kernel:
            raise LayerError("global_pooling takes no kernel_size: the kernel is the whole image")
        if not param.global_pooling and not kernel:
            raise LayerError("pooling_param needs kernel_size, or kernel_h and kernel_w")
        return cls(
            pb.PoolingParameter.PoolMethod.Name(param.pool),
            kernel,
            stride=_lengths(param, "stride", "stride", 1, axes) or (1,) * axes,
            pad=_lengths(param, "pad", "pad", 0, axes) or (0,) * axes,
            mask=context.num_tops > 1,
            ceil=_ceil(param),
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 2 + len(self.stride):
            names = "(N, C, H, W)" if len(self.stride) == 2 else "(N, C, D, H, W)"
            raise LayerError(f"pooling needs a bottom of {2 + len(self.stride)} axes {names}, not {shape}")
        out = self._out_size(shape[2:])
        if min(out) < 1:
            raise LayerError(
                f"kernel_size {self.kernel_size} does not fit bottom {shape}: feed larger images, or pool the "
                "whole image with global_pooling: true instead of kernel_size and stride"
            )
        after = self._margin(shape[2:])
        check_size(
            "the bottom with what its windows cover beyond it",
            (*shape[:2], *(length + pad + more for length, pad, more in zip(shape[2:], self.pad, after, strict=True))),
        )
        if self.method == "STOCHASTIC":
            check_size("the values of all windows", (*shape[:2], *out, prod(self.kernel_size or shape[2:])))
        return [(*shape[:2], *out)] * (1 + self.mask)

    def reseed(self, seed: int) -> None:
        self._draws.reseed(seed)

    def forward(self, bottom: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        size = tuple(bottom.shape[2:])
        kernel = self.kernel_size or size
        out = self._out_size(size)
        after = self._margin(size)
        margins = [side for pair in zip(self.pad[::-1], after[::-1], strict=True) for side in pair]
        if self.method == "MAX":
            if any(margins):
                bottom = F.pad(bottom, margins, value=torch.finfo(bottom.dtype).min)
            pool = F.max_pool2d if len(size) == 2 else F.max_pool3d
            if not self.mask:
                return pool(bottom, kernel, self.stride)
            top, place = pool(bottom, kernel, self.stride, return_indices=True)
            place = _without_margins(place, bottom.shape[2:], size, self.pad)
            place = place.where(top > torch.finfo(top.dtype).min, -1)
            return top, place.to(top.dtype)
        if any(margins):
            bottom = F.pad(bottom, margins)
        if self.method == "STOCHASTIC":
            return self._drawn(bottom, kernel) if self.training else self._expected(bottom, kernel)
        top = self._average(bottom, kernel)
        if all(extra <= pad for extra, pad in zip(after, self.pad, strict=True)):
            return top
        # Some windows are cut off at the pad's edge: undo the division by the whole kernel, divide by what is left.
        lengths = (
            bottom.new_tensor([min(extent, length + 2 * pad - i * stride) for i in range(count)])
            for count, stride, extent, pad, length in zip(out, self.stride, kernel, self.pad, size, strict=True)
        )
        return top * prod(kernel) / reduce(lambda sizes, along: sizes.unsqueeze(-1) * along, lengths)

    def _average(self, bottom: Tensor, kernel: Lengths) -> Tensor:
        return (F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d)(bottom, kernel, self.stride)

    def _drawn(self, bottom: Tensor, kernel: Lengths) -> Tensor:
        """A value of each window, the first up to which the sum reaches a random share of the whole."""
        windows = bottom
        for axis, (extent, stride) in enumerate(zip(kernel, self.stride, strict=True), 2):
            windows = windows.unfold(axis, extent, stride)
        windows = windows.flatten(bottom.ndim)
        sums = windows.detach().cumsum(-1)
        goal = sums[..., -1:] * self._draws.uniform(sums[..., -1], self.shares).unsqueeze(-1)
        place = (sums < goal).sum(-1, keepdim=True).clamp(max=windows.shape[-1] - 1)
        return windows.gather(-1, place).squeeze(-1)

    def _expected(self, bottom: Tensor, kernel: Lengths) -> Tensor:
        """The mean of the values that `_drawn` may give."""
        sums, squares = (self._average(values, kernel) for values in (bottom, bottom.square()))
        return torch.where(sums > 0, squares / sums.where(sums > 0, 1), 0)

    def _margin(self, size: Sequence[int]) -> list[int]:
        """How far the last window reaches beyond the image, below and to the right."""
        return [
            max((count - 1) * stride + extent - pad - length, 0)
            for count, stride, extent, pad, length in zip(
                self._out_size(size), self.stride, self.kernel_size or size, self.pad, size, strict=True
            )
        ]

    def _out_size(self, size: Sequence[int]) -> Lengths:
        kernel = self.kernel_size or size
        return tuple(
            self._out_length(length, extent, stride, pad)
            for length, extent, stride, pad in zip(size, kernel, self.stride, self.pad, strict=True)
        )

    def _out_length(self, length: int, kernel: int, stride: int, pad: int) -> int:
        room = length + 2 * pad - kernel
        count = (-(-room // stride) if self.ceil else room // stride) + 1
        # As in Caffe, a pad along any axis switches the rule on for all.
        if any(self.pad) and (count - 1) * stride >= length + pad:
            count -= 1
        return count


@register("PoolingND")
class PoolingND(Pooling):
    """Pooling over images or volumes with one number for all spatial axes or one for each (3D-Caffe).

    What it computes is what Pooling computes; the options are those of `pooling_nd_param`.
    """

    @classmethod
    def from_caffe(cls, context: LayerContext) -> PoolingND:
        param = context.param.pooling_nd_param
        axes = len(context.bottom_shapes[0]) - 2
        if axes not in (2, 3) or param.axis not in (1, 1 - len(context.bottom_shapes[0])):
            raise LayerError(
                f"pools 2 or 3 spatial axes behind pooling_nd_param.axis 1, the channels, not a bottom of "
                f"{2 + axes} axes behind axis {param.axis}"
            )
        given = param.kernel_size or param.HasField("kernel_h") or param.HasField("kernel_w")
        if param.global_pooling and given:
            raise LayerError("global_pooling takes no kernel_size: the kernel is the whole image")
        return cls(
            pb.PoolingNDParameter.PoolMethod.Name(param.pool),
            None if param.global_pooling else lengths(param, "kernel_size", "kernel", None, axes),
            stride=lengths(param, "stride", "stride", 1, axes),
            pad=lengths(param, "pad", "pad", 0, axes),
            mask=context.num_tops > 1,
        )


@register("Pooling3D")
class Pooling3D(Layer):
    """Maximum or average over windows of frames, rows and columns (pooling3d_layer.cpp of C3D).

    Bottom: (N, C, L, H, W); top: (N, C, L', H', W'), where L' = ceil((L - kernel) / stride) + 1, and likewise H'
    and W'. An average is over what of the window lies in the bottom. The options are those of `pooling3d_param`, or
    of `pooling_param` in nets of C3D 1.0.

    Args:
        method: "MAX" or "AVE".
        kernel_size, stride: (frames, rows, columns).
    """

    options = ("pooling_param", "pooling3d_param")
    fork_fields = ("pooling_param.kernel_depth", "pooling_param.temporal_stride")
    rows = Rows.INDEPENDENT

    def __init__(self, method: str, kernel_size: Triple, stride: Triple = (1, 1, 1)) -> None:
        super().__init__()
        if method not in ("MAX", "AVE"):
            raise LayerError(f"pool must be MAX or AVE, not {method}")
        for name, values in (("kernel_size and kernel_depth", kernel_size), ("stride and temporal_stride", stride)):
            if min(values) < 1:
                raise LayerError(f"{name} must be positive")
        self.method, self.kernel_size, self.stride = method, kernel_size, stride

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Pooling3D:
        old, new = context.param.pooling_param, context.param.pooling3d_param
        if old.ListFields() and new.ListFields():
            raise LayerError("give pooling3d_param or, as C3D 1.0 has it, pooling_param, and not both")
        param = old if old.ListFields() else new
        for field, _ in old.ListFields():
            if field.name not in _FIELDS_3D:
                raise LayerError(f"pooling_param.{field.name} is not for Pooling3D: remove it")
        if param.pad:
            raise LayerError("pad is not supported here: the fork's maxima ignore it")
        return cls(
            pb.Pooling3DParameter.PoolMethod.Name(int(param.pool)),
            (param.kernel_depth, param.kernel_size, param.kernel_size),
            (param.temporal_stride, param.stride, param.stride),
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 5:
            raise LayerError(f"needs a bottom of 5 axes (N, C, L, H, W), not {shape}")
        out = [self.out_length(axis, length) for axis, length in enumerate(shape[2:])]
        if min(out) < 1:
            raise LayerError(f"the window {self.kernel_size} does not fit bottom {shape}")
        check_size("the bottom with what its windows cover beyond it", (*shape[:2], *self._covered(shape[2:])))
        return [(*shape[:2], *out)]

    def forward(self, bottom: Tensor) -> Tensor:
        size = bottom.shape[2:]
        margins = [
            side
            for length, reach in zip(size[::-1], self._covered(size)[::-1], strict=True)
            for side in (0, reach - length)
        ]
        if self.method == "MAX":
            padded = F.pad(bottom, margins, value=torch.finfo(bottom.dtype).min) if any(margins) else bottom
            return F.max_pool3d(padded, self.kernel_size, self.stride)
        top = F.avg_pool3d(F.pad(bottom, margins), self.kernel_size, self.stride)
        if not any(margins):
            return top
        inside = F.pad(bottom.new_ones(1, 1, *size), margins)
        return top / F.avg_pool3d(inside, self.kernel_size, self.stride)

    def out_length(self, axis: int, length: int) -> int:
        """Windows along an axis, 0 for frames, 1 for rows, 2 for columns, of that length."""
        return -(-(length - self.kernel_size[axis]) // self.stride[axis]) + 1

    def _covered(self, size: Sequence[int]) -> list[int]:
        """How far the windows reach along each axis, at least to its end."""
        return [
            max((self.out_length(axis, length) - 1) * self.stride[axis] + self.kernel_size[axis], length)
            for axis, length in enumerate(size)
        ]


_FIELDS_3D = ("pool", "kernel_size", "stride", "pad", "kernel_depth", "temporal_stride", "engine")


def _ceil(param: pb.PoolingParameter) -> bool:
    """Whether sizes are rounded up: the default, whichever of the option's two names is used."""
    if param.HasField("round_mode") and param.HasField("ceil_mode"):
        raise LayerError("pooling_param sets both round_mode and ceil_mode, two names for the same: keep one")
    if param.HasField("ceil_mode"):
        return param.ceil_mode
    return param.round_mode == pb.PoolingParameter.CEIL


def _lengths(param: pb.PoolingParameter, field: str, stem: str, default: int | None, axes: int) -> Lengths | None:
    """A number for each axis, from one field for all, or from STEM_h and STEM_w together; None where unset."""
    given = [param.HasField(f"{stem}_h"), param.HasField(f"{stem}_w")]
    if param.HasField(field) and any(given):
        raise LayerError(f"pooling_param sets both {field} and {stem}_h or {stem}_w: keep one form")
    if any(given) and axes != 2:
        raise LayerError(f"pooling_param.{stem}_h and {stem}_w are for 2 spatial axes, and the bottom has {axes}")
    if any(given) and not all(given):
        raise LayerError(f"pooling_param needs {stem}_h and {stem}_w together")
    if all(given):
        return getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")
    if param.HasField(field):
        return (getattr(param, field),) * axes
    return None if default is None else (default,) * axes


def _without_margins(place: Tensor, padded: Sequence[int], size: Sequence[int], pad: Lengths) -> Tensor:
    """Places in a padded channel as places in the channel itself."""
    moved, stride = torch.zeros_like(place), 1
    for length, with_margins, margin in zip(size[::-1], padded[::-1], pad[::-1], strict=True):
        moved += (place % with_margins - margin) * stride
        place, stride = place // with_margins, stride * length
    return moved


def _by(lengths: Lengths) -> str:
    return " x ".join(map(str, lengths))

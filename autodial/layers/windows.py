"""The windows of a ConvolutionParameter: their sizes, steps, margins and gaps, for any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autodial.layers.base import LayerError, Shape, canonical_axis, check_size
from autodial.proto import messages as pb
from autodial.wording import counted

Lengths = tuple[int, ...]
"""One number for each spatial axis, in order: (height, width) for images."""


@dataclass(frozen=True)
class Windows:
    """Windows over spatial axes, as Convolution, Deconvolution and Im2col lay them.

    Attributes:
        kernel_size: a window's values along each spatial axis.
        stride, pad, dilation: as many numbers each.

    Raises:
        LayerError: a number that is too small.
    """

    kernel_size: Lengths
    stride: Lengths
    pad: Lengths
    dilation: Lengths

    def __post_init__(self) -> None:
        for name in ("kernel_size", "stride", "dilation"):
            values = getattr(self, name)
            if min(values, default=1) < 1:
                raise LayerError(f"{name} must be positive, not {' x '.join(map(str, values))}")

    @classmethod
    def from_caffe(cls, param: pb.ConvolutionParameter | pb.LSTMConvolutionParameter, axes: int) -> Windows:
        """Read the options for that many spatial axes; to a kernel of 1, a dilation means nothing, and may be 0."""
        kernel_size = lengths(param, "kernel_size", "kernel", None, axes)
        dilation = lengths(param, "dilation", None, 1, axes)
        return cls(
            kernel_size,
            lengths(param, "stride", "stride", 1, axes),
            lengths(param, "pad", "pad", 0, axes),
            tuple(max(d, 1) if k == 1 else d for k, d in zip(kernel_size, dilation, strict=True)),
        )

    @cached_property
    def extents(self) -> Lengths:
        """How many values of the bottom a window reaches over, along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    def counts(self, bottom: Sequence[int]) -> Lengths:
        """How many windows fit along each of the last axes of a bottom.

        Caffe divides as C++ does, towards zero, so that one window remains where it is larger than the padded bottom
        by less than a stride (conv_layer.cpp).

        Raises:
            LayerError: no window fits.
        """
        out = []
        for length, extent, stride, pad in self._along(bottom):
            room = length + 2 * pad - extent
            if room <= -stride:
                raise LayerError(f"a kernel over {extent} pixels does not fit bottom {tuple(bottom)} with pad {pad}")
            out.append(max(room, 0) // stride + 1)
        return tuple(out)

    def checked_counts(self, bottom: Shape) -> Lengths:
        """`counts`; also LayerError if the bottom with its margins is too large for this machine."""
        margins = zip(self._along(bottom), self.overhang(bottom), strict=True)
        padded = tuple(length + 2 * pad + over for (length, _, _, pad), over in margins)
        out = self.counts(bottom)
        check_size("the bottom with its margins", (*bottom[: len(bottom) - len(padded)], *padded))
        return out

    def overhang(self, bottom: Sequence[int]) -> Lengths:
        """How far a window reaches beyond the padded bottom along each axis: 0, but for what `counts` says."""
        return tuple(max(extent - length - 2 * pad, 0) for length, extent, _, pad in self._along(bottom))

    def _along(self, bottom: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """(length, extent, stride, pad) of each spatial axis."""
        lengths = bottom[len(bottom) - len(self.kernel_size) :]
        return list(zip(lengths, self.extents, self.stride, self.pad, strict=True))


_MESSAGES = {
    "ConvolutionParameter": "convolution_param",
    "PoolingNDParameter": "pooling_nd_param",
    "LSTMConvolutionParameter": "lstm_conv_param",
}
"""The fields of LayerParameter that hold these messages."""


def channel_axis(param: pb.ConvolutionParameter, bottom: Shape) -> int:
    """The bottom's axis of channels, which the spatial axes follow."""
    return canonical_axis(param.axis, len(bottom))


def lengths(
    param: pb.ConvolutionParameter | pb.PoolingNDParameter | pb.LSTMConvolutionParameter,
    field: str,
    stem: str | None,
    default: int | None,
    axes: int,
) -> Lengths:
    """A number for each axis: from a repeated field, one for all or one each, or from STEM_h and STEM_w."""
    message = _MESSAGES[type(param).__name__]
    values = list(getattr(param, field))
    if stem and (param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w")):
        if values:
            raise LayerError(f"{message} sets both {field} and {stem}_h or {stem}_w: keep one form")
        if axes != 2:
            raise LayerError(
                f"{message}.{stem}_h and {stem}_w are for 2 spatial axes, and the bottom has {axes}: give "
                f"{field} for each"
            )
        return getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")
    if not values and default is not None:
        values = [default]
    if len(values) not in (1, axes):
        raise LayerError(
            f"{message}.{field} has {counted(len(values), 'value')}, but the bottom has "
            f"{counted(axes, 'spatial axis', 'spatial axes')}"
        )
    return tuple(values) if len(values) == axes else (values[0],) * axes

"""Pooling over regions of interest: ROIPooling of Fast R-CNN and PSROIPooling of R-FCN."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.labels import check_indices
from autodial.layers.shares import Rows


class RegionPooling(Layer):
    """What both poolings have in common: bins over regions of a map.

    Bottoms: the map, (N, C, H, W), and the regions, (R, 5) or with axes of length 1 behind: the image's number, x1, y1,
    x2, y2 in pixels of the input. Top: (R, channels, rows of bins, columns of bins). A bin without pixels is 0. The
    regions get no gradient.

    Args:
        bins: (vertical, horizontal) number of bins.
        spatial_scale: from pixels of the input to those of the map.
    """

    bottoms = (2, 2)
    no_gradient = (1,)
    in_place = False
    full_precision = True  # where a region's borders lie depends on each bit
    rows = Rows.NONE
    backward_reads_bottoms = True

    def __init__(self, bins: tuple[int, int], spatial_scale: float) -> None:
        super().__init__()
        self.bins, self.spatial_scale = bins, spatial_scale

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, regions = bottom_shapes
        if len(shape) != 4:
            raise LayerError(f"the first bottom must be a map of 4 axes (N, C, H, W), not {shape}")
        if len(regions) < 2 or regions[1] != 5 or any(length != 1 for length in regions[2:]):
            raise LayerError(f"the second bottom must be regions (R, 5): image, x1, y1, x2, y2; not {regions}")
        return [(regions[0], self._channels(shape[1]), *self.bins)]

    def forward(self, bottom: Tensor, regions: Tensor) -> Tensor:
        regions = regions.detach().reshape(-1, 5)
        check_indices(regions[:, 0].long(), bottom.shape[0], "a region's image", "images")
        return self._pooled(bottom, regions)

    @abstractmethod
    def _channels(self, bottom: int) -> int:
        """The top's channels for the bottom's; LayerError where they don't fit."""

    @abstractmethod
    def _pooled(self, bottom: Tensor, regions: Tensor) -> Tensor:
        """The top for regions (R, 5)."""


@register("ROIPooling")
class ROIPooling(RegionPooling):
    """The maximum of each bin (roi_pooling_layer.cpp of Fast R-CNN): channels stay.

    Coordinates are scaled, then rounded, halves away from 0. A region reaches from its start to its end, both included,
    and has at least one pixel. Bins overlap where they don't divide it. Of equal values the first of the bin gets the
    gradient.
    """

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ROIPooling:
        param = context.param.roi_pooling_param
        if param.pad_ratio:
            raise LayerError("roi_pooling_param.pad_ratio, of MS-CNN, is not supported: only 0 is")
        for field in ("pooled_h", "pooled_w"):
            if not getattr(param, field):
                raise LayerError(f"roi_pooling_param.{field} is missing or 0")
        return cls((param.pooled_h, param.pooled_w), param.spatial_scale)

    def _channels(self, bottom: int) -> int:
        return bottom

    def _pooled(self, bottom: Tensor, regions: Tensor) -> Tensor:
        from torchvision.ops import roi_pool

        top: Tensor = roi_pool(bottom, regions, self.bins, self.spatial_scale)
        return top


@register("PSROIPooling")
class PSROIPooling(RegionPooling):
    """The mean of each bin, for each from channels of its own (psroi_pooling_layer.cpp of R-FCN): C = output_dim g^2.

    Bin (i, j) of channel c is the mean of the bottom's channel (c g + i) g + j. Coordinates are rounded, halves away
    from 0, then scaled; a region reaches to the end of its last pixel and is at least 0.1 long.

    Args:
        output_dim: the top's channels.
        group_size: g, the number of bins along either axis.
        spatial_scale: from pixels of the input to those of the map.
    """

    def __init__(self, output_dim: int, group_size: int, spatial_scale: float) -> None:
        super().__init__((group_size, group_size), spatial_scale)
        if output_dim < 1 or group_size < 1:
            raise LayerError(f"output_dim and group_size must be positive, not {output_dim} and {group_size}")
        if not spatial_scale > 0:
            raise LayerError(f"spatial_scale must be positive, not {spatial_scale:g}")
        self.output_dim, self.group_size = output_dim, group_size

    @classmethod
    def from_caffe(cls, context: LayerContext) -> PSROIPooling:
        param = context.param.psroi_pooling_param
        for field in ("output_dim", "group_size", "spatial_scale"):
            if not param.HasField(field):
                raise LayerError(f"psroi_pooling_param.{field} is missing")
        return cls(param.output_dim, param.group_size, param.spatial_scale)

    def _channels(self, bottom: int) -> int:
        if bottom != self.output_dim * self.group_size**2:
            raise LayerError(
                f"the map must have output_dim {self.output_dim} x group_size {self.group_size}^2 = "
                f"{self.output_dim * self.group_size**2} channels, not {bottom}"
            )
        return self.output_dim

    def _pooled(self, bottom: Tensor, regions: Tensor) -> Tensor:
        # The sum over any rectangle comes from 4 values of the sums from the corner on, in double precision, as
        # differences of large numbers.
        sums = torch.nn.functional.pad(bottom.double().cumsum(2).cumsum(3), (1, 0, 1, 0))
        top, bottom_edge = self._edges(regions[:, 2], regions[:, 4], bottom.shape[2])
        left, right = self._edges(regions[:, 1], regions[:, 3], bottom.shape[3])
        g = self.group_size
        bins = torch.arange(g, device=bottom.device)
        channels = (
            torch.arange(self.output_dim, device=bottom.device).reshape(-1, 1, 1) * g + bins[:, None]
        ) * g + bins
        image = regions[:, 0].long().reshape(-1, 1, 1, 1)

        def corner(row: Tensor, column: Tensor) -> Tensor:
            return sums[image, channels, row[:, None, :, None], column[:, None, None, :]]

        total = corner(bottom_edge, right) - corner(top, right) - corner(bottom_edge, left) + corner(top, left)
        area = ((bottom_edge - top)[:, None, :, None] * (right - left)[:, None, None, :]).clamp(min=1)
        return (total / area).to(bottom.dtype)

    def _edges(self, start: Tensor, end: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """First pixel of each bin and the one behind its last, (R, g) each, along an axis of `length` pixels."""
        scale = torch.tensor(self.spatial_scale, dtype=start.dtype, device=start.device)
        first = _rounded(start) * scale
        size = ((_rounded(end) + 1) * scale - first).clamp(min=0.1) / self.group_size
        bins = torch.arange(self.group_size, dtype=start.dtype, device=start.device)
        begins, ends = (
            (bins * size[:, None] + first[:, None]).floor(),
            ((bins + 1) * size[:, None] + first[:, None]).ceil(),
        )
        begins, ends = (edges.nan_to_num().clamp(0, length).long() for edges in (begins, ends))
        return begins, torch.maximum(begins, ends)


def _rounded(values: Tensor) -> Tensor:
    """To the next integer, halves away from 0, as C rounds and torch does not."""
    whole = values.trunc()
    return whole + values.sign() * ((values - whole).abs() >= 0.5)

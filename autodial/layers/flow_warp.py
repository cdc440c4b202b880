"""FlowWarp: an image seen through a field of displacements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb


@register("FlowWarp")
class FlowWarp(Layer):
    """The image's value where the flow points to, at each pixel (flow_warp_layer.cpp of FlowNet 2.0).

    Bottoms: image (N, C, H, W) and flow (N, 2, H, W), pixels to the right and down. Top: (N, C, H, W), for each pixel
    (y, x) the image at (y + down, x + right), interpolated linearly between the four pixels around that place; beyond
    the last row or column these repeat. A place left of or above the image's first pixel, or a whole pixel or more
    beyond its last, gets the fill value, and so does one that is NaN.

    Args:
        fill: the value outside the image, 0 or NaN.
    """

    bottoms = (2, 2)
    in_place = False
    options = ("flow_warp_param",)
    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(self, fill: float = 0.0) -> None:
        super().__init__()
        self.fill = fill

    @classmethod
    def from_caffe(cls, context: LayerContext) -> FlowWarp:
        zero = context.param.flow_warp_param.fill_value == pb.FlowWarpParameter.ZERO
        return cls(0.0 if zero else float("nan"))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        image, flow = bottom_shapes
        if len(image) != 4:
            raise LayerError(f"the first bottom must be images (N, C, H, W), not {image}")
        wanted = (image[0], 2, *image[2:])
        if flow != wanted:
            raise LayerError(f"the second bottom must be the flow of images {image}, {wanted}, not {flow}")
        return [image]

    def forward(self, image: Tensor, flow: Tensor) -> Tensor:
        height, width = image.shape[2:]
        x = torch.arange(width, dtype=flow.dtype, device=flow.device) + flow[:, 0]
        y = torch.arange(height, dtype=flow.dtype, device=flow.device)[:, None] + flow[:, 1]
        inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)  # (N, H, W); False for NaN
        x, y = (torch.where(inside, place, 0) for place in (x, y))
        left, upper = x.detach().floor(), y.detach().floor()
        right, lower = (left + 1).clamp(max=width - 1), (upper + 1).clamp(max=height - 1)
        alpha, beta = (x - left)[:, None], (y - upper)[:, None]
        pixels = image.flatten(2)

        def at(row: Tensor, column: Tensor) -> Tensor:
            index = (row.long() * width + column.long()).flatten(1)[:, None].expand(-1, image.shape[1], -1)
            return pixels.gather(2, index).view_as(image)

        above = (1 - alpha) * at(upper, left) + alpha * at(upper, right)
        below = (1 - alpha) * at(lower, left) + alpha * at(lower, right)
        return torch.where(inside[:, None], (1 - beta) * above + beta * below, self.fill)

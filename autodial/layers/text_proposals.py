"""Text proposals of CTPN, which are a Python layer there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape
from autodial.layers.proposal import placed, python_options
from autodial.layers.shares import Rows

TEXT_PROPOSAL_OPTIONS = ("feat_stride",)
_BASE, _WIDTH = 16, 16
_HEIGHTS = (11, 16, 23, 33, 48, 68, 97, 139, 198, 283)


class TextProposals(Layer):
    """A thin box for every anchor (text_proposal_layer.py and anchor.py of CTPN), for one image.

    Bottoms: probabilities (1, 20, H, W), those of the 10 anchors' backgrounds first; changes (1, 20, H, W) of each
    anchor's y and height; and the input's (height, width, ...), (1, 2 or more). Tops: boxes (10 H W, 4), x1, y1, x2, y2
    in pixels of the input, and their probabilities (10 H W, 1); both row by row of the map, pixel by pixel, anchor by
    anchor. Neither sorts nor drops boxes. There is no gradient.

    A box keeps its anchor's x1 and x2. For changes (a, b) of an anchor that is h high around the line c, h' = exp(b) h,
    y1 = a h + c - h' / 2 and y2 = y1 + h'. Then the box is cut at the image's borders.

    Args:
        stride: pixels of the input between two pixels of the map.
    """

    bottoms = (3, 3)
    tops = (2, 2)
    no_gradient = (0, 1, 2)
    in_place = False
    full_precision = True
    rows = Rows.NONE

    anchors: Tensor
    """(10, 4), x1, y1, x2, y2 around the map's first pixel."""

    def __init__(self, stride: int = 16) -> None:
        super().__init__()
        self.stride = stride
        centre = (_BASE - 1) / 2
        # The fork halves and stores whole numbers: halves are lost, towards 0.
        sides = [(centre - _WIDTH // 2, centre - h // 2, centre + _WIDTH // 2, centre + h // 2) for h in _HEIGHTS]
        self.register_buffer("anchors", torch.tensor(sides).trunc(), persistent=False)

    @classmethod
    def from_python(cls, context: LayerContext) -> TextProposals:
        """The layer that `python_param { module: "layers.text_proposal_layer" layer: "ProposalLayer" }` describes."""
        bottoms, tops = len(context.bottom_shapes), context.num_tops
        if bottoms != 3 or tops != 2:
            raise LayerError(f"CTPN's ProposalLayer takes 3 bottoms and 2 tops, not {bottoms} and {tops}")
        stride = python_options(context.param.python_param.param_str, TEXT_PROPOSAL_OPTIONS)["feat_stride"]
        if not isinstance(stride, int) or not 0 < stride < 2**16:
            raise LayerError(
                f"python_param.param_str: feat_stride must be a whole number from 1 to 65535, not {stride}"
            )
        return cls(stride)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scores, changes, info = bottom_shapes
        count = len(self.anchors)
        if len(scores) != 4 or scores[:2] != (1, 2 * count):
            raise LayerError(
                f"the first bottom must be probabilities (1, {2 * count}, H, W) for {count} anchors and one image, "
                f"not {scores}"
            )
        if changes != scores:
            raise LayerError(f"the second bottom must be changes {scores}, not {changes}")
        if len(info) != 2 or info[0] != 1 or info[1] < 2:
            raise LayerError(f"the third bottom must be the image's height and width, (1, 2) or longer, not {info}")
        boxes = count * scores[2] * scores[3]
        return [(boxes, 4), (boxes, 1)]

    @torch.no_grad()
    def forward(self, scores: Tensor, changes: Tensor, info: Tensor) -> tuple[Tensor, Tensor]:
        before = placed(self.anchors.to(scores), self.stride, *scores.shape[2:])
        left, top, right, bottom = before.unbind(1)
        move, grow = changes[0].permute(1, 2, 0).reshape(-1, 2).unbind(1)
        size = bottom - top + 1
        height = grow.exp() * size
        start = move * size + (top + bottom) / 2 - height / 2
        boxes = torch.stack([left, start, right, start + height], 1)
        ends = info[0, [1, 0, 1, 0]] - 1
        objects = scores[0, len(self.anchors) :].permute(1, 2, 0).reshape(-1, 1)
        return torch.minimum(boxes, ends).clamp(min=0), objects

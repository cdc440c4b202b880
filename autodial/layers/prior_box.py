"""PriorBox of SSD and of TextBoxes++."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted

_MOST = 10_000
"""Boxes for one pixel; the largest published nets have a dozen."""
_SAME = 1e-6
"""Difference up to which two aspect ratios are one."""
Pair = tuple[float, float]


@register("PriorBox")
class PriorBox(Layer):
    """Boxes around the centre of each pixel of a map (prior_box_layer.cpp of SSD).

    Bottoms: the map, (N, C, H, W), and the image, of which the shapes alone count; no gradient flows to either. Top:
    (1, 2, H W K 4): the K boxes of each pixel, row by row, each as xmin, ymin, xmax, ymax in parts of the image's width
    and height; then their variances.

    For each smallest size s, cut down to an integer, the boxes are s x s; with the largest size l, cut down too, a
    square of the side sqrt(s l); and s sqrt(r) x s / sqrt(r) for each aspect ratio r other than 1.

    TextBoxes++'s `denser` boxes are twice as many: behind each box comes the same one around the row's lower edge, that
    is 1 step from the row's beginning, whatever the offset (its prior_box_layer.cpp).

    Args:
        min_sizes: in pixels of the image, at least one.
        max_sizes: none, or one for each smallest size, which it exceeds.
        aspect_ratios: width over height; with `flip`, each inverse is added behind its ratio. What is there already is
            left out.
        clip: whether boxes end at the image's borders.
        variances: none for 0.1, one for all, or four.
        image_size: (height, width) in place of the second bottom's; None for that.
        steps: (vertical, horizontal) pixels of the image between two centres; None for its size by that of the map.
        offset: of the first centre, in steps.
        denser: whether there are boxes around the lower edge of each row, too.
    """

    bottoms = (2, 2)
    no_gradient = (0, 1)
    in_place = False
    fork_fields = ("prior_box_param.denser_prior_boxes",)
    rows = Rows.NONE

    def __init__(
        self,
        min_sizes: Sequence[float],
        max_sizes: Sequence[float] = (),
        aspect_ratios: Sequence[float] = (),
        *,
        flip: bool = True,
        clip: bool = False,
        variances: Sequence[float] = (),
        image_size: tuple[int, int] | None = None,
        steps: Pair | None = None,
        offset: float = 0.5,
        denser: bool = False,
    ) -> None:
        super().__init__()
        if len(min_sizes) * (2 + 2 * len(aspect_ratios)) > _MOST:
            raise LayerError(
                f"{counted(len(min_sizes), 'min_size')} and {counted(len(aspect_ratios), 'aspect_ratio')} make more "
                f"than {_MOST} boxes for each pixel"
            )
        sizes = _sizes(min_sizes, max_sizes, _ratios(aspect_ratios, flip))
        places = (offset, 1.0) if denser else (offset,)
        self.sizes = [size for size in sizes for _ in places]
        self.row_offsets = [place for _ in sizes for place in places]
        if len(variances) not in (0, 1, 4) or min(variances, default=1) <= 0:
            raise LayerError(f"variance must be 1 or 4 positive numbers, not {', '.join(f'{v:g}' for v in variances)}")
        self.variances = list(variances) * (1 if len(variances) == 4 else 4) or [0.1] * 4
        self.clip, self.image_size, self.steps, self.offset = clip, image_size, steps, offset
        self._known: tuple[object, Tensor] | None = None

    @classmethod
    def from_caffe(cls, context: LayerContext) -> PriorBox:
        param = context.param.prior_box_param
        image_size = _pair(param, "img_size", "img_h", "img_w")
        return cls(
            param.min_size,
            param.max_size,
            param.aspect_ratio,
            flip=param.flip,
            clip=param.clip,
            variances=param.variance,
            image_size=None if image_size is None else (int(image_size[0]), int(image_size[1])),
            steps=_pair(param, "step", "step_h", "step_w"),
            offset=param.offset,
            denser=param.denser_prior_boxes,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        for shape in bottom_shapes:
            if len(shape) != 4:
                raise LayerError(f"PriorBox needs bottoms of 4 axes (N, C, H, W), not {shape}")
        height, width = bottom_shapes[0][2:]
        return [(1, 2, height * width * len(self.sizes) * 4)]

    def forward(self, bottom: Tensor, image: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return self._boxes(bottom, image)
        key = bottom.shape[2:], image.shape[2:], bottom.device
        if self._known is None or self._known[0] != key:
            self._known = key, self._boxes(bottom, image)
        return self._known[1]

    @torch.no_grad()
    def _boxes(self, bottom: Tensor, image: Tensor) -> Tensor:
        device = bottom.device
        size = image.shape[2:] if self.image_size is None else self.image_size
        steps = self.steps or (size[0] / bottom.shape[2], size[1] / bottom.shape[3])
        row_offsets = torch.tensor(self.row_offsets, device=device)
        rows = (torch.arange(bottom.shape[2], device=device)[:, None] + row_offsets) * steps[0]
        columns = (torch.arange(bottom.shape[3], device=device) + self.offset) * steps[1]
        width, height = torch.tensor(self.sizes, device=device).unbind(1)
        shape = len(rows), len(columns), len(self.sizes)
        x, y = columns[:, None].expand(shape), rows[:, None].expand(shape)
        corners = [
            (x - width / 2) / size[1],
            (y - height / 2) / size[0],
            (x + width / 2) / size[1],
            (y + height / 2) / size[0],
        ]
        boxes = torch.stack(corners, 3).flatten()
        if self.clip:
            boxes = boxes.clamp(0, 1)
        variances = torch.tensor(self.variances, device=device).repeat(boxes.shape[0] // 4)
        return torch.stack([boxes, variances]).unsqueeze(0)


def _ratios(given: Sequence[float], flip: bool) -> list[float]:
    """The aspect ratios, 1 first."""
    ratios = [1.0]
    for ratio in given:
        if ratio <= 0:
            raise LayerError(f"aspect_ratio must be positive, not {ratio:g}")
        if all(abs(ratio - known) >= _SAME for known in ratios):
            ratios += [ratio, 1 / ratio] if flip else [ratio]
    return ratios


def _sizes(min_sizes: Sequence[float], max_sizes: Sequence[float], ratios: Sequence[float]) -> list[Pair]:
    """(width, height) of each box in pixels."""
    if not min_sizes:
        raise LayerError("prior_box_param.min_size is missing")
    if max_sizes and len(max_sizes) != len(min_sizes):
        raise LayerError(
            f"there are {counted(len(min_sizes), 'min_size')} and {counted(len(max_sizes), 'max_size')}: give as many"
        )
    sizes: list[Pair] = []
    for i, smallest in enumerate(min_sizes):
        if smallest <= 0:
            raise LayerError(f"min_size must be positive, not {smallest:g}")
        side = int(smallest)
        sizes.append((side, side))
        if max_sizes:
            if max_sizes[i] <= smallest:
                raise LayerError(f"max_size {max_sizes[i]:g} must exceed its min_size, {smallest:g}")
            between = math.sqrt(side * int(max_sizes[i]))
            sizes.append((between, between))
        roots = [math.sqrt(ratio) for ratio in ratios if abs(ratio - 1) >= _SAME]
        sizes += [(side * root, side / root) for root in roots]
    return sizes


def _pair(param: pb.PriorBoxParameter, both: str, vertical: str, horizontal: str) -> Pair | None:
    """(vertical, horizontal) from one field for both or one each, which must be positive; None where none is given."""
    sides = [field for field in (vertical, horizontal) if param.HasField(field)]
    if param.HasField(both) and sides:
        raise LayerError(f"prior_box_param sets both {both} and {sides[0]}: keep one form")
    fields = (vertical, horizontal) if sides else (both, both)
    values = getattr(param, fields[0]), getattr(param, fields[1])
    if not sides and not param.HasField(both):
        return None
    if min(values) <= 0:
        raise LayerError(f"{' and '.join(dict.fromkeys(fields))} must be positive")
    return values

"""Region proposals of Faster R-CNN: the layer type Proposal, and py-faster-rcnn's Python layer."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autodial.layers.base import LARGEST_BLOB, TRAIN, Layer, LayerContext, LayerError, Shape, register
from autodial.layers.boxes import suppress
from autodial.layers.shares import Rows
from autodial.wording import counted

_RATIOS, _SCALES, _BASE = (0.5, 1.0, 2.0), (8.0, 16.0, 32.0), 16
"""What the Python layer has unless its param_str says otherwise."""
_MOST_ANCHORS = 2**16
PROPOSAL_OPTIONS = ("feat_stride", "scales", "ratios", "base_size", "phase")
"""The options of the Python layer. Published classes store `phase` and never read it."""
_LISTS, _UNREAD = ("scales", "ratios"), ("phase",)


@register("Proposal")
class Proposal(Layer):
    """Boxes that may hold an object (proposal_layer.py of py-faster-rcnn), for one image, computed on the CPU.

    Bottoms: probabilities (1, 2 A, H, W), those of A anchors' backgrounds first; changes (1, 4 A, H, W) of each
    anchor's x, y, width and height; and the input's (height, width, scale), (1, 3). Tops: (K, 5) with the rows 0, x1,
    y1, x2, y2 in pixels of the input, the best first; and, if asked for, (K, 1), their probabilities. There is no
    gradient.

    Boxes are cut at the image's borders; those with a side shorter than min_size times the image's scale are dropped;
    of the best `before` ones, those that overlap a better one are dropped, too, and the best `after` stay. A box from
    pixel a to pixel b is b - a + 1 wide.

    Args:
        stride: pixels of the input between two pixels of the map.
        ratios: of the anchors, height over width.
        scales: of the anchors' sides; A is the number of ratios times that of scales.
        base: side of the square that ratios and scales start from.
        min_size: in pixels of an image of scale 1.
        before, after: numbers of boxes.
        threshold: largest intersection over union of two boxes that both stay.
        probabilities: whether there is a second top.
    """

    bottoms = (3, 3)
    tops = (1, 2)
    no_gradient = (0, 1, 2)
    in_place = False
    full_precision = True
    rows = Rows.NONE

    anchors: Tensor
    """(A, 4), x1, y1, x2, y2 around the map's first pixel."""

    def __init__(
        self,
        stride: int = 16,
        *,
        ratios: Sequence[float] = _RATIOS,
        scales: Sequence[float] = _SCALES,
        base: float = _BASE,
        min_size: float = 16,
        before: int = 6000,
        after: int = 300,
        threshold: float = 0.7,
        probabilities: bool = False,
    ) -> None:
        super().__init__()
        for name, values in (("feat_stride", [stride]), ("base_size", [base]), ("ratio", ratios), ("scale", scales)):
            if not values:
                raise LayerError(f"{name} is missing")
            for value in values:
                if not 0 < value < LARGEST_BLOB:
                    raise LayerError(f"{name} must be positive and below 2^31, not {reprlib.repr(value)}")
        self.stride, self.min_size, self.before, self.after = stride, min_size, before, after
        self.threshold, self.probabilities = threshold, probabilities
        count = len(ratios) * len(scales)
        if count > _MOST_ANCHORS:
            raise LayerError(f"{count} anchors (ratios times scales) are more than {_MOST_ANCHORS}")
        self.register_buffer("anchors", _anchors(base, ratios, scales), persistent=False)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Proposal:
        param = context.param.proposal_param
        return cls(
            param.feat_stride,
            ratios=param.ratio,
            scales=param.scale,
            base=param.base_size,
            min_size=param.min_size,
            before=param.pre_nms_topn,
            after=param.post_nms_topn,
            threshold=param.nms_thresh,
            probabilities=context.num_tops > 1,
        )

    @classmethod
    def from_python(cls, context: LayerContext) -> Proposal:
        """The layer that `python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" }` describes."""
        bottoms, tops = len(context.bottom_shapes), context.num_tops
        if bottoms != 3 or tops not in cls.tops:
            raise LayerError(f"ProposalLayer takes 3 bottoms and 1 or 2 tops, not {bottoms} and {tops}")
        options = python_options(context.param.python_param.param_str, PROPOSAL_OPTIONS)
        before, after = (12000, 2000) if context.phase == TRAIN else (6000, 300)
        return cls(
            options["feat_stride"],
            ratios=options.get("ratios", _RATIOS),
            scales=options.get("scales", _SCALES),
            base=options.get("base_size", _BASE),
            before=before,
            after=after,
            probabilities=tops > 1,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scores, changes, info = bottom_shapes
        count = len(self.anchors)
        if len(scores) != 4 or scores[:2] != (1, 2 * count):
            raise LayerError(
                f"the first bottom must be probabilities (1, {2 * count}, H, W) for {counted(count, 'anchor')} and one "
                f"image, not {scores}"
            )
        wanted = (1, 4 * count, *scores[2:])
        if changes != wanted:
            raise LayerError(f"the second bottom must be changes {wanted}, not {changes}")
        if len(info) < 2 or info[0] != 1 or info[1] < 3:
            raise LayerError(f"the third bottom must be the image's height, width and scale, (1, 3), not {info}")
        return [(1, 5), (1, 1)] if self.probabilities else [(1, 5)]

    @torch.no_grad()
    def forward(self, scores: Tensor, changes: Tensor, info: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        device = scores.device
        height, width, scale = info.flatten()[:3].tolist()
        objects = scores[0, len(self.anchors) :].cpu().permute(1, 2, 0).flatten()
        boxes = self.decode(changes.cpu())
        boxes = torch.stack(
            [boxes[:, 0::2].clamp(max=width - 1).clamp(min=0), boxes[:, 1::2].clamp(max=height - 1).clamp(min=0)], 2
        ).flatten(1)
        large = ((boxes[:, 2:] - boxes[:, :2] + 1) >= self.min_size * scale).all(1).nonzero().flatten()
        # Of equal scores the last comes first, as numpy's order reversed has them.
        order = large[objects[large].argsort(stable=True).flip(0)][: self.before]
        boxes, objects = boxes[order], objects[order]
        ends = boxes + torch.tensor([0.0, 0, 1, 1])  # with the last pixel
        kept = suppress(ends, self.threshold)[: self.after]
        regions = torch.nn.functional.pad(boxes[kept], (1, 0)).to(device)
        return (regions, objects[kept, None].to(device)) if self.probabilities else regions

    def decode(self, changes: Tensor) -> Tensor:
        """Boxes (H W A, 4), pixel by pixel, from changes (1, 4 A, H, W), not yet cut at the borders."""
        before = placed(self.anchors.to(changes.device), self.stride, *changes.shape[2:])
        size = before[:, 2:] - before[:, :2] + 1
        change = changes[0].permute(1, 2, 0).reshape(-1, 4)
        centre = change[:, :2] * size + before[:, :2] + size / 2
        half = change[:, 2:].exp() * size / 2
        return torch.cat([centre - half, centre + half], 1)


def placed(anchors: Tensor, stride: int, height: int, width: int) -> Tensor:
    """Anchors (A, 4) at every pixel of a map: (H W A, 4), row by row, pixel by pixel."""
    rows, columns = (torch.arange(count, device=anchors.device) * stride for count in (height, width))
    places = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), 2).repeat(1, 1, 2)
    return (places[:, :, None] + anchors).reshape(-1, 4)


def _anchors(base: float, ratios: Sequence[float], scales: Sequence[float]) -> Tensor:
    """Boxes around the centre of a square of that side at (0, 0), ratio by ratio (generate_anchors.py)."""
    shares = np.array(ratios, np.float64)
    with np.errstate(over="ignore"):
        widths = np.rint(np.sqrt(base**2 / shares))
        heights = np.rint(widths * shares)
    sizes = (np.stack([widths, heights], 1)[:, None] * np.array(scales, np.float64)[:, None]).reshape(-1, 2)
    if not sizes.max() < LARGEST_BLOB:
        raise LayerError(f"an anchor would have a side of {sizes.max():.3g} pixels: sides must be below 2^31")
    centre = (base - 1) / 2
    return torch.from_numpy(np.concatenate([centre - (sizes - 1) / 2, centre + (sizes - 1) / 2], 1).astype(np.float32))


def python_options(text: str, known: Sequence[str]) -> dict[str, Any]:
    """`feat_stride` and, where given, other known options such as `scales` from a ProposalLayer's param_str, which is
    YAML; LayerError for what is not.
    """
    import yaml

    # Published nets have tuples in it.
    tuples = {"tag:yaml.org,2002:python/tuple": lambda loader, node: loader.construct_sequence(node)}
    try:
        loader = yaml.SafeLoader(text)
        loader.yaml_constructors = {**loader.yaml_constructors, **tuples}
        options = loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LayerError(f"python_param.param_str is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(options, dict) or "feat_stride" not in options:
        raise LayerError("python_param.param_str must give feat_stride, such as 'feat_stride': 16")
    for key, value in options.items():
        if key not in known:
            raise LayerError(
                f"python_param.param_str: ProposalLayer has no option {reprlib.repr(key)}, only {', '.join(known)}"
            )
        if key in _UNREAD:
            continue
        listed = key in _LISTS
        numbers = value if listed and isinstance(value, list) else [value]
        if listed != isinstance(value, list) or not all(map(_is_number, numbers)):
            # Shortened, as an alias in YAML may stand for more than there is room for.
            wanted = "a list of numbers" if listed else "a number"
            raise LayerError(f"python_param.param_str: {key} must be {wanted}, not {reprlib.repr(value)}")
    return options


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Non-maximum suppression: boxes that overlap better ones are dropped."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_ETA_FROM = 0.5
"""The threshold above which eta lowers it."""
_BLOCK = 256
"""Boxes whose overlaps are in memory at once."""


def suppress(boxes: Tensor, threshold: float, eta: float = 1.0) -> Tensor:
    """Which boxes stay when each is dropped that overlaps a better one (ApplyNMSFast of SSD's bbox_util.cpp).

    A box stays if its intersection over union with every box that stayed before is at most the threshold. After each
    box that stays, a threshold above 0.5 is multiplied by eta. A box whose end lies before its start has no area, and
    overlaps none.

    Args:
        boxes: float (boxes, 4) on the CPU, x1, y1, x2, y2, the best first.
        threshold: from 0 on.
        eta: in (0, 1].

    Returns:
        int64, ascending places in `boxes`.
    """
    if eta < 1 and threshold > _ETA_FROM:
        return _suppress_adaptively(boxes, threshold, eta)
    from torchvision.ops import nms

    kept: Tensor = nms(boxes, torch.arange(len(boxes), 0, -1, dtype=boxes.dtype), threshold)
    return kept


def _suppress_adaptively(boxes: Tensor, threshold: float, eta: float) -> Tensor:
    """`suppress` with a threshold that falls, a box at a time."""
    worst = np.zeros(len(boxes), np.float32)  # the largest overlap of each with a box that stayed
    kept = []
    for start in range(0, len(boxes), _BLOCK):
        behind = worst[start:]
        for i, overlaps in enumerate(_overlaps(boxes[start : start + _BLOCK], boxes[start:]).numpy()):
            if behind[i] <= threshold:
                kept.append(start + i)
                np.maximum(behind, overlaps, out=behind)
                threshold *= eta if threshold > _ETA_FROM else 1
    return torch.tensor(kept, dtype=torch.int64)


def _overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of each of boxes (M, 4) with each of others (K, 4): (M, K)."""
    sides = torch.minimum(boxes[:, None, 2:], others[:, 2:]) - torch.maximum(boxes[:, None, :2], others[:, :2])
    common = sides.clamp(min=0).prod(2)
    union = _area(boxes)[:, None] + _area(others) - common
    return torch.where(common > 0, common / union, 0)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)

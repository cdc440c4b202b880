"""The last layers of YOLO 2 and 3 in eric612's ports, which decode, score and suppress boxes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.boxes import suppress
from autodial.layers.shares import Rows

COORDINATES = 5
"""Numbers before those of the classes: centre x and y, width, height, and whether there is an object."""


class Detections(NamedTuple):
    """What may be detected in a batch.

    Attributes:
        boxes: (N, P, 4), xmin, ymin, xmax, ymax in parts of the image.
        labels: int64 (N, P), from 0 on.
        scores: (N, P).
    """

    boxes: Tensor
    labels: Tensor
    scores: Tensor


class YoloDetections(Layer):
    """Detections from maps of boxes, computed on the CPU.

    Bottoms: a map (N, A * (5 + classes), S, S) for each list of anchors, anchor by anchor: the numbers x, y, w, h of a
    box, that of an object, and those of the classes. A box's centre is (column + sigmoid(x)) / S and (row +
    sigmoid(y)) / S, its width and height are exp(w) and exp(h) times the anchor's.

    Top: (1, 1, D, 7) with the rows image, label from 1 on, score, xmin, ymin, xmax, ymax, by image, then falling score.
    A box is left out if its intersection over union with a better one of its image reaches the threshold, whatever
    their labels. Boxes are not cut at the image's borders. An image without detections has no row. If no image has any,
    there are N rows: the image's number and six times -1. There is no gradient.

    With several images, the fork holds the boxes of all against each other, and calls each image 0. Here every image is
    on its own.

    Args:
        num_classes: the classes.
        anchors: for each bottom, (A, 2) widths and heights in cells of its map.
        confidence: the score that a detection needs.
        nms_threshold: see above; above 0.

    Attributes:
        kept_up_to: the largest float32 overlap of two boxes that both stay.
    """

    in_place = False
    full_precision = True
    rows = Rows.NONE

    @classmethod
    def without_gradient(cls, bottoms: int) -> set[int]:
        return set(range(bottoms))

    def __init__(
        self, num_classes: int, anchors: Sequence[Tensor], *, confidence: float = 0.01, nms_threshold: float = 0.45
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise LayerError("num_classes is missing or 0")
        if not all(map(len, anchors)):
            raise LayerError("num_box must be at least 1")
        if not nms_threshold > 0:
            raise LayerError(f"nms_threshold must be above 0, not {nms_threshold:g}")
        self.num_classes, self.anchors, self.confidence = num_classes, list(anchors), confidence
        self.kept_up_to = 1.0 if nms_threshold > 1 else float(np.nextafter(np.float32(nms_threshold), np.float32(0)))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        if len(bottom_shapes) != len(self.anchors):
            raise LayerError(f"there are anchors for {len(self.anchors)} bottoms, not for {len(bottom_shapes)}")
        for shape, anchors in zip(bottom_shapes, self.anchors, strict=True):
            wanted = len(anchors) * (COORDINATES + self.num_classes)
            if len(shape) != 4 or shape[2] != shape[3] or shape[:2] != (bottom_shapes[0][0], wanted):
                raise LayerError(
                    f"for {len(anchors)} boxes and {self.num_classes} classes, a bottom must be "
                    f"({bottom_shapes[0][0]}, {wanted}, S, S), not {shape}"
                )
        return [(1, 1, 1, 7)]

    @torch.no_grad()
    def forward(self, *maps: Tensor) -> Tensor:
        found = self.decode([x.cpu() for x in maps])
        images = len(found.boxes)
        rows = [row for i in range(images) if len(row := self._kept(i, Detections(*(part[i] for part in found))))]
        if not rows:
            nothing = torch.full((images, 7), -1.0)
            nothing[:, 0] = torch.arange(images)
            rows = [nothing]
        return torch.cat(rows)[None, None].to(maps[0].device)

    def decode(self, maps: Sequence[Tensor]) -> Detections:
        """All that may be detected, by bottom, then row and column of the map, then anchor, then label."""
        parts = []
        for x, anchors in zip(maps, self.anchors, strict=True):
            images, _, side, _ = x.shape
            cells = x.reshape(images, len(anchors), -1, side * side).permute(0, 3, 1, 2)  # (N, S * S, A, 5 + classes)
            places = torch.arange(side * side)
            corner = torch.stack([places % side, places // side], 1)[:, None]
            centre = (cells[..., :2].sigmoid() + corner) / side
            half = cells[..., 2:4].exp() * anchors / side / 2
            labels, scores = self.score(cells[..., 4:5].sigmoid(), cells[..., COORDINATES:])
            boxes = torch.cat([centre - half, centre + half], 3)[..., None, :].expand(*scores.shape, 4)
            parts.append((boxes.reshape(images, -1, 4), labels.reshape(images, -1), scores.reshape(images, -1)))
        return Detections(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))

    @abstractmethod
    def score(self, objects: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and scores (..., K) of boxes with objects' probabilities (..., 1) and numbers (..., classes)."""

    @abstractmethod
    def reaches(self, scores: Tensor) -> Tensor:
        """Whether scores are high enough."""

    def _kept(self, image: int, found: Detections) -> Tensor:
        """The rows of an image."""
        enough = self.reaches(found.scores).nonzero()[:, 0]
        scores, order = found.scores[enough].sort(descending=True, stable=True)
        places = enough[order]
        kept = suppress(found.boxes[places], self.kept_up_to)
        places, scores = places[kept], scores[kept]
        head = torch.stack([torch.full_like(scores, image), (found.labels[places] + 1).to(scores), scores], 1)
        return torch.cat([head, found.boxes[places]], 1)


@register("YoloDetectionOutput")
class YoloDetectionOutput(YoloDetections):
    """Detections of YOLO 2 (yolo_detection_output_layer.cpp of eric612's ports).

    A box has one label, that with the highest probability, a softmax over the classes; its score is this probability
    times that of an object, and must be at least `confidence`. The anchors are `biases`, the same for one or two maps.
    """

    bottoms = (1, 2)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> YoloDetectionOutput:
        param = context.param.yolo_detection_output_param
        if param.num_box > len(param.biases) // 2:
            raise LayerError(f"biases has {len(param.biases)} numbers, and num_box: {param.num_box} needs two each")
        return cls(
            param.num_classes if param.HasField("num_classes") else 0,
            [_anchors(param.biases)[: param.num_box]] * len(context.bottom_shapes),
            confidence=param.confidence_threshold,
            nms_threshold=param.nms_threshold,
        )

    def score(self, objects: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        scores, labels = classes.softmax(-1).max(-1, keepdim=True)
        return labels, scores * objects

    def reaches(self, scores: Tensor) -> Tensor:
        return scores >= self.confidence


@register("Yolov3DetectionOutput")
class Yolov3DetectionOutput(YoloDetections):
    """Detections of YOLO 3 (yolov3_detection_output_layer.cpp of eric612's ports).

    A box is detected once for each class whose sigmoid times that of an object is above `confidence`. The anchors are
    those of `biases` that the bottom's part of `mask` names, in pixels; `anchors_scale` says how many pixels a cell
    has.
    """

    bottoms = (1, None)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Yolov3DetectionOutput:
        param = context.param.yolov3_detection_output_param
        groups = param.mask_group_num
        if groups != len(context.bottom_shapes):
            raise LayerError(f"mask_group_num is {groups}, and must be the number of bottoms")
        if len(param.anchors_scale) < groups or 0 in param.anchors_scale:
            raise LayerError(f"anchors_scale must have {groups} numbers, one for each bottom, each at least 1")
        step = len(param.mask) // groups
        if param.num_box > len(param.mask) - step * (groups - 1):
            raise LayerError(
                f"mask has {len(param.mask)} numbers, too few for num_box: {param.num_box} and {groups} bottoms"
            )
        anchors = _anchors(param.biases)
        if max(param.mask, default=0) >= len(anchors):
            raise LayerError(
                f"mask names anchor {max(param.mask, default=0)}, and biases has {len(anchors)}, from 0 on"
            )
        masks = [param.mask[step * t : step * t + param.num_box] for t in range(groups)]
        return cls(
            param.num_classes if param.HasField("num_classes") else 0,
            [anchors[list(mask)] / scale for mask, scale in zip(masks, param.anchors_scale, strict=False)],
            confidence=param.confidence_threshold,
            nms_threshold=param.nms_threshold,
        )

    def score(self, objects: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        scores = classes.sigmoid() * objects
        return torch.arange(self.num_classes).expand(scores.shape), scores

    def reaches(self, scores: Tensor) -> Tensor:
        return scores > self.confidence


def _anchors(biases: Sequence[float]) -> Tensor:
    """Anchors (A, 2) from a list of their widths and heights."""
    return torch.tensor(list(biases[: len(biases) // 2 * 2])).reshape(-1, 2)

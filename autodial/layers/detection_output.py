"""DetectionOutput of SSD, RefineDet and TextBoxes++."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.boxes import suppress
from autodial.layers.shares import Rows
from autodial.proto import messages as pb

_log = logging.getLogger(__name__)

CLOCKWISE = [0, 1, 2, 1, 2, 3, 0, 3]
"""A box's four corners among xmin, ymin, xmax, ymax: from the upper left one clockwise, x before y."""


@register("DetectionOutput")
class DetectionOutput(Layer):
    """Detections from locations and scores (detection_output_layer.cpp of SSD), computed on the CPU.

    Bottoms: locations (N, P * 4), or (N, P * classes * 4) without `share_location`, prior by prior; scores
    (N, P * classes), prior by prior; priors (1, 2, P * 4), the boxes and their variances, as PriorBox gives them; and
    an image, which nothing reads, or what RefineDet's first step gives: the scores (N, P * 2) of no object and of an
    object, and locations (N, P * 4). These change the priors first, and where an object's score is below `objectness`,
    the scores of all classes are 0, and that of class 0 is 1 (RefineDet's detection_output_layer.cpp).

    Top: (1, 1, D, 7) with the rows image, label, score, xmin, ymin, xmax, ymax, by image, then label, then falling
    score. An image without detections has no row. If no image has any, there are N rows: the image's number and six
    times -1. There is no gradient.

    With `polygons` a location has 12 numbers instead of 4. The last 8 move the prior's corners to those of a
    quadrangle, x1, y1, ..., x4, y4, from the upper left one clockwise: each is multiplied by the prior's width or
    height and by the variance of its centre. The rows end with the quadrangle: (1, 1, D, 15). Boxes alone decide what
    stays (TextBoxes++'s bbox_util.cu; its code for the CPU loses two of the corners).

    With `clip` each box is cut at the image's borders, 0 and 1, before it is held against others (OpenCV's
    detection_output_layer.cpp).

    Args:
        num_classes: the classes, with the background.
        share_location: whether a prior has one location for all classes.
        background: the label that is left out; one that no class has leaves out none.
        code_type: how locations change priors: "CORNER", "CENTER_SIZE" or "CORNER_SIZE".
        variance_in_target: whether the locations are already multiplied by the variances.
        confidence: the score that a detection exceeds.
        nms_threshold: largest overlap of two detections of a label that both stay.
        top_k: best scores of an image and label that are looked at; -1 for all.
        eta: what a threshold above 0.5 is multiplied by after each detection that stays.
        keep_top_k: best detections of an image that stay; -1 for all.
        objectness: see above.
        polygons: see above; with 3 or 4 bottoms, CENTER_SIZE, and without `variance_in_target`.
        clip: see above; with 3 or 4 bottoms, and without `polygons`.
    """

    bottoms = (3, 5)
    no_gradient = (0, 1, 2, 3, 4)
    in_place = False
    full_precision = True
    fork_fields = ("detection_output_param.use_polygon", "detection_output_param.clip")
    rows = Rows.NONE

    def __init__(
        self,
        num_classes: int,
        *,
        share_location: bool = True,
        background: int = 0,
        code_type: str = "CORNER",
        variance_in_target: bool = False,
        confidence: float = -float("inf"),
        nms_threshold: float = 0.3,
        top_k: int = -1,
        eta: float = 1.0,
        keep_top_k: int = -1,
        objectness: float = 0.01,
        polygons: bool = False,
        clip: bool = False,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise LayerError("detection_output_param.num_classes is missing or 0")
        if nms_threshold < 0:
            raise LayerError(f"nms_threshold must be at least 0, not {nms_threshold:g}")
        if not 0 < eta <= 1:
            raise LayerError(f"eta must be in (0, 1], not {eta:g}")
        self.num_classes, self.share_location, self.background = num_classes, share_location, background
        self.code_type, self.variance_in_target, self.confidence = code_type, variance_in_target, confidence
        self.nms_threshold, self.top_k, self.eta, self.keep_top_k = nms_threshold, top_k, eta, keep_top_k
        self.objectness = objectness
        if polygons and (code_type != "CENTER_SIZE" or variance_in_target):
            raise LayerError("use_polygon needs code_type: CENTER_SIZE, and variance_encoded_in_target: false")
        if clip and polygons:
            raise LayerError("clip, of OpenCV, does not go with use_polygon, of TextBoxes++")
        self.polygons, self.clip = polygons, clip
        self.location_size = 12 if polygons else 4

    @classmethod
    def from_caffe(cls, context: LayerContext) -> DetectionOutput:
        param = context.param.detection_output_param
        if param.HasField("objectness_score") and len(context.bottom_shapes) < 5:
            raise LayerError("objectness_score needs what RefineDet's first step gives: 5 bottoms")
        for field in ("save_output_param", "visualize"):
            if param.HasField(field):
                _log.warning(
                    'Layer "%s" (DetectionOutput): %s is ignored: the layer neither writes files nor shows images',
                    context.param.name,
                    field,
                )
        nms = param.nms_param
        return cls(
            param.num_classes,
            share_location=param.share_location,
            background=param.background_label_id,
            code_type=pb.PriorBoxParameter.CodeType.Name(param.code_type),
            variance_in_target=param.variance_encoded_in_target,
            confidence=param.confidence_threshold if param.HasField("confidence_threshold") else -float("inf"),
            nms_threshold=nms.nms_threshold,
            top_k=nms.top_k if nms.HasField("top_k") else -1,
            eta=nms.eta,
            keep_top_k=param.keep_top_k,
            objectness=param.objectness_score if param.HasField("objectness_score") else 0.01,
            polygons=param.use_polygon,
            clip=param.clip,
        )

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        locations, scores, priors, *others = bottom_shapes
        for name, set_ in (("use_polygon, of TextBoxes++", self.polygons), ("clip, of OpenCV", self.clip)):
            if set_ and len(others) == 2:
                raise LayerError(f"{name}, does not go with 5 bottoms, as RefineDet has them")
        if len(priors) < 3 or priors[1] != 2 or priors[2] % 4 or any(length != 1 for length in priors[3:]):
            raise LayerError(f"the third bottom must be priors (1, 2, P * 4), boxes and variances, not {priors}")
        count = priors[2] // 4
        sets = 1 if self.share_location else self.num_classes
        wanted_of = [
            ("locations", locations, count * sets * self.location_size),
            ("scores", scores, count * self.num_classes),
        ]
        if len(others) == 2:
            wanted_of += [("scores of the first step", others[0], 2 * count), ("its locations", others[1], 4 * count)]
        for what, shape, wanted in wanted_of:
            if len(shape) < 2 or shape[0] != locations[0] or shape[1] != wanted or any(n != 1 for n in shape[2:]):
                raise LayerError(
                    f"for {count} priors, {self.num_classes} classes and share_location: "
                    f"{str(self.share_location).lower()}, {what} must be ({locations[0]}, {wanted}), not {shape}"
                )
        return [(1, 1, 1, 3 + self.location_size)]

    @torch.no_grad()
    def forward(self, locations: Tensor, scores: Tensor, priors: Tensor, *others: Tensor) -> Tensor:
        device = locations.device
        images = locations.shape[0]
        by_prior = scores.cpu().reshape(images, -1, self.num_classes)
        first = None
        if len(others) == 2:
            first = others[1].cpu()
            without = others[0].cpu().reshape(images, -1, 2)[..., 1:] < self.objectness
            by_prior = by_prior.where(~without, torch.eye(self.num_classes)[0])
        boxes = self.decode(locations.cpu(), priors.cpu(), first)
        by_label = by_prior.transpose(1, 2)
        rows = [
            torch.cat([torch.full((len(found), 1), float(i)), found], 1)
            for i in range(images)
            if len(found := self._detections(boxes[i], by_label[i]))
        ]
        if not rows:
            nothing = torch.full((images, 3 + self.location_size), -1.0)
            nothing[:, 0] = torch.arange(images)
            rows = [nothing]
        return torch.cat(rows)[None, None].to(device)

    def decode(self, locations: Tensor, priors: Tensor, first: Tensor | None = None) -> Tensor:
        """Boxes (N, P, sets, 4) as corners, in parts of the image; there is one set for all classes, or one per class.

        With `polygons`, (N, P, sets, 12): behind each box come the corners of its quadrangle.

        Args:
            locations, priors: the bottoms.
            first: locations (N, P * 4) that change the priors before.

        Raises:
            LayerError: a prior without area, which the code type divides or multiplies by.
        """
        prior, variance = priors.reshape(-1)[: 2 * priors.shape[2]].reshape(2, -1, 1, 4).unbind()
        if first is not None:
            prior = self._moved(prior, variance, first.reshape(first.shape[0], -1, 1, 4))
        sets = 1 if self.share_location else self.num_classes
        change = locations.reshape(locations.shape[0], -1, sets, self.location_size)
        boxes = self._moved(prior, variance, change[..., :4])
        if not self.polygons:
            return boxes.clamp(0, 1) if self.clip else boxes
        size = (prior[..., 2:] - prior[..., :2]) * variance[..., :2]
        return torch.cat([boxes, change[..., 4:] * size.repeat(1, 1, 4) + prior[..., CLOCKWISE]], -1)

    def _moved(self, prior: Tensor, variance: Tensor, change: Tensor) -> Tensor:
        """Boxes (P, 1, 4) or (N, P, 1, 4) with changes (N, P, sets, 4)."""
        if not self.variance_in_target:
            change = change * variance
        if self.code_type == "CORNER":
            return prior + change
        low, high = prior[..., :2], prior[..., 2:]
        size = high - low
        if not torch.compiler.is_compiling() and len(wrong := (~(size > 0).all(-1)).flatten(-2).nonzero()):
            raise LayerError(
                f"code_type {self.code_type} needs priors with an area, and number {int(wrong[0, -1])} has none"
            )
        if self.code_type == "CORNER_SIZE":
            return prior + change * torch.cat([size, size], -1)
        centre = change[..., :2] * size + (low + high) / 2
        half = change[..., 2:].exp() * size / 2
        return torch.cat([centre - half, centre + half], -1)

    def _detections(self, boxes: Tensor, scores: Tensor) -> Tensor:
        """Rows label, score, box of an image with what `decode` gives, (P, sets, 4 or 12), and scores (classes, P)."""
        found = []
        labels, places = (scores > self.confidence).nonzero(as_tuple=True)
        counts = torch.bincount(labels, minlength=self.num_classes).tolist()
        for label, each in enumerate(torch.split(places, counts)):
            if label == self.background or not len(each):
                continue
            values, order = scores[label, each].sort(descending=True, stable=True)
            each = each[order]
            if self.top_k >= 0:
                each, values = each[: self.top_k], values[: self.top_k]
            candidates = boxes[each, 0 if self.share_location else label]
            kept = suppress(candidates[:, :4], self.nms_threshold, self.eta)
            head = torch.stack([torch.full_like(values[kept], label), values[kept]], 1)
            found.append(torch.cat([head, candidates[kept]], 1))
        rows = torch.cat(found) if found else boxes.new_zeros(0, 2 + self.location_size)
        if 0 <= self.keep_top_k < len(rows):
            best = rows[:, 1].sort(descending=True, stable=True).indices[: self.keep_top_k]
            rows = rows[best.sort().values]
        return rows

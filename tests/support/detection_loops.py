"""The layers that detect objects as plain loops over what their forks compute, a box at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def c_round(value: float) -> int:
    """Halves away from 0."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def roi_pool(x, rois, pooled_h, pooled_w, scale):
    """roi_pooling_layer.cpp of Fast R-CNN."""
    height, width = x.shape[2:]
    top = np.zeros((len(rois), x.shape[1], pooled_h, pooled_w))
    for r, (image, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (c_round(float(np.float32(c) * np.float32(scale))) for c in corners)
        bins = [max(y2 - y1 + 1, 1) / pooled_h, max(x2 - x1 + 1, 1) / pooled_w]
        for c, i, j in np.ndindex(top.shape[1:]):
            rows = range(max(math.floor(i * bins[0]) + y1, 0), min(math.ceil((i + 1) * bins[0]) + y1, height))
            columns = range(max(math.floor(j * bins[1]) + x1, 0), min(math.ceil((j + 1) * bins[1]) + x1, width))
            values = [x[int(image), c, row, column] for row in rows for column in columns]
            top[r, c, i, j] = max(values, default=0)
    return top


def psroi_pool(x, rois, output_dim, g, scale):
    """psroi_pooling_layer.cu of R-FCN; edges in float32, as floor and ceil depend on them."""
    f = np.float32
    height, width = x.shape[2:]
    top = np.zeros((len(rois), output_dim, g, g))
    for r, (image, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (c_round(float(c)) for c in corners)
        begin = f(y1) * f(scale), f(x1) * f(scale)
        end = f(y2 + 1) * f(scale), f(x2 + 1) * f(scale)
        size = [max(e - b, f(0.1)) / f(g) for b, e in zip(begin, end, strict=True)]
        for c, i, j in np.ndindex(output_dim, g, g):
            spans = []
            for at, s, b, length in ((i, size[0], begin[0], height), (j, size[1], begin[1], width)):
                first, last = math.floor(f(at) * s + b), math.ceil(f(at + 1) * s + b)
                spans.append((min(max(first, 0), length), min(max(last, 0), length)))
            values = x[int(image), (c * g + i) * g + j, slice(*spans[0]), slice(*spans[1])]
            top[r, c, i, j] = values.mean() if values.size else 0
    return top


def overlap(a, b, extra=0.0):
    """Intersection over union; a box from pixel a to pixel b is b - a + `extra` wide."""
    sides = [min(a[k + 2], b[k + 2]) - max(a[k], b[k]) + extra for k in (0, 1)]
    if min(sides) <= 0:
        return 0.0
    common = sides[0] * sides[1]
    areas = [0.0 if box[2] < box[0] or box[3] < box[1] else
             (box[2] - box[0] + extra) * (box[3] - box[1] + extra) for box in (a, b)]  # fmt: skip
    return common / (sum(areas) - common)


def decode(prior, variance, change, code):
    """A box of SSD's bbox_util.cpp."""
    size = [prior[2] - prior[0], prior[3] - prior[1]] * 2
    change = [v * c for v, c in zip(variance, change, strict=True)]
    if code == "CORNER":
        return [p + c for p, c in zip(prior, change, strict=True)]
    if code == "CORNER_SIZE":
        return [p + c * s for p, c, s in zip(prior, change, size, strict=True)]
    centre = [change[k] * size[k] + (prior[k] + prior[k + 2]) / 2 for k in (0, 1)]
    half = [math.exp(change[k + 2]) * size[k] / 2 for k in (0, 1)]
    return [centre[0] - half[0], centre[1] - half[1], centre[0] + half[0], centre[1] + half[1]]


def decode_polygon(prior, variance, change):
    """The corners x1, y1, ..., x4, y4 of TextBoxes++'s bbox_util.cu."""
    xmin, ymin, xmax, ymax = prior
    return [
        variance[k % 2] * change[k] * (ymax - ymin if k % 2 else xmax - xmin) + corner
        for k, corner in enumerate((xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax))
    ]


def detections(
    loc, conf, priors, classes, *,
    share, background, code, in_target, confidence, nms, top_k, eta, keep, polygons=False, clip=False,
):  # fmt: skip
    """Rows of DetectionOutput."""
    size = 12 if polygons else 4
    count = priors.shape[2] // 4
    boxes, variances = priors.reshape(2, count, 4).astype(float)
    rows = []
    for image in range(len(loc)):
        found = []
        for label in range(classes):
            if label == background:
                continue
            scores = conf[image].reshape(count, classes)[:, label]
            order = sorted((p for p in range(count) if scores[p] > confidence), key=lambda p: -scores[p])
            kept, threshold = [], nms
            for p in order[:top_k] if top_k >= 0 else order:
                change = loc[image].reshape(count, -1, size)[p, 0 if share else label].astype(float)
                box = decode(boxes[p], [1] * 4 if in_target else variances[p], change[:4], code)
                if clip:  # OpenCV's detection_output_layer.cpp
                    box = [max(min(corner, 1), 0) for corner in box]
                if all(overlap(box, other) <= threshold for _, _, other in kept):
                    if polygons:
                        box += decode_polygon(boxes[p], variances[p], change[4:])
                    kept.append((label, scores[p], box))
                    if eta < 1 and threshold > 0.5:
                        threshold *= eta
            found += kept
        if 0 <= keep < len(found):
            found = sorted(sorted(found, key=lambda each: -each[1])[:keep], key=lambda each: (each[0], -each[1]))
        rows += [[image, label, score, *box] for label, score, box in found]
    return np.array(rows or [[image, *[-1] * (2 + size)] for image in range(len(loc))])


TEXT_ANCHORS = [
    [0, 2, 15, 12], [0, 0, 15, 15], [0, -3, 15, 18], [0, -8, 15, 23], [0, -16, 15, 31],
    [0, -26, 15, 41], [0, -40, 15, 55], [0, -61, 15, 76], [0, -91, 15, 106], [0, -133, 15, 148],
]  # fmt: skip
"""Those of CTPN's anchor.py under Python 2, whose halves of whole numbers are whole and whose array drops fractions."""


def text_proposals(scores, changes, size, stride):
    """text_proposal_layer.py of CTPN: boxes and their scores."""
    height, width = scores.shape[2:]
    boxes, objects = [], []
    for y, x, a in np.ndindex(height, width, len(TEXT_ANCHORS)):
        x1, y1, x2, y2 = np.add(TEXT_ANCHORS[a], [x * stride, y * stride] * 2)
        tall = math.exp(changes[0, 2 * a + 1, y, x]) * (y2 - y1 + 1)
        start = changes[0, 2 * a, y, x] * (y2 - y1 + 1) + (y1 + y2) / 2 - tall / 2
        corners = zip((x1, start, x2, start + tall), (size[1], size[0]) * 2, strict=True)
        boxes.append([max(min(corner, end - 1), 0) for corner, end in corners])
        objects.append([scores[0, 10 + a, y, x]])
    return np.array(boxes), np.array(objects)


def region_anchors(base, ratios, scales):
    """generate_anchors.py of py-faster-rcnn: x1, y1, x2, y2, ratio by ratio. Python's round takes halves as numpy's."""
    anchors = []
    centre = (base - 1) / 2
    for ratio in ratios:
        width = round(math.sqrt(base * base / ratio))
        height = round(width * ratio)
        for scale in scales:
            half = (width * scale - 1) / 2, (height * scale - 1) / 2
            anchors.append([centre - half[0], centre - half[1], centre + half[0], centre + half[1]])
    return anchors


def proposals(scores, changes, info, anchors, stride, *, min_size, before, after, threshold):
    """Rows of py-faster-rcnn's proposal_layer.py and their probabilities."""
    count = len(anchors)
    height, width = scores.shape[2:]
    found = []
    for y in range(height):
        for x in range(width):
            for a, anchor in enumerate(anchors):
                box = np.array(anchor) + np.array([x, y, x, y]) * stride
                d = changes[0, 4 * a : 4 * a + 4, y, x].astype(float)
                size = box[2:] - box[:2] + 1
                centre = d[:2] * size + box[:2] + size / 2
                half = np.exp(d[2:]) * size / 2
                corners = [*(centre - half), *(centre + half)]
                limits = [info[1] - 1, info[0] - 1] * 2
                corners = [max(min(c, limit), 0) for c, limit in zip(corners, limits, strict=True)]
                if min(corners[2] - corners[0] + 1, corners[3] - corners[1] + 1) >= min_size * info[2]:
                    found.append((scores[0, count + a, y, x], corners))
    kept = []
    for score, box in sorted(found, key=lambda each: -each[0])[:before]:
        if len(kept) < after and all(overlap(box, other, 1.0) <= threshold for _, other in kept):
            kept.append((score, box))
    return np.array([[0, *box] for _, box in kept]).reshape(-1, 5), np.array([[score] for score, _ in kept]).reshape(
        -1, 1
    )


def yolo(maps, classes, anchors, *, version, confidence, nms):
    """Rows of eric612's YoloDetectionOutput (version 2) and Yolov3DetectionOutput (3), each image on its own.

    `anchors` has for each map the widths and heights in cells.
    """
    rows = []
    for image in range(len(maps[0])):
        found = []
        for x, sizes in zip(maps, anchors, strict=True):
            side = x.shape[3]
            numbers = x[image].astype(float).reshape(len(sizes), 5 + classes, side, side)
            for row, column, a in np.ndindex(side, side, len(sizes)):
                tx, ty, tw, th, object_, *scores = numbers[a, :, row, column]
                cx, cy = (column + sigmoid(tx)) / side, (row + sigmoid(ty)) / side
                w, h = math.exp(tw) * sizes[a][0] / side, math.exp(th) * sizes[a][1] / side
                box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                if version == 3:
                    each = [sigmoid(object_) * sigmoid(score) for score in scores]
                    found += [(label + 1, score, box) for label, score in enumerate(each) if score > confidence]
                else:
                    parts = [math.exp(score) for score in scores]
                    score = sigmoid(object_) * max(parts) / sum(parts)
                    if score >= confidence:
                        found.append((parts.index(max(parts)) + 1, score, box))
        kept = []
        for one in sorted(found, key=lambda each: -each[1]):
            if all(overlap(one[2], other[2]) < nms for other in kept):
                kept.append(one)
        rows += [[image, label, score, *box] for label, score, box in kept]
    return np.array(rows or [[image, *[-1] * 6] for image in range(len(maps[0]))])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))

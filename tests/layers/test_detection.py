"""PriorBox, DetectionOutput, Proposal, ROIPooling and PSROIPooling against loops, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from detection_loops import (
    TEXT_ANCHORS,
    decode,
    detections,
    proposals,
    psroi_pool,
    region_anchors,
    roi_pool,
    text_proposals,
)

from autodial.layers.base import LayerError
from autodial.layers.boxes import suppress


def regions(rng, count: int, images: int, side: float):
    """Random regions, some inverted, some outside."""
    corners = rng.uniform(-0.3 * side, 1.3 * side, (count, 4)).round(1)
    return np.concatenate([rng.integers(0, images, (count, 1)), corners], 1).astype(np.float32)


@pytest.mark.parametrize(("pooled", "scale"), [((3, 2), 0.5), ((7, 7), 0.0625), ((1, 4), 1.0)])
def test_roi_pooling(build, pooled: tuple[int, int], scale: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 9)).astype(np.float32)
    rois = regions(rng, 12, 2, 9 / scale)
    fields = f"pooled_h: {pooled[0]} pooled_w: {pooled[1]} spatial_scale: {scale}"
    layer = build(f'type: "ROIPooling" roi_pooling_param {{ {fields} }}', x.shape, rois.shape)
    want = roi_pool(x, rois, *pooled, scale)
    assert layer.top_shapes([x.shape, (12, 5, 1, 1)]) == [want.shape]
    np.testing.assert_allclose(layer(torch.from_numpy(x), torch.from_numpy(rois).reshape(12, 5, 1, 1)), want, 1e-6)
    assert layer(torch.from_numpy(x), torch.zeros(0, 5)).shape == (0, 3, *pooled)


@pytest.mark.parametrize(("g", "scale"), [(2, 0.5), (3, 0.0625), (7, 0.125)])
def test_psroi_pooling(build, g: int, scale: float) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 2 * g * g, 6, 9)).astype(np.float32)
    rois = regions(rng, 12, 2, 9 / scale)
    fields = f"output_dim: 2 group_size: {g} spatial_scale: {scale}"
    layer = build(f'type: "PSROIPooling" psroi_pooling_param {{ {fields} }}', x.shape, rois.shape)
    want = psroi_pool(x, rois, 2, g, scale)
    assert layer.top_shapes([x.shape, rois.shape]) == [want.shape]
    np.testing.assert_allclose(layer(torch.from_numpy(x), torch.from_numpy(rois)), want, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "text",
    [
        'type: "ROIPooling" roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.5 }',
        'type: "PSROIPooling" psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 }',
    ],
)
def test_gradients_of_pooling_over_regions(build, text: str) -> None:
    rng = np.random.default_rng(2)
    x = torch.from_numpy(rng.standard_normal((2, 8, 5, 6))).requires_grad_()
    rois = torch.from_numpy(regions(rng, 6, 2, 12)).double()
    layer = build(text, tuple(x.shape), (6, 5))
    assert torch.autograd.gradcheck(lambda x: layer(x, rois), x, fast_mode=True)


def test_region_numbers_are_checked(build) -> None:
    layer = build('type: "ROIPooling" roi_pooling_param { pooled_h: 1 pooled_w: 1 }', (2, 1, 4, 4), (1, 5))
    with pytest.raises(LayerError, match="a region's image 2 is out of range for 2 images"):
        layer(torch.zeros(2, 1, 4, 4), torch.tensor([[2.0, 0, 0, 1, 1]]))


@pytest.mark.parametrize(
    ("text", "bottoms", "message"),
    [
        ('type: "ROIPooling"', ((1, 2, 4, 4), (1, 5)), "pooled_h is missing"),
        ('type: "ROIPooling" roi_pooling_param { pooled_h: 1 pooled_w: 1 }', ((1, 2, 4, 4), (1, 4)), "regions"),
        ('type: "PSROIPooling"', ((1, 2, 4, 4), (1, 5)), "output_dim is missing"),
        (
            'type: "PSROIPooling" psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 1 }',
            ((1, 7, 4, 4), (1, 5)),
            "must have output_dim 2 x group_size 2\\^2 = 8 channels, not 7",
        ),
    ],
)
def test_pooling_over_regions_refuses(build, text: str, bottoms, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(text, *bottoms)


def test_prior_boxes_by_hand(build) -> None:
    fields = "min_size: 4.9 max_size: 9.9 aspect_ratio: 4 clip: true variance: 0.1 step_h: 10 step_w: 5 offset: 0"
    layer = build(f'type: "PriorBox" prior_box_param {{ {fields} }}', (3, 8, 2, 3), (3, 1, 20, 40))
    top = layer(torch.zeros(3, 8, 2, 3), torch.zeros(3, 1, 20, 40))
    assert top.shape == (1, 2, 2 * 3 * 4 * 4) == layer.top_shapes([(3, 8, 2, 3), (3, 1, 20, 40)])[0]
    want = []
    for y in (0, 10):
        for x in (0, 5, 10):
            for width, height in ((4, 4), (6, 6), (8, 2), (2, 8)):  # 6 = sqrt(4 * 9)
                corners = [(x - width / 2) / 40, (y - height / 2) / 20, (x + width / 2) / 40, (y + height / 2) / 20]
                want += [min(max(c, 0), 1) for c in corners]
    np.testing.assert_allclose(top[0, 0], want, 1e-6)
    np.testing.assert_allclose(top[0, 1], 0.1)
    other = layer(torch.zeros(1, 8, 1, 1), torch.zeros(1, 1, 20, 40))  # of another size
    np.testing.assert_allclose(other[0, 0], want[:16], 1e-6)


def test_denser_prior_boxes(build) -> None:
    """TextBoxes++: behind each box the same one at the row's lower edge."""
    fields = "min_size: 4 max_size: 9 aspect_ratio: 4 step_h: 10 step_w: 5 offset: 0.4 denser_prior_boxes: true"
    layer = build(f'type: "PriorBox" prior_box_param {{ {fields} }}', (1, 8, 2, 3), (1, 1, 20, 40))
    want = []
    for row in range(2):
        for column in range(3):
            x = 5 * (column + 0.4)
            for width, height in ((4, 4), (6, 6), (8, 2), (2, 8)):
                for y in (10 * (row + 0.4), 10 * (row + 1)):
                    want += [(x - width / 2) / 40, (y - height / 2) / 20, (x + width / 2) / 40, (y + height / 2) / 20]
    assert layer.top_shapes([(1, 8, 2, 3), (1, 1, 20, 40)]) == [(1, 2, len(want))]
    np.testing.assert_allclose(layer(torch.zeros(1, 8, 2, 3), torch.zeros(1, 1, 20, 40))[0, 0], want, 1e-6, 1e-7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "min_size is missing"),
        ("min_size: 0", "min_size must be positive"),
        ("min_size: 4 max_size: 4", "max_size 4 must exceed its min_size, 4"),
        ("min_size: 4 min_size: 5 max_size: 9", "2 min_sizes and 1 max_size"),
        ("min_size: 4 variance: 0.1 variance: 0.2", "variance must be 1 or 4"),
        ("min_size: 4 variance: 0", "variance must be 1 or 4"),
        ("min_size: 4 img_h: 5", "img_h and img_w must be positive"),
        ("min_size: 4 img_h: 5 img_w: 4 img_size: 3", "both img_size and img_h"),
        ("min_size: 4 step: 0", "step must be positive"),
        ("min_size: 4 step: 2 step_w: 2", "both step and step_w"),
        ("min_size: 4 aspect_ratio: 0", "aspect_ratio must be positive"),
        ("min_size: 4 " + "aspect_ratio: 2 " * 9000, "9000 aspect_ratios make more than 10000 boxes"),
    ],
)
def test_prior_box_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "PriorBox" prior_box_param {{ {fields} }}', (1, 8, 2, 3), (1, 1, 20, 40))


CLASSES = 4


def ssd_inputs(seed: int, images: int, count: int, sets: int):
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 0.7, (count, 2))
    priors = np.concatenate([low, low + rng.uniform(0.05, 0.4, (count, 2))], 1).reshape(-1)
    variances = np.tile([0.1, 0.1, 0.2, 0.2], count)
    loc = rng.standard_normal((images, count * sets * 4)) * 0.8
    conf = rng.dirichlet([0.6] * CLASSES, (images, count)).reshape(images, -1)
    return (a.astype(np.float32) for a in (loc, conf, np.stack([priors, variances])[None]))


@pytest.mark.parametrize("code", ["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share": False, "background": 2, "confidence": 0.1},
        {"in_target": True, "background": -1, "nms": 0.1, "keep": 25},
        {"confidence": 0.2, "top_k": 7, "keep": 10},
        {"nms": 0.9, "eta": 0.7, "confidence": 0.05},
        {"nms": 0.4, "eta": 0.7, "background": 99},
        {"confidence": 1.0},
        {"top_k": 0},
        {"keep": 0},
    ],
    ids=str,
)
def test_detections(build, code: str, options: dict) -> None:
    use = {
        "share": True, "background": 0, "in_target": False, "confidence": -math.inf, "nms": 0.3, "top_k": -1,
        "eta": 1.0, "keep": -1, **options
    }  # fmt: skip
    loc, conf, priors = ssd_inputs(3, 3, 60, 1 if use["share"] else CLASSES)
    if use["in_target"]:
        loc *= 0.2
    limits = "" if use["confidence"] == -math.inf else f"confidence_threshold: {use['confidence']}"
    fields = f"""num_classes: {CLASSES} share_location: {str(use["share"]).lower()} code_type: {code} {limits}
        background_label_id: {use["background"]} variance_encoded_in_target: {str(use["in_target"]).lower()}
        nms_param {{ nms_threshold: {use["nms"]} top_k: {use["top_k"]} eta: {use["eta"]} }} keep_top_k: {use["keep"]}"""
    shapes = loc.shape, conf.shape, priors.shape
    layer = build(f'type: "DetectionOutput" detection_output_param {{ {fields} }}', *shapes, phase=1)
    assert layer.top_shapes(shapes) == [(1, 1, 1, 7)]
    top = layer(*map(torch.from_numpy, (loc, conf, priors)))
    want = detections(loc, conf, priors, CLASSES, code=code, **use)
    assert top.shape == (1, 1, len(want), 7)
    np.testing.assert_allclose(top[0, 0], want, 1e-4, 1e-5)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("confidence", [0.05, 1.0])
def test_detections_with_quadrangles(build, share: bool, confidence: float) -> None:
    """TextBoxes++: each location holds a box and the corners of a quadrangle."""
    loc, conf, priors = ssd_inputs(3, 3, 60, 3 * (1 if share else CLASSES))
    fields = f"""num_classes: {CLASSES} share_location: {str(share).lower()} code_type: CENTER_SIZE use_polygon: true
        confidence_threshold: {confidence} nms_param {{ nms_threshold: 0.45 top_k: 40 }} keep_top_k: 30"""
    shapes = loc.shape, conf.shape, priors.shape
    layer = build(f'type: "DetectionOutput" detection_output_param {{ {fields} }}', *shapes, phase=1)
    assert layer.top_shapes(shapes) == [(1, 1, 1, 15)]
    want = detections(
        loc, conf, priors, CLASSES, share=share, background=0, code="CENTER_SIZE", in_target=False,
        confidence=confidence, nms=0.45, top_k=40, eta=1.0, keep=30, polygons=True,
    )  # fmt: skip
    top = layer(*map(torch.from_numpy, (loc, conf, priors)))
    assert top.shape == (1, 1, len(want), 15)
    np.testing.assert_allclose(top[0, 0], want, 1e-4, 1e-5)


@pytest.mark.parametrize("share", [True, False])
def test_boxes_cut_at_the_borders(build, share: bool) -> None:
    """OpenCV's `clip`: boxes are cut before they are held against others."""
    loc, conf, priors = ssd_inputs(3, 3, 60, 1 if share else CLASSES)
    priors[:, 0] = 1.4 * priors[:, 0] - 0.2
    fields = f"""num_classes: {CLASSES} share_location: {str(share).lower()} code_type: CENTER_SIZE clip: true
        confidence_threshold: 0.05 nms_param {{ nms_threshold: 0.3 }}"""
    layer = build(f'type: "DetectionOutput" detection_output_param {{ {fields} }}', loc.shape, conf.shape, priors.shape)
    use = {"share": share, "background": 0, "code": "CENTER_SIZE", "in_target": False, "confidence": 0.05}
    want, uncut = (
        detections(loc, conf, priors, CLASSES, **use, nms=0.3, top_k=-1, eta=1.0, keep=-1, clip=clip)
        for clip in (True, False)
    )
    assert len(want) != len(uncut)
    np.testing.assert_allclose(layer(*map(torch.from_numpy, (loc, conf, priors)))[0, 0], want, 1e-4, 1e-5)


@pytest.mark.parametrize("code", ["CORNER", "CENTER_SIZE"])
@pytest.mark.parametrize("share", [True, False])
def test_detections_in_two_steps(build, code: str, share: bool) -> None:
    """RefineDet: the first step moves each image's priors, and makes priors without an object background."""
    loc, conf, priors = ssd_inputs(3, 3, 60, 1 if share else CLASSES)
    first, _, _ = ssd_inputs(4, 3, 60, 1)
    objects = np.random.default_rng(5).uniform(0, 1, (3, 60, 2)).astype(np.float32)
    fields = f"""num_classes: {CLASSES} share_location: {str(share).lower()} code_type: {code} objectness_score: 0.4
        confidence_threshold: 0.05 nms_param {{ nms_threshold: 0.45 top_k: 40 }} keep_top_k: 30"""
    bottoms = (loc, conf, priors, objects.reshape(3, -1), first)
    layer = build(
        f'type: "DetectionOutput" detection_output_param {{ {fields} }}', *(each.shape for each in bottoms), phase=1
    )
    want = []
    for i in range(3):
        boxes, variances = priors[0].reshape(2, -1, 4).tolist()
        moved = [decode(*each, code) for each in zip(boxes, variances, first[i].reshape(-1, 4).tolist(), strict=True)]
        scores = conf[i].reshape(-1, CLASSES).copy()
        scores[objects[i, :, 1] < 0.4] = [1, 0, 0, 0]
        rows = detections(
            loc[i : i + 1], scores.reshape(1, -1), np.stack([np.ravel(moved), priors[0, 1]])[None], CLASSES,
            code=code, share=share, background=0, in_target=False, confidence=0.05, nms=0.45,
            top_k=40, eta=1.0, keep=30,
        )  # fmt: skip
        want += [[i, *row[1:]] for row in rows]
    top = layer(*map(torch.from_numpy, bottoms))
    assert top.shape == (1, 1, len(want), 7) and len(want) > 30
    np.testing.assert_allclose(top[0, 0], want, 1e-4, 1e-5)


def test_boxes_without_area_stay(build) -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [0.8, 0, 0.2, 1], [0.5, 0.5, 0.5, 0.5], [0, 0, 1, 0.9], [1, 0, 2, 1]])
    for eta in (1.0, 0.99):
        assert suppress(boxes, 0.6, eta).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("threshold", [0.55, 0.8])
def test_both_ways_to_suppress_agree(threshold: float) -> None:
    rng = np.random.default_rng(4)
    low = rng.uniform(0, 1, (600, 2))
    boxes = torch.from_numpy(np.concatenate([low, low + rng.uniform(0.1, 0.5, (600, 2))], 1)).float()
    # an eta that lowers nothing goes the other way
    assert torch.equal(suppress(boxes, threshold, 1 - 1e-12), suppress(boxes, threshold))


def test_ignored_options_are_named(build, caplog: pytest.LogCaptureFixture) -> None:
    fields = 'num_classes: 2 visualize: true save_output_param { output_directory: "/nowhere" }'
    build(f'type: "DetectionOutput" detection_output_param {{ {fields} }}', (1, 8), (1, 4), (1, 2, 8))
    assert "save_output_param is ignored" in caplog.text and "visualize is ignored" in caplog.text


@pytest.mark.parametrize(
    ("fields", "bottoms", "message"),
    [
        ("", ((1, 8), (1, 4), (1, 2, 8)), "num_classes is missing"),
        ("num_classes: 2", ((1, 8), (1, 4), (1, 1, 8)), "priors"),
        ("num_classes: 2", ((1, 8), (1, 5), (1, 2, 8)), r"scores must be \(1, 4\), not \(1, 5\)"),
        ("num_classes: 2", ((2, 8), (1, 4), (1, 2, 8)), r"scores must be \(2, 4\)"),
        ("num_classes: 2 share_location: false", ((1, 8), (1, 4), (1, 2, 8)), r"locations must be \(1, 16\)"),
        ("num_classes: 2 nms_param { nms_threshold: -1 }", ((1, 8), (1, 4), (1, 2, 8)), "nms_threshold"),
        ("num_classes: 2 nms_param { eta: 0 }", ((1, 8), (1, 4), (1, 2, 8)), "eta must be in"),
        ("num_classes: 2 objectness_score: 0.1", ((1, 8), (1, 4), (1, 2, 8)), "objectness_score needs.*5 bottoms"),
        ("num_classes: 2 use_polygon: true", ((1, 24), (1, 4), (1, 2, 8)), "needs code_type: CENTER_SIZE"),
        (
            "num_classes: 2 use_polygon: true code_type: CENTER_SIZE",
            ((1, 24), (1, 4), (1, 2, 8), (1, 4), (1, 8)),
            "use_polygon.* does not go with 5 bottoms",
        ),
        ("num_classes: 2 clip: true", ((1, 8), (1, 4), (1, 2, 8), (1, 4), (1, 8)), "clip.* does not go with 5 bottoms"),
        (
            "num_classes: 2 clip: true use_polygon: true code_type: CENTER_SIZE",
            ((1, 24), (1, 4), (1, 2, 8)),
            "clip, of OpenCV, does not go with use_polygon",
        ),
        ("num_classes: 2", ((1, 8), (1, 4), (1, 2, 8), (1, 5), (1, 8)), r"scores of the first step must be \(1, 4\)"),
    ],
)
def test_detection_output_refuses(build, fields: str, bottoms, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "DetectionOutput" detection_output_param {{ {fields} }}', *bottoms)


def test_priors_without_area_are_refused_where_they_are_divided_by(build) -> None:
    text = 'type: "DetectionOutput" detection_output_param { num_classes: 2 code_type: CENTER_SIZE }'
    layer = build(text, (1, 8), (1, 4), (1, 2, 8))
    priors = torch.tensor([0.0, 0, 1, 1, 0.5, 0.5, 0.5, 0.9] + [0.1] * 8).reshape(1, 2, 8)
    with pytest.raises(LayerError, match="code_type CENTER_SIZE needs priors with an area, and number 1 has none"):
        layer(torch.zeros(1, 8), torch.ones(1, 4), priors)


def rpn_inputs(seed: int, anchors: int, height: int, width: int):
    rng = np.random.default_rng(seed)
    scores = rng.permutation(2 * anchors * height * width).reshape(1, 2 * anchors, height, width) / 1000
    changes = rng.standard_normal((1, 4 * anchors, height, width)) * 0.3
    return scores.astype(np.float32), changes.astype(np.float32)


DEFAULT_ANCHORS = [
    [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
    [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
    [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
]  # fmt: skip
"""What generate_anchors.py of py-faster-rcnn prints."""


def test_default_anchors(build) -> None:
    text = """type: "Python" python_param { module: "rpn.proposal_layer" layer: "ProposalLayer"
      param_str: "'feat_stride': 16" }"""
    layer = build(text, (1, 18, 4, 5), (1, 36, 4, 5), (1, 3))
    np.testing.assert_array_equal(layer.anchors, DEFAULT_ANCHORS)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ("min_size: 20 pre_nms_topn: 90 post_nms_topn: 30", {"min_size": 20, "before": 90, "after": 30}),
        ("min_size: 8 nms_thresh: 0.3", {"min_size": 8, "threshold": 0.3}),
        ("min_size: 1000", {"min_size": 1000}),
    ],
)
def test_proposals(build, fields: str, options: dict) -> None:
    scores, changes = rpn_inputs(0, 4, 5, 7)
    info = np.float32([[70, 100, 1.5]])
    fields += " ratio: 1 ratio: 2 scale: 1 scale: 2.5 base_size: 10 feat_stride: 12"
    text = f'type: "Proposal" proposal_param {{ {fields} }}'
    shapes = scores.shape, changes.shape, info.shape
    layer = build(text, *shapes, tops=2)
    rois, probabilities = layer(*map(torch.from_numpy, (scores, changes, info)))
    anchors = []
    for width, height in ((10, 10), (7, 14)):  # rint(sqrt(100 / 2)) is 7
        for scale in (1, 2.5):
            half = (width * scale - 1) / 2, (height * scale - 1) / 2
            anchors.append([4.5 - half[0], 4.5 - half[1], 4.5 + half[0], 4.5 + half[1]])
    use = {"min_size": 16, "before": 6000, "after": 300, "threshold": 0.7, **options}
    want = proposals(scores, changes, info[0], anchors, 12, **use)
    np.testing.assert_allclose(rois, want[0], 1e-4, 1e-4)
    np.testing.assert_allclose(probabilities, want[1], 1e-6)


def text_proposal(param_str: str = "'feat_stride': 16") -> str:
    fields = f'module: "layers.text_proposal_layer" layer: "ProposalLayer" param_str: "{param_str}"'
    return f'type: "Python" python_param {{ {fields} }}'


def test_text_proposals(build) -> None:
    rng = np.random.default_rng(2)
    scores, changes = (rng.standard_normal((1, 20, 3, 5)).astype(np.float32) for _ in range(2))
    info = np.float32([[44, 70, 1.5]])
    layer = build(text_proposal("'feat_stride': 12"), scores.shape, changes.shape, info.shape, tops=2)
    np.testing.assert_array_equal(layer.anchors, TEXT_ANCHORS)
    got = layer(*map(torch.from_numpy, (scores, changes, info)))
    assert layer.top_shapes([scores.shape, changes.shape, info.shape]) == [tuple(top.shape) for top in got]
    want = text_proposals(scores, changes, (44, 70), 12)
    np.testing.assert_allclose(got[0], want[0], 1e-5, 1e-4)
    np.testing.assert_array_equal(got[1], want[1])


@pytest.mark.parametrize(
    ("param_str", "shapes", "tops", "message"),
    [
        ("feat_stride: 16", ((1, 20, 3, 5), (1, 20, 3, 5)), 2, "takes 3 bottoms and 2 tops, not 2 and 2"),
        ("feat_stride: 16", ((1, 20, 3, 5), (1, 20, 3, 5), (1, 3)), 1, "not 3 and 1"),
        ("feat_stride: 16", ((1, 18, 3, 5), (1, 20, 3, 5), (1, 3)), 2, r"probabilities \(1, 20, H, W\)"),
        ("feat_stride: 16", ((2, 20, 3, 5), (2, 20, 3, 5), (1, 3)), 2, "one image"),
        ("feat_stride: 16", ((1, 20, 3, 5), (1, 20, 5, 3), (1, 3)), 2, r"changes \(1, 20, 3, 5\), not"),
        ("feat_stride: 16", ((1, 20, 3, 5), (1, 20, 3, 5), (3,)), 2, "height and width"),
        ("feat_stride: 1.5", ((1, 20, 3, 5), (1, 20, 3, 5), (1, 3)), 2, "whole number from 1 to 65535, not 1.5"),
        ("feat_stride: 0", ((1, 20, 3, 5), (1, 20, 3, 5), (1, 3)), 2, "whole number from 1 to 65535, not 0"),
        ("{feat_stride: 16, scales: [8]}", ((1, 20, 3, 5), (1, 20, 3, 5), (1, 3)), 2, "has no option 'scales'"),
    ],
)
def test_text_proposals_refuse(build, param_str: str, shapes, tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(text_proposal(param_str), *shapes, tops=tops)


def proposal(param_str: str) -> str:
    fields = f'module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "{param_str}"'
    return f'type: "Python" python_param {{ {fields} }}'


@pytest.mark.parametrize(
    ("param_str", "scales"),
    [
        (r"'feat_stride': 16\n'scales': !!python/tuple [4, 8]", 2),
        ("{'feat_stride': 16, 'scales': [2, 4]}", 2),
        ("feat_stride: 16", 3),
    ],
)
def test_published_forms_of_param_str(build, param_str: str, scales: int) -> None:
    layer = build(proposal(param_str), (1, 6 * scales, 2, 2), (1, 12 * scales, 2, 2), (1, 3))
    assert (layer.stride, len(layer.anchors)) == (16, 3 * scales)
    train = build(proposal(param_str), (1, 6 * scales, 2, 2), (1, 12 * scales, 2, 2), (1, 3), phase=0)
    assert (train.before, train.after) == (12000, 2000)


SCALES = [0.5, 0.7, 1.64, 2]


@pytest.mark.parametrize(
    ("param_str", "base", "ratios", "scales", "stride"),
    [
        # cvgroup-njust/CityPersons and jkokkin/UberNet have these forms; TEST without quotes is a string
        (r"'feat_stride': 8 \n'scales': !!python/tuple [0.5, 0.7]\n'ratios': !!python/tuple [2.44]", 16, [2.44],
         SCALES[:2], 8),
        ("{'feat_stride': 16,  'base_size': 16,    'phase': TEST, 'scales': !!python/tuple [1, 2]}", 16, [0.5, 1, 2],
         [1, 2], 16),
        ("{feat_stride: 12, base_size: 11, phase: TRAIN, ratios: [3, 1, 0.3], scales: [0.5, 0.7, 1.64, 2]}", 11,
         [3, 1, 0.3], SCALES, 12),
        ("{feat_stride: 4, base_size: 4, ratios: [1.5]}", 4, [1.5], [8, 16, 32], 4),
    ],
)  # fmt: skip
def test_ratios_and_base_size_of_the_python_layer(build, param_str: str, base, ratios, scales, stride) -> None:
    anchors = region_anchors(base, ratios, scales)
    scores, changes = rpn_inputs(1, len(anchors), 4, 5)
    info = np.float32([[stride * 4, stride * 5, 0.5]])
    layer = build(proposal(param_str), scores.shape, changes.shape, info.shape, phase=1, tops=2)
    np.testing.assert_allclose(layer.anchors, anchors, 1e-6)
    want = proposals(scores, changes, info[0], anchors, stride, min_size=16, before=6000, after=300, threshold=0.7)
    assert len(want[0]) > 3
    got = layer(*map(torch.from_numpy, (scores, changes, info)))
    for top, rows in zip(got, want, strict=True):
        np.testing.assert_allclose(top, rows, 1e-4, 1e-4)


def test_anchors_of_whole_ratios() -> None:
    np.testing.assert_array_equal(region_anchors(16, [0.5, 1, 2], [8, 16, 32]), DEFAULT_ANCHORS)


@pytest.mark.parametrize(
    ("param_str", "message"),
    [
        ("", "must give feat_stride"),
        ("16", "must give feat_stride"),
        ("feat_stride: x", "feat_stride must be a number, not 'x'"),
        ("feat_stride: [8, 16]", r"feat_stride must be a number, not \[8, 16\]"),
        ("feat_stride: 0", "feat_stride must be positive"),
        ("feat_stride: 1" + "0" * 400, "feat_stride must be positive and below"),
        ("{feat_stride: 16, shifts: [1]}", "no option 'shifts', only feat_stride, scales, ratios, base_size, phase"),
        ("{feat_stride: 16, subsampled: true}", "no option 'subsampled'"),
        ("{feat_stride: 16, num_feats: 2}", "no option 'num_feats'"),
        ("{feat_stride: 16, ratios: 1}", "ratios must be a list of numbers, not 1"),
        ("{feat_stride: 16, ratios: []}", "ratio is missing"),
        ("{feat_stride: 16, ratios: [1, 0]}", "ratio must be positive and below .*, not 0"),
        ("{feat_stride: 16, ratios: [1, -2]}", "ratio must be positive and below .*, not -2"),
        ("{feat_stride: 16, ratios: [1, .nan]}", "ratio must be positive and below .*, not nan"),
        ("{feat_stride: 16, ratios: [.inf]}", "ratio must be positive and below .*, not inf"),
        ("{feat_stride: 16, ratios: [1.0e-300]}", "a side of 5.12e.152 pixels: sides must be below"),
        ("{feat_stride: 16, ratios: [1.0e-323]}", "a side of inf pixels"),
        ("{feat_stride: 16, base_size: 0}", "base_size must be positive and below .*, not 0"),
        ("{feat_stride: 16, base_size: [16]}", r"base_size must be a number, not \[16\]"),
        ("{feat_stride: 16, base_size: true}", "base_size must be a number, not True"),
        ("{feat_stride: 16, scales: [2.0e+9], base_size: 2000}", "sides must be below"),
        (f"{{feat_stride: 16, scales: {[1] * 300}, ratios: {[1] * 300}}}", "90000 anchors .* are more than 65536"),
        ("{feat_stride: 16, scales: &a [[1, 2], [1, 2]], ratios: [*a, *a]}", "must be a list of numbers"),
        ("{feat_stride: 16, scales: 8}", "scales must be a list"),
        ("{feat_stride: 16, scales: []}", "scale is missing"),
        ("{feat_stride: 16", "is not YAML"),
        ("!!python/object/apply:os.system [true]", "is not YAML"),
        ("[" * 2000, "is not YAML"),
    ],
)
def test_param_str_is_checked(build, param_str: str, message: str) -> None:
    with pytest.raises(LayerError, match=message) as error:
        build(proposal(param_str), (1, 18, 2, 2), (1, 36, 2, 2), (1, 3))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("bottoms", "message"),
    [
        (((2, 18, 2, 2), (2, 36, 2, 2), (2, 3)), "for 9 anchors and one image"),
        (((1, 18, 2, 2), (1, 36, 2, 3), (1, 3)), r"changes \(1, 36, 2, 2\)"),
        (((1, 18, 2, 2), (1, 36, 2, 2), (1, 2)), "height, width and scale"),
        (((1, 18, 2, 2), (1, 36, 2, 2)), "takes 3 bottoms"),
    ],
)
def test_proposal_refuses(build, bottoms, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(proposal("feat_stride: 16"), *bottoms)

"""Layers of FlowNet 2.0, against loops after its source."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flow_loops as loops
import numpy as np
import pytest
import torch

from autodial.errors import InputError
from autodial.layers.base import TEST, LayerError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb

NAN = float("nan")


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CORRELATIONS = [
    {"pad": 4, "kernel": 1, "reach": 4, "stride_2": 2},
    {"pad": 3, "kernel": 1, "reach": 4, "stride_2": 3},
    {"pad": 5, "kernel": 3, "reach": 2, "stride_1": 2},
    {"pad": 0, "kernel": 1, "reach": 2},
    {"pad": 1, "kernel": 3, "reach": 0, "stride_1": 3},
    {"pad": 6, "kernel": 1, "reach": 3, "stride_1": 2, "stride_2": 3, "subtract": True},
    {"pad": 2, "kernel": 3, "reach": 2, "subtract": True},
]


def fields_of(case: dict[str, Any], more: str = "") -> str:
    names = {"kernel": "kernel_size", "reach": "max_displacement", "direction": "single_direction"}
    given = " ".join(f"{names.get(name, name)}: {value}" for name, value in case.items() if name != "subtract")
    subtract = "correlation_type: SUBTRACT" if case.get("subtract") else ""
    return f"correlation_param {{ {given} {subtract} {more} }}"


def check_correlation(
    build: Any, kind: str, loop: Callable[..., Any], shape: tuple[int, ...], case: dict[str, Any]
) -> None:
    """Compare a layer with a loop, and its gradients with differences."""
    layer = build(f'type: "{kind}" {fields_of(case)}', shape, shape)
    first, second = values(*shape), values(*shape, seed=2)
    want = loop(first.numpy(), second.numpy(), **case)
    assert layer.top_shapes([shape, shape]) == [want.shape]
    np.testing.assert_allclose(layer(first, second), want, rtol=1e-4, atol=1e-6)
    assert torch.autograd.gradcheck(
        layer, [first.double().requires_grad_(), second.double().requires_grad_()], fast_mode=True
    )


@pytest.mark.parametrize("case", CORRELATIONS)
def test_correlation(build: Any, case: dict[str, Any]) -> None:
    check_correlation(build, "Correlation", loops.correlation, (2, 3, 7, 20), case)


@pytest.mark.parametrize(
    "case",
    [
        {"pad": 4, "kernel": 1, "reach": 4, "direction": 0},
        {"pad": 4, "kernel": 1, "reach": 4, "stride_2": 2, "direction": 1},
        {"pad": 4, "kernel": 1, "reach": 4, "stride_2": 2, "direction": -1},
        {"pad": 3, "kernel": 3, "reach": 5, "stride_1": 2, "stride_2": 2, "direction": -1},
        {"pad": 1, "kernel": 1, "reach": 3, "direction": -1, "subtract": True},
        {"pad": 0, "kernel": 3, "reach": 3, "stride_2": 2, "direction": 1, "subtract": True},
    ],
)
def test_correlation_1d(build: Any, case: dict[str, Any]) -> None:
    check_correlation(build, "Correlation1D", loops.correlation_1d, (2, 3, 5, 21), case)


def test_correlation_s_do_abs_does_nothing(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    shape = (1, 3, 5, 6)
    case = {"pad": 2, "kernel": 1, "reach": 2}
    with caplog.at_level(logging.WARNING):
        layer = build(f'type: "Correlation" {fields_of(case, "do_abs: true")}', shape, shape)
    assert "do_abs does nothing" in caplog.text
    first, second = values(*shape), values(*shape, seed=2)
    top = layer(first, second)
    assert top.min() < 0
    np.testing.assert_allclose(top, loops.correlation(first.numpy(), second.numpy(), **case), atol=1e-6)


MAPS = (2, 3, 6, 7)


@pytest.mark.parametrize(
    ("kind", "fields", "shapes", "problem"),
    [
        ("", "max_displacement: 1", [MAPS] * 2, "needs kernel_size"),
        ("", "kernel_size: 1", [MAPS] * 2, "needs max_displacement"),
        ("", "kernel_size: 2 max_displacement: 1", [MAPS] * 2, "kernel_size must be odd, not 2"),
        ("", "kernel_size: 0 max_displacement: 1", [MAPS] * 2, "kernel_size must be odd, not 0"),
        ("", "kernel_size: 1 max_displacement: 1 stride_1: 0", [MAPS] * 2, "stride_1 must be positive"),
        ("", "kernel_size: 1 max_displacement: 1 stride_2: 0", [MAPS] * 2, "stride_2 must be positive"),
        ("", "kernel_size: 1 max_displacement: 4", [MAPS] * 2, "do not fit into maps"),
        ("", "kernel_size: 1 max_displacement: 1", [MAPS, (2, 3, 6, 8)], "two bottoms of one shape"),
        ("", "kernel_size: 1 max_displacement: 1", [(2, 3), (2, 3)], "two bottoms of one shape"),
        ("", "kernel_size: 1 max_displacement: 1 single_direction: 1", [MAPS] * 2, "is for Correlation1D"),
        ("", "kernel_size: 1 pad: 4000000000 max_displacement: 4000000000", [MAPS] * 2, "would have the shape"),
        (
            "",
            "kernel_size: 1 pad: 4000000 max_displacement: 4000000 stride_2: 4000000",
            [MAPS] * 2,
            "the second map with its margins would have the shape",
        ),
        ("1D", "kernel_size: 1 max_displacement: 1 single_direction: 2", [MAPS] * 2, "must be -1, 0 or 1, not 2"),
        (
            "1D",
            "kernel_size: 1 max_displacement: 2 single_direction: -1",
            [MAPS] * 2,
            "needs a pad of 1 at least",
        ),
    ],
)
def test_correlation_refuses(build: Any, kind: str, fields: str, shapes: Any, problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "Correlation{kind}" correlation_param {{ {fields} }}', *shapes)


@pytest.mark.parametrize(("fields", "fill"), [("", 0.0), ("flow_warp_param { fill_value: NOT_A_NUMBER }", NAN)])
@pytest.mark.parametrize("size", [(6, 7), (1, 5), (4, 1)])
def test_flow_warp(build: Any, fields: str, fill: float, size: tuple[int, int]) -> None:
    """Places inside, outside, between the last pixel and the border, and exactly on pixels."""
    image, flow = values(2, 3, *size), values(2, 2, *size, seed=2) * 3
    flow[0, :, 0] = flow[0, :, 0].round()
    flow[1, :, 0, 0] = NAN
    flow[1, 0, -1, -1], flow[1, 1, -1, -1] = 0.75, 0.5
    layer = build(f'type: "FlowWarp" {fields}', tuple(image.shape), tuple(flow.shape))
    want = loops.flow_warp(image.numpy(), flow.numpy(), fill)
    image.requires_grad_()
    flow.requires_grad_()
    top = layer(image, flow)
    np.testing.assert_allclose(top.detach(), want, rtol=1e-5, atol=1e-6)
    given = values(*image.shape, seed=3)
    gradients = torch.autograd.grad(top, [image, flow], given)
    wanted = loops.flow_warp_gradients(image.detach().numpy(), flow.detach().numpy(), given.numpy())
    for got, each in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ([MAPS, (2, 3, 6, 7)], r"must be the flow of images .*, \(2, 2, 6, 7\), not"),
        ([MAPS, (2, 2, 6, 8)], "must be the flow of images"),
        ([MAPS, (1, 2, 6, 7)], "must be the flow of images"),
        ([(2, 3), (2, 2)], "must be images"),
    ],
)
def test_flow_warp_refuses(build: Any, shapes: Any, problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build('type: "FlowWarp"', *shapes)


def test_channel_norm(build: Any) -> None:
    x = values(*MAPS).double()
    x[0, :, 0, 0] = 0
    layer = build('type: "ChannelNorm"', MAPS)
    x.requires_grad_()
    top = layer(x)
    np.testing.assert_allclose(top.detach(), np.sqrt((x.detach().numpy() ** 2).sum(1, keepdims=True)))
    given = values(*top.shape).double()
    (gradient,) = torch.autograd.grad(top, [x], given)
    want = given * x / (top + 1e-9)  # Backward_cpu
    torch.testing.assert_close(gradient, want.detach(), rtol=1e-6, atol=1e-8)
    with pytest.raises(LayerError, match="4 axes"):
        build('type: "ChannelNorm"', (2, 3))


@pytest.mark.parametrize("kind", ["NEAREST", "LINEAR", "CUBIC"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(12, 20), (3, 5), (6, 10), (4, 13), (7, 6), (5, 8)])
def test_resample(build: Any, kind: str, antialias: bool, size: tuple[int, int]) -> None:
    """Larger, smaller, the same, and one axis larger while the other is smaller."""
    x = values(2, 3, 6, 10)
    stated = f"height: {size[0]} width: {size[1]} type: {kind} antialias: {str(antialias).lower()}"
    layer = build(f'type: "Resample" resample_param {{ {stated} }}', tuple(x.shape))
    want = loops.resample(x.numpy(), size, kind, antialias)
    assert layer.top_shapes([tuple(x.shape)]) == [want.shape]
    np.testing.assert_allclose(layer(x), want, rtol=1e-4, atol=1e-5)


def test_resample_to_the_size_of_a_second_bottom(build: Any) -> None:
    x, other = values(2, 3, 6, 10), values(1, 1, 9, 8)
    layer = build('type: "Resample" resample_param { type: CUBIC }', tuple(x.shape), tuple(other.shape))
    np.testing.assert_allclose(layer(x, other), loops.resample(x.numpy(), (9, 8), "CUBIC", True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "shape", "problem"),
    [
        ("", MAPS, "resample_param needs height and width"),
        ("height: 3", MAPS, "resample_param needs height and width"),
        ("height: 3 width: 4 type: AREA", MAPS, "type: AREA is not supported"),
        ("height: 3 width: 4 factor: 2", MAPS, "factor 2 is not supported"),
        ("height: 3 width: 4", (2, 3), "4 axes"),
        ("height: 3 width: 14 type: NEAREST", MAPS, "reads beyond"),
        ("height: 4000000000 width: 4000000000", MAPS, "would have the shape"),
        ("height: 4000000000 width: 4000000000 type: NEAREST", MAPS, "would have the shape"),
    ],
)
def test_resample_refuses(build: Any, fields: str, shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "Resample" resample_param {{ {fields} }}', shape)


@pytest.mark.parametrize("size", [(3, 5), (5, 4), (9, 11), (14, 3)])
def test_downsample(build: Any, size: tuple[int, int]) -> None:
    """A few NaNs and an area of them; an axis that grows has values that no pixel is near."""
    x = values(2, 2, 9, 11)
    x[0, 0, 3, 4] = x[0, 1, 8, 10] = NAN
    x[1, :, :5, :7] = NAN
    layer = build(
        f'type: "Downsample" downsample_param {{ top_height: {size[0]} top_width: {size[1]} }}', tuple(x.shape)
    )
    want = loops.downsample(x.numpy(), size) if size != (9, 11) else x.numpy()
    np.testing.assert_allclose(layer(x), want, rtol=1e-5, atol=1e-6)
    reference = values(1, 1, *size)
    layer = build('type: "Downsample"', tuple(x.shape), tuple(reference.shape))
    np.testing.assert_allclose(layer(x, reference), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "shape", "problem"),
    [
        ("", MAPS, "downsample_param needs top_height and top_width"),
        ("top_height: 1 top_width: 3", MAPS, "divides by 0"),
        ("top_height: 3 top_width: 3", (2, 3, 6, 1), "divides by 0"),
        ("top_height: 3 top_width: 3", (2, 3), "4 axes"),
    ],
)
def test_downsample_refuses(build: Any, fields: str, shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "Downsample" downsample_param {{ {fields} }}', shape)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ("have_reference: true", (5, 11)),
        ("", (6, 9)),
        ("top_height: 8 top_width: 12", (8, 12)),
        ("top_height: 8 top_width: 9", (6, 9)),
        ("size_divisible_by: 4", (8, 12)),
        ("size_divisible_by: 3", (6, 9)),
        ("size_divisible_by: 4 top_height: 20 top_width: 20", (8, 12)),
    ],
)
def test_accum(build: Any, fields: str, size: tuple[int, int]) -> None:
    bottoms = [values(2, 3, 6, 4), values(2, 1, 3, 9, seed=2)]
    others = [values(1, 5, 5, 11)] if "reference" in fields else []
    shapes = [tuple(each.shape) for each in (*bottoms, *others)]
    layer = build(f'type: "Accum" accum_param {{ {fields} }}', *shapes)
    want = loops.accum([each.numpy() for each in bottoms], size)
    assert layer.top_shapes(shapes) == [want.shape]
    np.testing.assert_allclose(layer(*bottoms, *others), want, rtol=1e-5, atol=1e-5)
    doubles = [each.double().requires_grad_() for each in bottoms]
    assert torch.autograd.gradcheck(lambda *x: layer(*x, *others), doubles, fast_mode=True)


@pytest.mark.parametrize(
    ("fields", "shapes", "problem"),
    [
        ("have_reference: true", [MAPS], "needs a bottom more"),
        ("size_divisible_by: 0", [MAPS], "must be positive"),
        ("", [MAPS, (1, 3, 6, 7)], "as many rows"),
        ("", [MAPS, (2, 3)], "4 axes"),
        ("", [(2, 3, 1, 7)], "divides by 0"),
    ],
)
def test_accum_refuses(build: Any, fields: str, shapes: Any, problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "Accum" accum_param {{ {fields} }}', *shapes)


IMAGES = (2, 3, 7, 10)


@pytest.mark.parametrize("size", [(7, 10), (5, 4), (4, 7), (6, 10)])
def test_data_augmentation_crops(build: Any, size: tuple[int, int]) -> None:
    """At whole pixels, between pixels, and up to the border, which the fork does not quite reach."""
    x = values(*IMAGES)
    layer = build(
        f'type: "DataAugmentation" augmentation_param {{ crop_height: {size[0]} crop_width: {size[1]} '
        "augment_during_test: true mean: [1, 2, 3] mean_per_pixel: false }",
        IMAGES,
        phase=TEST,
    )
    want = loops.crop(x.numpy(), size) - np.float32([1, 2, 3])[:, None, None]
    assert layer.top_shapes([IMAGES]) == [want.shape]
    np.testing.assert_allclose(layer(x), want, rtol=1e-5, atol=1e-5)


def augmented(fields: str, *blobs: np.ndarray[Any, Any]) -> Any:
    """The net of one DataAugmentation, with weights."""
    net = parse_net(f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: [2, 3, 7, 10] }} }} }}
      layer {{ name: "y" type: "DataAugmentation" bottom: "x" top: "y" augmentation_param {{ {fields} }} }}""")
    made = Net(net, pb.TEST)
    made.load_weights(Weights("", [LayerWeights(net.layer[1], [np.float32(blob) for blob in blobs])]))
    return made


@pytest.mark.parametrize("size", [(7, 10), (4, 6)])
@pytest.mark.parametrize("per_pixel", [True, False])
def test_data_augmentation_subtracts_what_training_stored(size: tuple[int, int], per_pixel: bool) -> None:
    """Of a mean image of another size only the means of its channels count."""
    image, channels = values(1, 3, *size, seed=5).numpy(), values(1, 3, 1, 1, seed=6).numpy()
    fields = f"augment_during_test: true recompute_mean: 1000 mean_per_pixel: {str(per_pixel).lower()}"
    net = augmented(fields, np.full((1, 1, 1, 1), 1000), image, channels)
    x = values(*IMAGES)
    of_image = image if size == (7, 10) else image.mean((2, 3), keepdims=True)
    mean = of_image if per_pixel else channels
    np.testing.assert_allclose(net({"x": x})["y"], x.numpy() - mean, rtol=1e-5, atol=1e-5)


def test_data_augmentation_without_a_mean_leaves_images_as_they_are() -> None:
    """The fork stores how many batches it met in any case, and a mean that is not asked for is left."""
    x = values(*IMAGES)
    for blobs in ([np.full((1, 1, 1, 1), 7)], [np.full((1, 1, 1, 1), 7), np.ones((1, 3, 4, 4)), np.ones((1, 3, 1, 1))]):
        net = augmented("augment_during_test: true mirror { prob: 0.5 }", *blobs)
        np.testing.assert_array_equal(net({"x": x})["y"], x)


def test_a_mean_that_is_not_settled_is_refused() -> None:
    blobs = np.full((1, 1, 1, 1), 999), np.zeros((1, 3, 7, 10)), np.zeros((1, 3, 1, 1))
    net = augmented("recompute_mean: 1000", *blobs)
    with pytest.raises(InputError, match=r'layer "y" \(DataAugmentation\).*its mean is of 999 batches'):
        net({"x": values(*IMAGES)})


@pytest.mark.parametrize(
    "blobs",
    [
        [np.zeros((1, 1, 1, 1))],
        [np.zeros((1, 1, 1, 1)), np.zeros((1, 3, 7, 10))],
        [np.zeros((1, 1, 1, 1)), np.zeros((1, 4, 7, 10)), np.zeros((1, 4, 1, 1))],
        [np.zeros((1, 1, 1, 1)), np.zeros((3, 7, 10)), np.zeros((1, 3, 1, 1))],
        [np.zeros((1, 1, 1, 1)), np.zeros((1, 3, 0, 10)), np.zeros((1, 3, 1, 1))],
        [np.zeros((2, 1, 1, 1)), np.zeros((1, 3, 7, 10)), np.zeros((1, 3, 1, 1))],
    ],
)
def test_other_blobs_of_data_augmentation_are_refused(blobs: Any) -> None:
    with pytest.raises(InputError, match='"y"'):
        augmented("recompute_mean: 1000", *blobs)


@pytest.mark.parametrize(
    ("fields", "phase", "problem"),
    [
        ("", pb.TRAIN, "TRAIN phase is not supported"),
        ("crop_height: 8 crop_width: 4", TEST, "are more than bottom"),
        ("crop_height: 0 crop_width: 4", TEST, "must be positive"),
        ("crop_width: 4", TEST, "crop_width alone does nothing"),
        (
            "crop_height: 4 crop_width: 4 augment_during_test: true zoom { spread: 0.2 }",
            TEST,
            "augment_during_test with zoom, which augments at random",
        ),
        ("mean: [1, 2]", TEST, "mean needs 3 values"),
        ("mean: [1, 2, 3]", TEST, "mean_per_pixel: false"),
        ("mean: [1, 2, 3] mean_per_pixel: false recompute_mean: 5", TEST, "no recompute_mean"),
        ("recompute_mean: 5 crop_height: 4000000000 crop_width: 4000000000", TEST, "would have the shape"),
    ],
)
def test_data_augmentation_refuses(build: Any, fields: str, phase: int, problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "DataAugmentation" augmentation_param {{ {fields} }}', IMAGES, phase=phase)


@pytest.mark.parametrize(("shapes", "tops"), [([IMAGES, (2, 40, 1, 1)], 1), ([IMAGES], 2)])
def test_random_augmentation_of_another_layer_is_refused(build: Any, shapes: Any, tops: int) -> None:
    with pytest.raises(LayerError, match="a second bottom or top, which holds random augmentation"):
        build('type: "DataAugmentation"', *shapes, phase=TEST, tops=tops)


@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_neg_relu(build: Any, slope: float) -> None:
    """neg_relu_layer.cu, forward and backward."""
    x = torch.tensor([-2.0, -0.5, 0.0, 1.0, 4.0], requires_grad=True)
    top = build(f'type: "NegReLU" relu_param {{ negative_slope: {slope} }}', (5,))(x)
    assert top.tolist() == [-2, -0.5, 0, slope, 4 * slope]
    (gradient,) = torch.autograd.grad(top, [x], torch.arange(1.0, 6.0))
    assert gradient.tolist() == [1, 2, 3 * slope, 4 * slope, 5 * slope]


def test_mean(build: Any, tmp_path: Path) -> None:
    """Numbers and an image, both of half the channels, which take turns."""
    x = values(2, 4, 3, 5)
    scales = "input_scale: 0.5 mean_scale: 3 output_scale: 2"
    layer = build(f'type: "Mean" mean_param {{ operation: SUBTRACT value: [1, 2] {scales} }}', tuple(x.shape))
    want = 2 * (0.5 * x.numpy() - 3 * np.float32([1, 2, 1, 2])[:, None, None])
    np.testing.assert_allclose(layer(x)[0], want, rtol=1e-6)
    image = values(1, 2, 3, 5, seed=2).numpy()
    blob = pb.BlobProto(data=image.ravel())
    blob.shape.dim.extend(image.shape)
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    stated = f'operation: ADD file: "{tmp_path / "mean.binaryproto"}"'
    layer = build(f'type: "Mean" mean_param {{ {stated} }}', *[tuple(x.shape)] * 2, tops=2)
    for top, bottom in zip(layer(x, x + 1), (x, x + 1), strict=True):
        np.testing.assert_allclose(top, bottom.numpy() + np.tile(image, (1, 2, 1, 1)), rtol=1e-6)
    with pytest.raises(LayerError, match="has 3 x 5 pixels"):
        build(f'type: "Mean" mean_param {{ {stated} }}', (2, 4, 3, 6))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("value: 1", "needs operation"),
        ("operation: ADD", "needs file or value"),
        ("operation: ADD value: [1, 2]", "do not divide"),
        ('operation: ADD value: 1 file: "x"', "both file and value"),
    ],
)
def test_mean_refuses(build: Any, fields: str, problem: str) -> None:
    with pytest.raises(LayerError, match=problem):
        build(f'type: "Mean" mean_param {{ {fields} }}', IMAGES)

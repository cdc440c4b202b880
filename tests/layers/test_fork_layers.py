"""Small layers of Caffe's forks against torch's own and loops, their gradients, and what they refuse."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from caffe_loops import same_size

from autodial.layers.base import LayerError
from autodial.proto import binary
from autodial.proto import messages as pb


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def grad_ok(layer, *bottoms: torch.Tensor) -> bool:
    layer.double()
    return torch.autograd.gradcheck(layer, [bottom.double().requires_grad_() for bottom in bottoms], fast_mode=True)


@pytest.mark.parametrize(("fields", "like"), [
    ("", F.relu6),
    ("relu6_param { negative_slope: 0.2 }", lambda x: F.leaky_relu(x, 0.2).clamp(max=6)),
])  # fmt: skip
def test_relu6(build, fields: str, like) -> None:
    x = values(50) * 5
    torch.testing.assert_close(build(f'type: "ReLU6" {fields}', (50,))(x), like(x))


def test_clip(build) -> None:
    layer = build('type: "Clip" clip_param { min: -1 max: 0.5 }', (50,))
    x = values(50)
    x[:2] = torch.tensor([-1, 0.5])
    for needs in (False, True):
        top = layer(x.requires_grad_(needs))
        np.testing.assert_array_equal(top.detach(), np.clip(x.detach().numpy(), -1, 0.5))
    top.sum().backward()
    assert torch.equal(x.grad, ((x >= -1) & (x <= 0.5)).float())  # the bounds belong to it
    with pytest.raises(LayerError, match=r"clip_param\.max is missing"):
        build('type: "Clip" clip_param { min: 0 }', (50,))


@pytest.mark.parametrize("beta", [1, 2.5, 0, -1])
def test_swish(build, beta: float) -> None:
    layer = build(f'type: "Swish" swish_param {{ beta: {beta} }}', (50,))
    x = values(50)
    torch.testing.assert_close(layer(x), x / (1 + torch.exp(-beta * x)))
    assert grad_ok(layer, x)


def test_axpy(build) -> None:
    layer = build('type: "Axpy"', (2, 3), (2, 3, 4, 5), (2, 3, 4, 5))
    a, x, y = values(2, 3), values(2, 3, 4, 5), values(2, 3, 4, 5, seed=2)
    torch.testing.assert_close(layer(a, x, y), a[:, :, None, None] * x + y)
    assert grad_ok(layer, a, x, y)
    for bottoms in (((2, 3, 2, 1), (2, 3, 4, 5), (2, 3, 4, 5)), ((2, 4), (2, 3, 4, 5), (2, 3, 4, 5))):
        with pytest.raises(LayerError, match="one number per channel"):
            layer.top_shapes(bottoms)
    with pytest.raises(LayerError, match="must have one shape"):
        layer.top_shapes([(2, 3), (2, 3, 4, 5), (2, 3, 4, 4)])


@pytest.mark.parametrize(("order", "whole"), [("3 1", (3, 1, 0, 2)), ("0 2 3 1", (0, 2, 3, 1)), ("", (0, 1, 2, 3))])
def test_permute(build, order: str, whole: tuple[int, ...]) -> None:
    fields = " ".join(f"order: {axis}" for axis in order.split())
    layer = build(f'type: "Permute" permute_param {{ {fields} }}', (2, 3, 4, 5))
    x = values(2, 3, 4, 5)
    np.testing.assert_array_equal(layer(x), np.transpose(x.numpy(), whole))
    assert layer.top_shapes([(2, 3, 4, 5)]) == [tuple((2, 3, 4, 5)[axis] for axis in whole)]
    for wrong, message in (("order: 1 order: 1", "names an axis twice"), ("order: 4", "does not have")):
        with pytest.raises(LayerError, match=message):
            build(f'type: "Permute" permute_param {{ {wrong} }}', (2, 3, 4, 5))


def test_shuffle_channel(build) -> None:
    layer = build('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', (2, 12, 4, 5))
    x = values(2, 12, 4, 5)
    torch.testing.assert_close(layer(x), nn_shuffle(x, 3))
    with pytest.raises(LayerError, match="7 channels, which is not a multiple of group 3"):
        layer.top_shapes([(2, 7, 4, 5)])


def nn_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.nn.ChannelShuffle(groups)(x)


@pytest.mark.parametrize("spatial", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_normalize(build, spatial: bool, shared: bool) -> None:
    fields = f"across_spatial: {str(spatial).lower()} channel_shared: {str(shared).lower()}"
    layer = build(
        f'type: "Normalize" norm_param {{ {fields} scale_filler {{ type: "uniform" min: 1 max: 2 }} }}', (2, 3, 4, 5)
    )
    x = values(2, 3, 4, 5)
    (scale,) = layer.blobs
    assert scale.shape == (() if shared else (3,))
    unit = F.normalize(x.flatten(1), dim=1).view_as(x) if spatial else F.normalize(x, dim=1)
    torch.testing.assert_close(layer(x), unit * (scale if shared else scale[:, None, None]))
    assert grad_ok(layer, x)


def test_a_fixed_scale_gets_no_gradient(build) -> None:
    layer = build('type: "Normalize" norm_param { fix_scale: true }', (2, 3))
    assert not layer(values(2, 3)).requires_grad
    assert build('type: "Normalize" norm_param { fix_scale: false }', (2, 3))(values(2, 3)).requires_grad


def test_a_scale_without_axes_is_read_from_a_caffemodel(tmp_path) -> None:
    from autodial.net.net import Net
    from autodial.proto import parse_net, read_weights

    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }
      layer { name: "n" type: "Normalize" bottom: "x" top: "y" }"""
    message = pb.NetParameter(layer=[pb.LayerParameter(name="n", type="Normalize")])
    message.layer[0].blobs.add().data.append(20)  # as SSD's models have it: one value, and no shape at all
    (tmp_path / "ssd.caffemodel").write_bytes(message.SerializeToString())
    net = Net(parse_net(text), pb.TEST)
    net.load_weights(read_weights(tmp_path / "ssd.caffemodel"))
    assert net.layer("n").blobs[0].item() == 20
    binary.write_weights(net.weights(), tmp_path / "ours.caffemodel")
    net.layer("n").blobs[0].data.zero_()
    net.load_weights(read_weights(tmp_path / "ours.caffemodel"))
    assert net.layer("n").blobs[0].item() == 20


def test_interp(build) -> None:
    """The bottom's rows and columns weighted one by one."""
    x = values(2, 3, 7, 6)
    for fields, size, crop in (
        ("height: 4 width: 11", (4, 11), (0, 0)),
        ("height: 1 width: 1", (1, 1), (0, 0)),
        ("zoom_factor: 3 height: 2 width: 2", (19, 16), (0, 0)),
        ("shrink_factor: 2 pad_beg: -1 pad_end: -2", (2, 2), (1, 2)),
        ("shrink_factor: 2 zoom_factor: 2", (7, 5), (0, 0)),
    ):
        layer = build(f'type: "Interp" interp_param {{ {fields} }}', (2, 3, 7, 6))
        assert layer.top_shapes([(2, 3, 7, 6)]) == [(2, 3, *size)]
        cropped = x[:, :, crop[0] : 7 - crop[1], crop[0] : 6 - crop[1]].numpy()
        want = np.zeros((2, 3, *size))
        for i, j in np.ndindex(*size):
            y, z = (
                at * (length - 1) / (count - 1) if count > 1 else 0
                for at, length, count in zip((i, j), cropped.shape[2:], size, strict=True)
            )
            for row in range(cropped.shape[2]):
                for column in range(cropped.shape[3]):
                    weight = max(1 - abs(y - row), 0) * max(1 - abs(z - column), 0)
                    want[:, :, i, j] += weight * cropped[:, :, row, column]
        np.testing.assert_allclose(layer(x), want, 1e-4, 1e-5)
        assert grad_ok(layer, x)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "needs height and width, zoom_factor, or shrink_factor"),
        ("height: 4", "needs height and width"),
        ("height: 4 width: 0", "height and width must be positive"),
        ("zoom_factor: 0", "zoom_factor must be positive"),
        ("zoom_factor: 2 pad_beg: 1", "must not be positive"),
        ("zoom_factor: 2 pad_beg: -4 pad_end: -2", "leave nothing of bottom"),
    ],
)
def test_interp_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Interp" interp_param {{ {fields} }}', (2, 3, 7, 6))


def test_upsample_of_one_bottom(build) -> None:
    layer = build('type: "Upsample" upsample_param { scale: 3 }', (2, 3, 4, 5))
    x = values(2, 3, 4, 5)
    np.testing.assert_array_equal(layer(x), np.kron(x.numpy(), np.ones((1, 1, 3, 3), np.float32)))
    assert grad_ok(layer, x)
    for fields, message in (("scale: 0", "scale must be positive"), ("scale_h: 2", "scale_h does nothing")):
        with pytest.raises(LayerError, match=message):
            build(f'type: "Upsample" upsample_param {{ {fields} }}', (2, 3, 4, 5))


@pytest.mark.parametrize("size", [(6, 8), (5, 7)])
def test_upsample_undoes_pooling(build, size: tuple[int, int]) -> None:
    pooling = build('type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }', (2, 3, *size), tops=2)
    fields = f"scale: 2 upsample_h: {size[0]} upsample_w: {size[1]}"  # as SegNet's own nets say it
    layer = build(f'type: "Upsample" upsample_param {{ {fields} }}', (2, 3, 3, 4), (2, 3, 3, 4))
    x = values(2, 3, *size)
    top = layer(*pooling(x))
    maxima, places = F.max_pool2d(x, 2, 2, ceil_mode=True, return_indices=True)
    torch.testing.assert_close(top, F.max_unpool2d(maxima, places, 2, 2, output_size=size))


def test_of_values_for_one_place_the_last_counts(build) -> None:
    layer = build('type: "Upsample"', (1, 1, 2, 2), (1, 1, 2, 2))
    x = torch.tensor([[[[1.0, 2], [3, 4]]]], requires_grad=True)
    top = layer(x, torch.tensor([[[[5.0, 5], [0, 5]]]]))
    assert (top[0, 0, 1, 1], top[0, 0, 0, 0], top.sum()) == (4, 3, 7)
    top.sum().backward()
    assert x.grad.flatten().tolist() == [0, 0, 1, 1]
    for place in (16.0, -1):
        with pytest.raises(LayerError, match=f"place {place:.0f} is out of range for 16 pixels of the top"):
            layer(x, torch.tensor([[[[5.0, 5], [0, place]]]]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("scale: 1", "scale must be at least 2"),
        ("scale_h: 2", "scale_h and scale_w together"),
        ("scale: 2 scale_h: 2 scale_w: 2", "or scale alone"),
        ("upsample_h: 4", "upsample_h and upsample_w together"),
        ("upsample_h: 4 upsample_w: 1", "at least 2, not 4 and 1"),
        ("scale: 3 pad_out_h: true", "pad_out_h goes with a scale of 2"),
    ],
)
def test_upsample_of_two_bottoms_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Upsample" upsample_param {{ {fields} }}', (1, 1, 2, 2), (1, 1, 2, 2))


@pytest.mark.parametrize(
    "fields", ["kernel_size: 3 pad: 1 stride: 2", "kernel_h: 2 kernel_w: 3 dilation: 2 dilation: 1"]
)
def test_depthwise_convolution(build, fields: str) -> None:
    filler = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'
    x = values(2, 4, 7, 6)
    layer = build(f'type: "ConvolutionDepthwise" convolution_param {{ num_output: 4 {fields} {filler} }}', (2, 4, 7, 6))
    options = {"padding": 1, "stride": 2} if "pad" in fields else {"dilation": (2, 1)}
    assert layer.blobs[0].shape[:2] == (4, 1)
    torch.testing.assert_close(layer(x), F.conv2d(x, *layer.blobs, groups=4, **options))
    grouped = build(
        f'type: "DepthwiseConvolution" convolution_param {{ num_output: 8 group: 4 {fields} {filler} }}', (2, 4, 7, 6)
    )
    torch.testing.assert_close(grouped(x), F.conv2d(x, *grouped.blobs, groups=4, **options))


def test_sides_beat_the_size_of_a_depthwise_kernel(build, caplog: pytest.LogCaptureFixture) -> None:
    text = 'type: "ConvolutionDepthwise" convolution_param { num_output: 9 kernel_size: 5 kernel_h: 2 kernel_w: 3 }'
    with caplog.at_level(logging.WARNING):
        assert build(text, (2, 4, 7, 6)).blobs[0].shape == (4, 1, 2, 3)
    assert "num_output 9 and group 1 do nothing" in caplog.text
    with pytest.raises(LayerError, match="4 axes"):
        build(text, (2, 4, 7))


def test_fork_fields_of_pooling_contradict_each_other(build) -> None:
    with pytest.raises(LayerError, match="both round_mode and ceil_mode"):
        build('type: "Pooling" pooling_param { kernel_size: 2 round_mode: CEIL ceil_mode: true }', (1, 1, 4, 4))


@pytest.mark.parametrize(
    ("bottoms", "fields", "like"),
    [
        (2, "", lambda x, t, *_: F.smooth_l1_loss(x, t, reduction="sum") / 4),
        (
            2,
            "smooth_l1_loss_param { sigma: 3 }",
            lambda x, t, *_: F.smooth_l1_loss(x, t, reduction="sum", beta=1 / 9) / 4,
        ),
        (4, "", lambda x, t, w, v: (v * F.smooth_l1_loss(w * x, w * t, reduction="none")).sum() / 4),
        (3, "", lambda x, t, w, v: F.smooth_l1_loss(w * x, w * t, reduction="sum") / (4 * 5 * 2)),
        (
            3,
            "loss_param { normalization: BATCH_SIZE }",
            lambda x, t, w, v: F.smooth_l1_loss(w * x, w * t, reduction="sum") / 4,
        ),
        (2, "loss_param { normalization: NONE }", lambda x, t, *_: F.smooth_l1_loss(x, t, reduction="sum")),
        (
            3,
            "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 128 }",
            lambda x, t, w, v: F.smooth_l1_loss(w * x, w * t, reduction="sum") / 128,
        ),
    ],
)
def test_smooth_l1_loss(build, bottoms: int, fields: str, like) -> None:
    shape = (4, 3, 5, 2)
    layer = build(f'type: "SmoothL1Loss" {fields}', *[shape] * bottoms)
    given = [values(*shape, seed=seed) * 2 for seed in range(4)]
    torch.testing.assert_close(layer(*given[:bottoms]), like(*given))
    if bottoms < 4:
        other = build(f'type: "SmoothL1LossOHEM" {fields or "loss_param { normalization: FULL }"}', *[shape] * bottoms)
        assert other.normalization != "BATCH_SIZE" or "BATCH_SIZE" in fields
    x, t = (each.double().requires_grad_() for each in given[:2])
    weights = [each.double() for each in given[2:bottoms]]
    assert torch.autograd.gradcheck(lambda x, t: layer(x, t, *weights), (x, t), fast_mode=True)


def test_the_errors_of_smooth_l1_loss(build) -> None:
    layer = build('type: "SmoothL1LossOHEM"', (4, 3, 5, 2), (4, 3, 5, 2), tops=2)
    x, t = values(4, 3, 5, 2), values(4, 3, 5, 2, seed=2)
    loss, errors = layer(x, t)
    assert layer.top_shapes([x.shape, t.shape]) == [(), (4, 1, 5, 2)]
    torch.testing.assert_close(errors, F.smooth_l1_loss(x, t, reduction="none").sum(1, keepdim=True))
    torch.testing.assert_close(loss, errors.sum() / (4 * 5 * 2))
    rows = build('type: "SmoothL1Loss"', (4, 3), (4, 3), tops=2)
    assert rows(x[..., 0, 0], t[..., 0, 0])[1].shape == rows.top_shapes([(4, 3), (4, 3)])[1] == (4, 1, 1, 1)


@pytest.mark.parametrize(
    ("bottoms", "fields", "tops", "message"),
    [
        (4, "loss_param { normalization: FULL }", 1, "normalization does nothing with 4 bottoms"),
        (4, "", 2, "a second top goes with 2 or 3 bottoms"),
        (2, "smooth_l1_loss_param { sigma: 0 }", 1, "sigma must be positive"),
        (3, "loss_param { ignore_label: 1 }", 1, "ignore_label does nothing"),
        (3, "loss_param { pre_fixed_normalizer: 2 }", 1, "goes with normalization: PRE_FIXED"),
    ],
)
def test_smooth_l1_loss_refuses(build, bottoms: int, fields: str, tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "SmoothL1Loss" {fields}', *[(4, 3)] * bottoms, tops=tops)


SAME_SIZE = 'type: "Python" python_param { module: "resize" layer: "resize_to_same_size" param_str: "{}" }'


@pytest.mark.parametrize(
    "sizes",
    [
        [(4, 8, 12), (2, 4, 6), (3, 8, 12), (1, 2, 2), (3, 1, 1)],  # whole factors
        [(2, 7, 9), (3, 3, 2), (1, 7, 4), (2, 4, 9)],  # rows and columns left over
        [(2, 4, 5), (3, 8, 5), (1, 4, 6), (2, 2, 5)],  # higher or wider than the first
        [(2, 4, 5)],
    ],
)
def test_maps_at_the_size_of_the_first(build, sizes) -> None:
    """MEnet's Python layer, and its gradient: of each value, the sum over its rectangle."""
    bottoms = [values(2, *size, seed=seed) for seed, size in enumerate(sizes)]
    layer = build(SAME_SIZE, *(tuple(bottom.shape) for bottom in bottoms))
    want = same_size([bottom.numpy() for bottom in bottoms])
    assert layer.top_shapes([tuple(bottom.shape) for bottom in bottoms]) == [want.shape]
    top = layer(*(bottom.requires_grad_() for bottom in bottoms))
    np.testing.assert_array_equal(top.detach(), want)
    change = values(*want.shape, seed=9)
    top.backward(change)
    start = 0
    for bottom, (channels, height, width) in zip(bottoms, sizes, strict=True):
        part = change[:, start : start + channels].numpy()
        down, across = want.shape[2] // height, want.shape[3] // width
        for i, j in np.ndindex(height, width):
            cell = part[:, :, i * down : (i + 1) * down, j * across : (j + 1) * across].sum((2, 3))
            np.testing.assert_allclose(bottom.grad[:, :, i, j], cell, 1e-5, 1e-5)
        start += channels


@pytest.mark.parametrize(
    ("shapes", "tops", "message"),
    [
        (((2, 3, 4, 5), (2, 3)), 1, r"needs bottoms of 4 axes \(N, C, H, W\), none of length 0, not \(2, 3\)"),
        (((2, 3, 4, 5), (2, 3, 0, 5)), 1, "none of length 0"),
        (((2, 3, 4, 5), (1, 3, 2, 5)), 1, "must agree in the first axis"),
        ((), 1, "takes 1 or more bottoms and 1 top, not 0 and 1"),
        (((2, 3, 4, 5),), 2, "not 1 and 2"),
    ],
)
def test_maps_at_the_size_of_the_first_refuse(build, shapes, tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(SAME_SIZE, *shapes, tops=tops)

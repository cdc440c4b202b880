"""The layers without parameters: element by element, moving data, and made-up data."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from autodial.layers import Dropout, LayerError, Slice
from autodial.layers.base import TEST, TRAIN


def data(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("fields", "slope"), [("", 0), ("negative_slope: 0.25", 0.25), ("negative_slope: -1", -1)])
def test_relu(build, fields: str, slope: float) -> None:
    x = torch.tensor([-2.0, 0.0, 3.0], requires_grad=True)
    top = build(f'type: "ReLU" relu_param {{ {fields} engine: CAFFE }}', (3,))(x)
    top.sum().backward()
    assert x.grad is not None
    assert top.tolist() == [-2 * slope, 0, 3]
    assert x.grad.tolist() == [slope, slope, 1]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(build, axis: int) -> None:
    x = data(2, 3, 4)
    exp = x.exp()
    top = build(f'type: "Softmax" softmax_param {{ axis: {axis} }}', (2, 3, 4))(x)
    torch.testing.assert_close(top, exp / exp.sum(axis, keepdim=True))


def test_power(build) -> None:
    x = data(2, 3)
    torch.testing.assert_close(build('type: "Power"', (2, 3))(x), x)
    layer = build('type: "Power" power_param { power: 3 scale: 0.5 shift: 1 }', (2, 3))
    torch.testing.assert_close(layer(x), (1 + 0.5 * x) ** 3)
    layer = build('type: "Power" power_param { power: 0 }', (2, 3))
    assert torch.equal(layer(torch.zeros(2, 3)), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("fields", "value"), [("scale: 0 power: 0.5", 0), ("scale: 0 shift: 4 power: 0.5", 2), ("power: 0", 1)]
)
def test_a_constant_power_has_no_gradient(build, fields: str, value: float) -> None:
    x = torch.tensor([-1.0, 0.0, torch.inf], requires_grad=True)
    layer = build(f'type: "Power" power_param {{ {fields} }}', (3,))
    top = layer(x)
    top.sum().backward()
    assert top.tolist() == [value] * 3 and x.grad is not None and x.grad.tolist() == [0, 0, 0]


def test_dropout_keeps_the_mean_and_depends_on_the_seed_alone(build) -> None:
    layer = build('type: "Dropout" dropout_param { dropout_ratio: 0.3 }', (100, 100))
    x = torch.ones(100, 100, requires_grad=True)
    layer.reseed(5)
    first = layer(x)
    kept = first[first != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.7))
    assert len(kept) / 10_000 == pytest.approx(0.7, abs=0.02)
    first.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, first)

    torch.rand(3)  # the global generator plays no part
    second = layer(x)
    assert not torch.equal(second, first)
    layer.reseed(5)
    assert torch.equal(layer(x), first)
    other = Dropout(0.3)
    other.reseed(5)
    assert torch.equal(other(x), first)
    assert torch.equal(copy.deepcopy(layer)(x), second)


def test_dropout_does_nothing_in_evaluation(build) -> None:
    x = data(4, 5)
    assert torch.equal(build('type: "Dropout"', (4, 5), phase=TEST)(x), x)
    assert torch.equal(build('type: "Dropout" dropout_param { dropout_ratio: 0 }', (4, 5))(x), x)


@pytest.mark.parametrize("ratio", [1, -0.5])
def test_dropout_refuses(build, ratio: float) -> None:
    with pytest.raises(LayerError, match=r"dropout_ratio must be in \[0, 1\)"):
        build(f'type: "Dropout" dropout_param {{ dropout_ratio: {ratio} }}', (4, 5))


@pytest.mark.parametrize("fields", ["axis: 1", "concat_dim: 1", "axis: -2", ""])
def test_concat(build, fields: str) -> None:
    parts = [data(2, 1, 3), data(2, 4, 3), data(2, 2, 3)]
    layer = build(f'type: "Concat" concat_param {{ {fields} }}', *(tuple(p.shape) for p in parts))
    assert layer.top_shapes([tuple(p.shape) for p in parts]) == [(2, 7, 3)]
    assert torch.equal(layer(*parts), torch.cat(parts, 1))


def test_concat_refuses(build) -> None:
    with pytest.raises(LayerError, match="two names for the same"):
        build('type: "Concat" concat_param { axis: 1 concat_dim: 1 }', (2, 3), (2, 3))
    for other in [(3, 3), (2, 3, 1)]:
        with pytest.raises(LayerError, match=r"\(2, 3\) and .* must agree in every axis but axis 1"):
            build('type: "Concat"', (2, 3), other)


@pytest.mark.parametrize(
    ("fields", "tops", "sizes"),
    [
        ("slice_point: 1 slice_point: 4", 3, [1, 3, 2]),
        ("", 3, [2, 2, 2]),
        ("slice_dim: 1", 2, [3, 3]),
        ("axis: -2 slice_point: 5", 2, [5, 1]),
        ("", 1, [6]),
    ],
)
def test_slice(build, fields: str, tops: int, sizes: list[int]) -> None:
    x = data(2, 6, 3)
    layer = build(f'type: "Slice" slice_param {{ {fields} }}', (2, 6, 3), tops=tops)
    pieces = layer(x)
    assert layer.top_shapes([(2, 6, 3)]) == [(2, size, 3) for size in sizes] == [tuple(p.shape) for p in pieces]
    assert torch.equal(torch.cat(pieces, 1), x)


@pytest.mark.parametrize(
    ("fields", "tops", "message"),
    [
        ("slice_point: 1", 3, "3 tops must have 2 slice points, not 1"),
        ("slice_point: 4 slice_point: 4", 3, r"slice points \[4, 4\] must be positive and increase"),
        ("slice_point: 0", 2, r"slice points \[0\] must be positive"),
        ("slice_point: 6", 2, r"slice point 6 leaves nothing of axis 1 of bottom \(2, 6\)"),
        ("", 4, "can't be cut into 4 equal tops"),
        ("axis: 1 slice_dim: 1", 2, "two names for the same"),
    ],
)
def test_slice_refuses(build, fields: str, tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Slice" slice_param {{ {fields} }}', (2, 6), tops=tops)


def test_slice_refuses_another_length() -> None:
    with pytest.raises(RuntimeError):
        Slice(2, [5], axis=0)(data(4, 3))
    with pytest.raises(RuntimeError):
        Slice(2, axis=0)(data(5, 3))


@pytest.mark.parametrize(
    ("fields", "index"),
    [
        ("", (slice(None), slice(None), slice(0, 4), slice(0, 5))),
        ("offset: 2", (slice(None), slice(None), slice(2, 6), slice(2, 7))),
        ("offset: 2 offset: 1", (slice(None), slice(None), slice(2, 6), slice(1, 6))),
        ("axis: 1 offset: 1 offset: 2 offset: 3", (slice(None), slice(1, 3), slice(2, 6), slice(3, 8))),
        ("axis: -1 offset: 3", (slice(None), slice(None), slice(None), slice(3, 8))),
    ],
)
def test_crop(build, fields: str, index: tuple[slice, ...]) -> None:
    x, reference = data(2, 3, 7, 8), data(1, 2, 4, 5)
    layer = build(f'type: "Crop" crop_param {{ {fields} }}', (2, 3, 7, 8), (1, 2, 4, 5))
    assert layer.top_shapes([(2, 3, 7, 8), (1, 2, 4, 5)]) == [tuple(x[index].shape)]
    assert torch.equal(layer(x, reference), x[index])


@pytest.mark.parametrize(
    ("fields", "reference", "message"),
    [
        ("offset: 4", (1, 1, 4, 4), r"reference \(1, 1, 4, 4\) at offset 4 exceeds axis 2 of bottom \(2, 3, 7, 8\)"),
        ("", (1, 1, 4, 9), "exceeds axis 3"),
        ("offset: 1 offset: 1 offset: 1", (1, 1, 4, 4), "3 offsets don't fit the 2 axes"),
        ("", (4, 4), "the same number of axes"),
        ("axis: 4", (1, 1, 4, 4), "axis 4 is out of range"),
    ],
)
def test_crop_refuses(build, fields: str, reference: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Crop" crop_param {{ {fields} }}', (2, 3, 7, 8), reference)


@pytest.mark.parametrize(
    ("fields", "shape"),
    [("", (2, 24)), ("axis: 0 end_axis: 1", (6, 4, 2)), ("axis: -2", (2, 3, 8)), ("axis: 2 end_axis: 2", (2, 3, 4, 2))],
)
def test_flatten(build, fields: str, shape: tuple[int, ...]) -> None:
    x = data(2, 3, 4, 2)
    layer = build(f'type: "Flatten" flatten_param {{ {fields} }}', (2, 3, 4, 2))
    assert layer.top_shapes([(2, 3, 4, 2)]) == [shape]
    assert torch.equal(layer(x), x.view(shape))


def test_flatten_refuses(build) -> None:
    with pytest.raises(LayerError, match="axis 2 comes after end_axis 1"):
        build('type: "Flatten" flatten_param { axis: 2 end_axis: 1 }', (2, 3, 4))


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("shape { dim: 0 dim: -1 }", (2, 24)),
        ("shape { dim: -1 dim: 6 }", (8, 6)),
        ("shape { dim: 4 dim: 12 }", (4, 12)),
        ("shape { dim: 0 dim: 0 dim: 1 dim: -1 }", (2, 3, 1, 8)),
        ("shape { dim: -1 dim: 2 } axis: 1 num_axes: 2", (2, 6, 2, 2)),
        ("shape { dim: 8 } axis: 2", (2, 3, 8)),
        ("shape { dim: 1 } axis: 1 num_axes: 0", (2, 1, 3, 4, 2)),
        ("shape { dim: 1 dim: 1 } axis: -1 num_axes: 0", (2, 3, 4, 2, 1, 1)),
        ("shape { dim: 2 dim: 1 } axis: -2", (2, 3, 4, 2, 1)),
        ("shape { } axis: 4", (2, 3, 4, 2)),
    ],
)
def test_reshape(build, fields: str, shape: tuple[int, ...]) -> None:
    x = data(2, 3, 4, 2)
    layer = build(f'type: "Reshape" reshape_param {{ {fields} }}', (2, 3, 4, 2))
    assert layer.top_shapes([(2, 3, 4, 2)]) == [shape]
    assert torch.equal(layer(x), x.view(shape))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("shape { dim: -1 dim: -1 }", "at most one -1"),
        ("shape { dim: -2 }", "lengths from 0 on"),
        ("shape { dim: 5 dim: -1 }", r"bottom \(2, 3, 4\) has 24 elements, which don't make \(5, -1\)"),
        ("shape { dim: 5 dim: 5 }", "24 elements"),
        ("shape { dim: 4 } axis: 2 num_axes: 2", "axis 2 and num_axes 2 are out of range"),
        ("shape { dim: 4 } axis: -5", "axis -5"),
        ("shape { dim: 4 } num_axes: -2", "num_axes must be at least 0"),
        ("shape { dim: 4 dim: 0 } axis: 2", r"shape \(4, 0\) from axis 2 copies an axis that bottom \(2, 3, 4\)"),
    ],
)
def test_reshape_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Reshape" reshape_param {{ {fields} }}', (2, 3, 4))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_tile(build, axis: int) -> None:
    x = data(2, 3, 4).requires_grad_()
    layer = build(f'type: "Tile" tile_param {{ tiles: 3 axis: {axis} }}', (2, 3, 4))
    top = layer(x)
    assert layer.top_shapes([(2, 3, 4)]) == [tuple(top.shape)]
    np.testing.assert_array_equal(top.detach(), np.concatenate([x.detach()] * 3, axis))
    top.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3))


def test_tile_refuses(build) -> None:
    with pytest.raises(LayerError, match="tiles must be positive, not 0"):
        build('type: "Tile"', (2, 3))
    with pytest.raises(LayerError, match="axis 2 is out of range"):
        build('type: "Tile" tile_param { tiles: 2 axis: 2 }', (2, 3))


def test_split_adds_gradients(build) -> None:
    layer = build('type: "Split"', (2, 3), tops=3)
    x = data(2, 3).requires_grad_()
    assert layer.top_shapes([(2, 3)]) == [(2, 3)] * 3
    first, second, third = layer(x)
    (first + 10 * second + 100 * third).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 3), 111.0))


def test_silence(build) -> None:
    layer = build('type: "Silence"', (2, 3), (4,), tops=0)
    assert layer.top_shapes([(2, 3), (4,)]) == []
    assert layer(data(2, 3), data(4)) == ()


def test_eltwise_max_gives_ties_to_one_bottom(build) -> None:
    layer = build('type: "Eltwise" eltwise_param { operation: MAX }', (4,), (4,), (4,))
    bottoms = [
        torch.tensor(values, dtype=torch.float32, requires_grad=True)
        for values in ([5, 1, 2, 0], [5, 1, 3, 0], [1, 2, 3, 0])
    ]
    top = layer(*bottoms)
    top.sum().backward()
    assert top.tolist() == [5, 2, 3, 0]
    assert [b.grad.tolist() for b in bottoms if b.grad is not None] == [[0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0]]


def test_eltwise_product_has_a_gradient_at_zero(build) -> None:
    layer = build('type: "Eltwise" eltwise_param { operation: PROD stable_prod_grad: false }', (1,), (1,), (1,))
    bottoms = [torch.tensor([value], requires_grad=True) for value in (0.0, 2.0, 3.0)]
    layer(*bottoms).backward()
    assert [b.grad.item() for b in bottoms if b.grad is not None] == [6, 0, 0]


@pytest.mark.parametrize(
    ("fields", "other", "message"),
    [
        ("operation: PROD coeff: 1 coeff: 2", (2, 3), "coeff goes with operation SUM, not with PROD"),
        ("operation: MAX coeff: 1 coeff: 2", (2, 3), "not with MAX"),
        ("coeff: 1", (2, 3), "coeff is given 1 time and the layer has 2 bottoms"),
        ("", (2, 1), r"bottoms \(2, 3\) and \(2, 1\) must have the same shape"),
    ],
)
def test_eltwise_refuses(build, fields: str, other: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Eltwise" eltwise_param {{ {fields} }}', (2, 3), other)


def test_eltwise_scales_a_single_bottom(build) -> None:
    """As in FlowNet 2.0's nets."""
    x = data(2, 3)
    torch.testing.assert_close(build('type: "Eltwise" eltwise_param { coeff: 0.5 }', (2, 3))(x), 0.5 * x)
    torch.testing.assert_close(build('type: "Eltwise"', (2, 3))(x), x)
    for operation in ("PROD", "MAX"):
        with pytest.raises(LayerError, match=f"operation {operation} needs 2 bottoms or more"):
            build(f'type: "Eltwise" eltwise_param {{ operation: {operation} }}', (2, 3))


def test_input(build) -> None:
    layer = build('type: "Input" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } }', tops=2)
    assert layer.is_data
    assert layer.top_shapes([]) == [(2, 3), (2,)]
    assert build('type: "Input" input_param { shape { dim: 2 } }', tops=3).top_shapes([]) == [(2,)] * 3
    with pytest.raises(LayerError, match=r"3 tops must have 1 or 3 of input_param.shape, not 2"):
        build('type: "Input" input_param { shape { dim: 2 } shape { dim: 2 } }', tops=3)
    with pytest.raises(LayerError, match=r"1 top must have 1 of input_param.shape, not 0"):
        build('type: "Input"')


def test_dummy_data(build) -> None:
    text = """type: "DummyData" dummy_data_param {
        shape { dim: 2 dim: 3 } data_filler { value: 5 } data_filler { type: "gaussian" } }"""
    layer = build(text, phase=TRAIN, tops=2)
    assert layer.top_shapes([]) == [(2, 3), (2, 3)]
    assert layer.state_dict() == {}
    layer.reseed(7)
    constant, first = layer()
    assert torch.equal(constant, torch.full((2, 3), 5.0))
    assert layer()[0] is constant
    assert not torch.equal(layer()[1], first)
    layer.reseed(7)
    assert torch.equal(layer()[1], first)


def test_dummy_data_defaults_and_old_fields(build) -> None:
    layer = build('type: "DummyData" dummy_data_param { num: 2 channels: 3 height: 4 height: 5 width: 6 }', tops=2)
    assert layer.top_shapes([]) == [(2, 3, 4, 6), (2, 3, 5, 6)]
    assert all(torch.equal(top, torch.zeros_like(top)) for top in layer())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", r"2 tops must have 1 or 2 of dummy_data_param.shape, not 0"),
        ("shape { dim: 1 } num: 2", "both shape and num"),
        ("num: 2 channels: 3 height: 4", r"dummy_data_param.width, not 0"),
        ("shape { dim: 1 } data_filler { } data_filler { } data_filler { }", r"data_filler, not 3"),
    ],
)
def test_dummy_data_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "DummyData" dummy_data_param {{ {fields} }}', tops=2)

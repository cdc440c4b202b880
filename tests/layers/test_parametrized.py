"""The layers with weights: the forms of their options, fillers, shapes and errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autodial.layers import Embed, LayerError, Scale

IMAGES = (2, 4, 9, 8)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ("kernel_size: 3", {}),
        ("kernel_size: 3 kernel_size: 2 stride: 2 stride: 1", {"stride": (2, 1)}),
        ("kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3 pad_h: 2", {"stride": (1, 3), "padding": (2, 0)}),
        ("kernel_size: 2 pad: 3 dilation: 2 dilation: 3 group: 2", {"padding": 3, "dilation": (2, 3), "groups": 2}),
        ("kernel_size: 1 axis: -3 force_nd_im2col: true engine: CUDNN bias_term: false", {}),
        ("kernel_h: 1 kernel_w: 3 dilation: 0 dilation: 2", {"dilation": (1, 2)}),
    ],
)
def test_convolution(build, fields: str, options: dict) -> None:
    filler = 'weight_filler { type: "gaussian" } bias_filler { type: "uniform" min: 1 max: 2 }'
    layer = build(f'type: "Convolution" convolution_param {{ num_output: 6 {filler} {fields} }}', IMAGES)
    x = torch.randn(IMAGES, generator=torch.Generator().manual_seed(1))
    bias = layer.blobs[1] if "bias_term" not in fields else None
    top = layer(x)
    torch.testing.assert_close(top, F.conv2d(x, layer.blobs[0], bias, **options))
    assert layer.top_shapes([IMAGES]) == [tuple(top.shape)]
    assert bias is None or (bias.min() >= 1 and bias.max() <= 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("num_output: 2", "convolution_param.kernel_size has 0 values"),
        ("num_output: 2 kernel_size: 3 kernel_size: 3 kernel_size: 3", "kernel_size has 3 values"),
        ("num_output: 2 kernel_size: 3 kernel_h: 3", "both kernel_size and kernel_h"),
        ("num_output: 2 kernel_h: 3", "kernel_size must be positive, not 3 x 0"),
        ("num_output: 2 kernel_size: 3 stride: 0", "stride must be positive"),
        ("num_output: 2 kernel_size: 3 stride: 1 stride_h: 1", "both stride and stride_h"),
        ("num_output: 2 kernel_size: 3 dilation: 0", "dilation must be positive"),
        ("kernel_size: 3", "num_output is missing or 0"),
        ("num_output: 2 kernel_size: 3 group: 0", "group must be positive"),
        ("num_output: 3 kernel_size: 3 group: 2", "num_output 3 is not a multiple of group 2"),
        ("num_output: 3 kernel_size: 3 group: 3", "channels 4 is not a multiple of group 3"),
        ("num_output: 2 kernel_size: 3 kernel_size: 3 axis: 2", "has 2 values, but the bottom has 1 spatial axis$"),
        ("num_output: 2 kernel_h: 3 kernel_w: 3 axis: 2", "kernel_h and kernel_w are for 2 spatial axes"),
        ("num_output: 2 kernel_size: 3 axis: 4", "axis 4 is out of range"),
        ("num_output: 2 kernel_size: 5 dilation: 2", r"over 9 pixels does not fit bottom \(2, 4, 9, 8\)"),
        ('num_output: 2 kernel_size: 3 weight_filler { type: "xavir" }', "xavir"),
    ],
)
def test_convolution_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Convolution" convolution_param {{ {fields} }}', IMAGES)


def test_convolution_needs_its_channels(build) -> None:
    layer = build('type: "Convolution" convolution_param { num_output: 2 kernel_size: 1 }', IMAGES)
    assert layer.top_shapes([(7, 4, 3, 3)]) == [(7, 2, 3, 3)]
    with pytest.raises(LayerError, match="has 5 channels, the weights 4"):
        layer.top_shapes([(2, 5, 9, 8)])
    with pytest.raises(LayerError, match=r"bottom \(2, 4, 9\) must have 4 axes, as when the net was built"):
        layer.top_shapes([(2, 4, 9)])


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ("kernel_size: 3", {}),
        ("kernel_size: 3 kernel_size: 2 stride: 2 stride: 1", {"stride": (2, 1)}),
        ("kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3 pad_h: 2", {"stride": (1, 3), "padding": (2, 0)}),
        ("kernel_size: 4 pad: 3 dilation: 2 dilation: 3 group: 2", {"padding": 3, "dilation": (2, 3), "groups": 2}),
        ("kernel_size: 1 axis: -3 engine: CAFFE bias_term: false", {}),
    ],
)
def test_deconvolution(build, fields: str, options: dict) -> None:
    filler = 'weight_filler { type: "gaussian" } bias_filler { type: "uniform" min: 1 max: 2 }'
    layer = build(f'type: "Deconvolution" convolution_param {{ num_output: 6 {filler} {fields} }}', IMAGES)
    x = torch.randn(IMAGES, generator=torch.Generator().manual_seed(1))
    weight, *bias = layer.blobs
    assert weight.shape[:2] == (4, 6 // options.get("groups", 1))
    top = layer(x)
    torch.testing.assert_close(top, F.conv_transpose2d(x, weight, *bias, **options))
    assert layer.top_shapes([IMAGES]) == [tuple(top.shape)]


def test_bilinear_deconvolution_enlarges_an_image(build) -> None:
    fields = (
        'kernel_size: 4 stride: 2 pad: 1 num_output: 2 group: 2 bias_term: false weight_filler { type: "bilinear" }'
    )
    layer = build(f'type: "Deconvolution" convolution_param {{ {fields} }}', (1, 2, 5, 6))
    x = torch.randn(1, 2, 5, 6, generator=torch.Generator().manual_seed(1))
    want = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(layer(x)[..., 1:-1, 1:-1], want[..., 1:-1, 1:-1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("kernel_size: 3 num_output: 3 group: 2", "num_output 3 is not a multiple of group 2"),
        ("kernel_size: 3 num_output: 2 pad: 5", r"pad 5 leaves nothing of the 10 pixels that bottom \(2, 4, 9, 8\)"),
    ],
)
def test_deconvolution_refuses(build, fields: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "Deconvolution" convolution_param {{ {fields} }}', IMAGES)


@pytest.mark.parametrize("name", ["Convolution", "Deconvolution"])
def test_convolutions_share_their_weights_between_bottoms(build, name: str) -> None:
    text = f'type: "{name}" convolution_param {{ num_output: 2 kernel_size: 3 weight_filler {{ type: "gaussian" }} }}'
    layer = build(text, IMAGES, IMAGES, tops=2)
    bottoms = [torch.randn(IMAGES, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    tops = layer(*bottoms)
    assert layer.top_shapes([IMAGES, IMAGES]) == [tuple(top.shape) for top in tops]
    for bottom, top in zip(bottoms, tops, strict=True):
        torch.testing.assert_close(layer(bottom), top)
    with pytest.raises(LayerError, match="2 bottoms must have as many tops, not 1"):
        build(text, IMAGES, IMAGES)
    with pytest.raises(LayerError, match=r"\(2, 4, 9, 8\) and \(2, 4, 9, 9\) must have the same shape"):
        build(text, IMAGES, (2, 4, 9, 9), tops=2)


@pytest.mark.parametrize("bias_term", ["true", "false"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), ()])
def test_embed(build, shape: tuple[int, ...], bias_term: str) -> None:
    fillers = 'weight_filler { type: "gaussian" } bias_filler { value: 2 }'
    text = f'type: "Embed" embed_param {{ input_dim: 4 num_output: 3 bias_term: {bias_term} {fillers} }}'
    layer = build(text, shape)
    index = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(1))
    weight, *bias = layer.blobs
    top = layer(index + 0.5)  # a fraction is cut off
    torch.testing.assert_close(top, F.one_hot(index, 4).float() @ weight + (2 if bias else 0))
    assert layer.top_shapes([shape]) == [tuple(top.shape)]
    assert [tuple(b.shape) for b in bias] == ([(3,)] if bias_term == "true" else [])


def test_embed_gradient() -> None:
    layer = Embed(4, 2).double()
    index = torch.tensor([3.0, 1, 3])

    def forward(weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (index,))

    blobs = [torch.randn(s, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) for s in [(4, 2), (2,)]]
    assert torch.autograd.gradcheck(forward, [blob.requires_grad_() for blob in blobs])


def test_embed_refuses(build) -> None:
    with pytest.raises(LayerError, match="input_dim is missing or 0"):
        build('type: "Embed" embed_param { num_output: 3 }', (5,))
    with pytest.raises(LayerError, match="num_output is missing or 0"):
        build('type: "Embed" embed_param { input_dim: 3 }', (5,))
    for index in (4, -1):
        with pytest.raises(LayerError, match=rf"index {index} is out of range for 4 rows \(0 to 3\)"):
            Embed(4, 2)(torch.tensor([0.0, index]))


def test_parameter(build) -> None:
    layer = build('type: "Parameter" parameter_param { shape { dim: 2 dim: 3 } }')
    assert layer.top_shapes([]) == [(2, 3)]
    (blob,) = layer.blobs
    assert torch.equal(layer(), torch.zeros(2, 3))
    (layer() * 3).sum().backward()
    assert torch.equal(blob.grad, torch.full((2, 3), 3.0))
    assert build('type: "Parameter"').top_shapes([]) == [()]
    with pytest.raises(LayerError, match=r"parameter_param.shape must be positive, not \(2, 0\)"):
        build('type: "Parameter" parameter_param { shape { dim: 2 dim: 0 } }')


@pytest.mark.parametrize(("axis", "width", "top"), [(1, 24, (2, 5)), (2, 8, (2, 3, 5)), (-1, 2, (2, 3, 4, 5))])
@pytest.mark.parametrize("transpose", ["true", "false"])
def test_inner_product(build, axis: int, width: int, top: tuple[int, ...], transpose: str) -> None:
    shape = (2, 3, 4, 2)
    fields = f'num_output: 5 axis: {axis} transpose: {transpose} weight_filler {{ type: "xavier" }}'
    layer = build(f'type: "InnerProduct" inner_product_param {{ {fields} bias_filler {{ value: 2 }} }}', shape)
    weight, bias = layer.blobs
    assert weight.shape == ((width, 5) if transpose == "true" else (5, width))
    assert torch.equal(bias, torch.full((5,), 2.0))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    matrix = weight if transpose == "true" else weight.t()
    torch.testing.assert_close(layer(x), (x.reshape(-1, width) @ matrix + 2).view(top))
    assert layer.top_shapes([shape]) == [top]


def test_inner_product_refuses(build) -> None:
    with pytest.raises(LayerError, match="num_output is missing or 0"):
        build('type: "InnerProduct"', (2, 3))
    with pytest.raises(LayerError, match="axis 2 is out of range"):
        build('type: "InnerProduct" inner_product_param { num_output: 5 axis: 2 }', (2, 3))
    layer = build('type: "InnerProduct" inner_product_param { num_output: 5 }', (2, 3, 4))
    with pytest.raises(LayerError, match=r"\(2, 3, 5\) has 15 elements from axis 1 on, the weights expect 12"):
        layer.top_shapes([(2, 3, 5)])


@pytest.mark.parametrize(
    ("fields", "shape", "einsum"),
    [
        ("", (3,), "nchw,c->nchw"),
        ("axis: 1 num_axes: 2", (3, 4), "nchw,ch->nchw"),
        ("axis: 0 num_axes: 1", (2,), "nchw,n->nchw"),
        ("axis: 2 num_axes: -1", (4, 2), "nchw,hw->nchw"),
        ("axis: -1", (2,), "nchw,w->nchw"),
        ("num_axes: 0", (), "nchw,->nchw"),
    ],
)
def test_scale(build, fields: str, shape: tuple[int, ...], einsum: str) -> None:
    x = torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(1))
    unit = build(f'type: "Scale" scale_param {{ {fields} }}', tuple(x.shape))
    assert torch.equal(unit.blobs[0], torch.ones(shape))

    fillers = 'filler { type: "gaussian" } bias_term: true bias_filler { type: "gaussian" }'
    layer = build(f'type: "Scale" scale_param {{ {fields} {fillers} }}', tuple(x.shape))
    scale, bias = layer.blobs
    assert scale.shape == bias.shape == shape
    want = torch.einsum(einsum, x, scale) + torch.einsum(einsum, torch.ones_like(x), bias)
    torch.testing.assert_close(layer(x), want)

    second = build(f'type: "Scale" scale_param {{ {fields.split("num_axes")[0]} }}', tuple(x.shape), shape)
    assert second.blobs == ()
    torch.testing.assert_close(second(x, scale), torch.einsum(einsum, x, scale))


@pytest.mark.parametrize(
    ("fields", "shape", "einsum"),
    [
        ("", (3,), "nchw,c->nchw"),
        ("axis: 1 num_axes: 2", (3, 4), "nchw,ch->nchw"),
        ("axis: 0 num_axes: 1", (2,), "nchw,n->nchw"),
        ("axis: -2 num_axes: -1", (4, 2), "nchw,hw->nchw"),
        ("num_axes: 0", (), "nchw,->nchw"),
    ],
)
def test_bias(build, fields: str, shape: tuple[int, ...], einsum: str) -> None:
    x = torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(1))
    zero = build(f'type: "Bias" bias_param {{ {fields} }}', tuple(x.shape))
    assert torch.equal(zero.blobs[0], torch.zeros(shape))

    layer = build(f'type: "Bias" bias_param {{ {fields} filler {{ type: "gaussian" }} }}', tuple(x.shape))
    (bias,) = layer.blobs
    assert bias.shape == shape
    want = x + torch.einsum(einsum, torch.ones_like(x), bias)
    torch.testing.assert_close(layer(x), want)

    second = build(f'type: "Bias" bias_param {{ {fields.split("num_axes")[0]} }}', tuple(x.shape), shape)
    assert second.blobs == ()
    torch.testing.assert_close(second(x, bias), want)


def test_bias_gradient(build) -> None:
    layer = build('type: "Bias"', (2, 3, 2), (3,))
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in [(2, 3, 2), (3,)]]
    assert torch.autograd.gradcheck(layer, tensors)


def test_scale_with_an_empty_filler_is_zero(build) -> None:
    assert build('type: "Scale" scale_param { filler { } }', (2, 3)).blobs[0].tolist() == [0, 0, 0]


def test_scale_counts_axes_from_the_end() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    layer = Scale((3, 4), axis=-2)
    torch.nn.init.uniform_(layer.blobs[0], generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer(x), x * layer.blobs[0])


def test_scale_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = Scale((3, 2), bias=True).double()
    parameters = dict(layer.named_parameters())
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in [(2, 3, 2, 2), (3, 2), (3, 2)]]

    def forward(x, scale, bias):
        return torch.func.functional_call(layer, {"scale": scale, "bias": bias}, (x,))

    assert parameters.keys() == {"scale", "bias"}
    assert torch.autograd.gradcheck(forward, [t.requires_grad_() for t in tensors])
    second = Scale((3, 2), learned=False)
    assert torch.autograd.gradcheck(second, tensors[:2])


@pytest.mark.parametrize(
    ("fields", "second", "message"),
    [
        ("num_axes: 2", [], r"num_axes 2 from axis 1 reaches beyond bottom \(2, 3\)"),
        ("num_axes: -2", [], "num_axes must be at least 0"),
        ("axis: 2", [], "axis 2 is out of range"),
        ("", [(2,)], r"shape \(2,\) does not fit bottom \(2, 3\) from axis 1 on"),
        ("", [(3, 1)], r"shape \(3, 1\) does not fit"),
        ("num_axes: 1", [(3,)], "num_axes does nothing"),
        ("filler { value: 2 }", [(3,)], "filler does nothing"),
    ],
)
@pytest.mark.parametrize("name", ["Scale", "Bias"])
def test_scale_and_bias_refuse(build, name: str, fields: str, second: list, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        build(f'type: "{name}" {name.lower()}_param {{ {fields} }}', (2, 3), *second)


@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
def test_a_single_number_as_second_bottom_fits_any_first(build, shape: tuple[int, ...]) -> None:
    x, number = torch.full(shape, 5.0), torch.tensor(3.0)
    assert torch.equal(build('type: "Scale"', shape, ())(x, number), torch.full(shape, 15.0))
    assert torch.equal(build('type: "Bias" bias_param { axis: 0 }', shape, ())(x, number), torch.full(shape, 8.0))

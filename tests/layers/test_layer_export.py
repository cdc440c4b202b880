"""TEST-phase layers through torch.export with a free batch size, and into ONNX Runtime."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from autodial.layers.base import TEST

IMAGES = (2, 6, 9, 8)
LAYERS = [
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 group: 2 }', [IMAGES]),
    ('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }', [IMAGES]),
    ('type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 }', [IMAGES]),
    ('type: "Pooling" pooling_param { pool: AVE global_pooling: true }', [IMAGES]),
    ('type: "LRN"', [IMAGES]),
    ('type: "LRN" lrn_param { norm_region: WITHIN_CHANNEL }', [IMAGES]),
    ('type: "InnerProduct" inner_product_param { num_output: 4 }', [IMAGES]),
    ('type: "Scale" scale_param { bias_term: true }', [IMAGES]),
    ('type: "Scale"', [IMAGES, (6,)]),
    ('type: "ReLU" relu_param { negative_slope: 0.1 }', [IMAGES]),
    ('type: "Dropout"', [IMAGES]),
    ('type: "Softmax"', [(2, 5)]),
    ('type: "Power" power_param { power: 2 shift: 1 }', [IMAGES]),
    ('type: "Concat"', [IMAGES, IMAGES]),
    ('type: "Slice" slice_param { slice_point: 2 }', [IMAGES]),
    ('type: "Crop" crop_param { offset: 2 }', [IMAGES, (1, 1, 5, 4)]),
    ('type: "Flatten"', [IMAGES]),
    ('type: "Split"', [IMAGES]),
    ('type: "BatchNorm"', [IMAGES]),
    ('type: "Eltwise" eltwise_param { operation: MAX }', [IMAGES, IMAGES]),
    ('type: "Deconvolution" convolution_param { num_output: 4 kernel_size: 4 stride: 2 pad: 1 group: 2 }', [IMAGES]),
    ('type: "Bias"', [IMAGES]),
    ('type: "PReLU"', [IMAGES]),
    ('type: "ELU"', [IMAGES]),
    ('type: "Sigmoid"', [IMAGES]),
    ('type: "TanH"', [IMAGES]),
    ('type: "BNLL"', [IMAGES]),
    ('type: "AbsVal"', [IMAGES]),
    ('type: "Exp" exp_param { base: 2 scale: 0.5 shift: 1 }', [IMAGES]),
    ('type: "Log" log_param { base: 10 shift: 5 }', [IMAGES]),
    ('type: "Threshold"', [IMAGES]),
    ('type: "MVN"', [IMAGES]),
    ('type: "Reduction" reduction_param { operation: SUMSQ axis: 1 }', [IMAGES]),
    ('type: "ArgMax" argmax_param { axis: 1 top_k: 2 }', [IMAGES]),
    ('type: "ArgMax" argmax_param { out_max_val: true }', [IMAGES]),
    ('type: "Reshape" reshape_param { shape { dim: 0 dim: 2 dim: -1 } }', [IMAGES]),
    ('type: "Reshape" reshape_param { shape { dim: -1 dim: 54 dim: 8 } }', [IMAGES]),
    ('type: "Reshape" reshape_param { shape { dim: 3 dim: 2 } axis: 1 num_axes: 1 }', [IMAGES]),
    ('type: "Tile" tile_param { tiles: 3 }', [IMAGES]),
    ('type: "Embed" embed_param { input_dim: 3 num_output: 4 }', [(2, 5)]),
    ('type: "EuclideanLoss"', [IMAGES, IMAGES]),
    ('type: "SigmoidCrossEntropyLoss"', [IMAGES, IMAGES]),
    ('type: "HingeLoss"', [(2, 5), (2,)]),
    ('type: "MultinomialLogisticLoss"', [(2, 5), (2,)]),
    ('type: "InfogainLoss"', [(2, 5), (2,), (5, 5)]),
    ('type: "ContrastiveLoss"', [(2, 5), (2, 5), (2,)]),
    ('type: "SoftmaxWithLoss"', [(2, 5), (2,)]),
    ('type: "Accuracy" accuracy_param { top_k: 2 }', [(2, 5), (2,)]),
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 2 }', [(2, 3, 4, 5, 4)]),
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 10 stride: 3 pad: 0 }', [IMAGES]),
    ('type: "Im2col" convolution_param { kernel_size: 3 stride: 2 pad: 1 }', [IMAGES]),
    ('type: "SPP" spp_param { pyramid_height: 3 }', [IMAGES]),
    ('type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }', [IMAGES]),
    ('type: "Pooling" pooling_param { kernel_size: 2 stride: 2 round_mode: FLOOR }', [IMAGES]),
    ('type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 }', [(2, 3, 4, 5, 4)]),
    ('type: "Axpy"', [(2, 6), IMAGES, IMAGES]),
    ('type: "ConvolutionDepthwise" convolution_param { kernel_size: 3 pad: 1 stride: 1 }', [IMAGES]),
    ('type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }', [IMAGES]),
    ('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', [IMAGES]),
    ('type: "Normalize" norm_param { across_spatial: false channel_shared: false }', [IMAGES]),
    ('type: "Interp" interp_param { zoom_factor: 2 pad_beg: -1 }', [IMAGES]),
    ('type: "Upsample" upsample_param { scale: 2 }', [IMAGES]),
    ('type: "ReLU6"', [IMAGES]),
    ('type: "Clip" clip_param { min: 0.2 max: 0.7 }', [IMAGES]),
    ('type: "Swish" swish_param { beta: 2 }', [IMAGES]),
    ('type: "PriorBox" prior_box_param { min_size: 3 aspect_ratio: 2 }', [IMAGES, (2, 3, 30, 40)]),
]


@pytest.mark.parametrize(("text", "shapes"), LAYERS)
def test_batch_size_is_free_in_an_exported_program(build, text: str, shapes: list[tuple[int, ...]]) -> None:
    layer = build(text, *shapes, phase=TEST, tops=2 if "Slice" in text or "Split" in text else 1)
    generator = torch.Generator().manual_seed(0)

    def bottoms(batch: int) -> tuple[torch.Tensor, ...]:
        real = [(batch, *shape[1:]) if shape[0] == 2 else shape for shape in shapes]
        return tuple(
            torch.rand(shape, generator=generator) if len(shape) > 1 or shape[0] > 5 else torch.zeros(shape)
            for shape in real
        )

    batch = torch.export.Dim("batch")
    dynamic = tuple({0: batch} if shape[0] == 2 else {} for shape in shapes)
    by_argument = inspect.signature(layer.forward).bind(*dynamic).arguments  # *bottoms are one argument
    program = torch.export.export(layer, bottoms(2), dynamic_shapes=by_argument)
    for size in (1, 5):
        inputs = bottoms(size)
        torch.testing.assert_close(program.module()(*inputs), layer(*inputs))


@pytest.mark.parametrize(
    "text",
    [
        'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }',
        'type: "Pooling" pooling_param { kernel_size: 2 stride: 3 pad: 1 }',
        'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }',
        'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 2 }',
        'type: "LRN"',
        'type: "Deconvolution" convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 group: 2 dilation: 2 '
        'weight_filler { type: "gaussian" } }',
        'type: "PReLU"',
        'type: "MVN"',
        'type: "BNLL"',
        'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 dim: 4 } }',
        'type: "Tile" tile_param { tiles: 2 axis: 2 }',
        'type: "Convolution" convolution_param { num_output: 4 kernel_size: 10 stride: 3 '
        'weight_filler { type: "msra" } }',
        'type: "Im2col" convolution_param { kernel_size: 3 stride: 2 pad: 1 }',
        'type: "SPP" spp_param { pyramid_height: 3 }',
        'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 ceil_mode: false }',
        'type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }',
        'type: "ShuffleChannel" shuffle_channel_param { group: 3 }',
        'type: "Normalize" norm_param { channel_shared: false }',
        'type: "Interp" interp_param { height: 5 width: 20 }',
        'type: "Upsample" upsample_param { scale: 2 }',
        'type: "ReLU6" relu6_param { negative_slope: 0.1 }',
        'type: "Clip" clip_param { min: -0.5 max: 0.7 }',
        'type: "Swish" swish_param { beta: 2 }',
    ],
)
def test_onnx_runtime(build, text: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    shape = (2, 6, 8, 9)
    layer = build(text, shape, phase=TEST)
    exported = torch.onnx.export(
        layer, (torch.zeros(shape),), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False
    )
    assert exported is not None
    session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((5, *shape[1:])).astype(np.float32)
    (top,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(top, layer(torch.from_numpy(x)).detach().numpy(), 1e-5, 1e-6)

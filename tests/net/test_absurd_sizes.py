"""Numbers that no net has, in each field that sizes follow from: refused before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from memory import RSS_UNIT

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net

resource = pytest.importorskip("resource", reason="needs a Unix system")

IMAGES = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }'
BIG, HUGE = 2**31 - 1, 2**62
LAYERS = {
    "Im2col": f"convolution_param {{ kernel_size: {BIG} pad: {BIG} }}",
    "SPP": "spp_param { pyramid_height: 31 }",
    "Interp": f"interp_param {{ zoom_factor: {BIG} }}",
    "Upsample": f"upsample_param {{ scale: {BIG} }}",
    "Pooling": f"pooling_param {{ kernel_size: 2 stride: {BIG} }}",
    "Convolution": f"convolution_param {{ kernel_size: 3 num_output: {BIG} }}",
    "Deconvolution": f"convolution_param {{ kernel_size: 3 num_output: 1 stride: {BIG} }}",
    "InnerProduct": f"inner_product_param {{ num_output: {BIG} }}",
    "Embed": f"embed_param {{ num_output: 1000000 input_dim: {BIG} }}",
    "Tile": f"tile_param {{ tiles: {BIG} }}",
    "LRN": f"lrn_param {{ norm_region: WITHIN_CHANNEL local_size: {BIG} }}",
    "Reshape": f"reshape_param {{ shape {{ dim: 0 dim: {HUGE} }} }}",
    "Resample": f"resample_param {{ height: {BIG} width: {BIG} type: NEAREST }}",
    "Downsample": f"downsample_param {{ top_height: 9 top_width: {BIG} }}",
    "Accum": f"accum_param {{ size_divisible_by: {BIG} }}",
    "Correlation": f"correlation_param {{ kernel_size: 1 max_displacement: {BIG} pad: {BIG} stride_2: {BIG} }}",
    "DataAugmentation": f"augmentation_param {{ recompute_mean: 1 crop_height: {BIG} crop_width: {BIG} }}",
    "Crop": f"crop_param {{ offset: {BIG} }}",
}
SEVERAL = {
    "LSTM": f"recurrent_param {{ num_output: {BIG} }}",
    "RNN": "recurrent_param { num_output: 1000000 }",
    "ROIPooling": f"roi_pooling_param {{ pooled_h: {BIG} pooled_w: {BIG} }}",
    "PSROIPooling": f"psroi_pooling_param {{ output_dim: 1 group_size: {BIG} spatial_scale: 1 }}",
}
"""As LAYERS, for x and the bottoms that layers of this type take besides."""
SOURCES = {
    "Parameter": f"parameter_param {{ shape {{ dim: {HUGE} dim: {HUGE} }} }}",
    "Input": f"input_param {{ shape {{ dim: {HUGE} dim: 4 }} }}",
    "DummyData": f"dummy_data_param {{ shape {{ dim: {HUGE} dim: 4 }} }}",
    "MemoryData": f"memory_data_param {{ batch_size: {BIG} channels: {BIG} height: {BIG} width: {BIG} }}",
    "ImageData": f'image_data_param {{ source: "list.txt" batch_size: {BIG} }}',
}


def refused(text: str, folder: Path | None = None) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError) as error:
        Net(parse_net(text), pb.TEST, base_dir=folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**29 / RSS_UNIT
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", LAYERS)
def test_absurd_sizes_are_refused_with_the_layers_name(kind: str) -> None:
    second = 'bottom: "x"' if kind in ("Crop", "Correlation") else ""
    layer = f'layer {{ name: "y" type: "{kind}" bottom: "x" {second} top: "y" {LAYERS[kind]} }}'
    assert refused(IMAGES + layer).startswith(f'layer "y" ({kind}): ')


@pytest.mark.parametrize("kind", SEVERAL)
def test_absurd_sizes_with_several_bottoms_are_refused(kind: str) -> None:
    dims = "dim: 2 dim: 5" if "ROI" in kind else "dim: 2 dim: 3"
    cont = f'layer {{ name: "cont" type: "Input" top: "cont" input_param {{ shape {{ {dims} }} }} }}'
    layer = f'layer {{ name: "y" type: "{kind}" bottom: "x" bottom: "cont" top: "y" {SEVERAL[kind]} }}'
    assert refused(IMAGES + cont + layer).startswith(f'layer "y" ({kind}): ')


def test_absurd_numbers_of_priors_are_refused() -> None:
    options = "prior_box_param { min_size: 4 " + "max_size: 9 " + "aspect_ratio: 2 aspect_ratio: 3 " * 1000 + "}"
    shape = "shape { dim: 1 dim: 1 dim: 60000 dim: 30000 }"
    image = f'layer {{ name: "large" type: "Input" top: "large" input_param {{ {shape} }} }}'
    layer = f'layer {{ name: "y" type: "PriorBox" bottom: "large" bottom: "x" top: "y" {options} }}'
    assert "a blob has 2^31 - 1 values at most" in refused(IMAGES + image + layer)


def test_absurd_numbers_of_sources_are_refused() -> None:
    points = " ".join(f"source_slice_point: {row}" for row in range(1, 3000))
    image = 'layer { name: "wide" type: "Input" top: "wide" input_param { shape { dim: 1 dim: 1000000 } } }'
    layer = f'layer {{ name: "y" type: "Dial" bottom: "wide" top: "y" dial_param {{ {points} }} }}'
    assert refused(image + layer).startswith('layer "y" (Dial): the statistics would have the shape (3001, 1000000)')


@pytest.mark.parametrize("margins", [f"stride: {BIG} pad: {2**30}", f"stride: {BIG} dilation: {2**30}"])
def test_absurd_margins_of_a_convolution_are_refused(margins: str) -> None:
    options = f"convolution_param {{ num_output: 1 kernel_size: 2 {margins} }}"
    layer = f'layer {{ name: "y" type: "Convolution" bottom: "x" top: "y" {options} }}'
    assert "the bottom with its margins would have the shape" in refused(IMAGES + layer)


@pytest.mark.parametrize("kind", SOURCES)
def test_absurd_sizes_of_data_are_refused(kind: str, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((8, 8), np.uint8))
    (tmp_path / "list.txt").write_text("a.png 1\n")
    tops = 'top: "y" top: "label"' if kind in ("MemoryData", "ImageData") else 'top: "y"'
    message = refused(f'layer {{ name: "y" type: "{kind}" {tops} {SOURCES[kind]} }}', tmp_path)
    assert message.startswith(f'layer "y" ({kind}): ')
    assert " GB" in message


def test_absurd_sizes_of_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.png 1\n")
    options = f'source: "list.txt" new_height: {BIG} new_width: {BIG}'
    layer = f'type: "ImageData" top: "y" top: "l" transform_param {{ crop_size: 4 }} image_data_param {{ {options} }}'
    assert "make more than 2^30 pixels" in refused(f'layer {{ name: "y" {layer} }}', tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e39"])
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("BatchNorm", "batch_norm_param.moving_average_fraction"),
        ("BatchNorm", "batch_norm_param.eps"),
        ("Dial", "dial_param.moving_average_fraction"),
        ("Power", "power_param.scale"),
        ("ReLU", "relu_param.negative_slope"),
        ("LRN", "lrn_param.alpha"),
        ("Dropout", "dropout_param.dropout_ratio"),
        ("Scale", "scale_param.filler.value"),
    ],
)
def test_numbers_that_are_none_are_refused_by_the_fields_name(kind: str, field: str, value: str) -> None:
    *messages, last = field.split(".")
    stated = " { ".join([*messages, f"{last}: {value}"]) + "}" * len(messages)
    layer = f'layer {{ name: "y" type: "{kind}" bottom: "x" top: "y" {stated} }}'
    assert f"{field} must be a finite number, and is" in refused(IMAGES + layer)

"""`dialize` against torch's own layers, hand-worked statistics and the nets of BVLC Caffe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from originals import shared, shared_files

from autodial.converters.dialize import dialize
from autodial.converters.net_text import net_to_text
from autodial.errors import InputError, WorkError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net, read_net, read_weights, write_weights
from autodial.proto import messages as pb

NOT_CLASSIFYING = ("examples_net_surgery_conv", "examples_pycaffe_linreg")

# --- a small ResNet: BatchNorm with Scale, with Bias and alone, in place and not

RESNET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 12 dim: 12 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 bias_term: false } }
layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "bn1"
  param { lr_mult: 0 } param { lr_mult: 0 } param { lr_mult: 0 }
  batch_norm_param { use_global_stats: true eps: 0.001 } }
layer { name: "scale1" type: "Scale" bottom: "bn1" top: "scale1" scale_param { bias_term: true } }
layer { name: "relu1" type: "ReLU" bottom: "scale1" top: "scale1" }
layer { name: "conv2" type: "Convolution" bottom: "scale1" top: "conv2"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 } }
layer { name: "bn2" type: "BatchNorm" bottom: "conv2" top: "conv2"
  batch_norm_param { moving_average_fraction: 0.9 } }
layer { name: "bias2" type: "Bias" bottom: "conv2" top: "conv2" }
layer { name: "sum" type: "Eltwise" bottom: "scale1" bottom: "conv2" top: "sum" }
layer { name: "bn3" type: "BatchNorm" bottom: "sum" top: "sum" }
layer { name: "pool" type: "Pooling" bottom: "sum" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 4 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
SHAPES = {
    "conv1": [(6, 3, 3, 3)],
    "bn1": [(6,), (6,), (1,)],
    "scale1": [(6,), (6,)],
    "conv2": [(6, 6, 3, 3), (6,)],
    "bn2": [(6,), (6,), (1,)],
    "bias2": [(6,)],
    "bn3": [(6,), (6,), (1,)],
    "fc": [(4, 6), (4,)],
}
NORMALIZER = 999.98236


def resnet_weights() -> Weights:
    rng = np.random.default_rng(1)
    net = {layer.name: layer for layer in parse_net(RESNET).layer}
    layers = []
    for name, shapes in SHAPES.items():
        blobs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        if name.startswith("bn"):
            blobs = [blobs[0] * NORMALIZER, (np.abs(blobs[1]) + 0.5) * NORMALIZER, np.float32([NORMALIZER])]
        layers.append(LayerWeights(net[name], [blob.astype(np.float32) for blob in blobs]))
    return Weights("small", layers)


def resnet_logits(images: torch.Tensor, weights: Weights) -> torch.Tensor:
    """The small ResNet on torch's functions."""
    blobs = {layer.name: [torch.from_numpy(blob) for blob in layer.blobs] for layer in weights.layers}

    def norm(x: torch.Tensor, name: str, eps: float = 1e-5) -> torch.Tensor:
        mean, variance, total = blobs[name]
        return F.batch_norm(x, mean / total, variance / total, eps=eps)

    x = norm(F.conv2d(images, blobs["conv1"][0], padding=1), "bn1", 0.001)
    x = F.relu(x * blobs["scale1"][0].view(-1, 1, 1) + blobs["scale1"][1].view(-1, 1, 1))
    y = norm(F.conv2d(x, *blobs["conv2"], padding=1), "bn2") + blobs["bias2"][0].view(-1, 1, 1)
    return F.linear(norm(x + y, "bn3").mean((2, 3)), *blobs["fc"])


def fed(net: Any, shape: tuple[int, ...], phase: int) -> Net:
    """The net with Input layers in the place of its data layers."""
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    for layer in copy.layer:
        if layer.type == "ImageData":
            batch = layer.image_data_param.batch_size
            shapes = [pb.BlobShape(dim=[batch, *shape]), pb.BlobShape(dim=[batch])]
            new = pb.LayerParameter(name=layer.name, type="Input", top=layer.top, include=layer.include)
            new.input_param.shape.extend(shapes)
            layer.CopyFrom(new)
    return Net(copy, phase)


def types(net: Any) -> dict[str, str]:
    return {layer.name: layer.type for layer in net.layer}


def test_a_net_with_batch_norm_gives_what_it_gave() -> None:
    weights = resnet_weights()
    made = dialize(parse_net(RESNET), weights)
    assert made.report.replaced == {"bn1": "bn1-dial", "bn2": "bn2-dial", "bn3": "bn3-dial"}
    assert made.report.missing == made.report.ignored == made.report.inserted == ()
    assert made.report.max_difference is not None and made.report.logits_range is not None
    assert made.report.max_difference < 1e-5 * made.report.logits_range

    assert made.weights is not None
    net = fed(made.net, (3, 12, 12), pb.TEST)
    assert net.load_weights(made.weights) == []
    images = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 3, 12, 12)).astype(np.float32) * 3)
    with torch.no_grad():
        outputs = net({"data": images, "label": torch.zeros(5)})
        logits = net.blobs({"data": images, "label": torch.zeros(5)}, ["fc"])["fc"]
    expected = resnet_logits(images, weights)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(outputs["prob"], expected.softmax(1), rtol=0, atol=1e-5)


def test_statistics_are_divided_through_and_soon_forgotten() -> None:
    weights = resnet_weights()
    made = dialize(parse_net(RESNET), weights, source_batch=2, target_batch=3)
    assert made.weights is not None
    stored = {layer.name: layer.blobs for layer in made.weights.layers}
    mean, variance, _ = next(layer.blobs for layer in weights.layers if layer.name == "bn2")
    assert mean is not None and variance is not None
    alpha, means, variances, normalizer = stored["bn2-dial"]
    assert alpha == 1 and normalizer == 1
    np.testing.assert_allclose(means, [mean / NORMALIZER] * 2, rtol=1e-6)
    np.testing.assert_allclose(variances, [variance / NORMALIZER] * 2, rtol=1e-6)

    net = fed(made.net, (3, 12, 12), pb.TRAIN)
    net.load_weights(made.weights)
    inputs = {top: torch.randn(net.blob_shapes[top]) for top in net.inputs if not top.startswith("label")}
    net(inputs | {"label": torch.zeros(2), "label-target": torch.zeros(3)})
    # bn2 states a fraction of 0.9, bn1 none
    assert [net.layer(name).blobs[3].item() for name in ("bn2-dial", "bn1-dial")] == pytest.approx([1.9, 1.95])


def test_dial_layers_are_as_the_batch_norm_layers_were() -> None:
    made = dialize(parse_net(RESNET), source_batch=7, target_batch=2)
    dials = {layer.name: layer for layer in made.net.layer if layer.type == "Dial"}
    first, second = dials["bn1-dial"], dials["bn2-dial"]
    assert (list(first.bottom), list(first.top)) == (["conv1"], ["bn1"])
    assert first.dial_param.eps == pytest.approx(0.001) and not second.dial_param.HasField("eps")
    assert second.dial_param.moving_average_fraction == pytest.approx(0.9)
    assert not first.dial_param.HasField("use_global_stats")  # batch statistics in TRAIN, whatever the original does
    assert {layer.dial_param.slice_point for layer in dials.values()} == {7}
    assert [(spec.lr_mult, spec.decay_mult) for spec in first.param] == [(1, 0)]
    assert types(made.net)["scale1"] == "Scale" and types(made.net)["bias2"] == "Bias"


def test_the_original_weights_fit_too() -> None:
    net = fed(dialize(parse_net(RESNET), classes=9).net, (3, 12, 12), pb.TRAIN)
    assert net.load_weights(resnet_weights()) == ["bn1-dial", "bn2-dial", "bn3-dial", "fc-new"]


def test_a_new_classifier_has_another_name_and_ten_times_the_rate() -> None:
    made = dialize(parse_net(RESNET), resnet_weights(), classes=9)
    assert made.report.renamed == {"fc": "fc-new"} and made.report.missing == () and made.report.max_difference is None
    assert made.weights is not None and "fc" not in {layer.name for layer in made.weights.layers}
    (classifier,) = (layer for layer in made.net.layer if layer.name == "fc-new")
    assert classifier.inner_product_param.num_output == 9 and list(classifier.top) == ["fc"]
    assert [(spec.lr_mult, spec.decay_mult) for spec in classifier.param] == [(10, 1), (20, 0)]
    # a deploy file states no filler, and would start from zeros
    net = fed(made.net, (3, 12, 12), pb.TRAIN)
    assert net.layer("fc-new").blobs[0].std().item() == pytest.approx(0.01, rel=0.5)


def test_layers_per_class_are_renewed_with_the_classifier() -> None:
    behind = 'layer { name: "fc/scale" type: "Scale" bottom: "fc" top: "fc" }\nlayer { name: "prob"'
    text = RESNET.replace('layer { name: "prob"', behind)
    weights = resnet_weights()
    weights.layers.append(LayerWeights(parse_net(text).layer[-2], [np.ones(4, np.float32)]))
    made = dialize(parse_net(text), weights, classes=9)
    assert "fc/scale-new" in types(made.net)
    assert fed(made.net, (3, 12, 12), pb.TEST).blob_shapes["fc"][1:] == (9,)
    kept = dialize(parse_net(text), weights)
    assert kept.report.max_difference is not None and kept.weights is not None
    assert "fc/scale" in {layer.name for layer in kept.weights.layers}


def test_missing_and_foreign_weights_are_named() -> None:
    weights = resnet_weights()
    weights.layers[0].param.name = "other"
    weights.layers = [layer for layer in weights.layers if layer.name != "bn3"]
    report = dialize(parse_net(RESNET), weights).report
    assert report.missing == ("conv1", "bn3-dial")
    assert report.ignored == ("other",) and report.max_difference is None


def test_weights_of_another_net_are_refused() -> None:
    weights = Weights("", [LayerWeights(pb.LayerParameter(name="conv9"), [np.ones(3, np.float32)])])
    with pytest.raises(InputError, match="are they another net's"):
        dialize(parse_net(RESNET), weights)


def test_a_vendors_batch_norm_is_refused_by_name() -> None:
    weights = resnet_weights()
    weights.layers[1].blobs = [*weights.layers[1].blobs, np.ones(6, np.float32), np.ones(6, np.float32)]
    with pytest.raises(InputError, match=r'layer "bn1" \(BatchNorm\) needs .* and the weights hold 5 blobs'):
        dialize(parse_net(RESNET), weights)


def test_bn_of_other_versions_of_caffe_becomes_dial_and_scale() -> None:
    """BN stands for the first BatchNorm and the Scale behind it."""
    bn = 'layer { name: "bn1" type: "BN" bottom: "conv1" top: "scale1" bn_param { eps: 0.001 momentum: 0.9 } }'
    start, end = RESNET.index('layer { name: "bn1"'), RESNET.index('layer { name: "relu1"')
    net, weights = parse_net(RESNET[:start] + bn + RESNET[end:]), resnet_weights()
    (mean, variance, total), scale = weights.layers[1].blobs, weights.layers[2].blobs
    stored = [*scale, mean / total, variance / total]
    weights.layers[1:3] = [LayerWeights(net.layer[2], [blob.reshape(1, 6, 1, 1) for blob in stored])]
    made = dialize(net, weights)
    assert made.report.replaced["bn1"] == "bn1-dial" and made.report.missing == made.report.ignored == ()
    assert [types(made.net)[name] for name in ("bn1-dial", "bn1-scale")] == ["Dial", "Scale"]
    dial = next(layer.dial_param for layer in made.net.layer if layer.name == "bn1-dial")
    assert (dial.eps, dial.moving_average_fraction) == pytest.approx((0.001, 0.9))
    assert made.report.max_difference is not None and made.report.logits_range is not None
    assert made.report.max_difference < 1e-5 * made.report.logits_range
    assert made.weights is not None
    built = fed(made.net, (3, 12, 12), pb.TEST)
    assert built.load_weights(made.weights) == []
    images = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 3, 12, 12)).astype(np.float32) * 3)
    with torch.no_grad():
        logits = built.blobs({"data": images, "label": torch.zeros(5)}, ["fc"])["fc"]
    torch.testing.assert_close(logits, resnet_logits(images, resnet_weights()), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("frozen", "rates"), [("false", [1, 2]), ("true", [0, 0])])
def test_factors_of_bn_that_are_frozen_stay_so(frozen: str, rates: list[float]) -> None:
    bn = 'layer { name: "bn1" type: "BN" bottom: "conv1" top: "scale1" param {} param { lr_mult: 2 } bn_param { %s } }'
    start, end = RESNET.index('layer { name: "bn1"'), RESNET.index('layer { name: "relu1"')
    made = dialize(parse_net(RESNET[:start] + bn % f"frozen: {frozen}" + RESNET[end:]))
    net = fed(made.net, (3, 12, 12), pb.TRAIN)
    assert [param.lr_mult for param in net.params if param.layer == "bn1-scale"] == rates


def test_layers_of_unknown_types_stay_as_they_are() -> None:
    text = RESNET.replace(
        'type: "ReLU"', 'type: "DeformableConvolution" deformable_convolution_param { num_output: 6 kernel_size: 3 }'
    )
    weights = resnet_weights()
    made = dialize(parse_net(text), weights, classes=7)
    kept = [layer for layer in made.net.layer if layer.type == "DeformableConvolution"]
    assert kept == [layer for layer in parse_net(text).layer if layer.type == "DeformableConvolution"]
    assert made.report.replaced == {"bn1": "bn1-dial", "bn2": "bn2-dial", "bn3": "bn3-dial"}
    assert made.report.renamed == {"fc": "fc-new"}
    assert made.report.max_difference is None
    assert made.report.missing == ()
    assert dialize(parse_net(text), Weights("", weights.layers[:3]), classes=7).report.missing == (
        "conv2", "bn2-dial", "bias2", "bn3-dial",
    )  # fmt: skip
    assert 'types DeformableConvolution (layer "relu1"): they stay as they are' in " ".join(made.report.notes)
    known = dialize(parse_net(RESNET), weights, classes=7)
    assert made.weights is not None and known.weights is not None
    for ours, theirs in zip(made.weights.layers, known.weights.layers, strict=True):
        assert ours.name == theirs.name
        for one, other in zip(ours.blobs, theirs.blobs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_damaged_statistics_are_noticed() -> None:
    weights = resnet_weights()
    weights.layers[1].blobs[1][0] = np.nan  # type: ignore[index]
    with pytest.raises(WorkError, match="differ from the original's by nan"):
        dialize(parse_net(RESNET), weights)


# --- BatchNorm shared between layers, and stated once for each phase

SHARED = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 6 dim: 6 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 } }
layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1"
  param { name: "m" lr_mult: 0 } param { name: "v" lr_mult: 0 } param { name: "n" lr_mult: 0 } }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 } }
layer { name: "bn2" type: "BatchNorm" bottom: "conv2" top: "conv2"
  param { name: "m" lr_mult: 0 } param { name: "v" lr_mult: 0 } param { name: "n" lr_mult: 0 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv2" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


def test_shared_statistics_stay_shared_and_complete(tmp_path: Path) -> None:
    net = Net(parse_net(SHARED), pb.TEST)
    rng = np.random.default_rng(2)
    weights = net.weights()
    for layer in weights.layers:
        for blob in layer.blobs:
            blob[...] = np.abs(rng.standard_normal(blob.shape)) + 0.5  # type: ignore[index, union-attr]
    net.load_weights(weights)
    write_weights(net.weights(), tmp_path / "shared.caffemodel.h5")  # which has the shared blobs once

    made = dialize(parse_net(SHARED), read_weights(tmp_path / "shared.caffemodel.h5"))
    assert made.report.missing == () and made.report.max_difference is not None
    dials = [layer for layer in made.net.layer if layer.type == "Dial"]
    assert [[spec.name for spec in layer.param] for layer in dials] == [["m-alpha", "m", "v", "n"]] * 2
    assert made.weights is not None
    write_weights(made.weights, tmp_path / "dialized.caffemodel")
    trained = fed(made.net, (1, 6, 6), pb.TRAIN)
    assert trained.layer("bn1-dial").blobs[1] is trained.layer("bn2-dial").blobs[1]


def test_a_batch_norm_for_each_phase() -> None:
    pair = [
        f'layer {{ name: "bn" type: "BatchNorm" bottom: "conv1" top: "conv1" include {{ phase: {phase} }} '
        f"batch_norm_param {{ use_global_stats: {stored} }} }}"
        for phase, stored in (("TRAIN", "false"), ("TEST", "true"))
    ]
    text = SHARED.replace('layer { name: "conv2"', "\n".join([*pair, 'layer { name: "conv2"']))
    made = dialize(parse_net(text))
    rules = [layer.include[0].phase for layer in made.net.layer if layer.name == "bn-dial"]
    assert rules == [pb.TRAIN, pb.TEST]
    for phase in (pb.TRAIN, pb.TEST):
        assert "bn-dial" in fed(made.net, (1, 6, 6), phase).layer_names


# --- nets without BatchNorm

LENET = """
layers { name: "mnist" type: IMAGE_DATA top: "data" top: "digit"
  image_data_param { source: "a.txt" batch_size: 21 scale: 0.5 mirror: true new_height: 9 new_width: 8 is_color: false }
  include { phase: TRAIN } }
layers { name: "mnist" type: IMAGE_DATA top: "data" top: "digit"
  image_data_param { source: "b.txt" batch_size: 11 scale: 0.25 new_height: 9 new_width: 8 is_color: false }
  include { phase: TEST } }
layers { name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1" blobs_lr: 0 blobs_lr: 0
  convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "xavier" } } }
layers { name: "relu1" type: RELU bottom: "conv1" top: "conv1" }
layers { name: "ip1" type: INNER_PRODUCT bottom: "conv1" top: "ip1"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layers { name: "relu2" type: RELU bottom: "ip1" top: "ip1" }
layers { name: "drop2" type: DROPOUT bottom: "ip1" top: "ip1" }
layers { name: "ip2" type: INNER_PRODUCT bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip2" bottom: "digit" top: "loss" }
layers { name: "accuracy" type: ACCURACY bottom: "ip2" bottom: "digit" top: "accuracy" include { phase: TEST } }
"""


def test_dial_and_scale_go_between_a_layer_and_its_relu() -> None:
    made = dialize(parse_net(LENET))
    order = [layer.name for layer in made.net.layer]
    assert order == [
        "data-source", "data-target", "digit-target-silence", "data-concat", "data-test",
        "conv1", "relu1", "ip1", "ip1-dial", "ip1-scale", "relu2", "drop2", "ip2", "ip2-dial", "ip2-scale",
        "ip2-slice", "loss-source", "loss-target", "accuracy",
    ]  # fmt: skip
    for layer in made.net.layer:
        if layer.name in ("ip1-dial", "ip1-scale"):
            assert list(layer.bottom) == list(layer.top) == ["ip1"]
    assert made.report.inserted == ("ip1", "ip2")


def test_data_layers_take_over_the_originals_transform_and_batch() -> None:
    source, target, _, _, test = dialize(parse_net(LENET)).net.layer[:5]
    assert (source.image_data_param.batch_size, target.image_data_param.batch_size) == (10, 11)
    assert test.image_data_param.batch_size == 11
    assert (source.transform_param.scale, source.transform_param.mirror) == (0.5, True)
    assert target.transform_param == source.transform_param
    assert (test.transform_param.scale, test.transform_param.mirror) == (0.25, False)
    for layer in (source, target, test):
        options = layer.image_data_param
        assert (options.new_height, options.new_width, options.is_color) == (9, 8, False)
    assert source.image_data_param.shuffle and not test.image_data_param.shuffle


@pytest.mark.parametrize(
    ("after", "inserted"),
    [(["conv"], ("conv1",)), (["conv", "ip"], ("conv1", "ip1", "ip2")), (["ip1"], ("ip1",)), (["relu1"], ("relu1",))],
)
def test_layers_to_put_dial_behind_are_chosen(after: list[str], inserted: tuple[str, ...]) -> None:
    assert dialize(parse_net(LENET), after=after).report.inserted == inserted


def test_one_name_is_no_list_of_layers() -> None:
    with pytest.raises(InputError, match="`after` is a list of layers' names, not one name: \\['ip1'\\]"):
        dialize(parse_net(LENET), after="ip1")


def test_a_layer_that_batch_norm_follows_gets_no_second_dial() -> None:
    assert dialize(parse_net(RESNET), after=["conv", "ip"]).report.inserted == ("fc",)


def test_dropout_stays_or_goes() -> None:
    assert "drop2" in types(dialize(parse_net(LENET)).net)
    made = dialize(parse_net(LENET), dropout=False, after=["drop2"])
    assert "drop2" not in types(made.net) and "drop2-dial" in types(made.net)


def test_frozen_layers_stay_frozen() -> None:
    (conv,) = (layer for layer in dialize(parse_net(LENET)).net.layer if layer.name == "conv1")
    assert [spec.lr_mult for spec in conv.param] == [0, 0]


# --- size, colour and transform

DEPLOY = """
input: "data" input_dim: 10 input_dim: 3 input_dim: 20 input_dim: 20
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 3 kernel_size: 3 } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "prob" type: "Softmax" bottom: "pool" top: "prob" }
"""
DATABASE = """
layer { name: "data" type: "Data" top: "data" top: "label" transform_param { %s } data_param { source: "gone" } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def sizes(net: Any) -> tuple[int, int, int, bool]:
    """Height and width before the crop, the crop, whether in colour."""
    options, transform = net.layer[0].image_data_param, net.layer[0].transform_param
    return options.new_height, options.new_width, transform.crop_size, options.is_color


def test_a_deploy_net_says_the_size_and_that_the_rest_is_missing() -> None:
    made = dialize(parse_net(DEPLOY), after=["conv"])
    assert sizes(made.net) == (20, 20, 0, True)
    assert any("what is subtracted" in note for note in made.report.notes)
    assert any("conv state no weight_filler" in note for note in made.report.notes)
    larger = dialize(parse_net(DEPLOY), after=["conv"], size=(24, 30))
    assert sizes(larger.net) == (24, 30, 20, True)
    transform = pb.TransformationParameter(crop_size=20, mirror=True, scale=0.1)
    stated = dialize(parse_net(DEPLOY), after=["conv"], transform=transform)
    assert sizes(stated.net) == (32, 32, 20, True)
    assert [layer.transform_param.mirror for layer in stated.net.layer[:5]] == [True, True, False, False, False]
    assert not any("what is subtracted" in note for note in stated.report.notes)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ("crop_size: 227", (256, 256, 227, True)),
        ("crop_size: 28 force_gray: true", (32, 32, 28, False)),
        ('mean_file: "mean.binaryproto"', (5, 6, 0, False)),
    ],
)
def test_the_size_of_images_from_a_database(
    tmp_path: Path, transform: str, expected: tuple[int, int, int, bool]
) -> None:
    mean = pb.BlobProto(num=1, channels=1, height=5, width=6, data=[1.0] * 30)
    (tmp_path / "mean.binaryproto").write_bytes(mean.SerializeToString())
    assert sizes(dialize(parse_net(DATABASE % transform), base_dir=tmp_path).net) == expected


def test_an_unknown_size_must_be_stated() -> None:
    with pytest.raises(InputError, match=r'layer "data" \(Data\) does not say .* `size`'):
        dialize(parse_net(DATABASE % ""))
    assert sizes(dialize(parse_net(DATABASE % ""), size=(28, 28)).net) == (28, 28, 0, True)


@pytest.mark.parametrize("length", ["-1", "0", str(2**40)])
def test_a_size_that_no_image_has_is_refused(length: str) -> None:
    net = parse_net(DEPLOY)
    (data,) = (layer for layer in net.layer if layer.type == "Input")
    data.input_param.shape[0].dim[3] = int(length)
    with pytest.raises(InputError, match=rf"has the shape .*{length}\), which is not that of images"):
        dialize(net, after=["conv"])


def test_a_crop_larger_than_the_images_is_refused() -> None:
    with pytest.raises(InputError, match="100 x 100 is smaller than crop_size 227"):
        dialize(parse_net(DATABASE % 'crop_size: 227 mean_file: "gone"'), size=(100, 100))


def test_weights_tell_grey_from_colour() -> None:
    text = (DATABASE % "").replace('"ip" type: "InnerProduct" bottom: "data"', '"ip" type: "InnerProduct" bottom: "c"')
    options = "convolution_param { num_output: 2 kernel_size: 3 }"
    conv = f'layer {{ name: "c" type: "Convolution" bottom: "data" top: "c" {options} }}'
    net = parse_net(text.replace('layer { name: "ip"', f'{conv} layer {{ name: "ip"'))
    weights = Weights("", [LayerWeights(net.layer[1], [np.ones((2, 1, 3, 3), np.float32), np.ones(2, np.float32)])])
    assert sizes(dialize(net, weights, size=(8, 8)).net) == (8, 8, 0, False)


# --- auxiliary classifiers

AUXILIARY = """
layer { name: "data" type: "ImageData" top: "data" top: "label"
  image_data_param { source: "x" new_height: 8 new_width: 8 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "loss1/classifier" type: "InnerProduct" bottom: "conv" top: "loss1/classifier"
  inner_product_param { num_output: 3 } }
layer { name: "loss1/loss" type: "SoftmaxWithLoss" bottom: "loss1/classifier" bottom: "label" top: "loss1/loss1"
  loss_weight: 0.3 loss_param { ignore_label: 7 } }
layer { name: "loss1/top-1" type: "Accuracy" bottom: "loss1/classifier" bottom: "label" top: "loss1/top-1"
  include { phase: TEST } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "loss2/classifier" type: "InnerProduct" bottom: "pool" top: "loss2/classifier"
  inner_product_param { num_output: 3 } }
layer { name: "loss2/loss" type: "SoftmaxWithLoss" bottom: "loss2/classifier" bottom: "label" top: "loss2/loss2" }
layer { name: "loss2/top-1" type: "Accuracy" bottom: "loss2/classifier" bottom: "label" top: "loss2/top-1"
  include { phase: TEST } }
"""


def test_auxiliary_classifiers_learn_from_the_source_in_training_only() -> None:
    made = dialize(parse_net(AUXILIARY), classes=5)
    assert made.report.logits == "loss2/classifier"
    assert made.report.renamed == {
        "loss1/classifier": "loss1/classifier-new",
        "loss2/classifier": "loss2/classifier-new",
    }
    train, test = (fed(made.net, (3, 8, 8), phase) for phase in (pb.TRAIN, pb.TEST))
    assert train.loss_weights == {"loss-source": 1, "loss-target": pytest.approx(0.1), "loss1/loss": pytest.approx(0.3)}
    assert {layer.name: layer.loss_param.ignore_label for layer in made.net.layer if layer.HasField("loss_param")} == {
        "loss1/loss": 7
    }
    assert list(train.param.layer[train.layer_names.index("loss-target")].bottom) == ["loss2/classifier-target"]
    assert test.outputs == ("accuracy",)
    assert not any(name.startswith("loss1") for name in test.layer_names)


def test_equal_losses_leave_a_choice() -> None:
    text = AUXILIARY.replace("loss_weight: 0.3", "")
    with pytest.raises(InputError, match=r"loss1/classifier, loss2/classifier have the same weight: .* `logits`"):
        dialize(parse_net(text))
    assert dialize(parse_net(text), logits="loss1/classifier").report.logits == "loss1/classifier"


# --- what is no classification net

SIAMESE = """
layer { name: "pair" type: "Data" top: "pair" top: "sim" }
layer { name: "slice" type: "Slice" bottom: "pair" top: "data" top: "data_p" }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" param { name: "w" }
  inner_product_param { num_output: 2 } }
layer { name: "ip_p" type: "InnerProduct" bottom: "data_p" top: "ip_p" param { name: "w" }
  inner_product_param { num_output: 2 } }
layer { name: "loss" type: "ContrastiveLoss" bottom: "ip" bottom: "ip_p" bottom: "sim" top: "loss" }
"""
AUTOENCODER = """
layer { name: "data" type: "Data" top: "data" }
layer { name: "code" type: "InnerProduct" bottom: "data" top: "code" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "code" bottom: "data" top: "loss" }
"""
SEGMENTATION = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "score" type: "Convolution" bottom: "data" top: "score"
  convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "up" type: "Deconvolution" bottom: "score" top: "up" convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "prob" type: "Softmax" bottom: "%s" top: "prob" }
"""


@pytest.mark.parametrize(
    ("text", "after", "message"),
    [
        (SIAMESE, None, "no SoftmaxWithLoss, Softmax or Accuracy layer"),
        (AUTOENCODER, None, "no SoftmaxWithLoss, Softmax or Accuracy layer"),
        (SEGMENTATION % "up", None, r'layer "up" \(Deconvolution\) rather than'),
        (SEGMENTATION % "score", ["conv"], r"shape \(2, 2, 6, 6\) rather than \(N, classes\)"),
        (SEGMENTATION % "score", None, "neither BatchNorm nor InnerProduct"),
        (RESNET, ["cnov1"], 'no layer "cnov1" lies between the data and the logits; there are conv1, bn1'),
        (RESNET.replace('"Softmax" bottom: "fc"', '"Softmax" bottom: "nowhere"'), None, 'reads blob "nowhere"'),
    ],
    ids=["siamese", "autoencoder", "fcn", "map", "no layers", "after", "broken"],
)
def test_refusals(text: str, after: list[str] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dialize(parse_net(text), after=after)


def test_an_autodial_net_is_refused() -> None:
    with pytest.raises(InputError, match='layer "bn1-dial" is a Dial layer already'):
        dialize(dialize(parse_net(RESNET)).net)


def test_batches_need_both_domains() -> None:
    with pytest.raises(InputError, match="a batch of 4 source and 0 target samples lacks a domain"):
        dialize(parse_net(RESNET), source_batch=4, target_batch=0)


# --- the nets of BVLC Caffe, with lists that stand in


def is_classifying(path: Path) -> bool:
    return "solver" not in path.stem and path.stem not in NOT_CLASSIFYING


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    rng = np.random.default_rng(0)
    for i in range(8):
        assert cv2.imwrite(str(folder / f"{i}.png"), rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    for name in ("source", "target", "target_test"):
        (folder / f"{name}.txt").write_text("".join(f"{i}.png {i % 2}\n" for i in range(8)))
    for name, suffix in (("source", "-source"), ("target", "-target"), ("target_test", "")):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file[f"data{suffix}"] = rng.standard_normal((20, 4)).astype(np.float32)
            file["label-target" if name == "target" else "label"] = np.zeros(20, np.float32)
        (folder / f"{name}_h5.txt").write_text(f"{name}.h5\n")
    return folder


@pytest.fixture
def workplace(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(files)
    yield files


def standing_in(net: Any) -> Any:
    """The net with lists for HDF5 files instead of images, and values for mean images, where it asks for these."""
    for layer in net.layer:
        if layer.type == "HDF5Data":
            layer.hdf5_data_param.source = layer.hdf5_data_param.source.replace(".txt", "_h5.txt")
        if layer.transform_param.mean_file:
            layer.transform_param.ClearField("mean_file")
            layer.transform_param.mean_value.append(100)
    return net


@pytest.mark.parametrize("path", shared_files("reference/bvlc/*.prototxt", keep=is_classifying))
def test_every_classification_net_builds_in_both_phases(workplace: Path, path: Path) -> None:
    size = (28, 28) if "lenet" in path.stem else (32, 32) if "cifar10" in path.stem else None
    net = read_net(path)
    weights = None
    if path.stem == "examples_mnist_lenet_train_test":
        blobs = [np.zeros((20, 1, 5, 5), np.float32), np.zeros(20, np.float32)]
        weights = Weights("", [LayerWeights(pb.LayerParameter(name="conv1", type="Convolution"), blobs)])
    made = dialize(net, weights, size=size, source_batch=5, target_batch=3)
    text = net_to_text(made.net, header=[made.batches], sections=made.sections)
    assert parse_net(text) == made.net
    for phase in (pb.TRAIN, pb.TEST):
        built = Net(standing_in(parse_net(text)), phase)
        assert made.report.logits in built.blob_shapes
        if phase == pb.TRAIN:
            assert built.blob_shapes[made.report.logits][0] == 8
            assert set(built.loss_weights) == {"loss-source", "loss-target"}
        assert built.without_statistics() == [layer for layer in built.layer_names if layer.endswith("-dial")]


@pytest.mark.parametrize("name", NOT_CLASSIFYING)
def test_other_nets_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="the net is no classification net"):
        dialize(read_net(shared(f"reference/bvlc/{name}.prototxt")))


@pytest.mark.parametrize(
    "name", ["examples_cifar10_cifar10_quick_train_test", "examples_hdf5_classification_nonlinear_train_val"]
)
def test_a_dialized_net_learns(workplace: Path, name: str) -> None:
    is_image = "cifar" in name
    net = read_net(shared(f"reference/bvlc/{name}.prototxt"))
    made = dialize(net, size=(32, 32) if is_image else None, source_batch=5, target_batch=3)
    net = Net(standing_in(made.net), pb.TRAIN)
    blobs = net(batch_of(net))
    net.loss(blobs).backward()
    for param in net.params:
        if param.lr_mult and not param.layer.endswith(("ip1", "ip2", "fc1", "fc2")):
            assert param.tensor.grad is not None and torch.isfinite(param.tensor.grad).all(), param.layer
    assert all(net.layer(name).blobs[3] == 1 for name in net.layer_names if name.endswith("-dial"))


def batch_of(net: Net) -> dict[str, torch.Tensor]:
    """The first batch of the net's data layers."""
    return {
        top: torch.from_numpy(array)
        for name, layer in net.data_layers.items()
        for top, array in zip(net.tops(name), layer.source.batch(0), strict=True)  # type: ignore[union-attr, operator]
    }

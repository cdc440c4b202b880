"""Variants of an AutoDIAL net."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from originals import RECORDS, shared

from autodial import proto
from autodial.converters.dialize import dialize
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.netparam.variants import VARIANTS, apply_variant, apply_variants, fit_weights, warn_of_lost_alignment
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb
from autodial.training.solver import Solver

DIGITS = RECORDS / "digits"

ALIGNED = """
name: "n"
layer { name: "s" type: "ImageData" top: "s" top: "label" include { phase: TRAIN } }
layer { name: "t" type: "ImageData" top: "t-whole" top: "unused" include { phase: TRAIN } }
layer { name: "silence" type: "Silence" bottom: "unused" include { phase: TRAIN } }
layer { name: "size" type: "DummyData" top: "size" }
layer { name: "s-crop" type: "Crop" bottom: "s" bottom: "size" top: "s-crop" include { phase: TRAIN } }
layer { name: "t-crop" type: "Crop" bottom: "t-whole" bottom: "size" top: "t" include { phase: TRAIN } }
layer { name: "join" type: "Concat" bottom: "s-crop" bottom: "t" top: "data" concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST } }
layer { name: "own-scale" type: "Scale" bottom: "data" top: "scaled" }
layer { name: "a" type: "Convolution" bottom: "scaled" top: "a" param { lr_mult: 3 } }
layer { name: "a-dial" type: "Dial" bottom: "a" top: "a-aligned" }
layer { name: "a-scale" type: "Scale" bottom: "a-aligned" top: "a-scaled" }
layer { name: "relu" type: "ReLU" bottom: "a-scaled" top: "a-scaled" }
layer { name: "b" type: "InnerProduct" bottom: "a-scaled" top: "b" }
layer { name: "b-dial" type: "Dial" bottom: "b" top: "b" }
layer { name: "both" type: "Concat" bottom: "a-scaled" bottom: "b" top: "both" }
layer { name: "part" type: "Slice" bottom: "both" top: "both-s" top: "both-t" slice_param { axis: 0 slice_point: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "both-s" bottom: "label" top: "loss" }
layer { name: "entropy" type: "EntropyLoss" bottom: "both-t" top: "entropy" loss_weight: 0.1 }
layer { name: "accuracy" type: "Accuracy" bottom: "both" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
SOURCE_ONLY = """
name: "n"
layer { name: "s" type: "ImageData" top: "s" top: "label" include { phase: TRAIN } }
layer { name: "size" type: "DummyData" top: "size" }
layer { name: "s-crop" type: "Crop" bottom: "s" bottom: "size" top: "data" include { phase: TRAIN } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST } }
layer { name: "own-scale" type: "Scale" bottom: "data" top: "scaled" }
layer { name: "a" type: "Convolution" bottom: "scaled" top: "a" param { lr_mult: 3 } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" }
layer { name: "both" type: "Concat" bottom: "a" bottom: "b" top: "both" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "both" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "both" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
NORMALIZED = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 5 dim: 5 } } }
layer { name: "pre" type: "Dial" bottom: "data" top: "pre" }
layer { name: "a" type: "Convolution" bottom: "pre" top: "a" convolution_param { num_output: 2 kernel_size: 1 } }
layer { name: "a-dial" type: "Dial" bottom: "a" top: "a" param { lr_mult: 1 decay_mult: 0 }
  dial_param { slice_point: 2 eps: 0.001 moving_average_fraction: 0.9 weight_filler { value: 1 } } }
layer { name: "a-scale" type: "Scale" bottom: "a" top: "a" param { lr_mult: 0 } scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 2 kernel_size: 1 bias_term: false } }
layer { name: "b-dial" type: "Dial" bottom: "b" top: "b" }
layer { name: "c" type: "InnerProduct" bottom: "b" top: "c" inner_product_param { num_output: 2 bias_term: false } }
layer { name: "c-dial" type: "Dial" bottom: "c" top: "c" }
layer { name: "d" type: "InnerProduct" bottom: "c" top: "d" inner_product_param { num_output: 2 } }
layer { name: "d-dial" type: "Dial" bottom: "d" top: "d" }
layer { name: "d-scale" type: "Scale" bottom: "d" top: "d" }
layer { name: "relu2" type: "ReLU" bottom: "d" top: "d" }
layer { name: "e" type: "InnerProduct" bottom: "d" top: "e" inner_product_param { num_output: 2 bias_term: false } }
layer { name: "e-dial" type: "Dial" bottom: "e" top: "e" }
layer { name: "e-scale" type: "Scale" bottom: "e" top: "e" scale_param { bias_term: true } }
layer { name: "prob" type: "Softmax" bottom: "e" top: "prob" }
"""


def test_source_only_leaves_the_network_and_the_source() -> None:
    net = parse_net(ALIGNED)
    assert apply_variant(net, "source-only") == parse_net(SOURCE_ONLY)
    assert net == parse_net(ALIGNED)


def test_entropy_only_keeps_both_domains() -> None:
    """All but the Dial layers and the Scale behind one stays, and what read them reads what they read."""
    net = apply_variant(parse_net(ALIGNED), "entropy-only")
    expected = [
        line.replace("a-scaled", "a")
        for line in ALIGNED.splitlines()
        if '"Dial"' not in line and 'name: "a-scale"' not in line
    ]
    assert net == parse_net("\n".join(expected))


def test_batch_normalization_comes_back_where_dial_layers_stand_for_it() -> None:
    net = apply_variant(parse_net(NORMALIZED), "entropy-only")
    types = {layer.name: layer.type for layer in net.layer}
    # behind no weights, behind convolutions of a network with batch normalization (a's bias or not), without a bias
    assert [types.get(name) for name in ("pre", "a-dial", "b-dial", "c-dial")] == ["BatchNorm"] * 4
    # d has a bias and is no convolution; e makes the logits, and its Scale is the bias that e has not
    assert not {"d-dial", "d-scale", "e-dial"}.intersection(types)
    assert {"a-scale", "e-scale"} <= types.keys()
    (normalization,) = (layer for layer in net.layer if layer.name == "a-dial")
    assert (
        normalization
        == parse_net(
            'layer { name: "a-dial" type: "BatchNorm" bottom: "a" top: "a" '
            "batch_norm_param { eps: 0.001 moving_average_fraction: 0.9 } }"
        ).layer[0]
    )
    scores = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    Net(net, pb.TRAIN)({"data": scores})


@pytest.mark.parametrize("name", ["fixed-alpha", "adabn"])
def test_alphas_are_fixed_to_1_wherever_the_net_has_them(name: str) -> None:
    text = ALIGNED.replace(
        'bottom: "b" top: "b" }',
        'bottom: "b" top: "b" param { name: "x" lr_mult: 2 } '
        'dial_param { test_stats: SOURCE weight_filler { type: "uniform" min: 0.5 } } }',
    )
    net = apply_variant(parse_net(text), name)
    dials = [layer for layer in net.layer if layer.type == "Dial"]
    assert [layer.param[0].lr_mult for layer in dials] == [0, 0]
    assert all(layer.dial_param.weight_filler == pb.FillerParameter(type="constant", value=1) for layer in dials)
    assert dials[1].param[0].name == "x"
    (entropy,) = (layer for layer in net.layer if layer.type == "EntropyLoss")
    assert entropy.loss_weight == pytest.approx([0 if name == "adabn" else 0.1])
    statistics = pb.DialParameter.TARGET if name == "adabn" else pb.DialParameter.SOURCE
    assert dials[1].dial_param.test_stats == statistics
    untouched = ("Dial", "EntropyLoss")
    assert [layer for layer in net.layer if layer.type not in untouched] == [
        layer for layer in parse_net(text).layer if layer.type not in untouched
    ]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (ALIGNED, "sorce-only", 'no variant "sorce-only"; there are source-only, entropy-only, adabn, fixed-alpha'),
        (SOURCE_ONLY, "adabn", 'variant "adabn" changes Dial layers, and the net has none'),
        (ALIGNED.replace('bottom: "t" top: "data"', 'bottom: "t" bottom: "t" top: "data"'), "source-only",
         r'layer "join" \(Concat\): .* needs two blobs here, the source\'s and then the target\'s, not 3'),
        (ALIGNED.replace('type: "Slice"', 'type: "Split"'), "source-only", "has such a Concat layer and no such Slice"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_variant(parse_net(text), name)


# --- variants beside the net


def test_settings_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x.settings").write_bytes(b"\xef\xbb\xbfa.param[0].lr_mult=7\r\n")
    net = apply_variants(parse_net('layer { name: "a" type: "Scale" }'), ["x"], tmp_path)
    assert net.layer[0].param[0].lr_mult == 7


def test_settings_beside_the_net_are_variants(tmp_path: Path) -> None:
    (tmp_path / "deep.settings").write_text("# a comment\n\n  a.param[0].lr_mult=7\nb.type=Embed\n")
    net = apply_variants(parse_net(ALIGNED), ["deep", "source-only"], tmp_path)
    layers = {layer.name: layer for layer in net.layer}
    assert (layers["a"].param[0].lr_mult, layers["b"].type) == (7, "Embed")
    assert "a-dial" not in layers
    assert apply_variants(net, [], None) is net


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a.type=ReLU\n\nno-layer.type=ReLU\n", r'x\.settings:3: no-layer\.type=ReLU: no layer "no-layer"'),
        (b"solver.base_lr=1\n", r"x\.settings:1: .*a variant changes a net"),
        (b"\xff\xfe\n", r"x\.settings is not a list of settings: it is binary, or text in UTF-16"),
        (b"a.type=ReLU\n\xe4.type=ReLU\n", r"x\.settings:2: a list of settings must be text in UTF-8"),
        (b".a" * 500_000 + b"=1\n", r'x\.settings:1: [a.]{100}\.\.\.: no layer ""'),
    ],
)
def test_settings_that_can_not_be_applied(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.settings").write_bytes(content)
    with pytest.raises(InputError, match=message):
        apply_variants(parse_net(ALIGNED), ["x"], tmp_path)


def test_unknown_variant_names_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "deep.settings").touch()
    with pytest.raises(InputError, match=r"no variant .*; there are .*fixed-alpha, deep \(.*deep\.settings\)"):
        apply_variants(parse_net(ALIGNED), ["../deep"], tmp_path)


# --- weights


def test_weights_of_the_autodial_net_start_its_variants() -> None:
    mean, variance = np.full((2, 3), 2.0, np.float32), np.full((2, 3), 4.0, np.float32)
    blobs = [np.ones(1, np.float32), mean, variance, np.full(1, 0.5, np.float32)]
    weights = Weights("n", [LayerWeights(pb.LayerParameter(name="pre", type="Dial"), blobs)])
    net = Net(apply_variant(parse_net(NORMALIZED), "entropy-only"), pb.TRAIN)
    net.load_weights(fit_weights(weights, net.param, "w"))
    stored, spread = net.layer("pre").stored()
    assert stored.tolist() == [4] * 3
    assert spread.tolist() == [8] * 3
    mean[1] += 1
    with pytest.raises(InputError, match='layer "pre": w holds statistics of two domains'):
        fit_weights(weights, net.param, "w")


# --- what the original was trained with


@pytest.mark.parametrize(("name", "file"), [("fixed-alpha", "fixed"), ("adabn", "adabn")])
def test_fixed_alphas_are_the_originals_prototxts(name: str, file: str) -> None:
    net = apply_variant(proto.read_net(DIGITS / "dial_train_val.prototxt"), name)
    assert net == proto.read_net(DIGITS / f"{file}_train_val.prototxt")


def test_source_only_is_the_originals_prototxt_without_the_target(digits: Path) -> None:
    """The original sends the target's images through the network, too, and gives their entropy the weight 0.

    Without normalization no image's features depend on another's, so that this changes nothing.
    """
    original = proto.read_net(digits / "source_train_val.prototxt")
    net = apply_variant(proto.read_net(digits / "dial_train_val.prototxt"), "source-only")
    target = {"dt", "sil", "cat", "slice", "loss-t"}
    assert [layer for layer in net.layer if layer.name not in ("ds", "loss-s")] == [
        layer for layer in original.layer if layer.name not in {"ds", "loss-s"} | target
    ]
    (entropy,) = (layer for layer in original.layer if layer.name == "loss-t")
    assert list(entropy.loss_weight) == [0]

    solvers = [
        Solver.from_file(digits / "solver.prototxt", **options)
        for options in ({"overrides": ["solver.net=source_train_val.prototxt"]}, {"variants": ["source-only"]})
    ]
    for solver in solvers:
        solver.step(2)
        solver.close()
    assert solvers[0].smoothed_loss() == pytest.approx(solvers[1].smoothed_loss(), rel=1e-6)
    for theirs, ours in zip(solvers[0].net.params, solvers[1].net.params, strict=True):
        assert (theirs.layer, theirs.index) == (ours.layer, ours.index)
        torch.testing.assert_close(ours.tensor, theirs.tensor, rtol=1e-5, atol=1e-7)


def layers_of(net: Any, kinds: tuple[str, ...]) -> list[tuple[str, str, Any]]:
    return [(layer.name, layer.type, layer) for layer in net.layer if layer.type in kinds]


def test_source_only_of_the_released_nets() -> None:
    folder = shared("reference/autodial")
    alexnet = apply_variant(proto.read_net(folder / "alexnet_train_val.prototxt"), "source-only")
    # the classifier has no bias of its own, so that its Scale stays
    assert [name for name, _, _ in layers_of(alexnet, ("Scale", "BatchNorm", "Dial"))] == ["fc8-sc"]
    inception = proto.read_net(folder / "inception_train_val.prototxt")
    counts = {
        name: [len(layers_of(apply_variant(inception, name), (kind,))) for kind in ("Dial", "BatchNorm", "Scale")]
        for name in VARIANTS
    }
    assert counts == {
        "source-only": [0, 69, 69],
        "entropy-only": [0, 69, 69],
        "adabn": [69, 0, 69],
        "fixed-alpha": [69, 0, 69],
    }


def test_dialized_batch_norms_come_back_also_behind_convolutions_with_a_bias() -> None:
    net = proto.parse_net(
        """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
        layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
                convolution_param { num_output: 4 kernel_size: 3 } }
        layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1" }
        layer { name: "scale1" type: "Scale" bottom: "conv1" top: "conv1" scale_param { bias_term: true } }
        layer { name: "fc" type: "InnerProduct" bottom: "conv1" top: "fc" inner_product_param { num_output: 2 } }
        layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
        """
    )
    plain = apply_variant(dialize(net, source_batch=2, target_batch=2).net, "source-only")
    assert [name for name, _, _ in layers_of(plain, ("BatchNorm", "Dial", "Scale"))] == ["bn1-dial", "scale1"]
    assert [kind for _, kind, _ in layers_of(plain, ("BatchNorm", "Dial"))] == ["BatchNorm"]


@pytest.mark.parametrize(("total", "warned"), [(1.0, False), (1.999, True)])
def test_weights_trained_with_alignment_that_a_net_lacks(
    total: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics of one batch, as a net gets them that is given alignment, are no training."""
    row = np.ones((2, 3), np.float32)
    blobs = [np.float32([0.8]), row, row, np.float32([total])]
    weights = Weights("w", [LayerWeights(pb.LayerParameter(name="conv-dial", type="Dial"), blobs)])
    warn_of_lost_alignment(weights, pb.NetParameter(layer=[pb.LayerParameter(name="conv")]))
    assert ("trained with 1 Dial layer that the net lacks, conv-dial first" in caplog.text) == warned
    caplog.clear()
    warn_of_lost_alignment(weights, pb.NetParameter(layer=[pb.LayerParameter(name="conv-dial", type="BatchNorm")]))
    assert not caplog.records

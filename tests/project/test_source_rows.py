"""Nets with several sources, and with latent domains: what is in the batch, who normalizes it, and who learns."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autodial import proto
from autodial.errors import InputError
from autodial.evaluation.domains import data_in_test, data_in_train
from autodial.layers.multimodal_batch_norm import MultiModalBatchNorm
from autodial.net.data_checks import check_slices, label_readers
from autodial.net.net import Net
from autodial.netparam.shipped import shipped_names, shipped_net
from autodial.netparam.variants import apply_variant
from autodial.project.labelled_rows import add_labelled_rows
from autodial.project.latent_domains import add_latent_domains
from autodial.project.source_rows import add_sources
from autodial.project.split import split_batch, split_sources
from autodial.proto import messages as pb

pytestmark = pytest.mark.usefixtures("here")

NET = """
layer { name: "s" type: "ImageData" top: "s" top: "label" include { phase: TRAIN }
  image_data_param { source: "source.txt" batch_size: 5 } }
layer { name: "t" type: "ImageData" top: "t" top: "unused" include { phase: TRAIN }
  image_data_param { source: "target.txt" batch_size: 4 } }
layer { name: "silence" type: "Silence" bottom: "unused" include { phase: TRAIN } }
layer { name: "join" type: "Concat" bottom: "s" bottom: "t" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  image_data_param { source: "test.txt" batch_size: 2 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "dial" type: "Dial" bottom: "conv" top: "conv"
  dial_param { slice_point: 5 moving_average_fraction: 0.9 weight_filler { type: "constant" value: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" param { lr_mult: 3 }
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "part" type: "Slice" bottom: "fc" top: "scores" top: "scores-t" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" include { phase: TRAIN } }
layer { name: "entropy" type: "EntropyLoss" bottom: "scores-t" top: "entropy" include { phase: TRAIN } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
PATHS = ["one.txt", "two.txt"]


def several(text: str = NET) -> pb.NetParameter:
    net = proto.parse_net(text)
    add_sources(net, "s", PATHS, (3, 2))
    return net


def latent(domains: int = 2, text: str = NET) -> pb.NetParameter:
    net = proto.parse_net(text)
    add_latent_domains(net, domains, 5, "fc")
    return net


@pytest.fixture
def lists(here: Path, images: Any) -> None:
    for name in (*PATHS, "source.txt", "target.txt", "test.txt", "few.txt"):
        paths = images(name.removesuffix(".txt"), 6, size=8)
        Path(name).write_text("".join(f"{path} {i % 3}\n" for i, path in enumerate(paths)))


@pytest.mark.usefixtures("lists")
def test_each_source_has_a_list_and_statistics_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(several(), pb.TRAIN)
    check_slices(net)
    assert not caplog.records
    assert [(net.param.layer[i].name, net.blob_shapes[net.param.layer[i].top[0]][0]) for i in range(2)] == [
        ("s-1", 3),
        ("s-2", 2),
    ]
    dial = net.layer("dial")
    assert (dial.sources, dial.points(9)) == (2, (3, 5))
    assert {(reader.layer, reader.source) for reader in label_readers(net)} == {("loss", "s-1"), ("loss", "s-2")}
    x = torch.randn(9, 3, 8, 8)
    labels = torch.tensor([0.0, 1, 2, 0, 1])
    blobs = net.blobs(
        {"s-1": x[:3], "s-2": x[3:5], "t": x[5:], "label-1": labels[:3], "label-2": labels[3:], "unused": labels[:4]},
        ["fc", "loss"],
    )
    aligned = F.conv2d(x, *net.layer("conv").blobs)
    aligned = torch.cat([F.batch_norm(part, None, None, training=True) for part in aligned.tensor_split((3, 5))])
    scores = F.linear(F.relu(aligned).flatten(1), *net.layer("fc").blobs)
    torch.testing.assert_close(blobs["fc"], scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(blobs["loss"], F.cross_entropy(scores[:5], labels.long()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("labelled", [False, True])
def test_who_reads_what_is_found(labelled: bool) -> None:
    net = proto.parse_net(NET)
    if labelled:
        add_labelled_rows(net, "s", "t", "few.txt", 1)
    add_sources(net, "s", PATHS, (3, 2))
    found = data_in_train(net)
    assert found is not None
    assert [top.layer.name for top in (*found.sources, found.target)] == ["s-1", "s-2", "t"]
    flat = several(NET.replace('bottom: "s" bottom: "t"', 'bottom: "s-1" bottom: "s-2" bottom: "t"'))
    found = data_in_train(flat)
    assert found is not None and [top.layer.name for top in found.sources] == ["s-1", "s-2"]


def test_pooled_sources_are_not_the_sources_of_a_net_that_aligns_one() -> None:
    net = several()
    next(layer for layer in net.layer if layer.type == "Dial").dial_param.ClearField("source_slice_point")
    assert data_in_train(net) is None


@pytest.mark.usefixtures("lists")
@pytest.mark.parametrize("labelled", [False, True])
def test_the_source_only_variant_keeps_all_sources(labelled: bool) -> None:
    net = proto.parse_net(NET)
    if labelled:
        add_labelled_rows(net, "s", "t", "few.txt", 1)
    add_sources(net, "s", PATHS, (3, 2))
    built = Net(apply_variant(net, "source-only"), pb.TRAIN)
    assert set(built.data_layers) == {"s-1", "s-2", *(["t-labelled"] if labelled else [])}
    assert built.blob_shapes["fc"] == (5 + labelled, 3)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_nets_take_several_sources_and_latent_domains(name: str) -> None:
    net = proto.read_net(shipped_net(name))
    found = data_in_train(net)
    assert found is not None
    (source,), rows = found.sources, 32
    add_sources(net, source.layer.name, PATHS, (20, rows - 20))
    assert all(list(layer.dial_param.source_slice_point) == [20] for layer in net.layer if layer.type == "Dial")
    found = data_in_train(net)
    assert found is not None and len(found.sources) == 2


@pytest.mark.usefixtures("lists")
def test_latent_domains_are_mixed_by_what_the_branch_predicts() -> None:
    net = Net(latent(), pb.TRAIN)
    assert sum(isinstance(layer, MultiModalBatchNorm) for layer in net.layers.values()) == 2
    x, labels = torch.randn(9, 3, 8, 8), torch.tensor([0.0, 1, 2, 0, 1])
    predictor = net.layer("domain-predictor")
    with torch.no_grad():
        predictor.blobs[0].normal_(0, 3)
    fed = {"s": x[:5], "label": labels, "t": x[5:], "unused": labels[:4]}
    blobs = net.blobs(fed, ["fc", "domain-probabilities", "domain-entropy"])
    conv = F.conv2d(x, *net.layer("conv").blobs)
    weights = F.linear(F.relu(conv[:5]).mean((2, 3)), *predictor.blobs).softmax(1)
    torch.testing.assert_close(blobs["domain-probabilities"], weights)
    entropy = -(weights * weights.log()).sum(1).mean()
    torch.testing.assert_close(blobs["domain-entropy"], entropy, rtol=1e-4, atol=1e-5)
    source = torch.zeros_like(conv[:5])
    for weight in weights.T:
        each = weight.view(-1, 1, 1, 1)
        total = weight.sum() * 36
        mean = (each * conv[:5]).sum((0, 2, 3), keepdim=True) / total
        variance = (each * (conv[:5] - mean).square()).sum((0, 2, 3), keepdim=True) / total
        source += each * (conv[:5] - mean) / (variance + 1e-5).sqrt()
    target = F.batch_norm(conv[5:], None, None, training=True)
    scores = F.linear(F.relu(torch.cat((source, target))).flatten(1), *net.layer("fc").blobs)
    torch.testing.assert_close(blobs["fc"], scores, rtol=1e-3, atol=1e-4)
    assert predictor.blobs[0].shape == (2, 6)


@pytest.mark.usefixtures("lists")
def test_in_test_a_net_with_latent_domains_has_the_target_s_batch_norm_alone() -> None:
    param = latent()
    net = Net(param, pb.TEST)
    types = [layer.type for layer in net.param.layer]
    assert types.count("BatchNorm") == 1 and "MultiModalBatchNorm" not in types
    train = Net(param, pb.TRAIN)
    x = torch.randn(9, 3, 8, 8)
    train.blobs({"s": x[:5], "label": torch.zeros(5), "t": x[5:], "unused": torch.zeros(4)}, ["loss"])
    net.share_with(train)
    conv = F.conv2d(x, *net.layer("conv").blobs).detach()
    mean, variance = conv[5:].mean((0, 2, 3)), conv[5:].transpose(0, 1).flatten(1).var(1)
    scores = F.linear(F.relu(F.batch_norm(conv, mean, variance)).flatten(1), *net.layer("fc").blobs)
    torch.testing.assert_close(
        net.blobs({"data": x, "label": torch.zeros(9)}, ["fc"])["fc"], scores, rtol=1e-3, atol=1e-4
    )
    found = data_in_train(param)
    assert found is not None and [top.layer.name for top in (*found.sources, found.target)] == ["s", "t"]
    with pytest.raises(InputError, match=r"the net has latent domains .* keep those that training stored"):
        data_in_test(param)


def test_where_the_side_branch_reads() -> None:
    """In front of the layer that the first Dial layer follows; behind it, where only the image is in front."""
    (relu,) = (layer for layer in latent().layer if layer.name == "domain-relu")
    assert list(relu.bottom) == ["conv"]
    dial = NET[NET.index('layer { name: "dial"') : NET.index('layer { name: "relu"')]
    later = NET.replace(dial, "").replace('top: "fc" param', 'top: "ip" param')
    later = later.replace('layer { name: "part"', dial.replace('"conv"', '"ip"') + 'layer { name: "part"')
    later = later.replace('bottom: "ip" top: "ip"', 'bottom: "ip" top: "fc"')
    made = latent(2, later).layer
    (relu,) = (layer for layer in made if layer.name == "domain-relu")
    assert list(relu.bottom) == ["conv"] and [layer.name for layer in made].index("fc") < list(made).index(relu)
    one_phase = NET.replace('name: "dial" type: "Dial"', 'name: "dial" type: "Dial" include { phase: TRAIN }')
    with pytest.raises(InputError, match=r'layer "dial" \(Dial\) belongs to one phase only'):
        latent(2, one_phase)


@pytest.mark.parametrize(
    ("rows", "images", "expected"),
    [
        (16, (60, 36), (10, 6)),
        (10, (1, 1, 1), (4, 3, 3)),
        (8, (1000, 2), (6, 2)),
        (4, (5, 9), (2, 2)),
        (9, (100,), (9,)),
    ],
)
def test_rows_of_the_sources(rows: int, images: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert split_sources(rows, images) == expected


def test_rows_are_all_given_away() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        images = rng.integers(2, 3000, rng.integers(1, 6))
        rows = int(2 * len(images) + rng.integers(0, 100))
        shares = split_sources(rows, images.tolist())
        assert sum(shares) == rows and min(shares) >= 2
        by_size = [share for _, share in sorted(zip(images, shares, strict=True))]
        assert all(small <= large + 1 for small, large in pairwise(by_size))
    assert split_batch(20, 2, 100, 1).source == 2 and split_batch(20, 9, 100, 3).source == 6

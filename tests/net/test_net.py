"""Net: what Caffe's Net::Init does with a prototxt, and what torch expects of a module."""

from __future__ import annotations

import copy
import re
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb


def build(text: str, phase: int = 0, **options: object) -> Net:
    return Net(parse_net(text), phase, **options)  # type: ignore[arg-type]


def data(*dims: int, name: str = "data") -> str:
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {shape} }} }} }}\n'


def ip(name: str, bottom: str, outputs: int, *, top: str | None = None, extra: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{top or name}" {extra} '
        f'inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }} }}\n'
    )


AUTODIAL = (
    data(6, 3, 8, 8)
    + data(4, name="label")
    + """
layer { name: "conv.1" type: "Convolution" bottom: "data" top: "c" param { lr_mult: 0 } param { lr_mult: 0 }
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "c/dial" type: "Dial" bottom: "c" top: "c" dial_param { slice_point: 4 weight_filler { value: 0.8 } } }
layer { name: "c/scale" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "drop" type: "Dropout" bottom: "c" top: "c" }
"""
    + ip("fc", "c", 5)
    + """
layer { name: "slice" type: "Slice" bottom: "fc" top: "s" top: "t" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 4 } }
layer { name: "loss-s" type: "SoftmaxWithLoss" bottom: "s" bottom: "label" top: "loss-s" include { phase: TRAIN } }
layer { name: "loss-t" type: "EntropyLoss" bottom: "t" top: "loss-t" loss_weight: 0.1 include { phase: TRAIN } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" include { phase: TEST } }
"""
)


def inputs(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"data": torch.randn(6, 3, 8, 8, generator=generator), "label": torch.tensor([0.0, 1, 2, 3])}


# --- construction


def test_phase_rules_choose_layers_before_blobs_are_checked() -> None:
    text = (
        'layer { name: "data" type: "Input" top: "x" include { phase: TRAIN } input_param { shape { dim: 4 dim: 2 } } }'
        'layer { name: "data" type: "Input" top: "x" include { phase: TEST } input_param { shape { dim: 1 dim: 2 } } }'
        'layer { name: "a" type: "ReLU" bottom: "x" top: "a" include { min_level: 1 } }'
        'layer { name: "b" type: "ReLU" bottom: "x" top: "b" include { stage: "deploy" not_stage: "quiet" } }'
        'layer { name: "c" type: "ReLU" bottom: "x" top: "c" exclude { phase: TEST } }'
    )
    train, test = build(text), build(text, pb.TEST, level=1, stages=["deploy"])
    assert (train.layer_names, train.blob_shapes["x"]) == (["data", "c"], (4, 2))
    assert (test.layer_names, test.blob_shapes["x"]) == (["data", "x_data_0_split", "a", "b"], (1, 2))
    assert "b" not in build(text, pb.TEST, stages=["deploy", "quiet"]).layer_names
    stated = 'state { level: 1 stage: "deploy" }' + text
    assert [name for name in build(stated, pb.TEST).layer_names if name in "abc"] == ["a", "b"]
    assert [name for name in build(stated, pb.TEST, level=0).layer_names if name in "abc"] == ["b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ip("fc", "nowhere", 2), r'layer "fc" .*"nowhere" is produced by no earlier layer'),
        (data(1, 2) + ip("a", "data", 2) + ip("b", "data", 2, top="a"), r'layer "b" .*"a" is already produced'),
        (data(1, 2) + ip("a", "data", 2) + ip("a", "data", 2, top="b"), r'layer "a" .*another layer has the same name'),
        (
            data(1, 2) + data(1, 2).replace('top: "data"', 'top: "label"'),
            r'layer "data" \(Input\): another layer has the same name',
        ),
        (
            data(1, 2) + 'layer { name: "r" type: "ReLU" bottom: "data" bottom: "data" top: "r" }',
            r'layer "r" \(ReLU\): takes 1 bottom blob and the prototxt names 2',
        ),
        (
            data(1, 2) + 'layer { name: "x" type: "Warp" bottom: "data" top: "x" }',
            r'"x": .*"Warp" is not supported; docs',
        ),
        (data(1, 2) + ip("a", "data", 2, extra="param { } param { } param { }"), r'"a" .*given 3 times .* 2 blobs'),
        (
            data(4, 2) + 'layer { name: "d" type: "Dial" bottom: "data" top: "d" param { } param { lr_mult: 1 } }',
            r'layer "d" .*param 1 holds statistics',
        ),
        (
            data(4, 2) + 'layer { name: "d" type: "Dial" bottom: "data" top: "d" dial_param { slice_point: 4 } }',
            r'layer "d" \(Dial\): slice_point 4 .* batch of 4',
        ),
        (
            data(1, 2) + 'layer { name: "r" type: "ReLU" bottom: "data" top: "r" include { } exclude { } }',
            r'layer "r": give either include rules or exclude rules',
        ),
        (
            data(1, 2) + 'layer { name: "r" type: "ReLU" bottom: "data" top: "r" loss_weight: 1 loss_weight: 2 }',
            r'layer "r" .*loss_weight must be given for no top or for each',
        ),
        (
            data(2, 3, 4) + 'layer { name: "f" type: "Flatten" bottom: "data" top: "data" }',
            r'layer "f" \(Flatten\): can\'t work in place: give its top another name than its bottom\'s, "data"',
        ),
        (
            data(2)  # even where the shape stays
            + 'layer { name: "r" type: "Reshape" bottom: "data" top: "data" reshape_param { shape { dim: 0 } } }',
            r'layer "r" \(Reshape\): can\'t work in place',
        ),
    ],
)
def test_what_is_refused_and_how(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        build(text)
    assert re.search(message, str(error.value)), error.value


def test_a_slice_of_everything_is_ignored_in_test() -> None:
    text = data(4, 2) + 'layer { name: "d" type: "Dial" bottom: "data" top: "d" dial_param { slice_point: 4 } }'
    assert build(text, pb.TEST).blob_shapes["d"] == (4, 2)


@pytest.mark.parametrize(
    ("weight", "down", "gradient"),
    [("", "", 3), ("loss_weight: 1", "", 3 + 1), ("", "propagate_down: false", 1)],
)
def test_a_layer_that_reads_a_loss_takes_the_place_of_an_unstated_weight(
    weight: str, down: str, gradient: float, caplog: pytest.LogCaptureFixture
) -> None:
    net = build(
        data(2, 1)
        + data(2, 1, name="zero")
        + ip("h", "data", 1)
        + f'layer {{ name: "e" type: "EuclideanLoss" bottom: "h" bottom: "zero" top: "e" {weight} }}'
        + f'layer {{ name: "p" type: "Power" bottom: "e" top: "p" loss_weight: 3 {down} }}'
    )
    outputs = net({"data": torch.ones(2, 1), "zero": torch.zeros(2, 1)})
    net.loss(outputs).backward()
    value = net.layer("h").blobs[0].item()
    assert net.layer("h").blobs[0].grad.item() == pytest.approx(gradient * value)
    assert net.loss(outputs).item() == pytest.approx(4 * value**2 / 2)
    assert (gradient == 3) == ('layer "p" (Power): reads the loss "e"' in caplog.text)


def test_a_blob_with_two_consumers_is_split_under_caffes_names() -> None:
    add = 'layer { name: "y" type: "Eltwise" bottom: "h" bottom: "g" top: "y" }'
    net = build(data(2, 3) + ip("h", "data", 3) + ip("g", "h", 3) + add)
    assert net.layer_names == ["data", "h", "h_h_0_split", "g", "y"]
    assert net.tops("h_h_0_split") == ("h_h_0_split_0", "h_h_0_split_1")


def test_a_loss_that_is_read_keeps_its_weight_on_the_first_top_of_its_split() -> None:
    net = build(
        data(2, 3)
        + 'layer { name: "e" type: "EntropyLoss" bottom: "data" top: "e" loss_weight: 0.5 }'
        + 'layer { name: "p" type: "Power" bottom: "e" top: "p" }'
    )
    assert net.loss_weights == {"e_e_0_split_0": 0.5}
    assert net.loss(net({"data": torch.zeros(2, 3)})).item() == pytest.approx(0.5 * np.log(3))


def test_loss_weights_scale_the_total() -> None:
    net = build(AUTODIAL)
    assert net.loss_weights == {"loss-s": 1.0, "loss-t": pytest.approx(0.1)}
    blobs = net(inputs())
    assert net.loss(blobs).item() == pytest.approx((blobs["loss-s"] + 0.1 * blobs["loss-t"]).item())
    assert net.outputs == ("loss-s", "loss-t")


def test_a_loss_without_a_top_gets_one() -> None:
    net = build(data(2, 3) + 'layer { name: "e" type: "EntropyLoss" bottom: "data" }')
    assert net.loss(net({"data": torch.zeros(2, 3)})).item() == pytest.approx(np.log(3))


def test_fillers_depend_on_seed_and_name_alone() -> None:
    alone = build(data(1, 4) + ip("a", "data", 3))
    among = build(data(1, 4) + ip("b", "data", 3) + ip("a", "data", 3, top="c"))
    torch.testing.assert_close(alone.layer("a").blobs[0], among.layer("a").blobs[0], rtol=0, atol=0)
    assert not torch.equal(among.layer("a").blobs[0], among.layer("b").blobs[0])
    other = build(data(1, 4) + ip("a", "data", 3), seed=1)
    assert not torch.equal(alone.layer("a").blobs[0], other.layer("a").blobs[0])


# --- sharing


def test_params_of_one_name_are_one_parameter() -> None:
    shared = 'param { name: "w" } param { name: "b" lr_mult: 2 }'
    net = build(data(2, 3) + ip("a", "data", 3, extra=shared) + ip("b", "a", 3, extra=shared))
    assert [(p.layer, p.lr_mult) for p in net.params] == [("a", 1), ("a", 2)]
    x = torch.randn(2, 3)
    net({"data": x})["b"].sum().backward()
    w, b = (blob.detach() for blob in net.layer("a").blobs)
    expected = (x @ w.T + b).sum(0).expand(3, 3) + w.sum(0)[:, None] * x.sum(0)
    torch.testing.assert_close(net.layer("b").blobs[0].grad, expected)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("", "", r'"w" has shape \(3, 2\) here and \(2, 3\)'),
        ("lr_mult: 1", "share_mode: PERMISSIVE lr_mult: 2", "lr_mult 2 here and 1"),
        ("decay_mult: 0", "share_mode: PERMISSIVE decay_mult: 1", "decay_mult 1 here and 0"),
    ],
)
def test_params_of_one_name_must_agree(first: str, second: str, message: str) -> None:
    a = ip("a", "data", 2, extra=f'param {{ name: "w" {first} }}')
    b = ip("b", "a", 3, extra=f'param {{ name: "w" {second} }}')
    with pytest.raises(InputError, match=message):
        build(data(2, 3) + a + b)


@pytest.mark.parametrize(("second", "third"), [("lr_mult: 2", "lr_mult: 3"), ("decay_mult: 1", "decay_mult: 5")])
def test_of_what_the_first_of_a_name_leaves_open_the_next_decides(second: str, third: str) -> None:
    layers = [ip(name, "data", 2, extra=f'param {{ name: "w" {rule} }}') for name, rule in (("a", ""), ("b", second))]
    (param, *_) = build(data(2, 3) + "".join(layers)).params
    field, _, value = second.partition(": ")
    assert getattr(param, field) == float(value)
    for rule, message in (
        (third, f"has {third.replace(':', '')} here and {value} in an earlier layer"),
        (second, None),
    ):
        text = data(2, 3) + "".join(layers) + ip("c", "data", 2, extra=f'param {{ name: "w" {rule} }}')
        if message is None:
            build(text)
        else:
            with pytest.raises(InputError, match=message):
                build(text)


def test_permissive_sharing_reshapes() -> None:
    a = ip("a", "data", 2, extra='param { name: "w" }')
    b = ip("b", "a", 3, extra='param { name: "w" share_mode: PERMISSIVE }')
    net = build(data(2, 3) + a + b)
    w = net.layer("a").blobs[0]
    x = torch.randn(2, 3)
    with torch.no_grad():
        w.mul_(2)
    torch.testing.assert_close(net({"data": x})["b"], x @ w.T @ w.view(3, 2).T)


def test_a_test_net_shares_the_train_nets_blobs() -> None:
    train, test = build(AUTODIAL), build(AUTODIAL, pb.TEST)
    test.share_with(train)
    train(inputs())
    assert test.layer("c/dial").blobs[3].item() == 1
    assert all(ours is theirs for ours, theirs in zip(test.layer("fc").blobs, train.layer("fc").blobs, strict=True))


@pytest.mark.parametrize(
    ("owner", "in_train", "in_test"),
    [("include { phase: TRAIN }", "w", "w"), ("", "v", "w"), ("", "w", "v")],
)
def test_a_test_net_shares_by_layer_whatever_is_shared_within_the_nets(owner: str, in_train: str, in_test: str) -> None:
    nets = []
    for phase, name in ((pb.TRAIN, in_train), (pb.TEST, in_test)):
        a = ip("a", "data", 2, extra=f'{owner} param {{ name: "w" }}')
        b = ip("b", "p", 3, extra=f'param {{ name: "{name}" share_mode: PERMISSIVE }}')
        nets.append(build(data(2, 3) + a + ip("p", "data", 2) + b, phase, seed=phase))
    train, test = nets
    test.share_with(train)
    with torch.no_grad():
        for param in train.params:
            param.tensor.add_(1)
    x = torch.randn(2, 3)
    for name in ("a", "b") if not owner else ("b",):
        torch.testing.assert_close(test.blobs({"data": x}, [name])[name], train.blobs({"data": x}, [name])[name])
        for ours, theirs in zip(test.layer(name).blobs, train.layer(name).blobs, strict=True):
            assert ours.data_ptr() == theirs.data_ptr()


# --- running


def test_frozen_layers_cost_no_gradient_work() -> None:
    net = build(AUTODIAL)
    with torch.autograd.profiler.profile() as profile:
        net.loss(net(inputs())).backward()
    names = {event.name for event in profile.function_events}
    assert "aten::convolution" in names and "aten::convolution_backward" not in names
    assert net.layer("conv.1").blobs[0].grad is None and net.layer("fc").blobs[0].grad is not None


def test_force_backward_reaches_frozen_layers() -> None:
    net = build("force_backward: true " + AUTODIAL)
    net.loss(net(inputs())).backward()
    assert net.layer("conv.1").blobs[0].grad is not None


def test_propagate_down_false_stops_the_gradient() -> None:
    net = build(data(2, 3) + ip("a", "data", 3) + ip("b", "a", 3, extra="propagate_down: false"))
    net({"data": torch.randn(2, 3)})["b"].sum().backward()
    assert net.layer("a").blobs[0].grad is None and net.layer("b").blobs[0].grad is not None


def test_force_backward_goes_before_propagate_down_false() -> None:
    net = build(
        "force_backward: true " + data(1, 1) + ip("a", "data", 1) + ip("b", "a", 1, extra="propagate_down: false")
    )
    with torch.no_grad():
        net.layer("a").blobs[0].fill_(3)
        net.layer("b").blobs[0].fill_(2)
    x = torch.tensor([[5.0]], requires_grad=True)
    net({"data": x})["b"].sum().backward()
    assert x.grad == 2 * 3 and net.layer("a").blobs[0].grad == 2 * 5


@pytest.mark.parametrize("force", ["", "force_backward: true "])
def test_labels_get_no_gradient_with_propagate_down_false(force: str) -> None:
    net = build(
        force
        + data(2, 3)
        + data(2, 3, name="target")
        + 'layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "data" bottom: "target" top: "loss" '
        "propagate_down: true propagate_down: false }"
    )
    x, target = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    net({"data": x, "target": target})["loss"].backward()
    assert x.grad is not None and target.grad is None
    torch.testing.assert_close(x.grad, torch.full((2, 3), (0.5 - 1) / 2))  # (sigmoid(x) - target) / rows


def test_dropout_depends_on_seed_iteration_and_pass_alone() -> None:
    net, again = build(AUTODIAL), build(AUTODIAL)
    results = []
    for module, iteration, pass_ in ((net, 3, 0), (net, 3, 1), (net, 4, 0), (again, 3, 0)):
        module.seed_pass(iteration, pass_)
        results.append(module.blobs(inputs(), ["fc"])["fc"])
    assert torch.equal(results[0], results[3])
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_random_layers_of_one_name_have_streams_of_their_own() -> None:
    def drop(name: str, top: str) -> str:
        return f'layer {{ name: "{name}" type: "Dropout" bottom: "data" top: "{top}" }}\n'

    x, blobs = {"data": torch.ones(4, 100)}, ["first", "second"]
    net = build(data(4, 100) + drop("drop", "first") + drop("drop", "second"))
    draws = []
    for iteration in (3, 4, 3):
        net.seed_pass(iteration)
        draws.append(net.blobs(x, blobs))
    assert not torch.equal(draws[0]["first"], draws[0]["second"])
    for blob in blobs:
        assert torch.equal(draws[0][blob], draws[2][blob])
        assert not torch.equal(draws[0][blob], draws[1][blob])

    alone = build(data(4, 100) + drop("drop", "first") + drop("other", "second"))
    alone.seed_pass(3)
    assert torch.equal(alone.blobs(x, blobs)["first"], draws[0]["first"])


def test_layer_s_own_phase_goes_before_the_net_s() -> None:
    drop = 'layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" phase: PHASE }'
    x = torch.ones(4, 100)
    assert torch.equal(build(data(4, 100) + drop.replace("PHASE", "TEST"), pb.TRAIN)({"data": x})["drop"], x)
    assert not torch.equal(build(data(4, 100) + drop.replace("PHASE", "TRAIN"), pb.TEST)({"data": x})["drop"], x)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (data(4, 0), r'layer "data" \(Input\): input_param.shape must be positive, not \(4, 0\)'),
        (data(4, -1), r"must be positive, not \(4, -1\)"),
        (data(2**20, 2**11), r'top blob "data" would have the shape \(1048576, 2048\)'),
        (data(2**20, 2) + ip("a", "data", 2**11), r'layer "a" .*: top blob "a" would have the shape'),
        (
            'layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 0 } data_filler '
            '{ type: "xavier" } } }',
            r'layer "d" \(DummyData\): can\'t be made: .*division',
        ),
        (
            data(4) + 'layer { name: "e" type: "Exp" bottom: "data" top: "e" exp_param { shift: 1e38 } }',
            r'layer "e" \(Exp\): can\'t be made on bottoms of the shapes \(4,\): math range error',
        ),
        (
            data(4, 3) + 'layer { name: "n" type: "Dial" bottom: "data" top: "n" dial_param { eps: -1 } }',
            "eps must not",
        ),
    ],
)
def test_impossible_numbers_are_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        build(text)
    assert "\n" not in str(error.value)


def test_blobs_runs_only_what_is_needed() -> None:
    net = build(AUTODIAL)
    conv = net.blobs({"data": inputs()["data"]}, ["c"])["c"]  # no label is needed
    assert conv.shape == (6, 4, 6, 6)
    with pytest.raises(InputError, match='no blob "d"'):
        net.blobs(inputs(), ["d"])
    with pytest.raises(InputError, match='blob "label" must be fed'):
        net({"data": inputs()["data"]})


def test_no_activation_outlives_its_last_use() -> None:
    net = build(data(64, 256) + "".join(ip(f"h{i}", f"h{i - 1}" if i else "data", 256) for i in range(20)), pb.TEST)
    kept: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def count(module: torch.nn.Module, arguments: object, output: Tensor) -> None:
        alive.append(sum(tensor() is not None for tensor in kept))
        kept.append(weakref.ref(output))

    for name in net.layer_names[1:]:
        net.layer(name).register_forward_hook(count)
    with torch.no_grad():
        net({"data": torch.randn(64, 256)})
    assert len(kept) == 20 and max(alive) == 1  # the layer's input and nothing before it


def test_another_batch_size_than_the_prototxts() -> None:
    net = build(AUTODIAL, pb.TEST)
    assert net({"data": torch.randn(2, 3, 8, 8), "label": torch.zeros(2)})["prob"].shape == (2, 5)


# --- weights


def test_weights_are_copied_by_name() -> None:
    source, net = build(AUTODIAL, seed=1), build(AUTODIAL)
    weights = source.weights()
    weights.layers.append(LayerWeights(pb.LayerParameter(name="elsewhere"), [np.zeros(3, np.float32)]))
    weights.layers = [layer for layer in weights.layers if layer.name != "fc"]
    assert net.load_weights(weights) == ["fc"]
    assert torch.equal(net.layer("conv.1").blobs[0], source.layer("conv.1").blobs[0])
    assert not torch.equal(net.layer("fc").blobs[0], source.layer("fc").blobs[0])


@pytest.mark.parametrize(
    ("blobs", "message"),
    [
        ([np.zeros((5, 144))], r'layer "fc" has 2 blobs and old.caffemodel has 1'),
        ([np.zeros((5, 4, 6, 6)), np.zeros(5)], r"blob 0: the net's shape is \(5, 144\) .*\(5, 4, 6, 6\); rename"),
    ],
)
def test_weights_of_other_shapes_are_refused(blobs: list[np.ndarray], message: str) -> None:
    weights = Weights("old", [LayerWeights(pb.LayerParameter(name="fc"), [blob.astype(np.float32) for blob in blobs])])
    with pytest.raises(InputError, match=message):
        build(AUTODIAL).load_weights(weights, "old.caffemodel")


@pytest.mark.parametrize(("legacy", "fits"), [(frozenset({0, 1}), True), (frozenset(), False)])
def test_weights_of_legacy_shapes(legacy: frozenset[int], fits: bool) -> None:
    blobs = [np.arange(720, dtype=np.float32).reshape(1, 1, 5, 144), np.ones((1, 1, 1, 5), np.float32)]
    weights = Weights("old", [LayerWeights(pb.LayerParameter(name="fc"), blobs, legacy)])
    net = build(AUTODIAL)
    if not fits:
        with pytest.raises(InputError, match=r"the net's shape is \(5, 144\) and .* is \(1, 1, 5, 144\)"):
            net.load_weights(weights)
        return
    net.load_weights(weights)
    weight, bias = net.layer("fc").blobs
    assert weight.flatten().tolist() == list(range(720)) and bias.tolist() == [1] * 5


def test_weights_without_what_another_layer_owns() -> None:
    shared = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" } param { name: "b" }
          inner_product_param { num_output: 3 } }
        layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" } inner_product_param {
          num_output: 3 } }
        layer { name: "c" type: "InnerProduct" bottom: "b" top: "c" param { name: "w" } param { name: "b" }
          inner_product_param { num_output: 3 } }"""
    net = build(shared)
    weight, bias = np.full((3, 3), 2, np.float32), np.full(3, 3, np.float32)
    layers = {"a": [weight, bias], "b": [None, bias + 1], "c": []}
    weights = Weights("", [LayerWeights(pb.LayerParameter(name=name), blobs) for name, blobs in layers.items()])
    assert net.load_weights(weights) == []
    assert [net.layer(name).blobs[0].unique().tolist() for name in "abc"] == [[2], [2], [2]]
    assert [net.layer(name).blobs[1].unique().tolist() for name in "abc"] == [[3], [4], [3]]
    for blobs, count in (([None, bias], 1), ([weight], 1), ([weight, bias, bias], 3)):
        wrong = Weights("", [LayerWeights(pb.LayerParameter(name="a"), blobs)])
        with pytest.raises(InputError, match=f'layer "a" has 2 blobs and the weights has {count} for it'):
            net.load_weights(wrong)


def test_statistics_are_left_alone_in_snapshots_of_the_net() -> None:
    specs = build(AUTODIAL).param.layer[3].param
    assert [spec.lr_mult for spec in specs] == [1, 0, 0, 0]


# --- torch


def test_state_dict_copies_and_devices() -> None:
    net, other = build(AUTODIAL, pb.TEST), build(AUTODIAL, pb.TEST, seed=5)
    assert "layers.conv_1.weight" in net.state_dict() and "layers.c/dial.normalizer" in net.state_dict()
    other.load_state_dict(net.state_dict())
    twin = copy.deepcopy(net).to(torch.float64)
    expected = net.blobs(inputs(), ["fc"])["fc"]
    assert torch.equal(other.blobs(inputs(), ["fc"])["fc"], expected)
    found = twin.blobs({"data": inputs()["data"].double()}, ["fc"])["fc"]
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-4)
    assert twin.params[0].tensor.dtype == torch.float64


@pytest.mark.parametrize("phase", [pb.TRAIN, pb.TEST])
def test_torch_export(phase: int) -> None:
    net = build(AUTODIAL.replace('type: "Dropout"', 'type: "ReLU"'), phase)
    reference = copy.deepcopy(net)
    program = torch.export.export(net, (inputs(),))
    found = program.module()(inputs())
    for name, value in reference(inputs()).items():
        torch.testing.assert_close(found[name], value)

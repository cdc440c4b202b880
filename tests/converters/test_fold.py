from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from originals import RECORDS

from autodial.converters.fold import Folded, fold
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights, parse_net
from autodial.proto import messages as pb

EPS = float(np.float32(1e-5))
INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 dim: 5 dim: 5 } } }\n'
CONV = (
    'layer { name: "conv" type: "Convolution" bottom: "x" top: "y" '
    "convolution_param { num_output: 6 kernel_size: 3 } }\n"
)
DIAL = 'layer { name: "dial" type: "Dial" bottom: "y" top: "y" }\n'
SCALE = 'layer { name: "sc" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true } }\n'


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def statistics(seed: int, channels: int, normalizer: float = 3.0) -> list[Any]:
    """Blobs of a Dial layer: alpha, and sums that are `normalizer` times the means and variances."""
    variance = np.abs(normal(seed + 1, 2, channels)) + 0.1
    return [
        np.array([0.7], np.float32),
        normalizer * normal(seed, 2, channels),
        np.float32(normalizer) * variance,
        np.array([normalizer], np.float32),
    ]


def align(x: torch.Tensor, dial: list[Any], row: int = 1, eps: float = EPS) -> torch.Tensor:
    """The predictor's normalization by torch's own batch norm, in the precision of x."""
    mean, variance = (torch.tensor(blob[row] / dial[3], dtype=x.dtype) for blob in dial[1:3])
    return F.batch_norm(x, mean, variance, eps=eps)


def types(folded: Folded) -> list[str]:
    return [layer.type for layer in folded.net.layer]


def run(folded: Folded, x: Any) -> Any:
    """The folded net on x by torch's functions, in float64."""
    values = {}
    for layer in folded.net.layer:
        blobs = [torch.tensor(blob).double() for blob in folded.blobs.get(layer.name, [])]
        inputs = [values[bottom] for bottom in layer.bottom]
        if layer.type == "Input":
            outputs = torch.tensor(x).double()
        elif layer.type == "Convolution":
            assert len(blobs) == 1 + layer.convolution_param.bias_term
            outputs = F.conv2d(inputs[0], *blobs, groups=layer.convolution_param.group)
        elif layer.type == "InnerProduct":
            options = layer.inner_product_param
            assert len(blobs) == 1 + options.bias_term
            weight = blobs[0].T if options.transpose else blobs[0]
            outputs = F.linear(inputs[0].flatten(options.axis), weight, *blobs[1:])
        elif layer.type == "Scale":
            assert len(blobs) == 1 + layer.scale_param.bias_term
            column = [1, -1] + [1] * (inputs[0].dim() - 2)
            outputs = inputs[0] * blobs[0].view(column) + (blobs[1].view(column) if len(blobs) == 2 else 0)
        elif layer.type == "ReLU":
            outputs = inputs[0].relu()
        elif layer.type == "Eltwise":
            outputs = inputs[0] + inputs[1]
        else:
            raise AssertionError(layer.type)
        values[layer.top[0]] = outputs
    return values[folded.logits].numpy()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2])
def test_dial_and_scale_merge_into_convolution(group: int, bias: bool) -> None:
    net = parse_net(INPUT + CONV + DIAL + SCALE)
    net.layer[1].convolution_param.group = group
    net.layer[1].convolution_param.bias_term = bias
    weight, dial, scale = normal(0, 6, 4 // group, 3, 3), statistics(2, 6), [normal(4, 6), normal(5, 6)]
    blobs = {"conv": [weight, normal(1, 6)][: 1 + bias], "dial": dial, "sc": scale}

    folded = fold(net, blobs, outputs=["y"])

    assert types(folded) == ["Input", "Convolution"]
    assert folded.merged == {"dial": "conv", "sc": "conv"}
    assert folded.kept == ()
    x = normal(6, 2, 4, 5, 5)
    conv = F.conv2d(torch.tensor(x).double(), *(torch.tensor(b).double() for b in blobs["conv"]), groups=group)
    column = [torch.tensor(blob).double().view(1, -1, 1, 1) for blob in scale]
    expected = align(conv, dial) * column[0] + column[1]
    np.testing.assert_allclose(run(folded, x), expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_dial_merges_into_inner_product(transpose: bool, bias: bool) -> None:
    ip = 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 7 } }'
    net = parse_net(INPUT + ip + DIAL)
    net.layer[1].inner_product_param.transpose = transpose
    net.layer[1].inner_product_param.bias_term = bias
    weight, dial = normal(0, 7, 100), statistics(2, 7)
    shift = [normal(1, 7)] if bias else []

    folded = fold(net, {"ip": [weight.T if transpose else weight, *shift], "dial": dial}, outputs=["y"])

    assert types(folded) == ["Input", "InnerProduct"]
    x = normal(6, 2, 4, 5, 5)
    linear = F.linear(torch.tensor(x).double().flatten(1), *(torch.tensor(b).double() for b in [weight, *shift]))
    np.testing.assert_allclose(run(folded, x), align(linear, dial).numpy(), rtol=1e-5, atol=1e-5)


def test_hand_worked_channel() -> None:
    """Weight 2, bias 1; sums 12 and 16 over 4 batches are mean 3 and variance 4; with eps 12 the deviation is 4."""
    net = parse_net(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 } } }'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 } }'
        'layer { name: "dial" type: "Dial" bottom: "y" top: "y" dial_param { eps: 12 } }'
        'layer { name: "sc" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true } }'
    )
    blobs = {
        "ip": [[[2.0]], [1.0]],
        "dial": [[0.8], [[100.0], [12.0]], [[100.0], [16.0]], [4.0]],
        "sc": [[8.0], [5.0]],
    }
    folded = fold(net, blobs, outputs=["y"])  # type: ignore[arg-type]
    # 8 * (2 x + 1 - 3) / 4 + 5 = 4 x + 1
    assert [blob.tolist() for blob in folded.blobs["ip"]] == [[[4.0]], [1.0]]
    assert {blob.dtype for blob in folded.blobs["ip"]} == {np.dtype(np.float32)}


def test_test_stats_chooses_the_row() -> None:
    source = DIAL.replace('top: "y" }', 'top: "y" dial_param { test_stats: SOURCE } }')
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "dial": statistics(2, 6)}
    x = normal(3, 2, 4, 5, 5)
    conv = F.conv2d(torch.tensor(x).double(), *(torch.tensor(blob).double() for blob in blobs["conv"]))
    for dial, row, domain in ((DIAL, 1, "target"), (source, 0, "source")):
        folded = fold(parse_net(INPUT + CONV + dial), blobs, outputs=["y"])
        assert folded.statistics == domain
        np.testing.assert_allclose(run(folded, x), align(conv, blobs["dial"], row).numpy(), rtol=1e-5, atol=1e-5)


def test_statistics_of_several_domains_are_reported() -> None:
    other = 'layer { name: "dial2" type: "Dial" bottom: "y" top: "z" dial_param { test_stats: SOURCE } }'
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "dial": statistics(2, 6), "dial2": statistics(4, 6)}
    assert fold(parse_net(INPUT + CONV + DIAL + other), blobs, outputs=["z"]).statistics == "mixed"


def test_batch_norm_merges_and_has_no_domain() -> None:
    norm = 'layer { name: "bn" type: "BatchNorm" bottom: "y" top: "z" batch_norm_param { eps: 0.25 } }'
    mean, variance = normal(2, 6), np.abs(normal(3, 6))
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "bn": [mean, variance, np.array([0.5], np.float32)]}

    folded = fold(parse_net(INPUT + CONV + norm), blobs, outputs=["z"])

    assert types(folded) == ["Input", "Convolution"]
    assert folded.logits == "z"
    assert folded.statistics is None
    x = normal(6, 2, 4, 5, 5)
    conv = F.conv2d(torch.tensor(x).double(), *(torch.tensor(blob).double() for blob in blobs["conv"]))
    expected = F.batch_norm(conv, torch.tensor(2 * mean).double(), torch.tensor(2 * variance).double(), eps=0.25)
    np.testing.assert_allclose(run(folded, x), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_keep_affine_composes_and_stays() -> None:
    blobs = {
        "conv": [normal(0, 6, 4, 3, 3), normal(1, 6)],
        "dial": statistics(2, 6),
        "sc": [normal(4, 6), normal(5, 6)],
    }
    net = parse_net(INPUT + CONV + DIAL + SCALE)
    merged, kept = fold(net, blobs, outputs=["y"]), fold(net, blobs, outputs=["y"], keep_affine=True)
    assert types(kept) == ["Input", "Convolution", "Scale"]
    assert kept.merged == {"sc": "dial"}
    assert kept.kept == ("dial",)
    np.testing.assert_array_equal(kept.blobs["conv"][0], blobs["conv"][0])
    x = normal(6, 2, 4, 5, 5)
    np.testing.assert_allclose(run(kept, x), run(merged, x), rtol=1e-5, atol=1e-5)


def test_plain_scale_without_bias_merges() -> None:
    scale = 'layer { name: "sc" type: "Scale" bottom: "y" top: "y" }'
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "sc": [normal(4, 6)]}
    folded = fold(parse_net(INPUT + CONV + scale), blobs, outputs=["y"])
    assert types(folded) == ["Input", "Convolution"]
    np.testing.assert_array_equal(folded.blobs["conv"][1], blobs["conv"][1] * blobs["sc"][0])


def test_does_not_change_its_arguments() -> None:
    net = parse_net(INPUT + CONV + DIAL)
    blobs = {"conv": [np.ones((6, 4, 3, 3)), np.ones(6)], "dial": [b.astype(np.float64) for b in statistics(0, 6)]}
    before = net.SerializeToString(), {name: [blob.copy() for blob in arrays] for name, arrays in blobs.items()}
    fold(net, blobs, outputs=["y"])
    assert net.SerializeToString() == before[0]
    for name, arrays in blobs.items():
        for blob, old in zip(arrays, before[1][name], strict=True):
            np.testing.assert_array_equal(blob, old)


RESIDUAL = (
    'layer { name: "dial" type: "Dial" bottom: "y" top: "z" }'
    'layer { name: "sum" type: "Eltwise" bottom: "y" bottom: "z" top: "s" }'
)
RELU_FIRST = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }' + DIAL
SEQUENCE = (
    'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 dim: 9 } } }'
    'layer { name: "conv" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 6 axis: 2 } }'
)


@pytest.mark.parametrize(
    ("text", "logits"),
    [
        pytest.param(INPUT + CONV + RESIDUAL, "s", id="the blob before it is read twice"),
        pytest.param(INPUT + CONV + RELU_FIRST, "y", id="another layer in between"),
    ],
)
def test_inexact_merges_are_left_alone(text: str, logits: str) -> None:
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "dial": statistics(2, 6)}
    folded = fold(parse_net(text), blobs, outputs=[logits])
    assert folded.kept == ("dial",)
    np.testing.assert_array_equal(folded.blobs["conv"][0], blobs["conv"][0])
    x = normal(6, 2, 4, 5, 5)
    conv = F.conv2d(torch.tensor(x).double(), *(torch.tensor(blob).double() for blob in blobs["conv"]))
    expected = conv + align(conv, blobs["dial"]) if logits == "s" else align(conv.relu(), blobs["dial"])
    np.testing.assert_allclose(run(folded, x), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_inner_product_along_another_axis_is_left_alone() -> None:
    """The Dial's channels are axis 1 and the InnerProduct's outputs axis 2, both 6 long."""
    blobs = {"conv": [normal(0, 6, 9), normal(1, 6)], "dial": statistics(2, 6)}
    folded = fold(parse_net(SEQUENCE + DIAL), blobs, outputs=["y"])
    assert folded.kept == ("dial",)
    np.testing.assert_array_equal(folded.blobs["conv"][0], blobs["conv"][0])


def test_scale_along_another_axis_is_left_alone() -> None:
    scale = 'layer { name: "sc" type: "Scale" bottom: "y" top: "y" scale_param { axis: 2 } }'
    conv = CONV.replace("num_output: 6", "num_output: 3")
    blobs = {"conv": [normal(0, 3, 4, 3, 3), normal(1, 3)], "dial": statistics(2, 3), "sc": [normal(4, 3)]}
    folded = fold(parse_net(INPUT + conv + DIAL + scale), blobs, outputs=["y"])
    assert folded.merged == {"dial": "conv"}
    assert folded.kept == ("sc",)
    np.testing.assert_array_equal(folded.blobs["sc"][0], blobs["sc"][0])


def test_shared_parameters_stay_shared() -> None:
    convs = "".join(
        CONV.replace('"conv"', f'"conv{i}"')
        .replace('"y"', f'"y{i}"')
        .replace("convolution_param", 'param { name: "w" lr_mult: 2 } param { name: "b" } convolution_param')
        + DIAL.replace('"dial"', f'"dial{i}"').replace('"y"', f'"y{i}"')
        for i in (1, 2)
    )
    add = 'layer { name: "sum" type: "Eltwise" bottom: "y1" bottom: "y2" top: "s" }'
    shared = [normal(0, 6, 4, 3, 3), normal(1, 6)]
    blobs = {"conv1": shared, "conv2": shared, "dial1": statistics(2, 6), "dial2": statistics(4, 6)}
    folded = fold(parse_net(INPUT + convs + add), blobs, outputs=["s"])
    assert folded.kept == ("dial1", "dial2")
    for layer in folded.net.layer:
        assert [spec.name for spec in layer.param] == (["w", "b"] if layer.type == "Convolution" else [])
    np.testing.assert_array_equal(folded.blobs["conv2"][0], shared[0])


def test_a_shared_alpha_does_not_hinder() -> None:
    dial = DIAL.replace('top: "y"', 'top: "y" param { name: "alpha" }')
    dials = dial.replace('"dial"', '"dial1"') + dial.replace('"dial"', '"dial2"')
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "dial1": statistics(2, 6), "dial2": statistics(4, 6)}
    folded = fold(parse_net(INPUT + CONV + dials), blobs, outputs=["y"])
    assert types(folded) == ["Input", "Convolution"]


def test_dropout_goes_and_the_layers_behind_it_read_what_it_read() -> None:
    text = (
        CONV
        + 'layer { name: "drop" type: "Dropout" bottom: "y" top: "dropped" }'
        + 'layer { name: "dial" type: "Dial" bottom: "dropped" top: "z" }'
        + 'layer { name: "last" type: "Dropout" bottom: "z" top: "end" }'
    )
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "dial": statistics(2, 6)}
    folded = fold(parse_net(INPUT + text), blobs, outputs=["end"])
    assert types(folded) == ["Input", "Convolution"]
    assert folded.logits == "z"


def test_nothing_of_training_is_left() -> None:
    rules = "include { phase: TEST } param { lr_mult: 0 } convolution_param"
    net = parse_net(INPUT + CONV.replace("convolution_param", rules))
    net.layer[1].blobs.add().data.append(1)
    folded = fold(net, {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)]}, outputs=["y"])
    (conv,) = (layer for layer in folded.net.layer if layer.type == "Convolution")
    assert not conv.param and not conv.include and not conv.blobs


def broken(index: int, value: float) -> list[Any]:
    blobs = statistics(2, 6)
    blobs[index].flat[-1] = value
    return blobs


@pytest.mark.parametrize(
    ("options", "dial", "message"),
    [
        ("", broken(3, 0), "no statistics were ever stored"),
        ("", broken(2, -1), "channel 5 has the stored mean .* and variance -0.333"),
        ("", broken(2, np.nan), "variance nan"),
        ("", broken(1, np.inf), "mean inf"),
        ("", [], "needs 4 blobs and the weights hold 0"),
        ("use_global_stats: false", statistics(2, 6), "use_global_stats: false"),
    ],
)
def test_refused_by_layer_name(options: str, dial: list[Any], message: str) -> None:
    text = INPUT + CONV + DIAL.replace('top: "y" }', f'top: "y" dial_param {{ {options} }} }}')
    blobs = {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "dial": dial}
    with pytest.raises(InputError, match=rf'layer "dial" \(Dial\).*{message}'):
        fold(parse_net(text), blobs, outputs=["y"])


@pytest.mark.parametrize(
    ("layer", "what"),
    [("Dial", "depends on the other images"), ("BatchNorm", "depends on the other images"), ("Dropout", "at random")],
)
def test_layer_that_trains_in_test_is_refused(layer: str, what: str) -> None:
    net = parse_net(INPUT + f'layer {{ name: "l" type: "{layer}" bottom: "x" top: "y" phase: TRAIN }}')
    with pytest.raises(InputError, match=rf'layer "l" \({layer}\) has phase: TRAIN, so its output .*{what}'):
        fold(net, {"l": statistics(2, 4)}, outputs=["y"])


def test_convolution_of_several_bottoms_keeps_the_affines_behind_it() -> None:
    """The convolution's tops share the weights, and each has statistics of its own."""
    net = parse_net(
        INPUT
        + """
        layer { name: "negative" type: "Scale" bottom: "x" top: "n" }
        layer { name: "conv" type: "Convolution" bottom: "x" bottom: "n" top: "y" top: "z"
          convolution_param { num_output: 6 kernel_size: 3 } }
        layer { name: "dial-y" type: "Dial" bottom: "y" top: "y" }
        layer { name: "dial-z" type: "Dial" bottom: "z" top: "z" }
        layer { name: "sum" type: "Eltwise" bottom: "y" bottom: "z" top: "sum" }
        layer { name: "ip" type: "InnerProduct" bottom: "z" top: "ip" inner_product_param { num_output: 2 } }
        """
    )
    blobs = {
        "negative": [-np.ones(4, np.float32)],
        "conv": [normal(0, 6, 4, 3, 3), normal(1, 6)],
        "dial-y": statistics(2, 6),
        "dial-z": statistics(4, 6),
        "ip": [normal(6, 2, 54), normal(7, 2)],
    }
    x = torch.tensor(normal(8, 2, 4, 5, 5)).double()
    weight, bias = (torch.tensor(blob).double() for blob in blobs["conv"])
    y, z = (F.conv2d(bottom, weight, bias) for bottom in (x, -x))
    for logits, expected in (
        ("sum", align(y, blobs["dial-y"]) + align(z, blobs["dial-z"])),
        ("ip", F.linear(align(z, blobs["dial-z"]).flatten(1), *(torch.tensor(b).double() for b in blobs["ip"]))),
    ):
        folded = fold(net, blobs, outputs=[logits])
        assert "conv" not in folded.merged.values()
        built = Net(folded.net, pb.TEST)
        built.load_weights(
            Weights("", [LayerWeights(layer, folded.blobs.get(layer.name, [])) for layer in folded.net.layer])
        )
        with torch.no_grad():
            actual = built.blobs({"x": x.float()}, [folded.logits])[folded.logits]
        np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_batch_norm_never_stored_is_refused() -> None:
    norm = 'layer { name: "bn" type: "BatchNorm" bottom: "y" top: "z" }'
    zeros = [np.zeros(6), np.zeros(6), np.zeros(1)]
    with pytest.raises(InputError, match=r'layer "bn" \(BatchNorm\): no statistics'):
        fold(
            parse_net(INPUT + CONV + norm), {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)], "bn": zeros}, outputs=["z"]
        )


def test_missing_convolution_blobs_are_refused() -> None:
    with pytest.raises(InputError, match=r'layer "conv" \(Convolution\) has no blobs'):
        fold(parse_net(INPUT + CONV + DIAL), {"dial": statistics(2, 6)}, outputs=["y"])


def test_messages_are_plain_parameters() -> None:
    folded = fold(parse_net(INPUT + CONV), {"conv": [normal(0, 6, 4, 3, 3), normal(1, 6)]}, outputs=["y"])
    assert isinstance(folded.net, pb.NetParameter)


@pytest.mark.parametrize("name", ["dial_test_target", "dial_test_source", "batchnorm_test"])
def test_a_frozen_layer_agrees_with_the_original(name: str) -> None:
    """Records of the original's TEST phase: the affine that is left behind an Input layer gives their outputs."""
    record = np.load(RECORDS / "layers" / f"{name}.npz")
    net = parse_net(str(record["prototxt"]))
    blobs: dict[str, list[Any]] = {}
    for key in record.files:
        if key.startswith("param/"):
            blobs.setdefault(key.split("/")[1], []).append(record[key])
    (bottom,), (top,) = net.layer[-1].bottom, net.layer[-1].top
    folded = fold(net, blobs, outputs=[top])
    assert types(folded) == ["Input", "Scale"]
    np.testing.assert_allclose(run(folded, record[f"in/{bottom}"]), record[f"out/{top}"], rtol=2e-4, atol=2e-5)


def test_bn_with_the_statistics_of_the_batch_is_refused_or_kept() -> None:
    bn = 'layer { name: "bn" type: "BN" bottom: "x" top: "y" bn_param { scale_filler { value: 1 } } }'
    net, blobs = parse_net(INPUT + bn), {"bn": [normal(1, 1, 4, 1, 1), normal(2, 1, 4, 1, 1)]}
    with pytest.raises(InputError, match=r'layer "bn" \(BN\) normalizes with the statistics of the batch.*INFERENCE'):
        fold(net, blobs, outputs=["y"])
    assert types(fold(net, blobs, outputs=["y"], keep_of_batch=True)) == ["Input", "BatchNorm", "Scale"]

"""BN of SegNet, PSPNet and BVLC's pull request 1965 against torch's batch normalization."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autodial.layers import LayerError
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net

SHAPE = (4, 3, 2, 5)
PSPNET = "slope_filler { value: 1.5 } bias_filler { value: 0.5 } momentum: 0.75 eps: 0.01"
PULL_REQUEST = "scale_filler { value: 1.5 } shift_filler { value: 0.5 } decay: 0.25 var_eps: 0.01"
SEGNET = "scale_filler { value: 1.5 } shift_filler { value: 0.5 }"


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def grad_ok(layer, x: torch.Tensor) -> bool:
    layer.double()
    return torch.autograd.gradcheck(layer, x.double().requires_grad_(), fast_mode=True)


def layer_of(build, fields: str, phase: int = pb.TRAIN):
    return build(f'type: "BN" bn_param {{ {fields} }}', SHAPE, phase=phase)


@pytest.mark.parametrize(
    ("fields", "eps", "phase"),
    [
        (PSPNET, 0.01, pb.TRAIN),
        (PULL_REQUEST, 0.01, pb.TRAIN),
        (PULL_REQUEST, 0.01, pb.TEST),
        (SEGNET, 1e-9, pb.TRAIN),
        (SEGNET + " bn_mode: LEARN", 1e-9, pb.TEST),
    ],
    ids=["pspnet", "pull request", "pull request, test", "segnet", "segnet, test"],
)
def test_statistics_of_the_batch(build, fields: str, eps: float, phase: int) -> None:
    layer, x = layer_of(build, fields, phase), values(*SHAPE)
    weight, bias = torch.full((3,), 1.5), torch.full((3,), 0.5)
    torch.testing.assert_close(layer(x), F.batch_norm(x, None, None, weight, bias, training=True, eps=eps))
    assert grad_ok(layer, x)


@pytest.mark.parametrize("fields", [PSPNET, PULL_REQUEST])
def test_what_is_stored_in_training(build, fields: str) -> None:
    """A quarter of the batch's mean and of its biased variance is added to three quarters of what was there."""
    layer, x = layer_of(build, fields), values(*SHAPE)
    mean, variance = layer.blobs[2:]
    assert mean.shape == variance.shape == (1, 3, 1, 1) and not variance.any()
    mean.fill_(4)
    variance.fill_(8)
    layer(x)
    torch.testing.assert_close(mean, 3 + x.mean((0, 2, 3), keepdim=True) / 4)
    torch.testing.assert_close(variance, 6 + x.var((0, 2, 3), correction=0, keepdim=True) / 4)


@pytest.mark.parametrize(
    ("fields", "phase"),
    [(PSPNET, pb.TEST), (PSPNET + " frozen: true", pb.TRAIN), (PULL_REQUEST + " moving_average: true", pb.TEST)],
    ids=["test", "frozen", "moving average"],
)
def test_stored_statistics(build, fields: str, phase: int) -> None:
    layer, x = layer_of(build, fields, phase), values(*SHAPE)
    mean, variance = torch.tensor([1.0, 2, 3]), torch.tensor([0.5, 1, 4])
    layer.blobs[2].copy_(mean.view(1, 3, 1, 1))
    layer.blobs[3].copy_(variance.view(1, 3, 1, 1))
    weight, bias = torch.full((3,), 1.5), torch.full((3,), 0.5)
    torch.testing.assert_close(layer(x), F.batch_norm(x, mean, variance, weight, bias, eps=0.01))
    torch.testing.assert_close(layer.blobs[2].view(-1), mean)
    assert grad_ok(layer, x)


def test_segnets_inference_multiplies_and_adds(build) -> None:
    layer, x = layer_of(build, SEGNET + " bn_mode: INFERENCE"), values(*SHAPE)
    assert len(layer.blobs) == 2
    torch.testing.assert_close(layer(x), 1.5 * x + 0.5)
    torch.testing.assert_close(layer(x[:, :, 0, 0]), 1.5 * x[:, :, 0, 0] + 0.5)


def test_what_is_frozen_is_not_learned() -> None:
    text = """
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
      layer { name: "bn" type: "BN" bottom: "x" top: "y" param { lr_mult: 1 } param { lr_mult: 2 } bn_param { %s } }
    """
    for fields, rates in (("momentum: 0.9", [1, 2, 0, 0]), ("frozen: true", [0, 0, 0, 0]), (SEGNET, [1, 2])):
        net = Net(parse_net(text % fields), pb.TRAIN)
        assert [param.lr_mult for param in net.params] == rates
        assert [spec.decay_mult for spec in net.param.layer[1].param] == [min(rate, 1) for rate in rates]
        assert net({"x": values(4, 3)})["y"].requires_grad == any(rates)


def test_what_is_refused(build) -> None:
    with pytest.raises(LayerError, match=r"bn_param\.frozen is of another version of BN"):
        layer_of(build, "bn_mode: INFERENCE frozen: true")
    with pytest.raises(LayerError, match="one value per channel"):
        build('type: "BN" bn_param { momentum: 0.9 }', (1, 3, 1, 1))
    with pytest.raises(LayerError, match="has 4 channels, the layer expects 3"):
        layer_of(build, "frozen: true").top_shapes([(1, 4, 2, 2)])
    with pytest.raises(LayerError, match="2 to 4 axes"):
        build('type: "BN"', (3,))

"""Layers that a net runs as one give what they give one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autodial import proto
from autodial.layers.alignment import align
from autodial.net import Net
from autodial.proto import messages as pb

NET = """
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 7 dim: 3 dim: 6 dim: 5 }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 4 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "dial" type: "Dial" bottom: "conv" top: "{dial}"
  dial_param {{ slice_point: 3 weight_filler {{ type: "constant" value: 0.8 }} }} }}
layer {{ name: "scale" type: "Scale" bottom: "{dial}" top: "{scale}" {frozen}
  scale_param {{ bias_term: {bias} filler {{ type: "gaussian" std: 1 }} bias_filler {{ type: "gaussian" std: 1 }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "{scale}" top: "relu" relu_param {{ negative_slope: {slope} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "relu" top: "ip"
  inner_product_param {{ num_output: 2 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "square" type: "Power" bottom: "ip" top: "square" power_param {{ power: 2 }} loss_weight: 1 }}
"""


def step(text: str, *, watched: bool) -> dict[str, Tensor]:
    """The loss and all gradients and statistics; a hook on the Dial layer has the layers run one by one."""
    net = Net(proto.parse_net(text), pb.TRAIN, seed=3).double()
    if watched:
        net.layer("dial").register_forward_hook(lambda *_: None)
    data = torch.randn(7, 3, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = net.loss(net({"data": data}))
    loss.backward()  # type: ignore[no-untyped-call]
    found = {"loss": loss.detach()}
    for param in net.params:
        key = f"{param.layer}/{param.index}"
        found[key] = param.tensor.detach().clone()
        if param.tensor.grad is not None:
            found[f"{key} gradient"] = param.tensor.grad
    return found


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("slope", [0, 0.1])
@pytest.mark.parametrize("blobs", [("conv", "conv"), ("a", "b")])
@pytest.mark.parametrize("frozen", ["", "param { lr_mult: 0 }"])
def test_one_step_is_the_same(bias: str, slope: float, blobs: tuple[str, str], frozen: str) -> None:
    text = NET.format(bias=bias, slope=slope, dial=blobs[0], scale=blobs[1], frozen=frozen)
    together, alone = (step(text, watched=watched) for watched in (False, True))
    assert together.keys() == alone.keys() and "dial/0 gradient" in together
    torch.testing.assert_close(together, alone)


def test_a_blob_in_between_can_be_asked_for() -> None:
    net = Net(proto.parse_net(NET.format(bias="true", slope=0, dial="a", scale="b", frozen="")), pb.TRAIN)
    data = torch.randn(7, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    blobs = net.blobs({"data": data}, ["a", "b", "relu"])
    weight, bias = net.layer("scale").blobs
    torch.testing.assert_close(blobs["b"], blobs["a"] * weight.view(-1, 1, 1) + bias.view(-1, 1, 1))
    torch.testing.assert_close(blobs["relu"], blobs["b"].clamp(min=0))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(7, 4), (5, 3, 2, 3)])
def test_gradients_of_everything(shape: tuple[int, ...], relu: bool) -> None:
    generator = torch.Generator().manual_seed(1)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    alpha = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    inputs = (random(*shape), alpha, random(shape[1]), random(shape[1]))
    assert torch.autograd.gradcheck(lambda x, a, s, b: align(x, a, 2, 1e-5, s, b, relu=relu)[0], inputs)

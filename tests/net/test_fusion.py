"""Dial, Scale and ReLU run as one, against the same layers one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import autodial.net.net
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net

INPUTS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 7 dim: 3 dim: 6 dim: 5 } } }
layer { name: "goal" type: "Input" top: "goal" input_param { shape { dim: 7 dim: 2 } } }
"""
FROZEN = "param { lr_mult: 0 } param { lr_mult: 0 }"


def conv(extra: str = "") -> str:
    return (
        f'layer {{ name: "conv" type: "Convolution" bottom: "data" top: "c" {extra} '
        'convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }'
    )


def dial(extra: str = "", options: str = "slice_point: 3", *, name: str = "dial", bottom: str = "c") -> str:
    return (
        f'layer {{ name: "{name}" type: "Dial" bottom: "{bottom}" top: "{name}" {extra} '
        f"dial_param {{ weight_filler {{ value: 0.7 }} {options} }} }}"
    )


def scale(extra: str = "", options: str = "bias_term: true", *, name: str = "scale", bottom: str = "dial") -> str:
    return (
        f'layer {{ name: "{name}" type: "Scale" bottom: "{bottom}" top: "{name}" {extra} '
        f'scale_param {{ filler {{ type: "uniform" min: -2 max: 2 }} {options} }} }}'
    )


def relu(extra: str = "", *, kind: str = "ReLU", top: str = "relu") -> str:
    return f'layer {{ name: "relu" type: "{kind}" bottom: "scale" top: "{top}" {extra} }}'


def silence(bottom: str) -> str:
    return f'layer {{ name: "also" type: "Silence" bottom: "{bottom}" }}'


def net_of(*layers: str, phase: int = pb.TRAIN, end: str = "relu", extra: str = "") -> Net:
    """A net of these layers and a loss of blob `end`."""
    loss = f"""
layer {{ name: "fc" type: "InnerProduct" bottom: "{end}" top: "fc"
  inner_product_param {{ num_output: 2 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "EuclideanLoss" bottom: "fc" bottom: "goal" top: "loss" }}
"""
    return Net(parse_net("\n".join([extra, INPUTS, *layers, loss])), phase, seed=3)


def random_inputs(net: Net) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(net.blob_shapes[name], generator=generator, dtype=torch.float64) for name in net.inputs}


def one_by_one(net: Net, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """All blobs."""
    values = dict(inputs)
    for i, message in enumerate(net.param.layer):
        if message.type != "Input":
            net.run_layer(i, values)
    return values


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of layers of each fused run."""
    counts: list[int] = []
    run = autodial.net.net.run_fused

    def counted(layers: list[object], bottom: Tensor) -> Tensor:
        counts.append(len(layers))
        return run(layers, bottom)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(autodial.net.net, "run_fused", counted)
        yield counts


def learn(net: Net, *, fused: bool) -> dict[str, Tensor]:
    """The loss, every learnable blob and statistic after the pass, and every gradient."""
    net.double()
    inputs = random_inputs(net)
    loss = net.loss(net(inputs)) if fused else one_by_one(net, inputs)["loss"]
    loss.backward()  # type: ignore[no-untyped-call]
    blobs = {f"{param.layer}/{param.index}": param.tensor for param in net.params}
    found = {f"gradient of {name}": blob.grad for name, blob in blobs.items() if blob.grad is not None}
    return {"loss": loss, **blobs, **found}


def assert_same(*layers: str, end: str = "relu", extra: str = "") -> dict[str, Tensor]:
    result, expected = (learn(net_of(*layers, end=end, extra=extra), fused=fused) for fused in (True, False))
    assert result.keys() == expected.keys()
    for name, value in result.items():
        torch.testing.assert_close(value, expected[name], msg=lambda text, name=name: f"{name}: {text}")
    return result


STOP = "propagate_down: false"


@pytest.mark.parametrize(
    ("layers", "count"),
    [
        pytest.param([conv(), dial(), scale(), relu()], 3, id="all three"),
        pytest.param([conv(), dial(), scale(options=""), relu()], 3, id="no bias"),
        pytest.param([conv(), dial(), scale(), relu(top="scale")], 3, id="in place"),
        pytest.param([conv(), dial(), scale(FROZEN), relu()], 3, id="frozen scale"),
        pytest.param([conv(FROZEN), dial(), scale(), relu()], 3, id="nothing to learn before"),
        pytest.param([conv(), dial("param { lr_mult: 0 }"), scale(), relu()], 3, id="frozen alpha"),
        pytest.param([conv(), dial(STOP), scale(), relu()], 3, id="stop at the Dial"),
        pytest.param([conv(), dial(options="use_global_stats: true"), scale(), relu()], 3, id="stored statistics"),
        pytest.param([conv(), dial(), scale()], 2, id="no ReLU"),
        pytest.param([conv(), dial(), scale(), relu(kind="AbsVal")], 2, id="another activation"),
        pytest.param([conv(), dial(), scale(), relu("relu_param { negative_slope: 0.1 }")], 2, id="leaky"),
        pytest.param([conv(), dial(), scale(), relu(STOP)], 2, id="stop at the ReLU"),
        pytest.param([conv(), dial(), scale(), relu(), silence("scale")], 2, id="another reader of Scale's top"),
        pytest.param([conv(), dial(), scale(STOP), relu()], None, id="stop at the Scale"),
        pytest.param([conv(), dial(), scale(options="axis: 2"), relu()], None, id="another axis"),
        pytest.param([conv(), dial(), scale(options="num_axes: 2"), relu()], None, id="two axes"),
        pytest.param([conv(), dial(), scale(), relu(), silence("dial")], None, id="another reader of Dial's top"),
    ],
)
def test_same_as_one_by_one(layers: list[str], count: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    end = "relu" if any('top: "relu"' in layer for layer in layers) else "scale"
    with counting(monkeypatch) as counts:
        assert_same(*layers, end=end)
    assert counts == ([count] if count else [])


def test_force_backward_gives_frozen_blobs_gradients() -> None:
    result = assert_same(conv(), dial(), scale(FROZEN), relu(), extra="force_backward: true")
    assert result.keys() >= {"gradient of scale/0"}


@pytest.mark.parametrize(("shape", "count"), [("", 3), ("share_mode: PERMISSIVE", None)])
def test_a_shared_scale_gets_the_sum_of_its_gradients(
    shape: str, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = 'param { name: "w" SHAPE }'
    owner = (
        'layer { name: "owner" type: "Parameter" top: "w" parameter_param { shape { dim: 2 dim: 2 } } '
        f"{shared.replace('SHAPE', '')} }} {silence('w')}"
        if shape
        else ""
    )
    second = [dial(name="dial2", bottom="relu"), scale(shared.replace("SHAPE", shape), "", name="s2", bottom="dial2")]
    first = scale(shared.replace("SHAPE", shape), "")
    with counting(monkeypatch) as counts:
        assert_same(owner, conv(), dial(), first, relu(), *second, end="s2")
    assert counts == ([3, 2] if count else [])


@pytest.mark.parametrize(("wanted", "fused"), [("dial", False), ("scale", False), ("relu", True), ("c", False)])
def test_a_blob_that_is_asked_for_is_there(wanted: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(conv(), dial(), scale(), relu()).double()
    inputs = random_inputs(net)
    expected = one_by_one(net, inputs)[wanted]
    with counting(monkeypatch) as counts:
        torch.testing.assert_close(net.blobs(inputs, [wanted])[wanted], expected)
    assert bool(counts) == fused


@pytest.mark.parametrize("watched", ["dial", "scale", "relu"])
def test_hooks_on_the_layers_are_called(watched: str) -> None:
    net = net_of(conv(), dial(), scale(), relu()).double()
    seen = []
    handle = net.layer(watched).register_forward_hook(lambda *_: seen.append(watched))
    net(random_inputs(net))
    handle.remove()
    net(random_inputs(net))
    assert seen == [watched]


def test_nothing_between_is_kept() -> None:
    net = net_of(conv(), dial(), scale(), relu()).double()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        net(random_inputs(net))
    activations = {tensor.data_ptr() for tensor in kept if tensor.numel() == 7 * 4 * 4 * 3}
    assert len(activations) == 2  # the convolution's top and the ReLU's


def test_in_the_test_phase_nothing_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(conv(), dial(), scale(), relu(), phase=pb.TEST).double()
    with counting(monkeypatch) as counts:
        net(random_inputs(net))
    assert not counts


def test_an_error_names_the_dial_layer() -> None:
    net = net_of(conv(), dial(), scale(), relu())
    with pytest.raises(InputError, match=r'layer "dial" \(Dial\): slice_point 3 leaves a batch of 2'):
        net({"data": torch.ones(2, 3, 6, 5), "goal": torch.ones(2, 2)})

"""Layers whose batch is shared out: what several threads give together is what one gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from autodial.layers import DomainAlignment
from autodial.layers.shares import Shares
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net
from autodial.training.data_parallel import DataParallel

T = TypeVar("T")
_SECONDS = 60

SOURCE, TARGET, CLASSES = 7, 5, 4
FRONT = f"""
layer {{ name: "source" type: "Input" top: "source" top: "label"
  input_param {{ shape {{ dim: {SOURCE} dim: 3 dim: 6 dim: 5 }} shape {{ dim: {SOURCE} }} }} }}
layer {{ name: "target" type: "Input" top: "target" input_param {{ shape {{ dim: {TARGET} dim: 3 dim: 6 dim: 5 }} }} }}
layer {{ name: "data" type: "Concat" bottom: "source" bottom: "target" top: "data" concat_param {{ axis: 0 }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
"""
BACK = f"""
layer {{ name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param {{ num_output: {CLASSES} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "slice" type: "Slice" bottom: "fc" top: "fc-source" top: "fc-target"
  slice_param {{ axis: 0 slice_point: {SOURCE} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc-source" bottom: "label" top: "loss" }}
layer {{ name: "entropy" type: "EntropyLoss" bottom: "fc-target" top: "entropy" loss_weight: 0.3 }}
"""
DIAL = f"""
layer {{ name: "dial" type: "Dial" bottom: "conv" top: "conv"
  dial_param {{ slice_point: {SOURCE} weight_filler {{ type: "constant" value: 0.8 }} }} }}
"""
SCALE = """
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true
  filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "uniform" min: -1 max: 1 } } }
"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }'
BATCH_NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }'
DROPOUT = 'layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" dropout_param { dropout_ratio: 0.4 } }'
PREDICTED = f"""
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 6 dim: {CLASSES} dim: 2 dim: 3 }} }} }}
layer {{ name: "y" type: "Input" top: "y" input_param {{ shape {{ dim: 6 dim: 1 dim: 2 dim: 3 }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "x" top: "scores"
  convolution_param {{ num_output: {CLASSES} kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
"""


class ThreadGroup:
    """One of several threads, as autodial.layers.shares.Group."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, tensors: list[Tensor]) -> None:
        self.rank, self.size, self._barrier, self._tensors = rank, size, barrier, tensors

    def share(self, rows: int, rank: int | None = None) -> slice:
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.size, rows * (rank + 1) // self.size)

    def gather(self, tensor: Tensor) -> Tensor:
        self._tensors[self.rank] = tensor
        self._barrier.wait(_SECONDS)
        together = torch.stack(self._tensors)
        self._barrier.wait(_SECONDS)
        return together

    def sum(self, tensor: Tensor) -> Tensor:
        return self.gather(tensor).sum(0)


def on_threads(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """What `work` returns on each of several threads that are a group."""
    barrier, tensors = threading.Barrier(size), [torch.empty(0)] * size
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadGroup(rank, size, barrier, tensors) for rank in range(size)]))


def made(text: str) -> Net:
    return Net(parse_net(text), pb.TRAIN, seed=3).double()


def inputs_of(net: Net, offset: float = 0.0) -> dict[str, Tensor]:
    """Labels for blobs called so, else normal values."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randint(-1 if name == "y" else 0, CLASSES, shape, generator=generator).double()
        if name in ("label", "y")
        else torch.randn(shape, generator=generator, dtype=torch.float64) + offset
        for name, shape in ((name, net.blob_shapes[name]) for name in net.inputs)
    }


def run(net: Net, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Output blobs and gradients of two passes, of which the second finds the statistics of the first."""
    for pass_ in range(2):
        net.zero_grad()
        net.seed_pass(0, pass_)
        outputs = net(inputs)
        if net.loss_weights:
            net.loss(outputs).backward()
    return outputs, [param.tensor.grad for param in net.params if param.tensor.grad is not None]


def statistics(net: Net) -> list[Tensor]:
    layers: list[Any] = list(net.layers.values())
    return [layer.blobs[i] for layer in layers for i in layer.statistics]


def check(text: str, size: int, *, offset: float = 0.0, fused: bool = True) -> dict[str, Tensor]:
    """Check that several threads' outputs, gradients and statistics are one's; returns the outputs."""
    whole = made(text)
    inputs = inputs_of(whole, offset)
    outputs, gradients = run(whole, inputs)

    def work(group: ThreadGroup) -> tuple[Net, dict[str, Tensor], list[Tensor]]:
        net = made(text)
        parallel = DataParallel(net, group)
        if not fused:
            for layer in net.layers.values():
                layer.register_forward_hook(lambda *_: None)  # a layer with a hook is run by itself
        here, gradients = run(net, {name: blob[group.share(len(blob))] for name, blob in inputs.items()})
        return net, parallel.outputs(here), gradients

    for net, theirs, _ in (ranks := on_threads(size, work)):
        for name, value in outputs.items():
            torch.testing.assert_close(theirs[name], value, rtol=1e-9, atol=1e-11, equal_nan=True)
        torch.testing.assert_close(statistics(net), statistics(whole), rtol=1e-9, atol=1e-11)
    summed = [torch.stack(some).sum(0) for some in zip(*(gradients for _, _, gradients in ranks), strict=True)]
    torch.testing.assert_close(summed, gradients, rtol=1e-8, atol=1e-10)
    return outputs


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "middle", [DIAL, DIAL + RELU, DIAL + SCALE, DIAL + SCALE + RELU, BATCH_NORM, BATCH_NORM + RELU]
)
def test_statistics_and_gradients_are_those_of_the_whole_batch(middle: str, size: int) -> None:
    check(FRONT + middle + BACK, size)


def test_layers_run_one_by_one_share_too() -> None:
    check(FRONT + DIAL + SCALE + RELU + BACK, 3, fused=False)


def test_batch_norm_is_torch_s() -> None:
    x = torch.randn(7, 3, 4, dtype=torch.float64) * 3 + 5
    weight = torch.randn_like(x)
    leaf = x.clone().requires_grad_()
    expected = torch.nn.functional.batch_norm(leaf, None, None, training=True)
    (expected * weight).sum().backward()

    def work(group: ThreadGroup) -> tuple[Tensor, Tensor]:
        net = made('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 7 dim: 3 dim: 4 } } }'
                   'layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" }')  # fmt: skip
        DataParallel(net, group)
        rows = group.share(7)
        here = x[rows].clone().requires_grad_()
        y = net({"x": here})["y"]
        (y * weight[rows]).sum().backward()
        assert here.grad is not None
        return y.detach(), here.grad

    tops, gradients = zip(*on_threads(3, work), strict=True)
    torch.testing.assert_close(torch.cat(tops), expected.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.cat(gradients), leaf.grad, rtol=1e-9, atol=1e-9)


def test_large_offsets_cost_no_more_than_in_one_process() -> None:
    x = (torch.randn(64, 5, 9) + 1e4).contiguous()
    exact = x.double()
    layer = DomainAlignment(5, slice_point=40, alpha=0.7)
    moments = torch.stack(
        [torch.stack([part.mean((0, 2)), part.var((0, 2), correction=0)]) for part in exact.split([40, 24])]
    )
    (source, target), alpha = moments, 0.7
    variance = alpha * source[1] + (1 - alpha) * target[1] + alpha * (1 - alpha) * (source[0] - target[0]) ** 2
    mean = alpha * source[0] + (1 - alpha) * target[0]
    expected = (exact[:40] - mean[:, None]) / (variance[:, None] + layer.eps).sqrt()

    def work(group: ThreadGroup) -> Tensor:
        mine = DomainAlignment(5, slice_point=40, alpha=0.7)
        mine.shares = Shares(group, (40, 24))
        return mine(mine.shares.take(x))[: mine.shares.before(40)].detach()

    got = torch.cat(on_threads(4, work))
    one = layer(x)[:40].detach()
    assert (got - expected).abs().max() <= max(1.5 * (one - expected).abs().max().item(), 2e-3)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "layer",
    [
        'type: "Dropout"',
        'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }',
        'type: "SPP" spp_param { pyramid_height: 2 pool: STOCHASTIC }',
    ],
)
def test_random_layers_draw_as_one_process(size: int, memory_format: torch.memory_format, layer: str) -> None:
    x = torch.rand(6, 4, 4, 4).contiguous(memory_format=memory_format)
    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 6 dim: 4 dim: 4 dim: 4 } } }'
        f'layer {{ name: "random" bottom: "x" top: "y" {layer} }}'
    )
    whole = made(text)
    whole.seed_pass(5)
    expected = whole({"x": x})["y"]

    def work(group: ThreadGroup) -> Tensor:
        net = made(text)
        DataParallel(net, group)
        net.seed_pass(5)
        top: Tensor = net({"x": x[group.share(6)]})["y"]
        return top

    assert torch.equal(torch.cat(on_threads(size, work)), expected)


def test_dropout_in_a_net() -> None:
    check(FRONT + DIAL + DROPOUT + BACK, 2)


def test_random_data_is_that_of_one_process() -> None:
    text = """
      layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
        shape { dim: 5 dim: 3 } shape { dim: 5 dim: 2 } data_filler { type: "gaussian" std: 2 }
        data_filler { type: "constant" value: 0.5 } } }
      layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 2
        weight_filler { type: "xavier" } } }
      layer { name: "loss" type: "EuclideanLoss" bottom: "fc" bottom: "t" top: "loss" }
    """
    assert check(text, 2)["loss"] != 0


@pytest.mark.parametrize("normalization", ["VALID", "FULL", "BATCH_SIZE", "NONE"])
@pytest.mark.parametrize(
    "loss",
    [
        'type: "SoftmaxWithLoss" bottom: "scores" bottom: "y" top: "loss" top: "p"'
        " loss_param {{ ignore_label: -1 normalization: {} }}",
        'type: "EntropyLoss" bottom: "scores" top: "loss" loss_param {{ normalization: {} }}',
        'type: "SigmoidCrossEntropyLoss" bottom: "scores" bottom: "x" top: "loss"'
        " loss_param {{ ignore_label: 0 normalization: {} }}",
    ],
)
def test_losses_are_normalized_over_the_whole_batch(loss: str, normalization: str) -> None:
    check(PREDICTED + f'layer {{ name: "loss" {loss.format(normalization)} }}', 4)


@pytest.mark.parametrize(
    "loss",
    [
        'type: "EuclideanLoss" bottom: "scores" bottom: "x" top: "loss"',
        'type: "Accuracy" bottom: "scores" bottom: "y" top: "a" top: "per class"'
        " accuracy_param { top_k: 2 ignore_label: -1 }",
        'type: "Reduction" bottom: "scores" top: "sum" loss_weight: 0.5 reduction_param { operation: SUMSQ }',
        'type: "Reduction" bottom: "scores" top: "mean" loss_weight: 2 reduction_param { operation: MEAN axis: 1 }',
    ],
)
def test_other_ends_of_a_net(loss: str) -> None:
    check(PREDICTED + f'layer {{ name: "end" {loss} }}', 4)


@pytest.mark.parametrize(
    "loss",
    [
        'type: "HingeLoss" bottom: "fc" bottom: "label" hinge_loss_param { norm: L2 }',
        'type: "MultinomialLogisticLoss" bottom: "p" bottom: "label"',
        'type: "ContrastiveLoss" bottom: "fc" bottom: "p" bottom: "label"',
        'type: "SmoothL1Loss" bottom: "fc" bottom: "p" smooth_l1_loss_param { sigma: 2 }',
        'type: "SmoothL1LossOHEM" bottom: "fc" bottom: "p" bottom: "p"',
        'type: "SmoothL1LossOHEM" bottom: "fc" bottom: "p" loss_param { normalization: PRE_FIXED }',
    ],
)
def test_losses_of_rows(loss: str) -> None:
    text = f"""
      layer {{ name: "x" type: "Input" top: "x" top: "label"
        input_param {{ shape {{ dim: 5 dim: 3 }} shape {{ dim: 5 }} }} }}
      layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param {{ num_output: {CLASSES}
        weight_filler {{ type: "xavier" }} }} }}
      layer {{ name: "p" type: "Softmax" bottom: "fc" top: "p" }}
      layer {{ name: "loss" {loss} top: "loss" }}
    """
    check(text, 3)


def test_a_share_that_ignores_all_its_labels() -> None:
    text = (
        PREDICTED
        + """
      layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "y" top: "loss"
        loss_param { ignore_label: -1 } }
      layer { name: "accuracy" type: "Accuracy" bottom: "scores" bottom: "y" top: "accuracy"
        accuracy_param { ignore_label: -1 } }
    """
    )
    net = made(text)
    inputs = inputs_of(net)
    inputs["y"][:3] = -1
    expected = net(inputs)

    def work(group: ThreadGroup) -> dict[str, Tensor]:
        mine = made(text)
        parallel = DataParallel(mine, group)
        return parallel.outputs(mine({name: blob[group.share(6)] for name, blob in inputs.items()}))

    for outputs in on_threads(2, work):
        torch.testing.assert_close(outputs, dict(expected))

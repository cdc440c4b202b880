"""The DA-layer against torch's batch normalization: forward and backward passes of both, side by side.

    python benchmarks/alignment.py [--device cpu|cuda] [--threads N] [--quick]

Batch normalization is torch.nn.BatchNorm in training mode without weight and bias. Times are the least of all rounds;
the ratio is the median of the rounds' ratios, in which both met the same state of the machine and of its memory, with
their middle half. Memory is what tensors take at most beyond inputs and gradients that are there before; statistics
that numpy holds, some rows of C numbers, are not in it.

On a GPU, cuDNN is batch normalization with weight and bias, DA-layer with scale the same of the DA-layer, and torch the
DA-layer by torch's kernels instead of Triton's. Of each, `busy` is the time of the GPU's kernels alone. The share of a
device copy's bandwidth is that of the busy DA-layer, and counts 8 passes over the data: forward two reads and a write,
backward two reads each of the layer's output and the gradient, and a write.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from measuring import busy_seconds, describe, peak_bytes, seconds, side_by_side
from torch import Tensor, nn

from autodial.layers import DomainAlignment, alignment_torch
from autodial.layers.alignment import align
from autodial.system.devices import choose_device

SHAPES = [(48, 64, 112, 112), (48, 192, 56, 56), (256, 4096)]
QUICK = [(6, 8, 14, 14), (16, 32)]
PASSES = 3 + 5
"""Reads and writes of a blob, forward and backward."""


def step(layer: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], None]:
    def run() -> None:
        layer(x).backward(grad)
        x.grad = None
        layer.zero_grad(set_to_none=True)

    return run


def by_torch(layer: DomainAlignment, x: Tensor, grad: Tensor) -> Callable[[], None]:
    """A step of the layer's alignment with the kernels that the CPU has."""

    def run() -> None:
        (n,) = layer.points(len(x))
        align(x, layer.alpha, n, layer.eps, kernels=alignment_torch)[0].backward(grad)
        x.grad = layer.alpha.grad = None

    return run


@cache
def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    source = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = min(seconds(lambda: target.copy_(source), device, 10) for _ in range(5))
    return 2 * source.numel() / best


@dataclass(frozen=True)
class Measured:
    """Forward and backward passes over a blob.

    Attributes:
        times: seconds of each round, by the name of what ran.
        memory: MiB that tensors take at most.
        busy: seconds of the GPU's kernels in one run, without the gaps between them; nothing for the CPU.
        of_a_copy: bytes that the layer's kernels move a second, to those of a copy; None for the CPU.
    """

    times: dict[str, list[float]]
    memory: dict[str, float]
    busy: dict[str, float]
    of_a_copy: float | None

    def ratios(self, name: str, to: str) -> tuple[float, float, float]:
        """Quartiles of the rounds' ratios of two times."""
        low, middle, high = statistics.quantiles(
            (a / b for a, b in zip(self.times[name], self.times[to], strict=True)), n=4
        )
        return low, middle, high


def measure(
    shape: tuple[int, ...],
    memory_format: torch.memory_format,
    device: torch.device,
    rounds: int,
    dtype: torch.dtype = torch.float32,
) -> Measured:
    x, grad = (torch.randn(shape, device=device).to(dtype, memory_format=memory_format) for _ in range(2))
    x.requires_grad_()
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    dial = DomainAlignment(shape[1], slice_point=shape[0] * 117 // 256, alpha=0.8)
    layers: dict[str, nn.Module] = {"BatchNorm": kind(shape[1], affine=False), "DA-layer": dial}
    if device.type == "cuda":
        layers["cuDNN"] = kind(shape[1])  # torch takes cuDNN where there are a weight and a bias
        layers["DA-layer with scale"] = Scaled(shape[1], dial)
    runs = {name: step(layer.to(device), x, grad) for name, layer in layers.items()}
    if device.type == "cuda":
        runs["torch"] = by_torch(dial, x, grad)
    # on a GPU, so many in a row that the program is ahead of it
    repeats = 10 if device.type == "cuda" else 5 if math.prod(shape) < 5e6 else 1
    times = side_by_side(runs, device, rounds=rounds * (5 if repeats == 5 else 1), repeats=repeats, warmup=3)
    memory = {name: peak_bytes(run, device) / 2**20 for name, run in runs.items()}
    if device.type != "cuda":
        return Measured(times, memory, {}, None)
    busy = {name: busy_seconds(run, device) for name, run in runs.items()}
    moved = PASSES * x.numel() * x.element_size()
    return Measured(
        times, memory, busy, moved / busy["DA-layer"] / copy_bandwidth(device) if busy["DA-layer"] else None
    )


class Scaled(nn.Module):
    """A DA-layer with a scale and a bias per channel, in the same passes."""

    def __init__(self, channels: int, dial: DomainAlignment) -> None:
        super().__init__()
        self.dial = dial
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.dial.scaled(x, self.weight, self.bias)


def layouts(shape: tuple[int, ...]) -> list[torch.memory_format]:
    """The memory formats that a blob of this shape can have."""
    return [torch.contiguous_format, torch.channels_last][: 2 if len(shape) == 4 else 1]


def named(shape: tuple[int, ...], memory_format: torch.memory_format) -> str:
    layout = "channels-last" if memory_format == torch.channels_last else "contiguous"
    return f"{'x'.join(map(str, shape)):>16} {layout:13}"


def line(shape: tuple[int, ...], memory_format: torch.memory_format, measured: Measured) -> str:
    ours, theirs = (min(measured.times[name]) for name in ("DA-layer", "BatchNorm"))
    low, middle, high = measured.ratios("DA-layer", "BatchNorm")
    memory = measured.memory
    text = (
        f"{named(shape, memory_format)} {theirs * 1000:9.3f} ms {ours * 1000:9.3f} ms "
        f"x{middle:.2f} ({low:.2f} to {high:.2f}) "
        f"{memory['BatchNorm']:8.1f} MiB {memory['DA-layer']:8.1f} MiB x{memory['DA-layer'] / memory['BatchNorm']:.2f}"
    )
    if measured.of_a_copy is not None:
        text += f" {measured.of_a_copy:.0%} of a copy's bandwidth"
    for name in measured.busy:
        text += f", {name} {min(measured.times[name]) * 1000:.3f} ms, {measured.busy[name] * 1000:.3f} of them busy"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU (default: 1)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="small shapes, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = choose_device(arguments.device)
    print(describe(device))
    print(
        f"{'shape':>16} {'layout':13} {'BatchNorm':>12} {'DA-layer':>12} ratio (middle half) peak memory of both, ratio"
    )
    for shape in QUICK if arguments.quick else SHAPES:
        for memory_format in layouts(shape):
            measured = measure(shape, memory_format, device, 2 if arguments.quick else arguments.rounds)
            print(line(shape, memory_format, measured))


if __name__ == "__main__":
    main()

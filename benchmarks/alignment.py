"""The DA-layer against torch's batch normalization: forward and backward passes of both, side by side.

    python benchmarks/alignment.py [--device cpu|cuda] [--threads N] [--quick]

Batch normalization is torch.nn.BatchNorm in training mode without weight and bias. Times are the least of all rounds;
the ratio is the median of the rounds' ratios, in which both met the same state of the machine and of its memory, with
their middle half. Memory is what tensors take at most beyond inputs and gradients that are there before; statistics
that numpy holds, some rows of C numbers, are not in it. On a GPU the share of a device copy's bandwidth counts 8 passes
over the data: forward two reads and a write, backward two reads each of the layer's output and the gradient, and a
write. The time behind it is that of the alignment by torch's kernels instead of Triton's.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable

import torch
from measuring import describe, peak_bytes, seconds, side_by_side
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


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    source = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = min(seconds(lambda: target.copy_(source), device, 10) for _ in range(5))
    return 2 * source.numel() / best


def measure(shape: tuple[int, ...], memory_format: torch.memory_format, device: torch.device, rounds: int) -> None:
    x, grad = (torch.randn(shape, device=device).to(memory_format=memory_format) for _ in range(2))
    x.requires_grad_()
    norm = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(shape[1], affine=False)
    dial = DomainAlignment(shape[1], slice_point=shape[0] * 117 // 256, alpha=0.8)
    runs = {name: step(layer.to(device), x, grad) for name, layer in (("BatchNorm", norm), ("DA-layer", dial))}
    if device.type == "cuda":
        runs["torch"] = by_torch(dial, x, grad)
    small = math.prod(shape) < 5e6
    times = side_by_side(runs, device, rounds=rounds * (5 if small else 1), repeats=5 if small else 1, warmup=3)
    memory = {name: peak_bytes(run, device) / 2**20 for name, run in runs.items()}
    ours, theirs = (min(times[name]) for name in ("DA-layer", "BatchNorm"))
    low, middle, high = statistics.quantiles(
        (a / b for a, b in zip(times["DA-layer"], times["BatchNorm"], strict=True)), n=4
    )
    layout = "channels-last" if memory_format == torch.channels_last else "contiguous"
    line = (
        f"{'x'.join(map(str, shape)):>16} {layout:13} {theirs * 1000:9.3f} ms {ours * 1000:9.3f} ms "
        f"x{middle:.2f} ({low:.2f} to {high:.2f}) "
        f"{memory['BatchNorm']:8.1f} MiB {memory['DA-layer']:8.1f} MiB x{memory['DA-layer'] / memory['BatchNorm']:.2f}"
    )
    if device.type == "cuda":
        bandwidth = PASSES * x.numel() * x.element_size() / ours
        line += f" {bandwidth / copy_bandwidth(device):.0%} of a copy's bandwidth"
        line += f", torch's kernels {min(times['torch']) * 1000:.3f} ms"
    print(line)


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
        for memory_format in (torch.contiguous_format, torch.channels_last)[: 2 if len(shape) == 4 else 1]:
            measure(shape, memory_format, device, 2 if arguments.quick else arguments.rounds)


if __name__ == "__main__":
    main()

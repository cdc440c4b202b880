"""A training step of torchvision's ResNet-50 with domain alignment against the same net with its batch normalization.

    python benchmarks/resnet50_step.py [--batch-size N] [--rounds N] [--device cpu|cuda] [--threads N] [--quick]

A step is forward, cross-entropy of the first half (for the aligned net also the entropy of the second), backward and
an update of SGD with momentum, on random images. Seconds are CPU time on the CPU, and the GPU's own on a GPU; memory is
what tensors take at most beyond the net.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measuring import describe, peak_bytes, side_by_side
from torch import Tensor, nn
from torchvision.models import resnet50

from autodial.converters import AutoDIAL, convert_batchnorm
from autodial.layers import EntropyLoss
from autodial.system.devices import choose_device

CLASSES = 31


def step(net: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16, help="of both domains together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU (default: 1)")
    parser.add_argument("--quick", action="store_true", help="one round on small images, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.batch_size = 1, 4
    torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    side = 32 if options.quick else 224

    half = options.batch_size // 2
    images = torch.randn(2 * half, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(half, device=device) % CLASSES
    plain = resnet50(num_classes=CLASSES).to(device, memory_format=torch.channels_last).train()
    aligned = AutoDIAL(convert_batchnorm(copy.deepcopy(plain))).train()
    entropy = EntropyLoss()

    def aligned_loss() -> Tensor:
        source, target = aligned(images[:half], images[half:])
        return F.cross_entropy(source, labels) + 0.1 * entropy(target)

    runs = {
        "BatchNorm": step(plain, lambda: F.cross_entropy(plain(images)[:half], labels)),
        "aligned": step(aligned, aligned_loss),
    }
    times = side_by_side(runs, device, rounds=options.rounds)
    memory = {name: peak_bytes(run, device) / 2**20 for name, run in runs.items()}
    print(f"{describe(device)}; ResNet-50, {2 * half} images of {side} x {side}, channels-last")
    for name in runs:
        rates = sorted(2 * half / spent for spent in times[name])
        print(
            f"  {name:10} {statistics.median(rates):7.1f} images/s ({rates[0]:.1f} to {rates[-1]:.1f}), "
            f"{memory[name]:6.0f} MiB"
        )
    ratios = [a / b for a, b in zip(times["aligned"], times["BatchNorm"], strict=True)]
    share = memory["aligned"] / memory["BatchNorm"]
    print(
        f"  the aligned step takes x{statistics.median(ratios):.2f} the time ({min(ratios):.2f} to {max(ratios):.2f}) "
        f"and x{share:.2f} the memory"
    )


if __name__ == "__main__":
    main()

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from measuring import describe, peak_bytes, side_by_side, tf32
from torch import Tensor, nn
from torchvision.models import resnet50

from autodial.converters import AutoDIAL, convert_batchnorm
from autodial.layers import EntropyLoss
from autodial.system.devices import choose_device

CLASSES = 31


def step(net: nn.Module, loss: Callable[[], Tensor], device: torch.device, form: str) -> Callable[[], None]:
    """A function that does a training step, with TF32 or bf16 if the form ends in that."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        with tf32(form.endswith("TF32")):
            with torch.autocast(device.type, torch.bfloat16, enabled=form.endswith("bf16")):
                value = loss()
            value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


@dataclass(frozen=True)
class Measured:
    """Seconds of each round and MiB that tensors take at most, by form, for a batch of `images`."""

    images: int
    times: dict[str, list[float]]
    memory: dict[str, float]

    def rates(self, form: str) -> list[float]:
        """Images per second of each round, the least first."""
        return sorted(self.images / spent for spent in self.times[form])

    def ratios(self, form: str, to: str) -> list[float]:
        """The rounds' ratios of two times, the least first."""
        return sorted(a / b for a, b in zip(self.times[form], self.times[to], strict=True))


def measure(
    batch_size: int, side: int, rounds: int, device: torch.device, precisions: Sequence[str] = ("",)
) -> Measured:
    """Steps of both nets; a precision is "", float32 without TF32, or "TF32" or "bf16", and part of the form's name."""
    half = batch_size // 2
    images = torch.randn(2 * half, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(half, device=device) % CLASSES
    plain = resnet50(num_classes=CLASSES).to(device, memory_format=torch.channels_last).train()
    aligned = AutoDIAL(convert_batchnorm(copy.deepcopy(plain))).train()
    entropy = EntropyLoss()

    def plain_loss() -> Tensor:
        return F.cross_entropy(plain(images)[:half].float(), labels)

    def aligned_loss() -> Tensor:
        source, target = aligned(images[:half], images[half:])
        return F.cross_entropy(source.float(), labels) + 0.1 * entropy(target.float())

    runs = {}
    for precision in precisions:
        for name, net, loss in (("BatchNorm", plain, plain_loss), ("aligned", aligned, aligned_loss)):
            form = f"{name} {precision}".rstrip()
            runs[form] = step(net, loss, device, form)
    times = side_by_side(runs, device, rounds=rounds, repeats=3 if device.type == "cuda" else 1)
    return Measured(2 * half, times, {form: peak_bytes(run, device) / 2**20 for form, run in runs.items()})


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
    measured = measure(options.batch_size, side, options.rounds, device)
    print(f"{describe(device)}; ResNet-50, {measured.images} images of {side} x {side}, channels-last")
    for form, memory in measured.memory.items():
        rates = measured.rates(form)
        speed = f"{statistics.median(rates):7.1f} images/s ({rates[0]:.1f} to {rates[-1]:.1f})"
        print(f"  {form:10} {speed}, {memory:6.0f} MiB")
    ratios = measured.ratios("aligned", "BatchNorm")
    share = measured.memory["aligned"] / measured.memory["BatchNorm"]
    print(
        f"  the aligned step takes x{statistics.median(ratios):.2f} the time ({min(ratios):.2f} to {max(ratios):.2f}) "
        f"and x{share:.2f} the memory"
    )


if __name__ == "__main__":
    main()

"""Training steps of Caffe nets on synthetic input, against the same net run plainly: images per second and peak memory.

    python benchmarks/training_step.py [NET.prototxt ...] [--steps N] [--device cpu|cuda] [--threads N] [--quick]

Each net's TRAIN phase is run as it stands, its image lists replaced by random images of the same batch size, so that a
step is forward, backward and update of SGD with momentum and weight decay. Three forms of it take turns:

- plain: contiguous images, every layer by itself, and Dial as a few lines that autograd differentiates (plain.py)
- ours: as `autodial train` runs it
- bf16: ours, with --precision bf16

Seconds are CPU time on the CPU, and the GPU's own on a GPU. Memory is what tensors take at most beyond the net, its
input and the update's history. For ours torch's profiler says how much of the backward pass each kind of layer took, so
that frozen layers show as missing there.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import describe, peak_bytes, side_by_side
from plain import PlainAlignment
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from autodial.evaluation.timing import replace_missing_data
from autodial.layers import registry
from autodial.net.feed import image_format
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_net
from autodial.proto import messages as pb
from autodial.proto import read_net
from autodial.system.allocator import keep_freed_memory
from autodial.system.devices import choose_device
from autodial.training.update import SGD

CLASSES = 10


def plainly(param: Any) -> Net:
    """The TRAIN net with Dial layers that autograd differentiates."""
    aligned = registry["Dial"]
    registry["Dial"] = PlainAlignment
    try:
        return Net(param, pb.TRAIN)
    finally:
        registry["Dial"] = aligned


def batch(net: Net) -> dict[str, Tensor]:
    """Random images and labels for the net's inputs."""
    return {
        name: torch.randn(shape) * 50 if len(shape) > 1 else torch.randint(CLASSES, shape).float()
        for name, shape in ((name, net.blob_shapes[name]) for name in net.inputs)
    }


def stepper(net: Net, inputs: dict[str, Tensor], device: torch.device, *, bf16: bool) -> Callable[[], None]:
    """A function that does a training step."""
    update = SGD(pb.SolverParameter(momentum=0.9, weight_decay=0.0005), net.params)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            outputs = net(inputs)
        net.loss(outputs).backward()  # type: ignore[no-untyped-call]
        update.step(1e-5, 0)
        net.zero_grad(set_to_none=True)

    return step


def backward_by_kind(run: Any, device: torch.device) -> dict[str, float]:
    """Milliseconds of the backward pass by autograd node, the largest first."""
    total: defaultdict[str, float] = defaultdict(float)
    for event in run.key_averages():
        prefix = "autograd::engine::evaluate_function: "
        if event.key.startswith(prefix):
            used = event.device_time_total if device.type == "cuda" else event.cpu_time_total
            total[event.key.removeprefix(prefix)] += used / 1000
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def measure(path: Path, steps: int, device: torch.device) -> None:
    param, _ = replace_missing_data(filter_net(read_net(path), pb.TRAIN), path.parent)
    nets = {
        "plain": plainly(param).to(device),
        "ours": Net(param, pb.TRAIN).to(device),
        "bf16": Net(param, pb.TRAIN).to(device),
    }
    fed = {name: tensor.to(device) for name, tensor in batch(nets["ours"]).items()}
    runs = {}
    for name, net in nets.items():
        layout = torch.contiguous_format if name == "plain" else image_format(net, device)
        inputs = {blob: x.contiguous(memory_format=layout) if x.dim() == 4 else x for blob, x in fed.items()}
        runs[name] = stepper(net, inputs, device, bf16=name == "bf16")
    times = side_by_side(runs, device, rounds=steps)
    memory = {name: peak_bytes(run, device) / 2**20 for name, run in runs.items()}
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")) as profiled:
        runs["ours"]()

    net = nets["ours"]
    images = sum(net.blob_shapes[name][0] for name in net.inputs if len(net.blob_shapes[name]) > 1)
    frozen = sum(not learnable.lr_mult for learnable in net.params)
    print(f"{net.param.name} ({path}): batch of {images}, {len(net.layer_names)} layers, {frozen} frozen blobs")
    for name in runs:
        rates = sorted(images / spent for spent in times[name])
        faster = statistics.median(a / b for a, b in zip(times["plain"], times[name], strict=True))
        print(
            f"  {name:6} {statistics.median(rates):8.1f} images/s ({rates[0]:.1f} to {rates[-1]:.1f}), "
            f"x{faster:.2f}; {memory[name]:7.0f} MiB, x{memory[name] / memory['plain']:.2f}"
        )
    rows = list(backward_by_kind(profiled, device).items())[:8]
    print("  backward of ours: " + ", ".join(f"{name} {milliseconds:.0f} ms" for name, milliseconds in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", type=Path, help="default: the shipped net of the digits")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a single step, to see that it runs")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    device = choose_device(arguments.device)
    print(describe(device))
    for path in arguments.nets or [shipped_net("digits")]:
        measure(path, 1 if arguments.quick else arguments.steps, device)


if __name__ == "__main__":
    main()

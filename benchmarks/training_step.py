"""Training steps of Caffe nets on synthetic input: images per second, peak memory, and time by kind of work.

    python benchmarks/training_step.py NET.prototxt [NET.prototxt ...] [--steps N] [--device cpu|cuda]

Each net's TRAIN phase is run as it stands, its image lists replaced by random images of the same batch size, so that a
step is forward, backward and update of SGD with momentum and weight decay. For the last step torch's profiler says how
much of the backward pass each kind of layer took, so that frozen layers show as missing there.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from autodial.devices import choose_device
from autodial.net import Net
from autodial.net_state import filter_net
from autodial.proto import messages as pb
from autodial.proto import read_net
from autodial.update import SGD

CLASSES = 10


def synthetic(path: Path) -> Net:
    """The TRAIN net with Input layers of the image lists' batch shapes."""
    param = filter_net(read_net(path), pb.TRAIN)
    for layer in param.layer:
        if layer.type == "ImageData":
            size, batch = layer.transform_param.crop_size, layer.image_data_param.batch_size
            layer.type = "Input"
            layer.ClearField("transform_param")
            layer.ClearField("image_data_param")
            layer.input_param.shape.add(dim=[batch, 3, size, size])
            layer.input_param.shape.add(dim=[batch])
    return Net(param, pb.TRAIN)


def batch(net: Net, device: torch.device) -> dict[str, Tensor]:
    """Random images and labels for the net's inputs."""
    return {
        name: torch.randn(shape, device=device) * 50
        if len(shape := net.blob_shapes[name]) > 1
        else torch.randint(CLASSES, shape, device=device).float()
        for name in net.inputs
    }


class Stopwatch:
    """Seconds since the last call, with the device's queue emptied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = 0.0

    def __call__(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def step(net: Net, update: SGD, inputs: dict[str, Tensor], clock: Stopwatch) -> tuple[float, float, float]:
    """Seconds of forward, backward and update."""
    net.zero_grad(set_to_none=True)
    clock()
    loss = net.loss(net(inputs))
    forward = clock()
    loss.backward()  # type: ignore[no-untyped-call]
    backward = clock()
    update.step(0.001, 0)
    return forward, backward, clock()


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
    net = synthetic(path).to(device)
    update = SGD(pb.SolverParameter(momentum=0.9, weight_decay=0.0005), net.params)
    inputs = batch(net, device)
    images = sum(net.blob_shapes[name][0] for name in net.inputs if len(net.blob_shapes[name]) > 1)
    clock = Stopwatch(device)
    step(net, update, inputs, clock)
    times = [step(net, update, inputs, clock) for _ in range(steps)]
    if device.type == "cuda":
        memory = f"{torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB on the GPU"
    else:
        memory = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB of the process so far"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities) as run:
        step(net, update, inputs, clock)
    forward, backward, updated = (statistics.median(column) * 1000 for column in zip(*times, strict=True))
    totals = sorted(images / sum(row) for row in times)
    frozen = sum(not param.lr_mult for param in net.params)
    print(f"{net.param.name} ({path.name}): batch of {images}, {len(net.layer_names)} layers, {frozen} frozen blobs")
    print(f"  images/s  {statistics.median(totals):.1f} (of {steps} steps: {totals[0]:.1f} to {totals[-1]:.1f})")
    print(f"  ms        forward {forward:.0f}, backward {backward:.0f}, update {updated:.1f}")
    print(f"  peak      {memory}")
    rows = list(backward_by_kind(run, device).items())[:8]
    print("  backward  " + ", ".join(f"{name} {milliseconds:.0f} ms" for name, milliseconds in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {name}, {torch.get_num_threads()} threads")
    for path in arguments.nets:
        measure(path, arguments.steps, device)


if __name__ == "__main__":
    main()

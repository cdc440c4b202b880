"""Training steps of Caffe nets on synthetic input, against the same net run plainly: images per second and peak memory.

    python benchmarks/training_step.py [NET.prototxt ...] [--steps N] [--batch-size N] [--device cpu|cuda]
                                       [--threads N] [--quick]

Each net's TRAIN phase is run as it stands, its image lists replaced by random images of the same batch size, so that a
step is forward, backward and update of SGD with momentum and weight decay. These forms of it
take turns:

- plain: contiguous images, every layer by itself, and Dial as a few lines that autograd differentiates (plain.py)
- BatchNorm: ours, with torch's batch normalization of both domains together in Dial's places
- ours: as `autodial train` runs it
- TF32, on a GPU: ours, products and convolutions in TF32
- bf16: ours, with --precision bf16

Seconds are CPU time on the CPU, and the GPU's own on a GPU. Memory is what tensors take at most beyond the net, its
input and the update's history. For ours torch's profiler says how much of the backward pass each kind of layer took, so
that frozen layers show as missing there.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import describe, peak_bytes, side_by_side, tf32
from plain import BatchNormalization, PlainAlignment
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from autodial.evaluation.timing import replace_missing_data
from autodial.layers import DomainAlignment, registry
from autodial.net.feed import image_format
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.netparam.overrides import apply_to_nets
from autodial.netparam.shipped import shipped_net
from autodial.proto import messages as pb
from autodial.proto import read_net
from autodial.system.allocator import keep_freed_memory
from autodial.system.devices import choose_device
from autodial.training.update import SGD

CLASSES = 10


def with_layer(kind: type[DomainAlignment], param: Any) -> Net:
    """The TRAIN net with Dial layers of another class."""
    aligned = registry["Dial"]
    registry["Dial"] = kind
    try:
        return Net(param, pb.TRAIN)
    finally:
        registry["Dial"] = aligned


def batch_settings(param: Any, batch: int) -> list[str]:
    """Settings that share out `batch` images over the two domains of a TRAIN net in the proportion of its own batch."""
    data = [layer for layer in param.layer if layer.type == "ImageData"]
    rows = [layer.image_data_param.batch_size for layer in data]
    source = round(batch * rows[0] / sum(rows))
    counts = zip(data, (source, batch - source), strict=True)
    return [
        *(f"{layer.name}.image_data_param.batch_size={count}" for layer, count in counts),
        *(f"{layer.name}.dial_param.slice_point={source}" for layer in param.layer if layer.type == "Dial"),
        *(f"{layer.name}.slice_param.slice_point={source}" for layer in param.layer if layer.type == "Slice"),
    ]


def batch(net: Net) -> dict[str, Tensor]:
    """Random images and labels for the net's inputs."""
    return {
        name: torch.randn(shape) * 50 if len(shape) > 1 else torch.randint(CLASSES, shape).float()
        for name, shape in ((name, net.blob_shapes[name]) for name in net.inputs)
    }


def stepper(net: Net, inputs: dict[str, Tensor], device: torch.device, form: str = "ours") -> Callable[[], None]:
    """A function that does a training step, with TF32 or bf16 if the form has that name."""
    update = SGD(pb.SolverParameter(momentum=0.9, weight_decay=0.0005), net.params)

    def step() -> None:
        with tf32(form == "TF32"):
            with torch.autocast(device.type, torch.bfloat16, enabled=form == "bf16"):
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


@dataclass(frozen=True)
class Measured:
    """A net's training steps.

    Attributes:
        net: the net as it is trained.
        images: a batch's.
        times: seconds of each round, by form.
        memory: MiB that tensors take at most, by form.
        backward: milliseconds of the backward pass of ours by autograd node, the largest first.
    """

    net: Net
    images: int
    times: dict[str, list[float]]
    memory: dict[str, float]
    backward: dict[str, float]

    def rates(self, form: str) -> list[float]:
        """Images per second of each round, the least first."""
        return sorted(self.images / spent for spent in self.times[form])

    def faster(self, form: str, than: str = "plain") -> float:
        """The median of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.times[than], self.times[form], strict=True))


def measure(path: Path, steps: int, device: torch.device, batch_size: int | None = None) -> Measured:
    param = filter_net(read_net(path), pb.TRAIN)
    if batch_size is not None:
        apply_to_nets(batch_settings(param, batch_size), [param])
    param, _ = replace_missing_data(param, path.parent)
    layers = {"plain": PlainAlignment, "BatchNorm": BatchNormalization}
    forms = ["plain", "BatchNorm", "ours", *(["TF32"] if device.type == "cuda" else []), "bf16"]
    nets = {form: with_layer(layers.get(form, DomainAlignment), param).to(device) for form in forms}
    fed = {name: tensor.to(device) for name, tensor in batch(nets["ours"]).items()}
    runs = {}
    for form, net in nets.items():
        layout = torch.contiguous_format if form == "plain" else image_format(net, device)
        inputs = {blob: x.contiguous(memory_format=layout) if x.dim() == 4 else x for blob, x in fed.items()}
        runs[form] = stepper(net, inputs, device, form)
    repeats = 3 if device.type == "cuda" else 1  # so that the GPU is not waited for between steps
    times = side_by_side(runs, device, rounds=steps, repeats=repeats)
    memory = {form: peak_bytes(run, device) / 2**20 for form, run in runs.items()}
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")) as profiled:
        runs["ours"]()
    net = nets["ours"]
    images = sum(net.blob_shapes[name][0] for name in net.inputs if len(net.blob_shapes[name]) > 1)
    return Measured(net, images, times, memory, backward_by_kind(profiled, device))


def describe_steps(path: Path, measured: Measured) -> Iterator[str]:
    """Lines for a reader."""
    net, memory = measured.net, measured.memory
    frozen = sum(not learnable.lr_mult for learnable in net.params)
    yield f"{net.param.name} ({path}): batch of {measured.images}, {len(net.layer_names)} layers, {frozen} frozen blobs"
    for form in measured.times:
        rates = measured.rates(form)
        yield (
            f"  {form:9} {statistics.median(rates):8.1f} images/s ({rates[0]:.1f} to {rates[-1]:.1f}), "
            f"x{measured.faster(form):.2f}; {memory[form]:7.0f} MiB, x{memory[form] / memory['plain']:.2f}"
        )
    rows = list(measured.backward.items())[:8]
    yield "  backward of ours: " + ", ".join(f"{name} {milliseconds:.0f} ms" for name, milliseconds in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", type=Path, help="default: the shipped net of the digits")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, help="images of both domains, shared out as in the net's own batch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a single step, to see that it runs")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    device = choose_device(arguments.device)
    print(describe(device))
    for path in arguments.nets or [shipped_net("digits")]:
        measured = measure(path, 1 if arguments.quick else arguments.steps, device, arguments.batch_size)
        print("\n".join(describe_steps(path, measured)))


if __name__ == "__main__":
    main()

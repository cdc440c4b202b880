"""How training scales with processes: images per second of whole steps, of one process and of several, side by side.

    python benchmarks/ranks.py [NET.prototxt] [--ranks N] [--device cpu|cuda] [--rounds R] [--steps S] [--quick]

Each round runs one process, on one CPU thread and on as many threads as there are to be processes, then N processes of
one thread each (on GPUs: one process, then N) on the net's own batch, which they share out, of random images; once
with sums of gradients that begin in the backward pass, as in `train`, and once with all of them at its end. A step
is forward, backward, the sums over the processes and the update, in the TRAIN phase of the shipped AlexNet, or of NET.
`--quick` takes a tiny net and two steps, and its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import describe
from torch import Tensor

from autodial.evaluation.timing import replace_missing_data
from autodial.net.feed import image_format
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_net
from autodial.proto import messages as pb
from autodial.proto import read_net
from autodial.system.cpus import available_cpus
from autodial.system.devices import choose_device
from autodial.system.ranks import Ranks
from autodial.training.data_parallel import DataParallel
from autodial.training.update import SGD


def speed(path: Path, steps: int, kind: str, ranks: Ranks | None, *, overlap: bool = True) -> float:
    """Images per second of this process and the ranks that it trains with: of the median step after two others."""
    device = choose_device(kind, index=0 if ranks is None else ranks.local_rank)
    message, _ = replace_missing_data(filter_net(read_net(path), pb.TRAIN), None)
    net = Net(message, pb.TRAIN).to(device)
    parallel = None if ranks is None else DataParallel(net, ranks)
    update = SGD(pb.SolverParameter(momentum=0.9, weight_decay=0.0005), net.params)
    inputs = {name: random_rows(net, name).to(device) for name in net.inputs}
    images = sum(len(blob) for blob in inputs.values() if blob.dim() > 1)
    if ranks is not None:
        inputs = {name: blob[ranks.share(len(blob))] for name, blob in inputs.items()}
    layout = image_format(net, device)
    inputs = {name: blob.contiguous(memory_format=layout) if blob.dim() == 4 else blob for name, blob in inputs.items()}
    seconds = []
    for step in range(steps + 2):
        started = time.perf_counter()
        net.zero_grad(set_to_none=True)
        if parallel is not None and overlap:
            parallel.begin_last_pass()
        loss = net.loss(net(inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        if parallel is not None:
            parallel.sum(loss.detach(), device)
        update.step(0.001, step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return images / statistics.median(seconds[2:])


def random_rows(net: Net, name: str) -> Tensor:
    """Pixels, or labels that any net has."""
    shape = net.blob_shapes[name]
    return torch.randn(shape) * 50 if len(shape) > 1 else torch.randint(2, shape).float()


def run(arguments: argparse.Namespace, processes: int, threads: int, sums_at_end: bool = False) -> float:
    """Images per second of that many processes."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
        options = ["--device", arguments.device, "--steps", str(arguments.steps), "--result", str(result)]
        options += ["--sums-at-end"] if sums_at_end else []
        command = [sys.executable, *launch, __file__, str(arguments.net), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, env=environment)
        return float(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", type=Path, nargs="?", default=shipped_net("alexnet"))
    parser.add_argument("--ranks", type=int, default=2, help="processes to compare with one")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="whose median counts")
    parser.add_argument("--quick", action="store_true")
    # what a process of a round is told: how to sum, and where to write its number
    parser.add_argument("--sums-at-end", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.result is not None:
        ranks, beside = Ranks.join(), not arguments.sums_at_end
        reached = speed(arguments.net, arguments.steps, arguments.device, ranks, overlap=beside)
        Ranks.leave()
        if os.environ.get("RANK", "0") == "0":
            arguments.result.write_text(str(reached))
        return
    if arguments.quick:
        arguments.net, arguments.rounds, arguments.steps = shipped_net("digits"), 1, 2
    count = arguments.ranks
    kinds: dict[str, tuple[Any, ...]] = {"1 process, 1 thread": (1, 1)}
    if arguments.device == "cpu" and not arguments.quick:
        kinds[f"1 process, {count} threads"] = (1, count)
    kinds[f"{count} processes, 1 thread each"] = (count, 1)
    kinds["the same, sums at the end"] = (count, 1, True)
    rounds = [{kind: run(arguments, *numbers) for kind, numbers in kinds.items()} for _ in range(arguments.rounds)]
    print(f"{arguments.net}, {available_cpus()} CPUs, {describe(torch.device(arguments.device))}")
    first = next(iter(kinds))
    for kind in kinds:
        speeds = [each[kind] for each in rounds]
        ratios = sorted(each[kind] / each[first] for each in rounds)
        print(
            f"{kind:<26} {statistics.median(speeds):8.1f} images/s ({min(speeds):.1f} to {max(speeds):.1f}), "
            f"{statistics.median(ratios):.2f} times the first ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()

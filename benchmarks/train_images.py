"""How near `autodial train` comes to what reading images and computing steps leave of a machine, on real JPEG files.

    python benchmarks/train_images.py [ARCH] [--batch-size N] [--iterations N] [--rounds R] [--workers N]
                                      [--threads N] [--device cpu|cuda] [--quick]

ARCH is a net that ships with the product, its batch shared out over the domains as in its prototxt. The images are
generated JPEGs of 256 x 256 pixels in the page cache. Three things take turns:

- decode: reading, decoding and transforming batches alone, with a worker process per CPU;
- step: a solver's iterations alone, on one batch that stays in memory;
- train: both, as `autodial train` runs them. Where they share the CPUs, 1 / (1 / decode + 1 / step) images/s is what
  they leave; where a GPU computes, the slower of the two. `waited` is the share of the time in which the solver had
  nothing to compute with.

Seconds are of the clock. Medians are printed, with the least and the most, and what the best of each say, which others
on the machine disturb the least.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import data_loading
import torch
from measuring import describe
from torch import Tensor
from training_step import batch_settings

from autodial.net.feed import Feed, default_workers, sources
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_folder, shipped_names
from autodial.proto import messages as pb
from autodial.proto import read_net
from autodial.system.allocator import keep_freed_memory
from autodial.system.cpus import available_cpus
from autodial.system.devices import choose_device
from autodial.training import solver as solver_module
from autodial.training.solver import Solver

SIDE = 256


class TimedFeed(Feed):
    """A Feed that adds up the seconds in which it is waited for."""

    waited = 0.0

    def __next__(self) -> dict[str, Tensor]:
        started = time.perf_counter()
        try:
            return super().__next__()
        finally:
            TimedFeed.waited += time.perf_counter() - started


class SameBatch(Iterator[dict[str, Tensor]]):
    """In a Feed's place: its first batch again and again."""

    def __init__(self, net: Any, indexes: Iterable[int], *, device: torch.device, **_: Any) -> None:
        self._batch = next(Feed(net, [0], device=device, workers=0))

    def __next__(self) -> dict[str, Tensor]:
        return self._batch

    def close(self) -> None:
        pass


@contextmanager
def fed_by(kind: type) -> Iterator[None]:
    """Solvers read from another class than Feed."""
    solver_module.Feed = kind  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        solver_module.Feed = Feed  # type: ignore[misc]


def write_images(folder: Path, count: int) -> None:
    """JPEG files of SIDE x SIDE pixels, and their list."""
    data_loading.write_images(folder, count, SIDE)


def write_project(folder: Path, arch: str, images: Path) -> None:
    """A shipped net and its solver, with lists of the images that `write_images` wrote."""
    shutil.copytree(shipped_folder(arch), folder, dirs_exist_ok=True)
    listed = (images / "list.txt").read_text()
    if arch in ("digits", "svhn_mnist"):  # ten classes
        listed = "".join(f"{line.split()[0]} {int(line.split()[1]) % 10}\n" for line in listed.splitlines())
    for name in ("source", "target", "target_test"):
        (folder / f"{name}.txt").write_text(listed)


class Measurement:
    """A project's training in parts, which take turns; each method returns images per second.

    Args:
        folder: what `write_project` wrote.
        batch_size: of both domains; None for the net's.
        iterations: of a turn.
        workers: as train takes them.
        precision: the solver's.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        *,
        batch_size: int | None,
        iterations: int,
        workers: int,
        precision: Any,
    ) -> None:
        self._device, self._iterations = device, iterations
        net = filter_net(read_net(folder / "train_val.prototxt"), pb.TRAIN)
        settings = ["solver.display=0", f"solver.snapshot_prefix={folder / 'net'}"]
        settings += batch_settings(net, batch_size) if batch_size else []

        def solver() -> Solver:
            made = Solver.from_file(
                folder / "solver.prototxt", device=str(device), workers=workers, precision=precision, overrides=settings
            )
            made.step(1)
            return made

        with fed_by(SameBatch):
            self._alone = solver()
        with fed_by(TimedFeed):
            self._both = solver()
        self._images = sum(reader.batch_size for reader in sources(self._both.net).values())
        # where a GPU is faster than the workers, they have used up what they had ready before the clock starts
        self._ahead = 1 if device.type == "cpu" else 3 * workers

    def decode(self) -> float:
        count = available_cpus()
        batches = max(self._iterations, 6 * count)  # many beside those that are ready before the clock starts
        feed = Feed(self._both.net, range(3 * count + batches), device=self._device, workers=count, brief=True)
        for _ in range(3 * count):  # the workers' start, and what they made ready since
            next(feed)
        started = time.perf_counter()
        for _ in range(batches):
            next(feed)
        spent = time.perf_counter() - started
        feed.close()
        return batches * self._images / spent

    def step(self) -> float:
        return self._rate(self._alone)

    def train(self) -> float:
        self._both.step(self._ahead)
        TimedFeed.waited = 0.0
        rate = self._rate(self._both)
        self.waited = TimedFeed.waited * rate / (self._iterations * self._images)
        """The share of the last `train` in which the solver had nothing to compute with."""
        return rate

    def close(self) -> None:
        self._both.close()

    def round(self) -> Round:
        decode, step, train = self.decode(), self.step(), self.train()
        return Round(decode, step, train, train / self.both(decode, step), self.waited)

    def both(self, decode: float, step: float) -> float:
        """What reading and computing leave."""
        return 1 / (1 / decode + 1 / step) if self._device.type == "cpu" else min(decode, step)

    def _rate(self, solver: Solver) -> float:
        self._synchronize()
        started = time.perf_counter()
        solver.step(self._iterations)
        self._synchronize()
        return self._iterations * self._images / (time.perf_counter() - started)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Round(NamedTuple):
    """Images per second; the training's share of what reading and computing leave; and the share that it waited."""

    decode: float
    step: float
    train: float
    reached: float
    waited: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="?", default="alexnet", choices=shipped_names())
    parser.add_argument("--batch-size", type=int, help="of both domains together; default: the net's")
    parser.add_argument("--iterations", type=int, default=3, help="of each in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--workers", type=int, help="default: train's")
    parser.add_argument("--threads", type=int, help="on the CPU; default: torch's, as in train")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--quick", action="store_true", help="the digits' net once, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.arch, options.iterations, options.rounds, options.images = "digits", 4, 1, 80
    if options.threads:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    if device.type == "cpu":
        keep_freed_memory()
    workers = default_workers() if options.workers is None else options.workers
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "project"
        write_images(Path(work), options.images)
        write_project(folder, options.arch, Path(work))
        measurement = Measurement(
            folder,
            device,
            batch_size=options.batch_size,
            iterations=options.iterations,
            workers=workers,
            precision=options.precision,
        )
        rounds = [measurement.round() for _ in range(options.rounds)]
        measurement.close()
    print(f"{describe(device)}, {available_cpus()} CPUs, {workers} workers, {options.arch} in {options.precision}")
    best = {}
    for name in ("decode", "step", "train"):
        rates = [getattr(each, name) for each in rounds]
        best[name] = max(rates)
        print(f"  {name:6} {statistics.median(rates):8.1f} images/s ({min(rates):.1f} to {max(rates):.1f})")
    bound = "1 / (1 / decode + 1 / step)" if device.type == "cpu" else "min(decode, step)"
    shares = [each.reached for each in rounds]
    print(f"  train reaches {statistics.median(shares):.2f} of {bound} ({min(shares):.2f} to {max(shares):.2f})")
    print(f"  the best of each: {best['train'] / measurement.both(best['decode'], best['step']):.2f}")
    waited = [each.waited for each in rounds]
    print(f"  waited {statistics.median(waited):.1%} ({min(waited):.1%} to {max(waited):.1%})")


if __name__ == "__main__":
    main()

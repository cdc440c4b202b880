"""What a training takes before and beside its steps: seconds to its first line and its first step, and its memory.

    python benchmarks/start_up.py [ARCH ...] [--repeats N] [--quick]

ARCH is a net that ships with the product. `autodial init` makes its project from generated images of two classes;
`autodial train` then runs for two iterations in a process of its own, its readers as by default, on the CPU. Seconds
are of the clock, from the start of the process. Memory is the most that is resident in the trainer, not in its readers.
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

import cv2
import numpy as np
import torch
from measuring import describe

AUTODIAL = [sys.executable, "-m", "autodial"]
SIDE = 256


def write_domains(folder: Path, count: int) -> None:
    """`source` and `target`, class folders of `count` images each."""
    rng = np.random.default_rng(0)
    for domain in ("source", "target"):
        for i in range(count):
            place = folder / domain / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(place / f"{i}.png"), rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def train(project: Path, output: Path) -> tuple[float, float, float]:
    """Seconds to the line that training starts, seconds to the end of the first iteration, MiB."""
    settings = ["max_iter=2", "display=1", "test_initialization=false", f"snapshot_prefix={output}/net"]
    words = [word for setting in settings for word in ("--set", f"solver.{setting}")]
    command = [*AUTODIAL, "train", "--solver", str(project / "solver.prototxt"), "--device", "cpu", *words]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "-o", str(output)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seconds = {}
    for line in process.stdout:
        for name, start in (("ready", "Training "), ("first", "Iteration 0")):
            if line.startswith(start):
                seconds.setdefault(name, time.perf_counter() - started)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds["ready"], seconds["first"], usage.ru_maxrss / 1024


def measure(arch: str, data: Path, work: Path, repeats: int) -> None:
    project = work / arch
    words = ["--arch", arch, "--source", str(data / "source"), "--target", str(data / "target")]
    subprocess.run([*AUTODIAL, "init", str(project), *words], check=True, capture_output=True)
    rows = [train(project, work / f"{arch}_{i}") for i in range(repeats)]
    parts = []
    for name, unit, values in zip(
        ("ready", "first step", "memory"), ("s", "s", "MiB"), zip(*rows, strict=True), strict=True
    ):
        parts.append(f"{name} {statistics.median(values):.1f} {unit} ({min(values):.1f} to {max(values):.1f})")
    print(f"  {arch:14} {', '.join(parts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="*", default=["digits", "alexnet", "inception_bn"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the digits' net once, to see that it runs")
    options = parser.parse_args()
    print(describe(torch.device("cpu")))
    with tempfile.TemporaryDirectory() as work:
        write_domains(Path(work), 20 if options.quick else 300)
        for arch in ["digits"] if options.quick else options.archs:
            measure(arch, Path(work), Path(work), 1 if options.quick else options.repeats)


if __name__ == "__main__":
    main()

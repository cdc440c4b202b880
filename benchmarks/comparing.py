"""The methods of `autodial compare` on pairs of domains with digits, as a table.

    python benchmarks/comparing.py FOLDER RESULTS_DIR [--seeds 1,2,3] [--jobs N] [--device cpu|cuda]

Compares all methods on rendered to handwritten digits (the demo's, 7 passes over the source) and on MNIST to USPS (4
passes), with the net `digits`. FOLDER has mnist_train_lmdb, usps_train_lmdb and usps_test_lmdb; without them the second
pair is left out. RESULTS_DIR gets a comparison for each pair; what is finished is not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import adaptation_images as images
from demo_seeds import cpu_seconds, machine

from autodial.comparison.methods import METHODS

_AUTODIAL = [sys.executable, "-m", "autodial", "compare"]
LEFT_OUT = ("entropy-only",)


def pairs(data: Path, out: Path) -> dict[str, list[str]]:
    """By name: the options that name a pair's images and the passes over the source; the images are written."""
    rendered = images.write(out / "rendered", partial(images.rendered, 1))
    handwritten = images.write(out / "handwritten", images.handwritten)
    found = {"rendered-handwritten": ["--source", rendered, "--target", handwritten, "--epochs", 7]}
    parts = ("mnist_train", "usps_train", "usps_test")
    if all((data / f"{part}_lmdb").is_dir() for part in parts):
        source, target, test = (images.write(out / p, partial(images.lmdb, data / f"{p}_lmdb")) for p in parts)
        found["mnist-usps"] = ["--source", source, "--target", target, "--test", test, "--epochs", 4]
    return {name: list(map(str, words)) for name, words in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    out = arguments.results.resolve()
    out.mkdir(parents=True, exist_ok=True)
    methods = ",".join(name for name in METHODS if name not in LEFT_OUT)
    for name, words in pairs(arguments.data.resolve(), out).items():
        started, cpu = time.perf_counter(), cpu_seconds()
        options = ["--base", "digits", "--methods", methods, "--seeds", arguments.seeds, "--target-labels"]
        running = ["--jobs", str(arguments.jobs), "--device", arguments.device]
        done = subprocess.run([*_AUTODIAL, str(out / name), *words, *options, *running], check=False)
        if done.returncode:
            raise SystemExit(f"autodial compare ended with status {done.returncode}")
        spent = time.perf_counter() - started, cpu_seconds() - cpu
        print(f"{name}: {spent[0]:.0f} s, {spent[1]:.0f} s of CPU time; {machine(arguments.device)}\n", flush=True)


if __name__ == "__main__":
    main()

"""The demo's table over several seeds, as Markdown.

    python benchmarks/demo_seeds.py RESULTS_DIR [--seeds N] [--device cpu|cuda]

Runs `autodial demo` with seeds 1 to N (5 by default), each in a temporary folder, and keeps each seed's scores in
RESULTS_DIR/seed_S.json. A seed whose file is there is not run again, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from autodial import __version__
from autodial.demo.story import run_demo
from autodial.system.cpus import available_cpus
from autodial.system.devices import choose_device
from autodial.system.files import replacing


def result(folder: Path, seed: int, device: str) -> dict[str, Any]:
    """A seed's scores, machine and wall time, from its file or from a run that writes it."""
    path = folder / f"seed_{seed}.json"
    if not path.exists():
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as temporary:
            scores = run_demo(Path(temporary) / "demo", seed=seed, device=device)
        record = {
            "accuracy": {score.title: score.accuracy for score in scores},
            "seconds": time.perf_counter() - started,
            "machine": machine(device),
        }
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(record, indent=2).encode())
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def machine(device: str) -> str:
    """What the training ran on, and the versions that matter, in one line."""
    chosen = choose_device(device)
    cpu = f"{available_cpus()} CPUs, {torch.get_num_threads()} torch threads, {_cpu_name()}"
    where = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else cpu
    return f"{where}; autodial {__version__}, torch {torch.__version__}"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def markdown(results: dict[int, dict[str, Any]]) -> str:
    """A row per variant: the mean, the sample standard deviation, and every seed's accuracy."""
    seeds = list(results)
    lines = [
        f"| variant | mean ± std | {' | '.join(f'seed {seed}' for seed in seeds)} |",
        f"|---|---|{'---|' * len(seeds)}",
    ]
    for title in results[seeds[0]]["accuracy"]:
        values = [100 * results[seed]["accuracy"][title] for seed in seeds]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        lines.append(f"| {title} | {statistics.mean(values):.1f}{spread} | {' | '.join(f'{v:.1f}' for v in values)} |")
    seconds = [record["seconds"] for record in results.values()]
    machines = dict.fromkeys(record["machine"] for record in results.values())
    return "\n".join(
        [
            *lines,
            "",
            f"Target accuracy in %, of 1,797 images; {min(seconds):.0f} to {max(seconds):.0f} s a seed for all four "
            f"variants together, on {'; '.join(machines)}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    print(markdown({s: result(arguments.results, s, arguments.device) for s in range(1, arguments.seeds + 1)}))


if __name__ == "__main__":
    main()

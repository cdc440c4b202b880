"""The demo's table over several seeds, as Markdown.

    python benchmarks/demo_seeds.py RESULTS_DIR [--seeds N] [--device cpu|cuda]

Runs `autodial demo` with seeds 1 to N (5 by default), each in a temporary folder, and keeps each seed's result in
RESULTS_DIR/seed_S.json. A seed whose file is there is not run again, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from seed_tables import mean_and_spread

from autodial import __version__
from autodial.demo.story import run_demo
from autodial.system.cpus import available_cpus
from autodial.system.devices import choose_device
from autodial.system.files import replacing


def result(folder: Path, seed: int, device: str) -> dict[str, Any]:
    """A seed's result, machine, and seconds, from its file or from a run that writes it."""
    path = folder / f"seed_{seed}.json"
    if not path.exists():
        started, cpu = time.perf_counter(), cpu_seconds()
        with tempfile.TemporaryDirectory() as temporary:
            demo = run_demo(Path(temporary) / "demo", seed=seed, device=device)
        record = {
            **asdict(demo),
            "seconds": time.perf_counter() - started,
            "cpu_seconds": cpu_seconds() - cpu,
            "machine": machine(device),
        }
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(record, indent=2).encode())
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def cpu_seconds() -> float:
    """Seconds of CPU time that this process and the processes that it waited for have taken."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


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
    """A row per method, one for the chosen runs, and one for their ensembles; a column per seed."""
    lines = [
        f"| | all seeds | {' | '.join(f'seed {seed}' for seed in results)} |",
        f"|---|---|{'---|' * len(results)}",
    ]
    titles = [method["title"] for method in next(iter(results.values()))["methods"]]
    for place, title in enumerate(titles):
        by_seed = [list(record["methods"][place]["accuracies"].values()) for record in results.values()]
        cells = [_mean_and_range(values) for values in by_seed]
        means = [statistics.mean(values) for values in by_seed]
        every = [value for values in by_seed for value in values]
        lines.append(_row(title, f"{_mean_and_spread(means)}, runs {_range(every)}", cells))
    for key, title in (
        ("chosen_accuracy", "chosen without labels"),
        ("ensemble_accuracy", "average of the chosen method's runs"),
    ):
        values = [record[key] for record in results.values()]
        lines.append(_row(title, _mean_and_spread(values), [f"{100 * value:.1f}" for value in values]))
    machines = dict.fromkeys(record["machine"] for record in results.values())
    seconds, cpu = ([record[key] for record in results.values()] for key in ("seconds", "cpu_seconds"))
    return "\n".join(
        [
            *lines,
            "",
            f"Target accuracy in %, of 1,797 images. A seed took {min(seconds):.0f} to {max(seconds):.0f} s and "
            f"{min(cpu):.0f} to {max(cpu):.0f} s of CPU time, on {'; '.join(machines)}.",
        ]
    )


def _row(title: str, summary: str, cells: Sequence[str]) -> str:
    return f"| {title} | {summary} | {' | '.join(cells)} |"


def _mean_and_spread(values: Sequence[float]) -> str:
    return mean_and_spread([100 * value for value in values])


def _mean_and_range(values: Sequence[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} ({_range(values)})"


def _range(values: Sequence[float]) -> str:
    return f"{100 * min(values):.1f} to {100 * max(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    print(markdown({s: result(arguments.results, s, arguments.device) for s in range(1, arguments.seeds + 1)}))


if __name__ == "__main__":
    main()

"""What criteria without target labels choose among trainings that differ by setting and seed, and what that costs.

    python benchmarks/choosing.py train RESULTS_DIR [TASK ...] [--groups N] [--data FOLDER] [--jobs N]
    python benchmarks/choosing.py report RESULTS_DIR [--summary FILE]

`train` trains every run of the tasks that is not there yet, the first group of every task before the second. A run
leaves RESULTS_DIR/TASK/GROUP/NAME.json (accuracy, alphas, seconds) and, for candidates, what the criteria look at, with
the moving averages of training (NAME.moving.npz) and with statistics of all images (NAME.whole.npz). `report` computes
all criteria from these files, trains nothing, and prints the tables as Markdown. Both can be stopped and started again.

A group is what one `autodial select` trains with `--try loss-target.loss_weight=0.1,0.4`, `--try
variant=learned,fixed-alpha` and `--restarts 4`: 16 runs on all of the source. In addition there are a run with AdaBN
and one on the source only. Criteria that need source images that were not trained on get them for nothing here: the
source's test set, or other renderings. FOLDER is that of benchmarks/adaptation.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import adaptation
import adaptation_images as images
import numpy as np
import torch
from demo_seeds import machine

from autodial import proto
from autodial.data.image_list import ImageList
from autodial.data.paths import find
from autodial.demo.images import write_images
from autodial.netparam.shipped import shipped_net, shipped_solver
from autodial.system.files import replacing

LAMBDAS = (0.1, 0.4)
VARIANTS = {"learned": (), "fixed-alpha": ("fixed-alpha",)}
BASELINES = ("adabn", "source-only")
RESTARTS = 4
STATISTICS = ("moving", "whole")
SAMPLE = 2000


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        variant: "learned", "fixed-alpha", "adabn" or "source-only".
        lambda_: weight of the entropy loss; None for baselines, which have none.
        seed: of the training.
    """

    variant: str
    lambda_: float | None
    seed: int

    @property
    def name(self) -> str:
        """Name of its files."""
        weight = "" if self.lambda_ is None else f"_{self.lambda_}"
        return f"{self.variant}{weight}_{self.seed}"


@dataclass(frozen=True)
class Project:
    """A folder with train_val.prototxt and solver.prototxt, and what benchmarks alone know.

    Attributes:
        folder: where they are.
        held_out: list of source images that are not trained on.
        sample: list of at most 2,000 source images that are trained on.
        settings: overrides for every run.
        weights: to start from.
    """

    folder: Path
    held_out: Path
    sample: Path
    settings: tuple[str, ...] = ()
    weights: Path | None = None


@dataclass(frozen=True)
class Task:
    """A pair of domains with its groups of runs.

    Attributes:
        title: of the tables.
        project: makes or finds the project of a group, given FOLDER, a folder of the task's own and the group's seed.
        seeds: the first training seed of each group.
        development: whether criteria may be compared by it.
        balanced: whether the score is the mean of the classes' recalls instead of the accuracy.
    """

    title: str
    project: Callable[[Path, Path, int], Project]
    seeds: tuple[int, ...]
    development: bool
    balanced: bool = False


def group(seed: int) -> list[Run]:
    """The runs of a group: those of all settings with the first seed, then with the second; then the baselines."""
    seeds = range(seed, seed + RESTARTS)
    runs = [Run(variant, lambda_, s) for s, variant, lambda_ in product(seeds, VARIANTS, LAMBDAS)]
    return [*runs, *(Run(variant, None, seed) for variant in BASELINES)]


# --- tasks


def _demo(data: Path, folder: Path, seed: int) -> Project:
    """The demo with rendered digits of a seed; other renderings are held out."""
    project = folder / f"project_{seed}"
    if not (project / "held_out.txt").exists():
        write_images(project, seed)
        (project / "train_val.prototxt").write_bytes(shipped_net("digits").read_bytes())
        (project / "solver.prototxt").write_bytes(shipped_solver("digits").read_bytes())
        _write_lists(project, partial(images.rendered, 1000 + seed))
    return Project(project, project / "held_out.txt", project / "sample.txt")


def _pair(
    name: str, held_out: Callable[[Path], Any], settings: tuple[str, ...], data: Path, folder: Path, seed: int
) -> Project:
    """A task of benchmarks/adaptation.py: one project for all its groups."""
    (task,) = adaptation.TASKS[name].values()
    runner = adaptation.Runner(task, data, folder, "cpu", 1)
    if not (runner.project / "held_out.txt").exists():
        _write_lists(runner.project, partial(held_out, data))
    lists = (runner.project / name for name in ("held_out.txt", "sample.txt"))
    return Project(runner.project, *lists, settings, runner.start.weights)


def _write_lists(project: Path, held_out: Callable[[], Any]) -> None:
    """Write held_out.txt, with its images, and sample.txt; classes are numbered as the digits are."""
    entries = list(ImageList.read(project / "source.txt"))
    drawn = np.sort(np.random.default_rng(0).permutation(len(entries))[:SAMPLE])
    sample = [f"{find(entries[i].path, project).absolute()} {entries[i].label}" for i in drawn]
    folder = images.write(project / "held_out", held_out)
    lines = [f"{path.absolute()} {path.parent.name}" for path in sorted(folder.rglob("*.png"))]
    for name, rows in (("sample", sample), ("held_out", lines)):
        with replacing(project / f"{name}.txt") as file:
            file.write("".join(f"{row}\n" for row in rows).encode())


def _digits(name: str, part: str) -> Callable[[Path], Any]:
    return lambda data: images.lmdb(data / f"{name}_{part}_lmdb")


_FOUR_EPOCHS = ("solver.max_iter=970", "solver.gamma=0.010309278")
"""Half of benchmarks/adaptation.py's iterations, with its learning rate's decay over the whole training."""
_MNIST_USPS = partial(_pair, "mnist-usps", _digits("mnist", "test"), _FOUR_EPOCHS)
_USPS_MNIST = partial(_pair, "usps-mnist", _digits("usps", "test"), _FOUR_EPOCHS)
_RENDERED = partial(_pair, "rendered-handwritten", lambda data: images.rendered(1001), ())
_FIRST = (1, 5, 9, 13, 17)

TASKS = {
    "demo-dev": Task("the demo, data seeds 101 to 105", _demo, (101, 102, 103, 104, 105), True),
    "mnist-usps-dev": Task("MNIST to USPS, seeds 101 to 120", _MNIST_USPS, (101, 105, 109, 113, 117), True),
    "usps-mnist": Task("USPS to MNIST", _USPS_MNIST, _FIRST, False),
    "rendered-handwritten": Task("rendered to handwritten", _RENDERED, _FIRST, False),
    "demo": Task("the demo, new data seeds", _demo, (1, 2, 3, 4, 5), False),
    "mnist-usps": Task("MNIST to USPS, new seeds", _MNIST_USPS, _FIRST, False),
}


# --- training


def folder_of(results: Path, name: str, seed: int) -> Path:
    """Where a group's files lie."""
    return results / name / f"group_{seed}"


def waiting(results: Path, names: Sequence[str], groups: int) -> Iterator[tuple[str, int, Run]]:
    """The runs that are not there yet: task, first seed of the group, run; the first group of every task first."""
    for number in range(groups):
        for name in names:
            seeds = TASKS[name].seeds
            if number < len(seeds):
                seed = seeds[number]
                for run in group(seed):
                    if not (folder_of(results, name, seed) / f"{run.name}.json").exists():
                        yield name, seed, run


def train(results: Path, name: str, seed: int, run: Run, data: Path) -> float:
    """Train one run and keep what came of it; returns the seconds that it took."""
    from autodial.netparam.overrides import apply_to_nets, for_nets
    from autodial.netparam.variants import read_variant
    from autodial.selection.outputs import TrainedNet
    from autodial.system.devices import choose_device
    from autodial.training.run import Training

    task, device = TASKS[name], choose_device("cpu")
    project = task.project(data, results / name, seed)
    folder = folder_of(results, name, seed)
    scratch = folder / f"{run.name}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    net = project.folder / "train_val.prototxt"
    losses = [layer.name for layer in proto.read_net(net).layer if layer.type == "EntropyLoss"]
    weights = [] if run.lambda_ is None else [f"{loss}.loss_weight={run.lambda_}" for loss in losses]
    variants = VARIANTS.get(run.variant, (run.variant,))
    settings = [*project.settings, *weights]
    started, cpu = time.perf_counter(), time.process_time()
    training = Training(
        project.folder / "solver.prototxt",
        weights=[project.weights] if project.weights else [],
        device="cpu",
        seed=run.seed,
        workers=0,
        overrides=[
            *settings,
            f"solver.snapshot_prefix={scratch / 'net'}",
            f"solver.test_interval={2**31 - 1}",
            "solver.snapshot=0",
            "solver.test_initialization=false",
        ],
        variants=variants,
        folder=scratch / "run",
    )
    trained = training.run()
    record: dict[str, Any] = {"variant": run.variant, "lambda": run.lambda_, "seed": run.seed}
    record["trained_seconds"] = time.process_time() - cpu
    record["iterations"] = trained.iteration
    record["collapsed_at"] = trained.collapsed_at
    record["error"] = None if trained.error is None else str(trained.error)
    if trained.error is None:
        assert trained.snapshot is not None and trained.snapshot.weights is not None
        record["alphas"] = training.solver.net.alphas()
        param = read_variant(net, variants)
        apply_to_nets(for_nets(settings), [param])
        if run.variant == "source-only":
            record["moving"] = _score_source_only(param, trained.snapshot.weights, project.folder, task.balanced)
        else:
            built = TrainedNet(param, trained.snapshot.weights, base_dir=project.folder, device=device, workers=0)
            for statistics in STATISTICS:
                if statistics == "whole":
                    built.recalibrate(None)
                outputs = built.outputs(source=project.sample, held_out=project.held_out, target_labels=True, seed=0)
                record[statistics] = score(outputs.test_probabilities, outputs.test_labels, task.balanced)
                if run.lambda_ is not None:
                    outputs.write(folder / f"{run.name}.{statistics}.npz")
    record |= {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    record["machine"] = machine("cpu")
    with replacing(folder / f"{run.name}.json") as file:
        file.write(json.dumps(record, indent=2).encode())
    shutil.rmtree(scratch)
    return float(record["seconds"])


def _score_source_only(param: Any, weights: Path, base_dir: Path, balanced: bool) -> float:
    """Of a net without Dial layers."""
    from autodial.evaluation.scoring import Scorer
    from autodial.net.net import Net
    from autodial.netparam.graph import Graph
    from autodial.netparam.net_state import filter_net
    from autodial.proto import messages as pb
    from autodial.system.devices import choose_device
    from autodial.training.solver import load_weights

    net = Net(param, pb.TEST, base_dir=base_dir)
    load_weights(net, [weights])
    graph = Graph(filter_net(param, pb.TEST).layer)
    scorer = Scorer(net, device=choose_device("cpu"), workers=0, logits=graph.names[graph.logits()])
    for _ in scorer.run():
        pass
    rows = [row for row in scorer.rows if row.loss is not None]
    return score(np.stack([row.probabilities for row in rows]), np.array([row.label for row in rows]), balanced)


def score(probabilities: Any, labels: Any, balanced: bool) -> float:
    """Accuracy, or the mean of the classes' recalls, in [0, 1]."""
    right = probabilities.argmax(1) == labels
    if not balanced:
        return float(right.mean())
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def train_all(results: Path, names: Sequence[str], groups: int, data: Path, jobs: int) -> None:
    """Train what is not there yet, each run in a process of its own."""
    left = list(waiting(results, names, groups))
    print(f"{len(left)} runs left", flush=True)
    for name in dict.fromkeys(name for name, _, _ in left):  # one after the other, before runs share them
        for seed in dict.fromkeys(s for n, s, _ in left if n == name):
            TASKS[name].project(data, results / name, seed)

    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        runs = [(item, pool.submit(train, results, *item, data)) for item in left]
        for (name, seed, run), done in runs:
            error = done.exception()
            outcome = f"failed: {error!r}" if error else f"{done.result():.0f} s"
            print(f"{name}, group {seed}, {run.name}: {outcome}", flush=True)


def _one_thread() -> None:
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("results", type=Path)
    training.add_argument("tasks", nargs="*", default=list(TASKS))
    training.add_argument("--groups", type=int, default=5)
    training.add_argument("--data", type=Path, default=Path())
    training.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    train_all(arguments.results.resolve(), arguments.tasks, arguments.groups, data, arguments.jobs)


if __name__ == "__main__":
    main()

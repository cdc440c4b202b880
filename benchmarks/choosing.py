"""What criteria without target labels choose among trainings that differ by setting and seed, and what that costs.

    python benchmarks/choosing.py train RESULTS_DIR [TASK ...] [--groups N] [--data FOLDER] [--device cuda] [--jobs N]
    python benchmarks/choosing.py report [RESULTS_DIR]

`train` trains every run of the tasks that is not there yet, the first group of every task before the second. A run
leaves RESULTS_DIR/TASK/GROUP/NAME.json (accuracy, alphas, seconds) and, for candidates, what the criteria look at, with
the moving averages of training (NAME.moving.npz) and with statistics of all images (NAME.whole.npz). `report` computes
all criteria for each finished group from these files, adds the group to the summary, benchmarks/results/choosing.json,
and prints the tables of all groups in it as Markdown. Groups in the summary are not trained again. Both commands can be
stopped and started again.

A group is what one `autodial select` trains with `--try loss-target.loss_weight=0.1,0.4`, `--try
variant=learned,fixed-alpha` and `--restarts 4`: 16 runs on all of the source. In addition there are a run with AdaBN
and one on the source only. Criteria that need source images that were not trained on get them for nothing here: the
source's test set, or other renderings. FOLDER is that of benchmarks/adaptation.py.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, TypeAlias

import adaptation
import adaptation_images as images
import numpy as np
import torch
from demo_seeds import machine

from autodial import proto
from autodial.data.image_list import ImageList
from autodial.data.paths import find
from autodial.demo.images import write_images
from autodial.evaluation.domains import data_in_train
from autodial.netparam.shipped import shipped_net, shipped_solver
from autodial.selection.candidates import Candidate
from autodial.selection.choice import Trial, average, choose
from autodial.selection.criteria import CRITERIA, DEFAULT, ensemble
from autodial.selection.holdout import stratified_parts
from autodial.selection.outputs import Outputs
from autodial.system.files import replacing

LAMBDAS = (0.1, 0.4)
VARIANTS = {"learned": (), "fixed-alpha": ("fixed-alpha",)}
BASELINES = ("adabn", "source-only")
RESTARTS = 4
STATISTICS = ("moving", "whole")
SAMPLE = 2000
SUMMARY = Path(__file__).parent / "results" / "choosing.json"


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
    task: adaptation.Task,
    held_out: Callable[[Path], Any],
    settings: tuple[str, ...],
    data: Path,
    folder: Path,
    seed: int,
) -> Project:
    """A pair of domains as benchmarks/adaptation.py has them: one project for all its groups."""
    runner = adaptation.Runner(task, data, folder, "cpu", 1)
    if not (runner.project / "held_out.txt").exists():
        _write_lists(runner.project, partial(held_out, data))
    lists = (runner.project / name for name in ("held_out.txt", "sample.txt"))
    return Project(runner.project, *lists, settings, runner.start.weights)


def _cells(data: Path, folder: Path, seed: int) -> Project:
    """benchmarks/adaptation.py's task on smaller images; a fifth of the source is held out, as there is no other."""
    task = replace(_known("solar-cells"), start=partial(adaptation.dialized, resize=72, crop=64), epochs=3)
    runner = adaptation.Runner(task, data, folder, "cpu", 1)
    project = runner.project
    lists = {name: project / f"{name}.txt" for name in ("held_out", "training", "sample")}
    if not lists["sample"].exists():
        entries = list(ImageList.read(project / "source.txt"))
        parts = stratified_parts([entry.label for entry in entries], 0)
        rows = [f"{find(entry.path, project).absolute()} {entry.label}" for entry in entries]
        _write(lists["held_out"], [row for row, part in zip(rows, parts, strict=True) if part == 0])
        for name in ("training", "sample"):
            _write(lists[name], [row for row, part in zip(rows, parts, strict=True) if part != 0])
    domains = data_in_train(proto.read_net(project / "train_val.prototxt"))
    assert domains is not None
    reader = f"{domains.sources[0].layer.name}.image_data_param"
    settings = (f"{reader}.source={lists['training']}", f"{reader}.root_folder=")
    return Project(project, lists["held_out"], lists["sample"], settings, runner.start.weights)


def _write_lists(project: Path, held_out: Callable[[], Any]) -> None:
    """Write held_out.txt, with its images, and sample.txt; classes are numbered in the order of their names."""
    entries = list(ImageList.read(project / "source.txt"))
    drawn = np.sort(np.random.default_rng(0).permutation(len(entries))[:SAMPLE])
    _write(project / "sample.txt", [f"{find(entries[i].path, project).absolute()} {entries[i].label}" for i in drawn])
    folder = images.write(project / "held_out", held_out)
    classes = sorted(path.name for path in folder.iterdir())
    rows = [f"{path.absolute()} {classes.index(path.parent.name)}" for path in sorted(folder.rglob("*.png"))]
    _write(project / "held_out.txt", rows)


def _write(path: Path, rows: Sequence[str]) -> None:
    with replacing(path) as file:
        file.write("".join(f"{row}\n" for row in rows).encode())


def _digits(name: str, part: str) -> Callable[[Path], Any]:
    return lambda data: images.lmdb(data / f"{name}_{part}_lmdb")


_FOUR_EPOCHS = ("solver.max_iter=970", "solver.gamma=0.010309278")
"""Half of benchmarks/adaptation.py's iterations, with its learning rate's decay over the whole training."""


def _known(name: str) -> adaptation.Task:
    (task,) = adaptation.TASKS[name].values()
    return task


_MNIST_USPS = partial(_pair, _known("mnist-usps"), _digits("mnist", "test"), _FOUR_EPOCHS)
_USPS_MNIST = partial(_pair, _known("usps-mnist"), _digits("usps", "test"), _FOUR_EPOCHS)
_RENDERED = partial(_pair, _known("rendered-handwritten"), lambda data: images.rendered(1001), ())
_FIRST = (1, 5, 9, 13, 17)

Pictures: TypeAlias = Callable[[Path], Iterable[tuple[images.Image, str]]]
"""Images and the names of their classes, given FOLDER."""
_MNIST, _USPS = _digits("mnist", "train"), _digits("usps", "train")


def _handwritten(data: Path) -> Iterable[tuple[images.Image, str]]:
    return images.handwritten()


def _renderings(data: Path) -> Iterable[tuple[images.Image, str]]:
    return images.rendered(1)


def _small(title: str, source: Pictures, target: Pictures) -> Task:
    """A development task with few images: four fifths of at most 2,500 source images, and at most 2,000 target images.

    The source's last fifth is held out. A training has about 300 iterations.
    """

    def drawn(pictures: Pictures, data: Path, most: int) -> list[tuple[images.Image, str]]:
        found = list(pictures(data))
        return [found[row] for row in np.random.default_rng(0).permutation(len(found))[:most]]

    def trained(data: Path) -> Iterable[tuple[images.Image, str]]:
        found = drawn(source, data, SAMPLE * 5 // 4)
        return found[len(found) // 5 :]

    def held_out(data: Path) -> Iterable[tuple[images.Image, str]]:
        found = drawn(source, data, SAMPLE * 5 // 4)
        return found[: len(found) // 5]

    def domains(data: Path, out: Path) -> adaptation.Domains:
        folder = images.write(out / "target", partial(drawn, target, data, SAMPLE))
        return adaptation.Domains(images.write(out / "source", partial(trained, data)), folder, folder)

    pair = adaptation.Task(title, domains, lambda data, out: adaptation.Start("digits"), 5)
    return Task(title, partial(_pair, pair, held_out, ()), (101, 105, 109, 113, 117), True)


TASKS = {
    "demo-dev": Task("the demo, data seeds 101 to 105", _demo, (101, 102, 103, 104, 105), True),
    "mnist-usps-dev": Task("MNIST to USPS, seeds 101 to 120", _MNIST_USPS, (101, 105, 109, 113, 117), True),
    "usps-handwritten": _small("USPS to handwritten", _USPS, _handwritten),
    "rendered-mnist": _small("rendered to MNIST", _renderings, _MNIST),
    "mnist-rendered": _small("MNIST to rendered", _MNIST, _renderings),
    "letters": _small(
        "capitals, upright to slanted",
        lambda data: images.letters(images.UPRIGHT, 12, 1),
        lambda data: images.letters(images.SLANTED, 12, 2),
    ),
    "uneven": _small("MNIST to handwritten, uneven classes", _MNIST, lambda data: images.uneven(_handwritten(data))),
    "usps-mnist": Task("USPS to MNIST", _USPS_MNIST, _FIRST, False),
    "rendered-handwritten": Task("rendered to handwritten", _RENDERED, _FIRST, False),
    "solar-cells": Task("solar cells, mono to poly", _cells, (1, 5), False, balanced=True),
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


def train(results: Path, name: str, seed: int, run: Run, data: Path, device_name: str) -> float:
    """Train one run and keep what came of it; returns the seconds that it took."""
    from autodial.netparam.overrides import apply_to_nets, for_nets
    from autodial.netparam.variants import read_variant
    from autodial.selection.outputs import TrainedNet
    from autodial.system.devices import choose_device
    from autodial.training.run import Training

    task, device = TASKS[name], choose_device(device_name)
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
        device=device_name,
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
            record["moving"] = _score_source_only(
                param, trained.snapshot.weights, project.folder, device, task.balanced
            )
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
    record["machine"] = machine(device_name)
    with replacing(folder / f"{run.name}.json") as file:
        file.write(json.dumps(record, indent=2).encode())
    shutil.rmtree(scratch)
    return float(record["seconds"])


def _score_source_only(param: Any, weights: Path, base_dir: Path, device: torch.device, balanced: bool) -> float:
    """Of a net without Dial layers."""
    from autodial.evaluation.scoring import Scorer
    from autodial.net.net import Net
    from autodial.netparam.graph import Graph
    from autodial.netparam.net_state import filter_net
    from autodial.proto import messages as pb
    from autodial.training.solver import load_weights

    net = Net(param, pb.TEST, base_dir=base_dir).to(device)
    load_weights(net, [weights])
    graph = Graph(filter_net(param, pb.TEST).layer)
    scorer = Scorer(net, device=device, workers=0, logits=graph.names[graph.logits()])
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


def train_all(results: Path, names: Sequence[str], groups: int, data: Path, device: str, jobs: int) -> None:
    """Train what is not there yet, in processes of one thread each."""
    done = read_summary()
    left = [run for run in waiting(results, names, groups) if str(run[1]) not in done.get(run[0], {})]
    print(f"{len(left)} runs left", flush=True)
    for name, seed in dict.fromkeys((name, seed) for name, seed, _ in left):  # before runs share them
        TASKS[name].project(data, results / name, seed)
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        runs = [(item, pool.submit(train, results, *item, data, device)) for item in left]
        for (name, seed, run), trained in runs:
            error = trained.exception()
            outcome = f"failed: {error!r}" if error else f"{trained.result():.0f} s"
            print(f"{name}, group {seed}, {run.name}: {outcome}", flush=True)


def _one_thread() -> None:
    torch.set_num_threads(1)


# --- what the criteria choose


def read_summary() -> dict[str, dict[str, Any]]:
    """Groups that were summarized, by task and first seed."""
    return dict(json.loads(SUMMARY.read_text("utf-8"))) if SUMMARY.exists() else {}


def summarize(results: Path) -> dict[str, dict[str, Any]]:
    """Add what is finished to the summary; returns all of it."""
    summary = read_summary()
    for name, task in TASKS.items():
        for seed in task.seeds:
            runs = group(seed)
            folder = folder_of(results, name, seed)
            known = summary.get(name, {}).get(str(seed), {}).get("whole", {}).get("values", {})
            if set(known) == set(CRITERIA) or not all((folder / f"{run.name}.json").exists() for run in runs):
                continue
            summary.setdefault(name, {})[str(seed)] = summarize_group(folder, runs, balanced=task.balanced)
            SUMMARY.parent.mkdir(exist_ok=True)
            with replacing(SUMMARY) as file:
                file.write(f"{json.dumps(summary, indent=1)}\n".encode())
    return summary


def summarize_group(folder: Path, runs: Sequence[Run], *, balanced: bool) -> dict[str, Any]:
    """A group's runs and, with both statistics, what each criterion makes of them."""
    records = [json.loads((folder / f"{run.name}.json").read_text("utf-8")) for run in runs]
    keys = ("variant", "lambda", "seed", "alphas", "moving", "whole", "collapsed_at", "error", "cpu_seconds", "machine")
    summary: dict[str, Any] = {"runs": [{key: record[key] for key in keys if key in record} for record in records]}
    candidates = [(run, record) for run, record in zip(runs, records, strict=True) if run.lambda_ is not None]
    for statistics in STATISTICS:
        trials = [_trial(folder / f"{run.name}.{statistics}.npz", run, record["error"]) for run, record in candidates]
        choices, together = choose(trials), average(trials)
        accuracy = None
        if together is not None:
            members = [outputs for number in together.trials if (outputs := trials[number].outputs) is not None]
            probabilities = ensemble(outputs.test_probabilities for outputs in members)
            accuracy = score(probabilities, members[0].test_labels, balanced)
        summary[statistics] = {
            "chosen": {name: choice.trial for name, choice in choices.items()},
            "values": {
                name: [None if value is None else round(value, 5) for value in choice.values]
                for name, choice in choices.items()
            },
            "ensemble": accuracy,
        }
    return summary


def _trial(path: Path, run: Run, error: str | None) -> Trial:
    candidate = Candidate((f"lambda={run.lambda_}",), run.variant, run.seed)
    return Trial(candidate, Outputs.read(path) if path.exists() else None, error)


@dataclass(frozen=True)
class Group:
    """A group's target accuracies in %, with one kind of statistics.

    Attributes:
        runs: of the candidates, in the summary's order.
        chosen: by criterion, that of the run it chooses.
        ensemble: of the average of all candidates.
        baselines: by variant.
    """

    runs: list[float]
    chosen: dict[str, float]
    ensemble: float
    baselines: dict[str, float]

    @property
    def oracle(self) -> float:
        """The best candidate's accuracy."""
        return max(self.runs)

    @classmethod
    def of(cls, record: Mapping[str, Any], statistics: str) -> Group:
        """From the summary's record of the group; baselines without statistics of domains have the moving ones."""
        runs = [100 * run[statistics] for run in record["runs"] if run["lambda"] is not None and statistics in run]
        return cls(
            runs,
            {name: runs[number] for name, number in record[statistics]["chosen"].items() if number is not None},
            100 * (record[statistics]["ensemble"] or math.nan),
            {
                run["variant"]: 100 * run.get(statistics, run["moving"])
                for run in record["runs"]
                if run["lambda"] is None
            },
        )


def regrets(summary: Mapping[str, Any], statistics: str) -> str:
    """A row per criterion: its mean regret over the tasks, and a column per task: mean and worst regret, in points."""
    names = [name for name in TASKS if name in summary]
    groups = {name: [Group.of(record, statistics) for record in summary[name].values()] for name in names}
    lines = _header("criterion", ["mean", *(TASKS[name].title for name in names)])
    for criterion in CRITERIA:
        lost = {n: [g.oracle - g.chosen[criterion] for g in groups[n] if criterion in g.chosen] for n in names}
        cells = [_mean_and_worst(lost[name], len(groups[name])) for name in names]
        over = [mean(values) for values in lost.values() if values]
        lines.append(_row(criterion, [f"{mean(over):.1f}" if over else "-", *cells]))
    chance = [mean(g.oracle - mean(g.runs) for g in groups[name]) for name in names]
    lines.append(_row("a run by chance", [f"{mean(chance):.1f}", *(f"{value:.1f}" for value in chance)]))
    lines.append(_row("groups", ["", *(str(len(groups[name])) for name in names)]))
    return "\n".join(lines)


def left_out(summary: Mapping[str, Any]) -> str:
    """A row per task: the criterion with the least mean regret over the other tasks, and its mean regret over this one.

    Whole statistics; of criteria that need no held-out source images. The last row has the mean over the tasks.
    """
    names = [name for name in TASKS if name in summary]
    groups = {name: [Group.of(record, "whole") for record in summary[name].values()] for name in names}
    costs = {
        criterion: {name: mean(g.oracle - g.chosen[criterion] for g in groups[name]) for name in names}
        for criterion in CRITERIA
        if not CRITERIA[criterion].needs_held_out
    }
    lines, found = _header("left out", ["the least regret on the others", "its regret here"]), []
    for name in names:
        best = min(costs, key=lambda criterion: mean(costs[criterion][other] for other in names if other != name))
        found.append(costs[best][name])
        lines.append(_row(TASKS[name].title, [best, f"{costs[best][name]:.1f}"]))
    return "\n".join([*lines, _row("mean", ["", f"{mean(found):.1f}"])])


def _mean_and_worst(values: Sequence[float], groups: int) -> str:
    if not values:
        return "-"
    missing = "" if len(values) == groups else f", {len(values)} of {groups} groups"
    return f"{mean(values):.1f} ({max(values):.1f}{missing})"


def accuracies(summary: Mapping[str, Any], criterion: str) -> str:
    """A row per way to come by a predictor, a column per task: mean accuracy over the groups in %, least to most."""
    names = [name for name in TASKS if name in summary]
    lines = _header("target accuracy in %", [TASKS[name].title for name in names])
    rows: dict[str, Callable[[Group], float]] = {
        "source only": lambda g: g.baselines["source-only"],
        "AdaBN": lambda g: g.baselines["adabn"],
        "a run by chance": lambda g: mean(g.runs),
        "the median run": lambda g: median(g.runs),
        f"the run handed over ({criterion})": lambda g: g.chosen[criterion],
        "the ensemble": lambda g: g.ensemble,
        "the best run": lambda g: g.oracle,
    }
    for statistics in STATISTICS:
        lines.append(_row(f"*{statistics} statistics*", [""] * len(names)))
        for title, value in rows.items():
            cells = []
            for name in names:
                values = [value(Group.of(record, statistics)) for record in summary[name].values()]
                cells.append(_mean_and_range(values))
            lines.append(_row(title, cells))
    return "\n".join(lines)


def overview(summary: Mapping[str, Any], criterion: str) -> str:
    """What the README's table is taken from: mean and standard deviation in %, whole statistics.

    A setting's are over all its runs, the other rows' over the groups.
    """
    names = [name for name in TASKS if name in summary]
    groups = {name: [Group.of(record, "whole") for record in summary[name].values()] for name in names}
    lines = _header("target accuracy in %", [TASKS[name].title for name in names])
    for title, variant in (("source only", "source-only"), ("AdaBN", "adabn")):
        cells = [_mean_and_deviation([group.baselines[variant] for group in groups[name]]) for name in names]
        lines.append(_row(title, cells))
    for variant, lambda_ in product(VARIANTS, LAMBDAS):
        cells = [_mean_and_deviation(_of_setting(summary[name], variant, lambda_)) for name in names]
        lines.append(_row(f"AutoDIAL, {variant}, lambda {lambda_}", cells))
    rows: dict[str, Callable[[Group], float]] = {
        f"handed over by select ({criterion})": lambda group: group.chosen[criterion],
        "the average of all 16": lambda group: group.ensemble,
        "the best of 16": lambda group: group.oracle,
    }
    for title, value in rows.items():
        lines.append(_row(title, [_mean_and_deviation(list(map(value, groups[name]))) for name in names]))
    lines.append(_row("groups", [str(len(groups[name])) for name in names]))
    return "\n".join(lines)


def _of_setting(groups: Mapping[str, Any], variant: str, lambda_: float) -> list[float]:
    """Accuracies in %, with whole statistics, of all a setting's runs that did not fail."""
    runs = [run for record in groups.values() for run in record["runs"]]
    return [100 * r["whole"] for r in runs if (r["variant"], r["lambda"]) == (variant, lambda_) and "whole" in r]


def checks(summary: Mapping[str, Any], criterion: str) -> str:
    """A column per task: how the run handed over and the ensemble compare with a group's runs and with AdaBN."""
    names = [name for name in TASKS if name in summary]
    groups = {name: [Group.of(record, "whole") for record in summary[name].values()] for name in names}
    rows: dict[str, Callable[[list[Group]], str]] = {
        "groups whose run handed over is at least their median": lambda gs: _count(
            g.chosen[criterion] >= median(g.runs) for g in gs
        ),
        "groups whose ensemble is at least their mean": lambda gs: _count(g.ensemble >= mean(g.runs) for g in gs),
        "runs handed over, mean minus AdaBN's": lambda gs: (
            f"{mean(g.chosen[criterion] for g in gs) - mean(g.baselines['adabn'] for g in gs):+.1f}"
        ),
    }
    lines = _header(f"{criterion}, whole statistics", [TASKS[name].title for name in names])
    lines += [_row(title, [value(groups[name]) for name in names]) for title, value in rows.items()]
    return "\n".join(lines)


def _count(found: Iterable[bool]) -> str:
    values = list(found)
    return f"{sum(values)} of {len(values)}"


def settings(summary: Mapping[str, Any]) -> str:
    """A row per setting, a column per task: mean accuracy over its runs with whole statistics, least to most."""
    names = [name for name in TASKS if name in summary]
    lines = _header("target accuracy in %", [TASKS[name].title for name in names])
    for lambda_, variant in product(LAMBDAS, VARIANTS):
        cells = []
        for name in names:
            found = _of_setting(summary[name], variant, lambda_)
            cells.append(f"{_mean_and_range(found)}, ± {stdev(found):.1f}")
        lines.append(_row(f"{variant}, lambda {lambda_}", cells))
    for lambda_ in LAMBDAS:
        cells = []
        for name in names:
            runs = [run for record in summary[name].values() for run in record["runs"]]
            alphas = [
                r["alphas"] for r in runs if (r["variant"], r["lambda"]) == ("learned", lambda_) and "alphas" in r
            ]
            means = [mean(row[layer] for row in alphas) for layer in alphas[0]]
            few = ", ".join(f"{alpha:.2f}" for alpha in means)
            many = f"{min(means):.2f} to {max(means):.2f} ({len(means)} layers)"
            cells.append(few if len(means) <= 8 else many)
        lines.append(_row(f"mean alphas, lambda {lambda_}", cells))
    return "\n".join(lines)


def cost(summary: Mapping[str, Any]) -> str:
    """CPU hours of each task, and the machines."""
    runs = {name: [run for record in groups.values() for run in record["runs"]] for name, groups in summary.items()}
    hours = [f"{TASKS[n].title} {sum(r['cpu_seconds'] for r in found) / 3600:.2f}" for n, found in runs.items()]
    machines = sorted({run["machine"] for found in runs.values() for run in found})
    return f"CPU hours: {', '.join(hours)}; {'; '.join(machines)}."


def _header(first: str, columns: Sequence[str]) -> list[str]:
    return [_row(first, columns), f"|---|{'---|' * len(columns)}"]


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def _mean_and_range(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else f"{values[0]:.1f}"


def _mean_and_deviation(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("results", type=Path)
    training.add_argument("tasks", nargs="*", default=list(TASKS))
    training.add_argument("--groups", type=int, default=5)
    training.add_argument("--data", type=Path, default=Path())
    training.add_argument("--device", default="cpu")
    training.add_argument("--jobs", type=int, default=1)
    reporting = commands.add_parser("report")
    reporting.add_argument("results", type=Path, nargs="?")
    arguments = parser.parse_args()
    if arguments.command == "train":
        data = arguments.data.resolve()
        train_all(
            arguments.results.resolve(), arguments.tasks, arguments.groups, data, arguments.device, arguments.jobs
        )
        return
    summary = read_summary() if arguments.results is None else summarize(arguments.results.resolve())
    for title, development in (("Development", True), ("Reported", False)):
        part = {name: groups for name, groups in summary.items() if TASKS[name].development == development}
        print(f"{title} tasks. Regret in points, mean (worst) over the groups, whole statistics, then moving ones:\n")
        print(regrets(part, "whole"), regrets(part, "moving"), sep="\n\n", end="\n\n")
        tables = (accuracies(part, DEFAULT), checks(part, DEFAULT), settings(part))
        print(left_out(part) if development else overview(part, DEFAULT), *tables, sep="\n\n", end="\n\n")
    print(cost(summary))


if __name__ == "__main__":
    main()

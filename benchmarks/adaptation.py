"""Source only, entropy only, AdaBN, AutoDIAL with alpha 1 and AutoDIAL on one pair of domains, as a table.

    python benchmarks/adaptation.py TASK RESULTS_DIR [--data FOLDER] [--seeds 1 2 3 4 5] [--jobs N] [--device cuda]

Each task is a user's way through the product: class folders, `autodial init`, `autodial select` for lambda, then
`autodial train` and `autodial test` for every variant and seed. Lambda is chosen without target labels, with a seed
that is none of those reported. What is finished is kept in RESULTS_DIR and not run again; an interrupted training goes
on from its last snapshot. FOLDER holds what the task starts from:

    mnist-usps, usps-mnist   LMDBs mnist_train_lmdb, mnist_test_lmdb, usps_train_lmdb, usps_test_lmdb; without them,
                             torchvision's MNIST and USPS, which it downloads there
    rendered-handwritten     nothing: matplotlib's fonts, and scikit-learn's digits
    solar-cells              deploy.prototxt and *.caffemodel of a BatchNorm net; the images are elpv-dataset's
    svhn-mnist               torchvision's SVHN and MNIST, which it downloads there
    office31                 amazon, dslr and webcam, class folders, or folders with those in `images`; and a
                             *.caffemodel of CaffeNet. All six pairs: the paper's ablation
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import adaptation_images as images
from demo_seeds import machine
from seed_tables import seed_table

from autodial import proto
from autodial.system.cpus import available_cpus
from autodial.system.files import replacing
from autodial.training.run_record import read_log

VARIANTS = {
    "source-only": "source only",
    "entropy-only": "entropy only",
    "adabn": "AdaBN",
    "fixed-alpha": "AutoDIAL, alpha fixed to 1",
    "": "AutoDIAL",
}
LAMBDAS = (0.05, 0.1, 0.2, 0.4)
SELECTION_SEED = 101
_AUTODIAL = [sys.executable, "-m", "autodial"]


@dataclass(frozen=True)
class Domains:
    """Class folders: labelled for training, unlabelled for training, labelled for scoring alone."""

    source: Path
    target: Path
    test: Path


@dataclass(frozen=True)
class Start:
    """What training starts from: `--arch` of `autodial init`, and weights if there are any."""

    arch: str
    weights: Path | None = None


@dataclass(frozen=True)
class Task:
    """A pair of domains and how a net is trained on it.

    Attributes:
        title: of the table.
        domains: writes or finds the images, given FOLDER and a folder to write to.
        start: finds or makes the net, given the same.
        epochs: over the source.
        balanced: whether the score is the mean of the classes' recalls instead of the accuracy.
        published: figures to compare with.
    """

    title: str
    domains: Callable[[Path, Path], Domains]
    start: Callable[[Path, Path], Start]
    epochs: int
    balanced: bool = False
    published: str = ""


class Runner:
    """Runs the commands of one task, everything in one folder.

    Args:
        task: what to run.
        data: FOLDER of the command line.
        folder: for all that is written.
        device: as `autodial train` has it.
        jobs: trainings at a time, which share the CPUs.
    """

    def __init__(self, task: Task, data: Path, folder: Path, device: str, jobs: int) -> None:
        self.task, self.folder, self.device, self.jobs = task, folder, device, jobs
        threads = max(1, available_cpus() // jobs)
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._options = ["--device", device, "--workers", str(min(2, threads - 1))]
        folder.mkdir(parents=True, exist_ok=True)
        self.start = task.start(data, folder)
        self.project = folder / "project"
        if not self.project.exists():
            domains = task.domains(data, folder)
            words = ["--source", domains.source, "--target", domains.target, "--test", domains.test]
            net = ["--arch", self.start.arch, "--epochs", str(task.epochs)]
            self._run("init", self.project, *net, *self._weights(), *words, log=folder / "init.txt")

    def chosen_lambda(self) -> str:
        """What `autodial select` chooses without target labels, with a seed that no reported run has."""
        folder = self.folder / "select"
        if not (folder / "select.json").exists():
            (loss,) = self._entropy_losses()
            words = ["--solver", self.project / "solver.prototxt", *self._weights(), "--device", self.device]
            tries = ["--try", f"{loss}.loss_weight={','.join(map(str, LAMBDAS))}", "--seed", str(SELECTION_SEED)]
            # what each choice would have cost is shown, and takes no part in it
            options = ["--target-labels", "--jobs", str(self.jobs), "-o", folder]
            self._run("select", *words, *tries, *options, log=self.folder / "select.txt")
        record = json.loads((folder / "select.json").read_text("utf-8"))
        (setting,) = record["candidates"][record["chosen"]]["settings"]
        return str(setting).partition("=")[2]

    def scores(self, seeds: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
        """What came of every variant, by seed."""
        score = partial(self._score, lambda_=self.chosen_lambda())
        with ThreadPoolExecutor(self.jobs) as pool:
            runs = {variant: [pool.submit(score, variant, seed) for seed in seeds] for variant in VARIANTS}
            return {variant: [run.result() for run in row] for variant, row in runs.items()}

    def _score(self, variant: str, seed: int, lambda_: str) -> dict[str, Any]:
        """Train and test one variant with one seed, or read what came of that earlier."""
        folder = self.folder / f"{variant or 'autodial'}_{seed}"
        result = folder / "result.json"
        if not result.exists():
            folder.mkdir(exist_ok=True)
            started = time.perf_counter()
            weights = self._train(folder, variant, seed, lambda_)
            scores = folder / "scores.csv"
            net = ["--net", self.project / "train_val.prototxt", *_variant(variant), "--weights", weights]
            self._run("test", *net, *self._options, "-o", scores, log=folder / "log.txt")
            rows = [row for row in read_log(folder / "run") if row["event"] == "train"]
            record = {
                "score": target_score(scores, balanced=self.task.balanced),
                "lambda": lambda_,
                "alphas": rows[-1]["alphas"],
                "seconds": time.perf_counter() - started,
                "machine": machine(self.device),
            }
            with replacing(result) as file:
                file.write(json.dumps(record, indent=2).encode())
            for snapshot in folder.glob("net_iter_*"):
                snapshot.unlink()
        return dict(json.loads(result.read_text("utf-8")))

    def _train(self, folder: Path, variant: str, seed: int, lambda_: str) -> Path:
        """Train to the end, from the last snapshot if there is one; returns the weights' path."""
        solver = self.project / "solver.prototxt"
        last = proto.read_solver(solver).max_iter
        weights = folder / f"net_iter_{last}.caffemodel"
        if weights.exists():
            return weights
        states = sorted(folder.glob("net_iter_*.solverstate"), key=lambda path: int(path.stem.rpartition("_")[2]))
        if not states:
            shutil.rmtree(folder / "run", ignore_errors=True)
        start = ["--snapshot", states[-1]] if states else self._weights()
        settings = [
            f"solver.snapshot_prefix={folder / 'net'}",
            f"solver.snapshot={max(1, last // 4)}",
            f"solver.test_interval={last}",
        ]
        if variant not in ("source-only", "adabn"):  # which have no entropy loss
            settings += [f"{name}.loss_weight={lambda_}" for name in self._entropy_losses()]
        words = [word for setting in settings for word in ("--set", setting)]
        train = ["--solver", solver, *start, "--seed", str(seed), *_variant(variant), *words, *self._options]
        self._run("train", *train, "-o", folder / "run", log=folder / "log.txt")
        return weights

    def _weights(self) -> list[str]:
        return ["--weights", str(self.start.weights)] if self.start.weights else []

    def _entropy_losses(self) -> list[str]:
        net = proto.read_net(self.project / "train_val.prototxt")
        return [layer.name for layer in net.layer if layer.type == "EntropyLoss"]

    def _run(self, *words: str | Path, log: Path) -> None:
        """One command of `autodial`, its output added to a file; ends the benchmark if it fails."""
        with log.open("a", encoding="utf-8") as file:
            line = [*_AUTODIAL, *map(str, words)]
            status = subprocess.run(line, stdout=file, stderr=file, env=self._environment).returncode
        if status:
            raise SystemExit(f"autodial {words[0]} ended with status {status}: see {log}")


def _variant(name: str) -> list[str]:
    return ["--variant", name] if name else []


def target_score(scores: Path, *, balanced: bool) -> float:
    """Accuracy, or the mean of the classes' recalls, in [0, 1], of the rows that `autodial test` wrote."""
    with scores.open(encoding="utf-8", newline="") as file:
        rows = [(row["label"], row["label"] == row["predicted"]) for row in csv.DictReader(file)]
    if not balanced:
        return statistics.mean(right for _, right in rows)
    labels = {label for label, _ in rows}
    return statistics.mean(statistics.mean(right for label, right in rows if label == one) for one in labels)


# --- the tasks


def _digits(source: str, target: str, data: Path, out: Path) -> Domains:
    """MNIST and USPS, source and target; the test images are the target's own test set."""

    def digits(name: str, part: str) -> Path:
        database = data / f"{name.lower()}_{part}_lmdb"
        if database.is_dir():
            return images.write(out / f"{name}_{part}", partial(images.lmdb, database))
        return images.write(out / f"{name}_{part}", partial(images.torchvision_digits, name, part == "train", data))

    return Domains(digits(source, "train"), digits(target, "train"), digits(target, "test"))


def _rendered(data: Path, out: Path) -> Domains:
    handwritten = images.write(out / "handwritten", images.handwritten)
    return Domains(images.write(out / "rendered", partial(images.rendered, 1)), handwritten, handwritten)


def _cells(data: Path, out: Path) -> Domains:
    poly = images.write(out / "poly", partial(images.solar_cells, "poly"))
    return Domains(images.write(out / "mono", partial(images.solar_cells, "mono")), poly, poly)


def _office(source: str, target: str, data: Path, out: Path) -> Domains:
    def folder(name: str) -> Path:
        return data / name / "images" if (data / name / "images").is_dir() else data / name

    return Domains(folder(source), folder(target), folder(target))


def _shipped(name: str, data: Path, out: Path) -> Start:
    return Start(name)


def _caffenet(data: Path, out: Path) -> Start:
    return Start("alexnet", _only_caffemodel(data))


def dialized(data: Path, out: Path, resize: int = 256, crop: int = 224) -> Start:
    """The BatchNorm net in `data` as its AutoDIAL net, for `crop` x `crop` pixels of images of `resize` x `resize`."""
    net = out / "dialized.prototxt"
    if not net.exists():
        deploy = proto.read_net(data / "deploy.prototxt")
        for layer in deploy.layer:
            pooling = layer.pooling_param
            if layer.type == "Pooling" and pooling.kernel_size == 7:  # the whole map, for images of 224 x 224
                pooling.ClearField("kernel_size")
                pooling.global_pooling = True
        proto.write_text(deploy, out / "deploy.prototxt")
        prepare = f"crop_size: {crop} mirror: true mean_value: 104 mean_value: 117 mean_value: 123"
        words = [out / "deploy.prototxt", _only_caffemodel(data), "--classes", 2, "--resize", resize]
        line = [*_AUTODIAL, "dialize", *map(str, words), "--transform", prepare, "-o", str(net)]
        subprocess.run(line, check=True)
    return Start(str(net), net.with_suffix(".caffemodel"))


def _only_caffemodel(folder: Path) -> Path:
    found = sorted(folder.glob("*.caffemodel"))
    if len(found) != 1:
        raise SystemExit(f"{folder} must hold one .caffemodel, and holds {len(found)}")
    return found[0]


_SECOND_HAND = "AutoDIAL on all of MNIST: {} (second-hand, from later work on domain whitening)"


def _digit_task(source: str, target: str, epochs: int, published: str) -> Task:
    return Task(
        f"{source} to {target}",
        partial(_digits, source, target),
        partial(_shipped, "digits"),
        epochs,
        published=_SECOND_HAND.format(published),
    )


def _office_task(source: str, target: str, published: tuple[float, float]) -> Task:
    return Task(
        f"Office-31, {source} to {target}",
        partial(_office, source, target),
        _caffenet,
        60,
        published="the paper: AlexNet source only {}, AutoDIAL {}".format(*published),
    )


OFFICE = {
    ("amazon", "dslr"): (63.8, 73.6),
    ("amazon", "webcam"): (61.6, 75.5),
    ("dslr", "amazon"): (51.1, 58.1),
    ("dslr", "webcam"): (95.4, 96.6),
    ("webcam", "amazon"): (49.8, 59.4),
    ("webcam", "dslr"): (99.0, 99.5),
}
"""The paper's accuracies with AlexNet, in %: source only and AutoDIAL."""

TASKS: dict[str, dict[str, Task]] = {
    "mnist-usps": {"mnist-usps": _digit_task("MNIST", "USPS", 8, "97.96")},
    "usps-mnist": {"usps-mnist": _digit_task("USPS", "MNIST", 8, "97.51")},
    "rendered-handwritten": {
        "rendered-handwritten": Task("rendered to handwritten digits", _rendered, partial(_shipped, "digits"), 14)
    },
    "solar-cells": {"solar-cells": Task("solar cells, mono to poly", _cells, dialized, 15, balanced=True)},
    "svhn-mnist": {
        "svhn-mnist": Task(
            "SVHN to MNIST",
            partial(_digits, "SVHN", "MNIST"),
            partial(_shipped, "svhn_mnist"),
            25,
            published="the paper: AutoDIAL 90.3",
        )
    },
    "office31": {f"office31-{s}-{t}": _office_task(s, t, published) for (s, t), published in OFFICE.items()},
}
"""By name on the command line: the pairs of domains, each with the folder that it gets in RESULTS_DIR."""


# --- the table


def markdown(task: Task, results: dict[str, list[dict[str, Any]]], seeds: Sequence[int]) -> str:
    """A row per variant: mean and sample standard deviation over the seeds, then each; below, AutoDIAL's alphas."""
    kind = "mean of the classes' recalls" if task.balanced else "accuracy"
    rows = {title: [100 * record["score"] for record in results[variant]] for variant, title in VARIANTS.items()}
    alphas = [record["alphas"] for record in results[""]]
    depth = ", ".join(f"{name} {statistics.mean(row[name] for row in alphas):.2f}" for name in alphas[0])
    records = [record for each in results.values() for record in each]
    seconds = [record["seconds"] for record in records]
    machines = sorted({record["machine"] for record in records})
    return "\n".join(
        [
            f"{task.title}: {kind} on the target in %",
            "",
            *seed_table("variant", rows, seeds),
            "",
            f"lambda {results[''][0]['lambda']}. Mean alphas, from the lowest layer: {depth}.",
            *([f"Published: {task.published}."] if task.published else []),
            f"{min(seconds):.0f} to {max(seconds):.0f} s a run; {'; '.join(machines)}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    for name, task in TASKS[arguments.task].items():
        folder = (arguments.results / name).resolve()
        runner = Runner(task, arguments.data.resolve(), folder, arguments.device, arguments.jobs)
        results = runner.scores(arguments.seeds)
        print(markdown(task, results, arguments.seeds), end="\n\n", flush=True)


if __name__ == "__main__":
    main()

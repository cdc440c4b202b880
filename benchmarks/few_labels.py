"""A few target labels: AutoDIAL with and without them, beside the network that learns from labels alone, as a table.

    python benchmarks/few_labels.py TASK RESULTS_DIR [--data FOLDER] [--seeds 1 2 3] [--epochs 14] [--device cpu]

Labels are drawn at random, equally many for each class; a seed's larger sets hold its smaller ones. A last row has as
many labels as five a class make, for the images that `predict --to-label` chooses with the seed's net without labels.
Test images take no part in training. FOLDER holds what the task starts from:

    rendered-handwritten     nothing: matplotlib's fonts, and scikit-learn's digits, of which every second one is tested
    mnist-usps               LMDBs mnist_train_lmdb, usps_train_lmdb, usps_test_lmdb, or torchvision's, as for
                             adaptation.py; 2,000 and 1,800 images are drawn from the training sets

What is finished is kept in RESULTS_DIR and not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import adaptation_images as images
import numpy as np
from demo_seeds import machine
from seed_tables import seed_table

from autodial import proto
from autodial.cli import app
from autodial.deploy import PredictOptions, choose_to_label
from autodial.project.project import prepare
from autodial.system.files import replacing
from autodial.training.run import Training
from autodial.training.run_record import read_log

COUNTS = (1, 5, 10)
"""Labels a class."""
CHOSEN = 5
"""Labels a class in the row of chosen images."""

Digits = Callable[[], Iterable[tuple[images.Image, str]]]


class Row(NamedTuple):
    """A row of the table: the labels a class, and whether the domains are aligned and the images were chosen."""

    labels: int
    aligned: bool
    chosen: bool = False

    @property
    def title(self) -> str:
        method = "AutoDIAL" if self.aligned else "source only"
        if self.chosen:
            return f"{method} and {10 * self.labels} labels, of images that `--to-label` chose"
        labels = f"{self.labels} label{'s' if self.labels > 1 else ''} a class" if self.labels else "no target labels"
        return f"{method}, {labels}" if not self.labels else f"{method} and {labels}"

    @property
    def name(self) -> str:
        return f"{'autodial' if self.aligned else 'source-only'}_{self.labels}{'_chosen' if self.chosen else ''}"


ROWS = (
    *(Row(labels, aligned) for labels in (0, *COUNTS) for aligned in (False, True)),
    Row(CHOSEN, aligned=True, chosen=True),
)


def drawn(digits: Digits, count: int) -> Iterable[tuple[images.Image, str]]:
    """Some of the images, drawn at random, the same each time."""
    whole = list(digits())
    for i in np.random.default_rng(0).permutation(len(whole))[:count]:
        yield whole[i]


def every_second(digits: Digits, first: int) -> Iterable[tuple[images.Image, str]]:
    """The images with even numbers (`first` 0) or odd ones."""
    return islice(digits(), first, None, 2)


def domains(task: str, data: Path, out: Path) -> tuple[Path, Path, Path]:
    """The class folders of the source, the target and the test images."""
    if task == "rendered-handwritten":
        source: Digits = partial(images.rendered, 1)
        target, test = (partial(every_second, images.handwritten, first) for first in (0, 1))
    else:
        source, target = (
            partial(drawn, digits(name, "train", data), count) for name, count in (("MNIST", 2000), ("USPS", 1800))
        )
        test = digits("USPS", "test", data)
    names = (("source", source), ("target", target), ("test", test))
    folders = [images.write(out / name, of) for name, of in names]
    return folders[0], folders[1], folders[2]


def digits(name: str, part: str, data: Path) -> Digits:
    """MNIST or USPS, part "train" or "test", of an LMDB in a folder or, without it, of torchvision."""
    database = data / f"{name.lower()}_{part}_lmdb"
    if database.is_dir():
        return cache(lambda: list(images.lmdb(database)))
    return partial(images.torchvision_digits, name, part == "train", data)


def some_labels(target: Path, seed: int, count: int, path: Path) -> Path:
    """Write a list of `count` images of each class."""
    random = np.random.default_rng(seed)
    lines = []
    for folder in sorted(target.iterdir()):
        files = sorted(folder.iterdir())
        lines += [f"{files[i].resolve()} {folder.name}\n" for i in random.permutation(len(files))[:count]]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def chosen_labels(model: Path, target: Path, count: int, path: Path, device: str) -> Path:
    """Let `--to-label` choose images, and fill in their labels."""
    path.unlink(missing_ok=True)
    choose_to_label(model, [target], path, count, PredictOptions(device=device))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"label": Path(row["path"]).parent.name} for row in rows)
    return path


class Seed:
    """The trainings of one seed, in one folder."""

    def __init__(self, folder: Path, of: tuple[Path, Path, Path], seed: int, epochs: float, device: str) -> None:
        self._folder, self._domains, self._seed = folder, of, seed
        self._epochs, self._device = epochs, device
        folder.mkdir(parents=True, exist_ok=True)

    def score(self, row: Row) -> dict[str, Any]:
        """Accuracy on the test images in [0, 1], and what it took, from the row's file or from a training."""
        result = self._folder / f"{row.name}.json"
        if not result.exists():
            started = time.perf_counter()
            accuracy = self._train(row)
            seconds = time.perf_counter() - started
            record = {"accuracy": accuracy, "seconds": seconds, "machine": machine(self._device)}
            with replacing(result) as file:
                file.write(json.dumps(record, indent=2).encode())
        return dict(json.loads(result.read_text("utf-8")))

    def _train(self, row: Row) -> float:
        source, target, test = self._domains
        folder = self._folder / row.name
        few = self._few(row)
        if not (folder / "solver.prototxt").exists():
            prepare(folder, "digits", source, target, test=test, labelled_target=few, epochs=self._epochs).write()
        for old in folder.glob("solver_iter_*"):  # of a training that was interrupted
            old.unlink()
        solver = folder / "solver.prototxt"
        run = Training(
            solver,
            device=self._device,
            seed=self._seed,
            workers=0,
            variants=[] if row.aligned else ["source-only"],
            overrides=["solver.snapshot=0", f"solver.test_interval={proto.read_solver(solver).max_iter}"],
        ).run()
        (tested,) = [event for event in read_log(run.folder) if event["event"] == "test"]
        return float(tested["outputs"]["accuracy"])

    def _few(self, row: Row) -> Path | None:
        if not row.labels:
            return None
        if not row.chosen:
            return some_labels(self._domains[1], self._seed, row.labels, self._folder / f"{row.name}.txt")
        first = self._folder / Row(0, aligned=True).name
        (weights,) = first.glob("*.caffemodel")
        model = self._folder / "first.onnx"
        app(
            ["export", "--net", str(first / "train_val.prototxt"), "--weights", str(weights), "-o", str(model)],
            standalone_mode=False,
        )
        return chosen_labels(model, self._domains[1], 10 * row.labels, self._folder / f"{row.name}.csv", self._device)


def markdown(task: str, results: dict[Row, list[dict[str, Any]]], seeds: Sequence[int]) -> str:
    rows = {row.title: [100 * record["accuracy"] for record in records] for row, records in results.items()}
    records = [record for row in results.values() for record in row]
    seconds = [record["seconds"] for record in records]
    machines = "; ".join(sorted({record["machine"] for record in records}))
    return "\n".join(
        [
            f"{task}: accuracy on the target's test images in %",
            "",
            *seed_table("", rows, seeds),
            "",
            f"{min(seconds):.0f} to {max(seconds):.0f} s a training; {machines}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("rendered-handwritten", "mnist-usps"))
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=float, default=14)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    folder = (arguments.results / arguments.task).resolve()
    of = domains(arguments.task, arguments.data.resolve(), folder)
    results: dict[Row, list[dict[str, Any]]] = {row: [] for row in ROWS}
    for seed in arguments.seeds:
        runs = Seed(folder / f"seed_{seed}", of, seed, arguments.epochs, arguments.device)
        for row in ROWS:
            results[row].append(runs.score(row))
    print(markdown(arguments.task, results, arguments.seeds))


if __name__ == "__main__":
    main()

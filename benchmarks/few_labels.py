"""A few target labels: AutoDIAL with and without them, beside the network without alignment and without source.

    python benchmarks/few_labels.py TASK RESULTS_DIR [--data FOLDER] [--seeds 1 2 3] [--epochs 14] [--device cpu]

Labels are drawn at random, equally many for each class; a seed's larger sets hold its smaller ones. The last rows have
as many labels as five a class make: for images drawn at random whatever their classes, and for those that `predict
--to-label` chooses with the seed's net without labels. "Labels alone" trains the network on the labelled images alone,
for as many iterations, with at most 32 images in a batch. Test images take no part in training. FOLDER holds what the
task starts from:

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
SAMPLE = 5
"""Labels a class, on average, in the rows that are not balanced."""

Digits = Callable[[], Iterable[tuple[images.Image, str]]]


METHODS = {"labels-only": "labels alone", "source-only": "source only", "autodial": "AutoDIAL"}
"""What a row trains, and what the table calls it."""
BALANCED, ANY, CHOSEN = "balanced", "any", "chosen"
"""Which images have labels: equally many of each class, or any, both at random; or those that `--to-label` chose."""


class Row(NamedTuple):
    """A row of the table: the labels a class, what is trained, and which images have labels."""

    labels: int
    method: str
    which: str = BALANCED

    @property
    def title(self) -> str:
        title = METHODS[self.method]
        if not self.labels:
            return f"{title}, no target labels"
        if self.which != BALANCED:
            images = {ANY: "images drawn from all", CHOSEN: "images that `--to-label` chose"}[self.which]
            return f"{title}, {10 * self.labels} labels, of {images}"
        return f"{title}, {self.labels} label{'s' if self.labels > 1 else ''} a class"

    @property
    def name(self) -> str:
        return f"{self.method}_{self.labels}{'' if self.which == BALANCED else f'_{self.which}'}"


FIRST = Row(0, "autodial")
"""Its net chooses images to label, and its number of iterations is that of all."""
ROWS = (
    Row(0, "source-only"),
    FIRST,
    *(Row(labels, method) for labels in COUNTS for method in METHODS),
    *(Row(SAMPLE, "autodial", which) for which in (ANY, CHOSEN)),
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


def some_labels(target: Path, seed: int, count: int, path: Path, *, balanced: bool) -> Path:
    """Write a list of `count` images of each class or, if not `balanced`, of as many whatever their classes."""
    random = np.random.default_rng(seed)
    classes = [sorted(folder.iterdir()) for folder in sorted(target.iterdir())]
    if not balanced:
        count *= len(classes)
        classes = [[file for files in classes for file in files]]
    drawn = [files[i] for files in classes for i in random.permutation(len(files))[:count]]
    path.write_text("".join(f"{file.resolve()} {file.parent.name}\n" for file in drawn), encoding="utf-8")
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
        folder = self._folder / row.name
        solver = folder / "solver.prototxt"
        few = self._few(row)
        if not solver.exists():
            self._prepare(row, few, folder)
        for old in folder.glob("solver_iter_*"):  # of a training that was interrupted
            old.unlink()
        run = Training(
            solver,
            device=self._device,
            seed=self._seed,
            workers=0,
            variants=[] if row.method == "autodial" else ["source-only"],
            overrides=["solver.snapshot=0", f"solver.test_interval={proto.read_solver(solver).max_iter}"],
        ).run()
        (tested,) = [event for event in read_log(run.folder) if event["event"] == "test"]
        return float(tested["outputs"]["accuracy"])

    def _prepare(self, row: Row, few: Path | None, folder: Path) -> None:
        source, target, test = self._domains
        if row.method != "labels-only":
            prepare(folder, "digits", source, target, test=test, labelled_target=few, epochs=self._epochs).write()
            return
        assert few is not None
        # the labelled images are the source; source-only takes nothing from the target but the images to score
        images = len(few.read_text("utf-8").splitlines())
        iterations = proto.read_solver(self._folder / FIRST.name / "solver.prototxt").max_iter
        epochs = iterations * min(images, 32) / images
        prepare(folder, "digits", few, test, epochs=epochs, batch_size=64, halves=True).write()

    def _few(self, row: Row) -> Path | None:
        target = self._domains[1]
        if not row.labels:
            return None
        if row.which != CHOSEN:
            path = self._folder / f"{row.name}.txt"
            return some_labels(target, self._seed, row.labels, path, balanced=row.which == BALANCED)
        first = self._folder / FIRST.name
        (weights,) = first.glob("*.caffemodel")
        model = self._folder / "first.onnx"
        app(
            ["export", "--net", str(first / "train_val.prototxt"), "--weights", str(weights), "-o", str(model)],
            standalone_mode=False,
        )
        return chosen_labels(model, target, 10 * row.labels, self._folder / f"{row.name}.csv", self._device)


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

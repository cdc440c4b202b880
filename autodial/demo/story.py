"""The demo: one net, three methods, three seeds of each, a choice without labels, and an ensemble."""

from __future__ import annotations

import csv
import json
import shlex
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from autodial import proto
from autodial.converters.net_export import export
from autodial.data.image_list import ImageList
from autodial.demo.choice import information
from autodial.demo.images import CLASSES, RENDERINGS, DigitFiles, write_images
from autodial.demo.picture import Accuracies, draw
from autodial.demo.steps import Steps
from autodial.deploy import PredictOptions, predict_folder
from autodial.errors import InputError
from autodial.evaluation.scoring import Scorer, write_scores
from autodial.net.net import Net
from autodial.netparam.graph import Graph
from autodial.netparam.net_state import filter_net
from autodial.netparam.shipped import shipped_net, shipped_solver
from autodial.netparam.variants import read_variant
from autodial.proto import messages as pb
from autodial.system.cpus import available_cpus
from autodial.system.devices import choose_device, warn_of_cpu
from autodial.system.files import entries, replacing
from autodial.system.outputs import check_folder
from autodial.system.terminal import Console
from autodial.wording import command_line

LOG = "log.txt"
"""The file in the output folder for what the steps report."""
SCORES = "scores.json"
"""The file in the output folder for the result."""
_NET, _SOLVER = "train_val.prototxt", "solver.prototxt"
_MODEL, _ENSEMBLE = "target_predictor.onnx", "ensemble.onnx"
_PREFIX = "digits"
"""Snapshots' names begin so."""
_GPU_PROCESSES = 3
"""Trainings that share a GPU."""


@dataclass(frozen=True)
class Recipe:
    """What the demo trains, and on what.

    Attributes:
        restarts: trainings of each method, with seeds of their own.
        renderings: source images of each digit in each font.
        settings: for every training, as `autodial train --set` takes them.
    """

    restarts: int = 3
    renderings: Sequence[int] = RENDERINGS
    settings: Sequence[str] = ()


@dataclass(frozen=True)
class Method:
    """A way to train the demo's net.

    Attributes:
        title: what the table calls it.
        about: what it does about the target domain.
        folder: the folder for its runs, in the output folder.
        variants: names for `autodial.netparam.variants`; none for the net as it is.
        adapts: whether it uses the target's images; only such runs can be chosen.
    """

    title: str
    about: str
    folder: str
    variants: tuple[str, ...]
    adapts: bool = True


METHODS = (
    Method("source only", "no alignment", "source_only", ("source-only",), adapts=False),
    Method("AdaBN", "statistics of each domain", "adabn", ("adabn",)),
    Method("AutoDIAL", "learned alphas, entropy loss", "autodial", ()),
)


@dataclass(frozen=True, eq=False)
class _TrainedRun:
    """A run and the probabilities that it gives the target's images, (images, classes)."""

    method: Method
    seed: int
    folder: Path
    probabilities: NDArray[np.float32]
    labels: NDArray[np.int64]

    @cached_property
    def accuracy(self) -> float:
        return float((self.probabilities.argmax(1) == self.labels).mean())

    @property
    def name(self) -> str:
        return f"{self.method.title}, seed {self.seed}"


@dataclass(frozen=True)
class MethodScore:
    """A method's accuracies on the target, in [0, 1].

    Attributes:
        title: the method's title.
        accuracies: the accuracy of each run, by training seed.
    """

    title: str
    accuracies: dict[int, float]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.mean(self.accuracies.values())


@dataclass(frozen=True)
class Result:
    """What came of the demo.

    Attributes:
        seed: the demo's.
        methods: the accuracies of METHODS, in this order.
        chosen: title and seed of the run that was chosen without labels.
        chosen_accuracy: the accuracy of this run's exported file, in [0, 1].
        ensemble_accuracy: the accuracy of the exported file that averages the chosen method's runs, in [0, 1].
        information: the criterion's value for the chosen run (`autodial.demo.choice.information`), in nats.
    """

    seed: int
    methods: list[MethodScore]
    chosen: tuple[str, int]
    chosen_accuracy: float
    ensemble_accuracy: float
    information: float


def run_demo(
    output: Path,
    *,
    seed: int = 1,
    device: str = "auto",
    console: Console | None = None,
    recipe: Recipe = Recipe(),
) -> Result:
    """Run the whole demo and leave all of it in a folder.

    Args:
        output: a folder to make, or an empty one.
        seed: seed of the rendered digits; the trainings have the seeds 10 * seed + 1, 10 * seed + 2, and so on.
        device: as `autodial train` and `autodial predict` have it.
        console: where to print; None for standard output.
        recipe: what is trained.

    Returns:
        the result, which scores.json in the folder holds too.

    Raises:
        InputError: the folder is not empty, or the working directory holds a file that would be read instead of the
            demo's.
        WorkError: a step failed.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    chosen_device = choose_device(device)
    _check_folders(output)
    warn_of_cpu(device, chosen_device)
    files = write_images(output, seed, recipe.renderings)
    _write_net(output)
    labels = np.array([entry.label for entry in ImageList.read(files.target_test_list)])
    console.print(
        f"{output} holds {len(ImageList.read(files.source_list))} labelled digits rendered from fonts, the source, and "
        f"{len(labels)} unlabelled ones written by hand, the target.\n"
        f"Each step is a command that you can type. What the steps report goes to {output / LOG}."
    )
    with (output / LOG).open("w", encoding="utf-8", buffering=1) as log:
        steps = Steps(console, log)
        seeds = [10 * seed + number for number in range(1, recipe.restarts + 1)]
        _train(steps, output, seeds, recipe, device, chosen_device)
        runs = _score(steps, output, seeds, labels, chosen_device)
        chosen, value = _choose(steps, [run for run in runs if run.method.adapts])
        steps.title(f"{chosen.name}: export it, and label the target's images with the file")
        guesses = _export_and_predict(steps, [chosen], output / _MODEL, files, device)
        together = [run for run in runs if run.method is chosen.method]
        steps.title(f"The average of the {len(together)} {chosen.method.title} runs, as one file")
        averaged = _export_and_predict(steps, together, output / _ENSEMBLE, files, device)
    result = Result(
        seed,
        [
            MethodScore(method.title, {run.seed: run.accuracy for run in runs if run.method is method})
            for method in METHODS
        ],
        (chosen.method.title, chosen.seed),
        float((np.array(guesses) == labels).mean()),
        float((np.array(averaged) == labels).mean()),
        value,
    )
    with replacing(output / SCORES) as file:
        file.write(json.dumps(asdict(result), indent=2).encode())
    picture, target = output / "demo.png", ImageList.read(files.target_test_list)
    draw(
        picture,
        source=ImageList.read(files.source_list),
        target=target,
        guesses={Path(entry.path).name: guess for entry, guess in zip(target, guesses, strict=True)},
        accuracies=[Accuracies(score.title, list(score.accuracies.values())) for score in result.methods],
        chosen=(chosen.method.title, result.chosen_accuracy),
        ensemble=(chosen.method.title, result.ensemble_accuracy),
    )
    console.print()
    console.print(_table(result, len(labels)))
    console.print(
        f"Chosen without labels: {chosen.name}, {result.chosen_accuracy:.1%} right.\n"
        f"The average of the {len(together)} {chosen.method.title} runs: {result.ensemble_accuracy:.1%} right.\n"
        f"All of this depends on the seed, {seed} here; docs/benchmarks.md has five.\n"
        f"Images and accuracies: {picture}\n"
        f"The target's predictors: {output / _MODEL} and {output / _ENSEMBLE}\n"
        "`autodial select` trains, chooses and averages in this way on your own images.\n"
        f"All in {time.perf_counter() - started:.0f} s."
    )
    return result


def _check_folders(output: Path) -> None:
    """Refuse an output folder that is not empty, and a working directory with files that would be read instead."""
    check_folder(output)
    if output.exists() and (not output.is_dir() or entries(output)):
        raise InputError(f"{output} exists and is not empty: delete it, or name another folder with `output`")
    if output.exists() and output.samefile(Path.cwd()):
        return
    for name in (_NET, "source.txt", "source", "target.txt", "target_test.txt", "target"):
        if Path(name).exists():
            raise InputError(
                f"the working directory holds {name}, which would be taken for the demo's, as paths in prototxts and "
                "lists mean the working directory first: start the demo in another one"
            )


def _write_net(output: Path) -> None:
    for name, shipped in ((_NET, shipped_net("digits")), (_SOLVER, shipped_solver("digits"))):
        with replacing(output / name) as file:
            file.write(shipped.read_bytes())


def _run_folder(output: Path, method: Method, seed: int) -> Path:
    return output / method.folder / f"seed_{seed}"


def _train(
    steps: Steps, output: Path, seeds: Sequence[int], recipe: Recipe, device: str, chosen_device: torch.device
) -> None:
    """Train every method with every seed, as many at a time as there are CPUs."""
    commands = []
    for method in METHODS:
        steps.title(f"{method.title}: {method.about}")
        for seed in seeds:
            folder = _run_folder(output, method, seed)
            settings = [*recipe.settings, f"solver.snapshot_prefix={folder / _PREFIX}"]
            options = {"--solver": output / _SOLVER, "--seed": seed, "--device": device, "--workers": 0}
            options |= {"--variant": list(method.variants), "--set": settings, "-o": folder}
            commands.append(command_line("autodial train", options))
            steps.show(commands[-1])
    cpus = available_cpus()
    most = min(cpus, _GPU_PROCESSES) if chosen_device.type == "cuda" else cpus
    processes = min(most, len(commands))
    steps.run_side_by_side(commands, processes, max(1, cpus // processes))


def _score(
    steps: Steps, output: Path, seeds: Sequence[int], labels: NDArray[np.int64], device: torch.device
) -> list[_TrainedRun]:
    """What every run predicts for the target's images."""
    steps.title("What each run predicts for the target's images")
    runs = []
    for method in METHODS:
        param = read_variant(output / _NET, method.variants)
        logits = Graph(filter_net(param, pb.TEST).layer)
        name = str(logits.names[logits.logits()])
        for seed in seeds:
            folder = _run_folder(output, method, seed)
            weights, table = _weights(folder), folder / "scores.csv"
            options = {"--net": output / _NET, "--variant": list(method.variants), "--weights": weights, "-o": table}
            with steps.step(command_line("autodial test", options)):
                net = Net(param, pb.TEST, base_dir=output).to(device)
                net.load_weights(proto.read_weights(weights), str(weights))
                scorer = Scorer(net, device=device, workers=0, logits=name)
                for _ in scorer.run():
                    pass
                write_scores(scorer.rows, table)
                probabilities = np.stack([row.probabilities for row in scorer.rows])
                runs.append(_TrainedRun(method, seed, folder, probabilities, labels))
    return runs


def _weights(folder: Path) -> Path:
    """The weights of a finished run."""
    (weights,) = folder.glob(f"{_PREFIX}_iter_*.caffemodel")
    return weights


def _choose(steps: Steps, candidates: Sequence[_TrainedRun]) -> tuple[_TrainedRun, float]:
    """The candidate whose predictions tell most about the target's images, and how much; no label is looked at."""
    steps.title(f"Which of the {len(candidates)} adapted runs to trust, without labels")
    steps.console.print("The mutual information of images and predicted classes (at most log 10 = 2.303 nats) decides:")
    values = [information(run.probabilities) for run in candidates]
    for run, value in zip(candidates, values, strict=True):
        steps.console.print(f"{run.name}: {value:.3f}")
    best = max(range(len(values)), key=values.__getitem__)
    return candidates[best], values[best]


def _export_and_predict(
    steps: Steps, runs: Sequence[_TrainedRun], model: Path, files: DigitFiles, device: str
) -> list[int]:
    """Export a run, or the average of several runs of a method, and label the target's images with the file.

    Returns:
        the labels, in the order of the target's list.
    """
    output, variants = model.parent, runs[0].method.variants
    net, table = output / _NET, model.with_suffix(".csv")
    weights = [_weights(run.folder) for run in runs]
    together = ["--ensemble"] if len(runs) > 1 else []
    words = " ".join(["autodial export", *together])
    with steps.step(
        command_line(words, {"--net": net, "--variant": list(variants), "--weights": weights, "-o": model})
    ):
        read = [proto.read_weights(path) for path in weights]
        report = export(read_variant(net, variants), read, model, base_dir=output)
        steps.report(json.dumps(report.record(), indent=2))
    words = f"autodial predict {shlex.quote(str(model))} {shlex.quote(str(files.target_folder))}"
    with steps.step(command_line(words, {"--device": device, "-o": table})):
        summary = predict_folder(model, [files.target_folder], table, PredictOptions(device=device))
        steps.report(json.dumps(summary.record(), indent=2))
    with table.open(encoding="utf-8", newline="") as file:
        found = {Path(row["path"]).name: CLASSES.index(row["label_1"]) for row in csv.DictReader(file)}
    return [found[Path(entry.path).name] for entry in ImageList.read(files.target_test_list)]


def _table(result: Result, images: int) -> Table:
    table = Table(title=f"The {images} handwritten digits: accuracy of each method's runs")
    for column in ("method", "what it does", "mean", "range"):
        table.add_column(column, justify="right" if column in ("mean", "range") else "left")
    for method, score in zip(METHODS, result.methods, strict=True):
        low, high = min(score.accuracies.values()), max(score.accuracies.values())
        style = "bold" if method.title == result.chosen[0] else None
        table.add_row(score.title, method.about, f"{score.mean:.1%}", f"{low:.1%} to {high:.1%}", style=style)
    return table

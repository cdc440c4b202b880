"""The demo: one net and four ways to train it. Each step is shown as the command that a user would type for it."""

from __future__ import annotations

import csv
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.table import Table

from autodial import proto
from autodial.converters.net_export import export
from autodial.data.image_list import ImageList
from autodial.demo.images import CLASSES, DigitFiles, write_images
from autodial.demo.picture import draw
from autodial.deploy import predict_folder
from autodial.errors import InputError
from autodial.netparam.shipped import shipped_net, shipped_solver
from autodial.netparam.variants import read_variant
from autodial.report.run import Run
from autodial.system.devices import choose_device
from autodial.system.files import entries, replacing
from autodial.system.outputs import check_folder
from autodial.system.terminal import Console
from autodial.training.console import Lines
from autodial.training.run import Training
from autodial.wording import command_line

_NET, _SOLVER = "train_val.prototxt", "solver.prototxt"
_MODEL = "target_predictor.onnx"
LOG = "log.txt"
"""Of the output folder: what the steps report."""
_PREFIX = "digits"
"""Of a variant's snapshots."""


@dataclass(frozen=True)
class Variant:
    """One way to train the demo's net.

    Attributes:
        title: what the table calls it.
        method: what it does about the target domain.
        folder: for all that comes of it.
        names: of `autodial.netparam.variants`; none for the net as it is.
    """

    title: str
    method: str
    folder: Path
    names: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """What came of one variant.

    Attributes:
        title: the variant's.
        accuracy: share of the target's images that its exported file labels rightly, in [0, 1].
        train_seconds: wall time of its training.
    """

    title: str
    accuracy: float
    train_seconds: float


def run_demo(output: Path, *, seed: int = 1, device: str = "auto", console: Console | None = None) -> list[Score]:
    """Run the whole demo and leave all of it in a folder.

    Args:
        output: the folder, which is made, or empty.
        seed: the rendered digits and all of training follow from it.
        device: as `autodial train` and `autodial predict` have it.
        console: where to print; None for standard output.

    Returns:
        the scores of the four variants, AutoDIAL's last. scores.json in the folder holds them too.

    Raises:
        InputError: the folder holds something, or the working directory does that would be taken for the demo's.
        WorkError: a step failed.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    choose_device(device)
    _check_folders(output)
    files = write_images(output, seed)
    _write_net(output)
    variants = _variants(output)
    truth = {Path(entry.path).name: CLASSES[entry.label] for entry in ImageList.read(files.target_test_list)}
    console.print(
        f"{output} holds {len(ImageList.read(files.source_list))} labelled digits rendered from fonts, the source, and "
        f"{len(truth)} unlabelled ones written by hand, the target.\n"
        f"Each step is a command that you can type. What the steps report goes to {output / LOG}."
    )

    scores: list[Score] = []
    guesses: dict[str, dict[str, str]] = {}
    solver = output / _SOLVER
    with (output / LOG).open("w", encoding="utf-8", buffering=1) as log:
        steps = _Steps(console, log)
        for variant in variants:
            seconds = _train(steps, variant, solver, seed, device)
            guesses[variant.title] = _export_and_predict(steps, variant, solver, files, device)
            right = sum(guesses[variant.title][name] == label for name, label in truth.items())
            scores.append(Score(variant.title, right / len(truth), seconds))
    with replacing(output / "scores.json") as file:
        file.write(json.dumps({"seed": seed, "scores": [asdict(score) for score in scores]}, indent=2).encode())

    source_only, autodial = variants[0], variants[-1]
    picture = output / "autodial.png"
    draw(
        picture,
        alphas=Run.read(autodial.folder / "run").alphas(),
        images={name: files.target_folder / name for name in truth},
        truth=truth,
        guesses={variant.title: guesses[variant.title] for variant in (autodial, source_only)},
    )
    console.print()
    console.print(_table(variants, scores, len(truth)))
    console.print(
        f"This is seed {seed} alone; seeds differ by several points, and docs/benchmarks.md has a table of five.\n"
        f"Alphas and predictions: {picture}\n"
        f"The target's predictor: {autodial.folder / _MODEL}\n"
        f"All in {time.perf_counter() - started:.0f} s."
    )
    return scores


def _check_folders(output: Path) -> None:
    """Refuse an output folder that is not empty, and a working directory whose files would be read in its stead."""
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


def _variants(output: Path) -> list[Variant]:
    """What is trained, AutoDIAL last."""
    return [
        Variant("source only", "no alignment", output / "source_only", ("source-only",)),
        Variant("AdaBN", "alpha 1", output / "adabn", ("adabn",)),
        Variant("AutoDIAL, alpha fixed", "alpha 1, entropy loss", output / "fixed_alpha", ("fixed-alpha",)),
        Variant("AutoDIAL", "learned alphas, entropy loss", output / "autodial", ()),
    ]


class _Steps:
    """Shows each step as the command that a user could type for it, and keeps in a file what the step reports."""

    def __init__(self, console: Console, log: TextIO) -> None:
        self._console = console
        self._log = log

    def title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]")

    @contextmanager
    def step(self, command: str) -> Iterator[None]:
        """Show a command line while its work is done."""
        self._console.print(f"$ {command}", markup=False)
        self.report(f"\n$ {command}")
        with self._console.status("running"), redirect_stdout(self._log), redirect_stderr(self._log):
            yield

    def report(self, text: str) -> None:
        """Add lines to the file."""
        print(text, file=self._log)

    def report_record(self, record: Mapping[str, Any]) -> None:
        """The same for what a command would print with --json."""
        self.report(json.dumps(record, indent=2))


def _train(steps: _Steps, variant: Variant, solver: Path, seed: int, device: str) -> float:
    """Train a variant; returns how long it took, in seconds."""
    steps.title(f"{variant.title}: {variant.method}")
    settings, folder = [f"solver.snapshot_prefix={variant.folder / _PREFIX}"], variant.folder / "run"
    options = {
        **{"--solver": solver, "--seed": seed, "--device": device},
        **{"--variant": list(variant.names), "--set": settings, "-o": folder},
    }
    command = command_line("autodial train", options)
    started = time.perf_counter()
    with steps.step(command):
        training = Training(solver, seed=seed, device=device, variants=variant.names, overrides=settings, folder=folder)
        result = training.run([Lines(steps.report)], command=command, begun=lambda: steps.report(training.describe()))
        if result.error is not None:
            raise result.error
    return time.perf_counter() - started


def _export_and_predict(
    steps: _Steps, variant: Variant, solver: Path, files: DigitFiles, device: str
) -> dict[str, str]:
    """Export a trained variant and label the target's images with the file; returns the labels by file name."""
    net = solver.with_name(_NET)
    weights = variant.folder / f"{_PREFIX}_iter_{proto.read_solver(solver).max_iter}.caffemodel"
    model, table = variant.folder / _MODEL, variant.folder / "predictions.csv"
    options = {"--net": net, "--variant": list(variant.names), "--weights": weights, "-o": model}
    with steps.step(command_line("autodial export", options)):
        report = export(read_variant(net, variant.names), proto.read_weights(weights), model, base_dir=net.parent)
        steps.report_record(report.record())
    words = f"autodial predict {shlex.quote(str(model))} {shlex.quote(str(files.target_folder))}"
    with steps.step(command_line(words, {"--device": device, "-o": table})):
        summary = predict_folder(model, [files.target_folder], table, device=device)
        steps.report_record(summary.record())
    with table.open(encoding="utf-8", newline="") as file:
        return {Path(row["path"]).name: row["label_1"] for row in csv.DictReader(file)}


def _table(variants: Sequence[Variant], scores: Sequence[Score], images: int) -> Table:
    table = Table(title=f"The {images} handwritten digits, labelled by each variant's exported file")
    table.add_column("variant")
    table.add_column("method")
    table.add_column("target accuracy", justify="right")
    table.add_column("training", justify="right")
    best = max(score.accuracy for score in scores)
    for variant, score in zip(variants, scores, strict=True):
        style = "bold" if score.accuracy == best else None
        table.add_row(score.title, variant.method, f"{score.accuracy:.1%}", f"{score.train_seconds:.0f} s", style=style)
    return table

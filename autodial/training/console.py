"""What a training run shows: lines, and a progress bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autodial.data.decoder_messages import real_stderr
from autodial.system.streams import discard
from autodial.system.terminal import Console
from autodial.training.monitor import BlobValues, CollapseRow, Monitor, RunningSolver, TestRow, TrainRow
from autodial.training.recall import describe_recall
from autodial.training.score_watch import describe
from autodial.training.solver import Solver

_SHOWN = 8
"""The number of elements of an output blob that a line shows."""
_REFRESH = 0.5
"""Seconds between updates of the progress bar's loss, each of which waits for the device."""


class Lines(Monitor):
    """Caffe's lines, one per fact, for terminals and logs alike.

    Args:
        write: prints a line.
        folder: the net's, whose labels.txt names the classes; None for numbers.
    """

    def __init__(self, write: Callable[[str], None], folder: Path | None = None) -> None:
        self._write = write
        self._folder = folder

    def displayed(self, row: TrainRow) -> None:
        speed = "" if row.images_per_s is None else f" ({row.images_per_s:.4g} images/s)"
        self._write(f"Iteration {row.iteration}, lr = {row.lr:.6g}, loss = {row.loss:.6g}{speed}")
        self._outputs("Train", row.outputs, row.loss_weights)
        if row.alphas:
            self._write(f"    {_describe_alphas(row.alphas)}")

    def tested(self, row: TestRow) -> None:
        self._write(f"Iteration {row.iteration}, testing net {row.net}")
        self._outputs("Test", row.outputs, row.loss_weights)
        for blob, recall in row.recalls.items():
            self._write(f"    Test {describe_recall(blob, recall, self._folder)}")
        if row.not_finite:
            self._write(f"Warning: {describe(row.not_finite)}, so that accuracies mean nothing")

    def collapsed(self, row: CollapseRow) -> None:
        self._write(
            f'Warning: in front of layer "{row.layer}" the target\'s predictions have collapsed: their mean is spread '
            f"over {row.in_use:.2g} of {row.classes} classes, the source's labels over {row.in_source:.2g}; what helps "
            "is a smaller loss_weight of that layer (lambda), larger batches, or alpha fixed to 1 (variant "
            "fixed-alpha), and `autodial select` chooses among such settings without target labels"
        )

    def saved(self, model: Path, state: Path) -> None:
        self._write(f"Snapshot: {model} and {state.name}")

    def _outputs(self, kind: str, outputs: Mapping[str, BlobValues], loss_weights: Mapping[str, float]) -> None:
        number = 0  # Caffe counts elements
        for name, values in outputs.items():
            line = describe_output(name, values, loss_weights.get(name, 0.0))
            self._write(f"    {kind} net output #{number}: {line}")
            number += len(values)


class Bar(Monitor):
    """A progress bar with iterations, loss, learning rate, images per second and the time left, and `Lines` above it.

    Use it as a context manager.
    """

    def __init__(self, console: Console, solver: Solver) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(
            "training", total=solver.param.max_iter, completed=solver.iter, status="loss -"
        )
        self._looked = time.monotonic()
        self._tail = ""

    def __enter__(self) -> Bar:
        with output_may_end():
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with output_may_end():
            self._progress.stop()

    def displayed(self, row: TrainRow) -> None:
        speed = "" if row.images_per_s is None else f"  {row.images_per_s:.4g} images/s"
        self._tail = f"  lr {row.lr:.4g}{speed}"

    def iterated(self, solver: RunningSolver) -> None:
        with output_may_end():
            self._progress.update(self._task, completed=solver.iter)
        now = time.monotonic()
        if now - self._looked >= _REFRESH or solver.iter == solver.param.max_iter:
            self._looked = now
            with output_may_end():
                self._progress.update(self._task, status=f"loss {solver.smoothed_loss():.4g}{self._tail}")


def write_line(text: str) -> None:
    """Print a line; training goes on without it if that can't be done."""
    with output_may_end():
        print(text, flush=True)


def line_writer(console: Console) -> Callable[[str], None]:
    """What prints lines above a terminal's progress bar, or without one where there is no terminal."""

    def write(text: str) -> None:
        with output_may_end():
            console.print(text)

    return write if console.is_terminal else write_line


@contextmanager
def output_may_end() -> Iterator[None]:
    """Inside this context, standard output is discarded from the first error on.

    It can't be written on a full disk, once `tee` has ended, and once the terminal is closed, which an error may tell
    before the signal does.
    """
    try:
        yield
    except OSError as error:
        discard(1)
        try:
            reason = f"standard output can't be written ({error.strerror})"
            print(
                f"Warning: {reason}; training goes on, and the run's folder has its logs", file=sys.stderr, flush=True
            )
        except OSError:
            discard(real_stderr())


def describe_output(name: str, values: BlobValues, loss_weight: float) -> str:
    """`loss-target = 1.2 (* 0.1 = 0.12 loss)`, or a list where the blob has several elements."""
    if len(values) == 1:
        loss = f" (* {loss_weight:.6g} = {loss_weight * values[0]:.6g} loss)" if loss_weight else ""
        return f"{name} = {values[0]:.6g}{loss}"
    more = f", ... {len(values)} in all" if len(values) > _SHOWN else ""
    return f"{name} = [{', '.join(f'{value:.6g}' for value in values[:_SHOWN])}{more}]"


def _describe_alphas(alphas: Mapping[str, float]) -> str:
    """`alphas are between 0.6000 (conv2-dial) and 1.0000 (conv1-dial)`."""
    low, high = (choose(alphas, key=alphas.__getitem__) for choose in (min, max))
    if alphas[low] == alphas[high]:
        return f"every alpha is {alphas[low]:.4f}"
    return f"alphas are between {alphas[low]:.4f} ({low}) and {alphas[high]:.4f} ({high})"

"""What labels images for a table: this process, or the workers of a cluster behind the same interface."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from autodial import __version__
from autodial.deploy.binding import Scores
from autodial.deploy.predictor import Predictor
from autodial.deploy.reader import Batch, read_batches
from autodial.deploy.rows import Columns, TableRow, score
from autodial.deploy.sources import FileState, ImageFile


@dataclass(frozen=True)
class Work:
    """What is done to images."""

    columns: Columns
    batch_size: int
    """Images that the model sees at once."""
    statistics: bool
    """Whether rows have statistics, which a comparison of images needs."""
    label_damaged: bool
    """Whether damaged images get labels."""


class Labelled(NamedTuple):
    """Consecutive images with their rows."""

    images: Sequence[ImageFile]
    states: Sequence[FileState]
    """Per image: the state its file was in before it was read."""
    rows: Callable[[], list[TableRow]]
    """Gives the rows; it may be called in another thread."""


class Engine(Protocol):
    """Labels images; says what runs the model as a Predictor does."""

    device: str
    provider: str
    cuda_failure: str | None
    decoding: float
    """Seconds that decoding has taken, divided by the number of threads that decode."""
    running: float
    """Seconds that the model has run, divided by the number of processes that run it."""

    @property
    def reason(self) -> str:
        """Why it runs where it runs."""

    def label(self, images: Iterator[ImageFile]) -> Generator[Labelled, None, None]:
        """Label images in batches, and yield them in their order."""


class LocalEngine:
    """Labels images in this process.

    Args:
        predictor: the model.
        work: what to do.
        workers: threads that decode.
    """

    def __init__(self, predictor: Predictor, work: Work, workers: int) -> None:
        self.device = predictor.device
        self.provider = predictor.provider
        self.reason = predictor.reason
        self.cuda_failure = predictor.cuda_failure
        self.decoding = self.running = 0.0
        self._predictor = predictor
        self._work = work
        self._workers = workers

    def label(self, images: Iterator[ImageFile]) -> Generator[Labelled, None, None]:
        """Label images; while a batch runs, the next ones are decoded."""
        work = self._work
        reading = read_batches(
            *(self._predictor, images, work.batch_size, self._workers),
            statistics=work.statistics,
            label_damaged=work.label_damaged,
        )
        with contextlib.closing(reading) as batches:
            for batch in batches:
                self.decoding += batch.seconds / self._workers
                scores = self._run(batch)
                yield Labelled(batch.images, batch.states, partial(_rows, batch, scores, work.columns))

    def _run(self, batch: Batch) -> tuple[Scores, Scores]:
        count = batch.readable
        if count == 0:
            nothing = np.empty((0, len(self._work.columns.classes)), np.float32)
            return nothing, nothing
        started = time.perf_counter()
        fed = batch.buffer if self._predictor.fixed_batches else batch.buffer[:count]
        logits, probabilities = self._predictor.run(fed)
        self.running += time.perf_counter() - started
        return logits[:count], probabilities[:count]


def _rows(batch: Batch, scores: tuple[Scores, Scores], columns: Columns) -> list[TableRow]:
    """The rows of a batch; its buffer is not looked at, as it is another batch's by now."""
    images, errors, damages = batch.images, batch.errors, batch.damage
    readable = [image.path for image, error in zip(images, errors, strict=True) if error is None]
    scored = iter(score(readable, *scores, columns, batch.statistics))
    rows = [
        next(scored) if error is None else TableRow(image.path, error)
        for image, error in zip(images, errors, strict=True)
    ]
    if any(damages):
        rows = [row._replace(damage=damage) for row, damage in zip(rows, damages, strict=True)]
    return rows


def versions() -> dict[str, str]:
    """The versions of everything that the numbers depend on, by package."""
    import cv2
    import onnxruntime  # type: ignore[import-untyped]

    return {"autodial": __version__, "onnxruntime": onnxruntime.__version__, "opencv": cv2.__version__}

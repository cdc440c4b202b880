"""Labels for batches of a table: the function that Ray Data, Spark, Daft and Dask call, and that knows none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autodial.deploy.binding import Pixels
from autodial.deploy.images import EncodedImage, ImageError
from autodial.deploy.predictions import DAMAGED, ERROR, OK
from autodial.deploy.predictor import BATCH_SIZE, Predictor
from autodial.errors import InputError

Columns: TypeAlias = dict[str, npt.NDArray[Any]]
"""Columns of equal length, by name."""

_SOURCES = ("bytes", "path")
"""Columns that an image may come from: the whole file, or where it is."""


class BatchLabeller:
    """Labels a batch of images, given and returned as columns.

        labeller = BatchLabeller("target_predictor.onnx", threads=2)
        labeller({"path": ["a.jpg", "b.png"]})["label_1"]

    It pickles as its arguments, and opens its session with the first batch where it arrives, so that the model's file
    has to be there. Its threads are those that it is given, whatever the machine has: a cluster gives every worker its
    share of a machine.

    Args:
        model: the file that `autodial export` wrote.
        threads: that decode, and CPUs that the model keeps busy where it runs on the CPU.
        top_k: labels per image, the most probable first.
        device: "auto", "cpu", "cuda" or "cuda:N".
        batch_size: images that the model sees at once, however many a call brings.

    Raises:
        InputError: `threads`, `top_k` or `batch_size` is below 1.
    """

    def __init__(
        self,
        model: str | Path,
        threads: int = 1,
        *,
        top_k: int = 1,
        device: str = "auto",
        batch_size: int = BATCH_SIZE,
    ) -> None:
        for name, value in (("threads", threads), ("top_k", top_k), ("batch_size", batch_size)):
            if value < 1:
                raise InputError(f"`{name}` is {value}: give 1 or more")
        self._model = Path(model)
        self._threads = threads
        self._top_k = top_k
        self._device = device
        self._batch_size = batch_size
        self._opened: tuple[int, Predictor, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": self._model.absolute(), "_opened": None}

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns that a call returns."""
        ranks = range(1, self._top_k + 1)
        of_ranks = [name for k in ranks for name in (f"label_{k}", f"probability_{k}")]
        return "status", *of_ranks, "error"

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> Columns:
        """Label a batch.

        Args:
            batch: columns of n values: "bytes" (whole image files) or "path" (their names); others are ignored. With
                both, "bytes" counts. A value that is missing (None) is an error in its row.

        Returns:
            columns of n values: `status`, a text ("ok", "damaged": with labels, or "error": without), `label_k`, texts,
            and `probability_k`, float32, for k from 1 to `top_k`, and `error`, texts. What an image doesn't have is
            None, or NaN for a probability.

        Raises:
            InputError: there is no such column, or the model's file can't be used, or has fewer classes than `top_k`.
            WorkError: the model fails.
        """
        images = _images(batch)
        predictor, pool = self._open()
        classes = predictor.info.classes
        if self._top_k > len(classes):
            raise InputError(f"`top_k` is {self._top_k}, and {self._model} has {len(classes)} classes")
        count = len(images)
        columns: Columns = {"status": np.full(count, ERROR, object)}
        for k in range(1, self._top_k + 1):
            columns[f"label_{k}"] = np.full(count, None, object)
            columns[f"probability_{k}"] = np.full(count, np.nan, np.float32)
        columns["error"] = np.full(count, None, object)
        names = np.array(classes, object)
        for rows, pixels in self._batches(predictor, pool, images, columns):
            _, probabilities = predictor.run(pixels)
            probabilities = probabilities[: len(rows)]
            finite = np.isfinite(probabilities).all(axis=1)
            best = np.argsort(-probabilities, axis=1, kind="stable")[:, : self._top_k]
            for k in range(self._top_k):
                columns[f"label_{k + 1}"][rows] = names[best[:, k]]
                columns[f"probability_{k + 1}"][rows] = probabilities[np.arange(len(rows)), best[:, k]]
            for row in np.array(rows)[~finite]:
                _fail(columns, row, "the model gives no finite probabilities for it", self._top_k)
        return columns

    def close(self) -> None:
        """Give the threads and the session back; the next call opens them again."""
        if self._opened is not None:
            self._opened[2].shutdown()
            self._opened = None

    def _open(self) -> tuple[Predictor, ThreadPoolExecutor]:
        if self._opened is None or self._opened[0] != os.getpid():  # a forked process has no threads of its parent's
            predictor = Predictor(self._model, self._device, self._threads)
            self._opened = os.getpid(), predictor, ThreadPoolExecutor(self._threads, "decode")
        return self._opened[1:]

    def _batches(
        self, predictor: Predictor, pool: ThreadPoolExecutor, images: Sequence[EncodedImage | None], columns: Columns
    ) -> Iterator[tuple[list[int], Pixels]]:
        """The readable images, decoded, with their rows; what is said about the others goes into `columns`.

        The next batch is decoded while one runs.
        """
        starts = range(0, len(images), self._batch_size)

        def submit(start: int) -> list[Any]:
            part = images[start : start + self._batch_size]
            return [pool.submit(_prepare, predictor, image) for image in part]

        coming = submit(0) if images else []
        for start in starts:
            decoded = [task.result() for task in coming]
            coming = submit(start + self._batch_size)
            rows: list[int] = []
            kept: list[Pixels] = []
            for row, (pixels, error, damage) in enumerate(decoded, start):
                columns["status"][row] = ERROR if pixels is None else DAMAGED if damage else OK
                columns["error"][row] = error or damage or None
                if pixels is not None:
                    rows.append(row)
                    kept.append(pixels)
            if not rows:
                continue
            if predictor.fixed_batches:
                kept += [np.zeros_like(kept[0])] * (self._batch_size - len(kept))
            yield rows, np.stack(kept)


def _images(batch: Mapping[str, Sequence[Any]]) -> list[EncodedImage | None]:
    for name in _SOURCES:
        if name in batch:
            return list(batch[name])
    raise InputError(f"a batch needs a column bytes (whole image files) or path (their names): it has {list(batch)}")


def _prepare(predictor: Predictor, image: EncodedImage | None) -> tuple[Pixels | None, str | None, str]:
    """An image as the graph takes it, or why not, and what shows that it is damaged."""
    if image is None:
        return None, "there is no image in this row", ""
    try:
        return (decoded := predictor.prepare_noting(image)).pixels, None, decoded.damage
    except (ImageError, TypeError, OSError) as error:
        return None, " ".join(str(error).split()), ""
    except MemoryError:
        return None, "there is not enough memory to decode it", ""


def _fail(columns: Columns, row: int, why: str, top_k: int) -> None:
    columns["status"][row], columns["error"][row] = ERROR, why
    for k in range(1, top_k + 1):
        columns[f"label_{k}"][row], columns[f"probability_{k}"][row] = None, np.nan

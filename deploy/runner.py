"""Labels any number of images and writes one table: inputs -> reader -> predictor -> writer."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autodial.deploy.inputs import expand
from autodial.deploy.predictor import BATCH_SIZE, Pixels, Predictor
from autodial.deploy.reader import read_batches
from autodial.deploy.writer import STANDARD_OUTPUT, open_table
from autodial.errors import InputError
from autodial.outputs import check_output


@dataclass(frozen=True)
class Summary:
    """What `predict_folder` did."""

    images: int
    """Rows of the table."""
    errors: int
    """Rows whose image couldn't be read."""
    seconds: float
    """From the first image read to the last row written; loading the model isn't in it."""
    provider: str
    """ONNX Runtime's name of what ran the model."""
    cuda_failure: str | None
    """Why this machine's GPU wasn't used, if it has one and device "auto" had to go on without it."""
    counts: Mapping[str, int]
    """Images by their first label, for the classes that occur, most frequent first."""

    @property
    def images_per_second(self) -> float:
        """Rows per second."""
        return self.images / self.seconds


def predict_folder(
    model: str | Path,
    inputs: Sequence[str | Path],
    output: str | Path,
    *,
    top_k: int = 1,
    batch_size: int = BATCH_SIZE,
    device: str = "auto",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Label the images that `inputs` name with `model` and write the table `output`.

    The table has a row per image in the order of `autodial.deploy.inputs.expand`: path, status, label_1,
    probability_1, ..., label_K, probability_K, error. An image that can't be read is a row with status "error" and the
    reason; it stops nothing.

    Args:
        model: the file that `autodial export` wrote.
        inputs: files, folders, lists (.txt) and glob patterns.
        output: a CSV file, replaced only when the whole table is written (see `open_table`); "-" for standard output.
        top_k: labels per image, from 1 to the model's number of classes.
        batch_size: images that the model sees at once.
        device: "auto", "cpu", "cuda" or "cuda:N".
        workers: threads that decode images; None for one per CPU. The table is the same for any number.
        progress: called with (images done, images in all) after every batch.

    Raises:
        InputError: something that was given can't be used; found before the first image is read.
        WorkError: the device that was asked for, the model's run, or writing fails.
        KeyboardInterrupt: with a message that says where the rows done so far are.
    """
    images = expand(inputs)
    if str(output) != STANDARD_OUTPUT:
        check_output(output, (model, *inputs))
    predictor = Predictor(model, device)
    classes = predictor.info.classes
    if not 1 <= top_k <= len(classes):
        raise InputError(f"top-k is {top_k}, and {model} has {len(classes)} classes: choose from 1 to {len(classes)}.")

    done = errors = 0
    counts: Counter[str] = Counter()
    batches = read_batches(predictor, images, batch_size, workers or _usable_cpus())
    started = time.perf_counter()
    with open_table(output, top_k) as table, contextlib.closing(batches):
        for batch in batches:
            ranked = iter(_rank(predictor, batch.pixels, top_k))
            for image, error in zip(batch.images, batch.errors, strict=True):
                if error is not None:
                    table.unreadable(image.path, error)
                    errors += 1
                    continue
                labels, probabilities = next(ranked)
                table.labelled(image.path, labels, probabilities)
                counts[labels[0]] += 1
            table.flush()
            done += len(batch.images)
            if progress is not None:
                progress(done, len(images))
    return Summary(
        images=done,
        errors=errors,
        seconds=time.perf_counter() - started,
        provider=predictor.provider,
        cuda_failure=predictor.cuda_failure,
        counts=dict(counts.most_common()),
    )


def _rank(predictor: Predictor, pixels: Pixels, top_k: int) -> list[tuple[list[str], list[float]]]:
    """Per image its `top_k` classes and their probabilities; equal ones in the order of the classes."""
    if len(pixels) == 0:
        return []
    _, probabilities = predictor.run(pixels)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    names = predictor.info.classes
    values = np.take_along_axis(probabilities, best, axis=1).tolist()
    return [([names[i] for i in row], value) for row, value in zip(best.tolist(), values, strict=True)]


def _usable_cpus() -> int:
    # Fewer than os.cpu_count() where a container or taskset binds the process to some.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

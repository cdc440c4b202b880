"""Decodes images in threads into a few buffers, a bounded way ahead of whoever consumes the batches."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import cv2
import numpy as np

from autodial.data.image_statistics import Float64Array, image_statistics
from autodial.deploy.binding import Pixels
from autodial.deploy.predictor import Predictor
from autodial.deploy.sources import FileState, ImageFile, Look
from autodial.errors import InputError

_TASKS = 2
"""Tasks per thread that a batch is cut into: enough that the threads end together, and each worth its handing over."""


@dataclass(frozen=True)
class Batch:
    """Consecutive images of the input; it is good until the next one is asked for."""

    images: Sequence[ImageFile]
    errors: Sequence[str | None]
    """Per image: why it is to have no labels, or None."""
    damage: Sequence[str]
    """Per image: what shows that its file is damaged; empty where nothing does."""
    buffer: Pixels
    """uint8 (batch size, height, width, channels): those without an error come first, in order."""
    readable: int
    """How many those are; what lies behind them is some other image's."""
    statistics: Float64Array | None
    """Their statistics, (readable, ...), a row of `image_statistics` each; None where they weren't asked for."""
    states: Sequence[FileState]
    """Per image: the state its file was in before it was read."""
    seconds: float
    """Time that the threads took to decode it, added up."""


def read_batches(
    predictor: Predictor,
    images: Iterator[ImageFile],
    batch_size: int,
    workers: int,
    *,
    statistics: bool = False,
    label_damaged: bool = True,
) -> Generator[Batch, None, None]:
    """Yield all `images`, prepared for `predictor`, in batches of `batch_size` (the last may be smaller), in order.

    One thread lists and `workers` threads decode; they are kept busy while the consumer works on a batch, and no more
    than the batches that takes are in memory. What a batch holds doesn't depend on `workers`. OpenCV's own threads are
    switched off meanwhile. With `statistics` the threads measure the images, too. Without `label_damaged`, damage is an
    error.
    """
    # One batch to hand out next, and enough beyond it that no thread waits for work.
    ahead = 1 + math.ceil(workers / batch_size)
    share = math.ceil(batch_size / (_TASKS * workers))
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    lister = ThreadPoolExecutor(1, thread_name_prefix="list")
    free: list[Pixels] = []

    pending: deque[_Pending] = deque()

    def list_next() -> Future[list[ImageFile]]:
        return lister.submit(lambda: list(islice(images, batch_size)))

    def submit(part: list[ImageFile]) -> _Pending:
        buffer = free.pop() if free else np.zeros((batch_size, *predictor.info.image_shape), np.uint8)
        cuts = [slice(start, start + share) for start in range(0, len(part), share)]
        tasks = [
            pool.submit(_decode_into, buffer[cut], predictor, part[cut], statistics, label_damaged) for cut in cuts
        ]
        return _Pending(part, buffer, tasks)

    own_threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        listed = list_next()

        def fill() -> None:
            nonlocal listed
            while len(pending) < ahead and (part := listed.result()):
                pending.append(submit(part))
                listed = list_next()

        fill()
        while pending:
            batch = pending.popleft()
            decoded = [task.result() for task in batch.tasks]
            fill()
            errors = [error for task in decoded for error in task.errors]
            readable = [error is None for error in errors]
            count = sum(readable)
            if count < len(readable):
                batch.buffer[:count] = batch.buffer[: len(readable)][readable]
            measured = [row for task in decoded for row in task.statistics]
            yield Batch(
                images=batch.images,
                errors=errors,
                damage=[damage for task in decoded for damage in task.damage],
                buffer=batch.buffer,
                readable=count,
                statistics=np.array(measured) if measured else None,
                states=[state for task in decoded for state in task.states],
                seconds=sum(task.seconds for task in decoded),
            )
            free.append(batch.buffer)
            fill()
    finally:
        for threads in (lister, pool):
            threads.shutdown(wait=False, cancel_futures=True)
        cv2.setNumThreads(own_threads)


@dataclass(frozen=True)
class _Pending:
    images: list[ImageFile]
    buffer: Pixels
    tasks: list[Future[_Decoded]]


@dataclass(frozen=True)
class _Decoded:
    errors: list[str | None]
    damage: list[str]
    statistics: list[list[float]]
    states: list[FileState]
    seconds: float


def _decode_into(
    slots: Pixels, predictor: Predictor, images: Sequence[ImageFile], statistics: bool, label_damaged: bool
) -> _Decoded:
    """Decode `images` into their places in a batch, or say why that can't be done; measure them with `statistics`."""
    started = time.perf_counter()
    states: list[FileState] = []
    errors: list[str | None] = []
    damages: list[str] = []
    for slot, image in zip(slots, images, strict=False):
        look = image.look()
        error, damage = _read_into(slot, predictor, look)
        states.append(look.state)
        errors.append(error if label_damaged else error or damage or None)
        damages.append(damage)
    measured = [
        image_statistics(slot) for slot, error in zip(slots, errors, strict=False) if statistics and error is None
    ]
    return _Decoded(errors, damages, measured, states, time.perf_counter() - started)


def _read_into(slot: Pixels, predictor: Predictor, look: Look) -> tuple[str | None, str]:
    """Decode an image into its place; why that can't be done, or what shows that its file is damaged."""
    if look.error is not None:
        return " ".join(look.error.split()), ""
    try:
        pixels, damage = look.read(predictor.info.color)
        slot[...] = predictor.prepare(pixels)
    except (InputError, ValueError, OSError) as error:
        return " ".join(str(error).split()), ""
    except MemoryError:
        return "there is not enough memory to decode it", ""
    return None, damage

"""Decodes images in threads, a bounded way ahead of whoever consumes the batches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np

from autodial.data.paths import find
from autodial.deploy.inputs import Image
from autodial.deploy.predictor import Pixels, Predictor
from autodial.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Consecutive images of the input."""

    images: Sequence[Image]
    errors: Sequence[str | None]
    """Per image: why it can't be read, or None."""
    pixels: Pixels
    """Those that can be read, in order: uint8, shape (number of Nones in `errors`, height, width, channels)."""


def read_batches(
    predictor: Predictor, images: Sequence[Image], batch_size: int, workers: int
) -> Generator[Batch, None, None]:
    """Yield all `images`, prepared for `predictor`, in batches of `batch_size` (the last may be smaller), in order.

    `workers` threads decode; they are kept busy while the consumer works on a batch, and no more than the batches that
    takes are in memory. What a batch holds doesn't depend on `workers`.
    """
    # One batch to hand out next, and enough beyond it that no thread waits for work.
    ahead = 1 + math.ceil(workers / batch_size)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")

    def submit(start: int) -> tuple[Sequence[Image], Pixels, list[Future[str | None]]]:
        part = images[start : start + batch_size]
        pixels = np.empty((len(part), *predictor.info.image_shape), np.uint8)
        return part, pixels, [pool.submit(_read_into, pixels[i], predictor, image) for i, image in enumerate(part)]

    starts = iter(range(0, len(images), batch_size))
    try:
        pending = deque(map(submit, islice(starts, ahead)))
        while pending:
            part, pixels, futures = pending.popleft()
            errors = [future.result() for future in futures]
            pending.extend(map(submit, islice(starts, 1)))
            readable = [error is None for error in errors]
            yield Batch(part, errors, pixels if all(readable) else pixels[readable])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _read_into(slot: Pixels, predictor: Predictor, image: Image) -> str | None:
    """Decode `image` into its place in a batch, or say why that can't be done."""
    try:
        slot[...] = predictor.prepare(find(image.path, image.base_dir))
    except (InputError, ValueError, OSError) as error:
        return " ".join(str(error).split())
    return None

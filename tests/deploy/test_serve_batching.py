"""Which batches a service makes of the images of many requests, with models that only say what they were given."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autodial.deploy.serve.batching import Batcher, BatchRecord, Streams

CLASSES = 3


class Echo:
    """A model whose first logit is the image's first value."""

    fixed_batches = False
    info = SimpleNamespace(classes=("a", "b", "c"), image_shape=(1, 2, 1))

    def __init__(self, waits: Callable[[], object] = lambda: None) -> None:
        self.batches: list[int] = []
        self._waits = waits

    def run(self, images: Any) -> tuple[Any, Any]:
        self.batches.append(len(images))
        self._waits()
        rows = np.zeros((len(images), CLASSES), np.float32)
        rows[:, 0] = images[:, 0, 0, 0]
        return rows, rows / 256


@pytest.fixture
def decoders() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def images(first: int, count: int) -> Any:
    return np.arange(first, first + count, dtype=np.uint8).repeat(2).reshape(count, 1, 2, 1)


def answers(batcher: Batcher, requests: list[Any]) -> list[list[float]]:
    """The first logits of each request; all are sent at once."""

    async def ask() -> list[list[float]]:
        found = await asyncio.gather(*(batcher.run(request, seconds=20) for request in requests))
        return [outcome.logits[:, 0].tolist() for outcome in found]

    return batcher._loop.run_until_complete(ask())


def batcher(
    decoders: ThreadPoolExecutor, together: Echo, side_by_side: Echo | None, *, batch_size: int = 32, number: int = 2
) -> tuple[Batcher, list[BatchRecord]]:
    records: list[BatchRecord] = []
    streams = None if side_by_side is None else Streams(side_by_side, number)  # type: ignore[arg-type]
    made = Batcher(
        together,  # type: ignore[arg-type]
        streams,
        decoders,
        asyncio.new_event_loop(),
        batch_size=batch_size,
        delay=0.05,
        queue=512,
        on_batch=records.append,
    )
    return made, records


def test_few_images_run_on_all_cpus(decoders) -> None:
    together, side_by_side = Echo(), Echo()
    made, records = batcher(decoders, together, side_by_side)
    assert answers(made, [images(7, 1)]) == [[7]]
    assert answers(made, [images(1, 3)]) == [[1, 2, 3]]
    assert (together.batches, side_by_side.batches) == ([1, 3], [])
    assert [record.images for record in records] == [1, 3]
    made.close()


def test_many_images_run_side_by_side(decoders) -> None:
    meeting = threading.Barrier(3, timeout=20)  # breaks unless three batches run at a time
    together, side_by_side = Echo(), Echo(meeting.wait)
    made, _ = batcher(decoders, together, side_by_side, number=3)
    requests = [images(8 * number, 8) for number in range(6)]
    assert answers(made, requests) == [list(range(8 * number, 8 * number + 8)) for number in range(6)]
    assert not meeting.broken
    assert side_by_side.batches == [8] * 6
    assert together.batches == []
    made.close()


def test_one_batch_at_a_time_without_streams(decoders) -> None:
    running = threading.Semaphore(1)

    def alone() -> None:
        assert running.acquire(blocking=False), "two batches ran at a time"
        time.sleep(0.01)
        running.release()

    together = Echo(alone)
    made, _ = batcher(decoders, together, None)
    assert answers(made, [images(number, 1) for number in range(100)]) == [[number] for number in range(100)]
    assert sum(together.batches) == 100
    assert max(together.batches) <= 32
    made.close()


@pytest.mark.parametrize(("batch_size", "number", "most"), [(32, 2, 8), (4, 3, 4)])
def test_a_stream_takes_no_more_than_pays(decoders, batch_size: int, number: int, most: int) -> None:
    side_by_side = Echo(lambda: time.sleep(0.01))
    made, _ = batcher(decoders, Echo(), side_by_side, batch_size=batch_size, number=number)
    answers(made, [images(index, 1) for index in range(200)])
    assert max(side_by_side.batches) <= most
    made.close()


def test_every_image_has_its_own_answer_and_the_threads_end(decoders) -> None:
    before = threading.active_count()
    generator = np.random.default_rng(0)
    side_by_side = Echo(lambda: time.sleep(generator.uniform(0, 0.002)))
    made, records = batcher(decoders, Echo(), side_by_side, number=4)
    for _ in range(20):
        sizes = generator.integers(1, 40, size=12)
        firsts = generator.integers(0, 200, size=12)
        requests = [images(int(first), int(size)) for first, size in zip(firsts, sizes, strict=True)]
        expected = [list(range(first, first + size)) for first, size in zip(firsts, sizes, strict=True)]
        assert answers(made, requests) == expected
    assert made.under_way == 0
    assert sum(record.images for record in records) > 20 * 12
    made.close()
    until = time.monotonic() + 10
    while any(thread.name == "batches" for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before + 2  # the decoders


def test_a_model_that_fails_fails_its_images_alone(decoders) -> None:
    def failing() -> None:
        raise OSError("no more memory")

    made, _ = batcher(decoders, Echo(), Echo(failing))
    with pytest.raises(OSError, match="no more memory"):
        answers(made, [images(0, 32)])
    assert answers(made, [images(5, 1)]) == [[5]]
    made.close()

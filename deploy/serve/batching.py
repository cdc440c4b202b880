"""Images of many requests in batches: decoded in parallel, run together or side by side, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autodial.data.image_statistics import image_statistics
from autodial.deploy.binding import Pixels, Scores
from autodial.deploy.images import ImageError
from autodial.deploy.predictor import Predictor
from autodial.deploy.serve.refusal import RefusalError, busy

File = bytes | memoryview

_CROWD = 4
"""Images for each stream; with fewer, a net with large weights loses more by reading them for each batch."""
_ENOUGH = 8
"""Images of a stream's batch: larger ones hardly gain, or lose where they outgrow the CPU's cache."""


@dataclass
class Timing:
    """Seconds that a request's images took, summed over its parts."""

    decode: float = 0.0
    queue: float = 0.0
    run: float = 0.0


@dataclass
class Outcome:
    """What became of a request's n images."""

    logits: Scores
    """float32 (n, classes); rows of zeros where there is an error."""
    probabilities: Scores
    errors: list[str | None]
    """Per image: why it can't be decoded."""
    damage: list[str]
    """Per image: what shows that its file is damaged."""
    statistics: list[list[float] | None]
    """Per image: `image_statistics`, where they were asked for."""
    timing: Timing = field(default_factory=Timing)


class _Job:
    """One request's images, in parts of at most a batch."""

    def __init__(self, count: int, classes: int, parts: int, loop: asyncio.AbstractEventLoop) -> None:
        self.outcome = Outcome(
            np.zeros((count, classes), np.float32),
            np.zeros((count, classes), np.float32),
            [None] * count,
            [""] * count,
            [None] * count,
        )
        self.future: asyncio.Future[Outcome] = loop.create_future()
        self.left = parts
        """Parts that are not done; changed under the batcher's lock."""
        self.failure: Exception | None = None


@dataclass
class _Part:
    """Some of a job's images, decoded, on their way to the model."""

    job: _Job
    rows: Sequence[int]
    """The images' places in the job."""
    pixels: Pixels
    submitted: float


@dataclass(frozen=True)
class BatchRecord:
    """A batch that was run, for whoever counts."""

    images: int
    seconds: float
    pixels: Pixels
    probabilities: Scores


class Streams(NamedTuple):
    """Batches that run side by side, each on one CPU."""

    predictor: Predictor
    """Keeps one CPU busy; it may be called from several threads at once."""
    number: int
    """Batches at a time, at least 2."""


@dataclass(frozen=True)
class _Batch:
    """Parts that run together."""

    parts: list[_Part]
    predictor: Predictor


class Batcher:
    """Runs a predictor on images of many requests, together where they come together.

    The batch goes on its way at once when nothing else is being decoded; otherwise it waits for that, but not longer
    than `delay`, and not beyond `batch_size` images.

    One batch at a time runs on all CPUs, which answers few images soonest. The CPUs that share a batch wait for one
    another at each layer, though. So while more than four images are under way for each stream, batches run in streams.

    Args:
        predictor: runs the batches, one at a time.
        streams: run them while many images are under way; None where one batch at a time is best.
        decoders: threads that decode.
        loop: where the requests wait.
        batch_size: images that the model sees at once.
        delay: seconds that a decoded image waits for others at most while the model is idle.
        queue: images that may be under way at a time.
        on_batch: is told of every batch, in the thread that ran it.
    """

    def __init__(
        self,
        predictor: Predictor,
        streams: Streams | None,
        decoders: Executor,
        loop: asyncio.AbstractEventLoop,
        *,
        batch_size: int,
        delay: float,
        queue: int,
        on_batch: Callable[[BatchRecord], None],
    ) -> None:
        self._predictor = predictor
        self._streams = streams
        self._decoders = decoders
        self._loop = loop
        self._batch_size = batch_size
        self._delay = delay
        self._limit = queue
        self._on_batch = on_batch
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        """Where threads wait for something to run."""
        self._gathering = threading.Condition(self._lock)
        """Where the one that makes up a batch waits for more images."""
        self._gathers = False
        """Whether one does."""
        self._running = 0
        """Batches that run."""
        self._waiting: deque[_Part] = deque()
        self._under_way = 0
        """Images that were taken in and have no result yet."""
        self._decoding = 0
        """Images that were taken in and are not decoded yet."""
        self._closed = False
        for _ in range(1 if streams is None else streams.number):
            threading.Thread(target=self._work, name="batches", daemon=True).start()

    @property
    def under_way(self) -> int:
        """Images that are being decoded, wait or run."""
        return self._under_way

    async def run(self, images: Pixels | Sequence[File], *, measure: bool = False, seconds: float) -> Outcome:
        """Logits and probabilities of images.

        Args:
            images: uint8 (n, height, width, channels) as the graph takes them, or n image files.
            measure: give the images' statistics, too.
            seconds: after which the result isn't waited for.

        Raises:
            RefusalError: too many images are under way, or it takes too long.
            WorkError: the model fails.
        """
        count = len(images)
        starts = range(0, count, self._batch_size)
        job = _Job(count, len(self._predictor.info.classes), len(starts), self._loop)
        files = not isinstance(images, np.ndarray)
        with self._lock:
            if self._under_way + count > self._limit:
                raise busy(f"{self._under_way} images are under way, of {self._limit} at most: send these again later")
            self._under_way += count
            self._decoding += count if files or measure else 0
        for start in starts:
            rows = range(start, min(start + self._batch_size, count))
            if isinstance(images, np.ndarray) and not measure:
                self._submit(job, rows, images[start : rows.stop], 0)
            else:
                self._decoders.submit(self._decode, job, rows, images[start : rows.stop], measure)
        try:
            return await asyncio.wait_for(job.future, seconds)
        except TimeoutError:
            raise busy(
                f"the images took longer than {seconds:g} s, which is the most that a request may take"
            ) from None

    def close(self) -> None:
        """End the threads once all that is under way has its result."""
        with self._lock:
            self._closed = True
            self._idle.notify_all()

    def _decode(self, job: _Job, rows: range, images: Pixels | Sequence[File], measure: bool) -> None:
        """Decode a part of a job, and hand it on."""
        if job.future.done():  # nobody waits for it any more
            self._decoded_nothing(job, len(rows))
            return
        started = time.perf_counter()
        try:
            pixels, good = self._prepare(job.outcome, rows, images, measure)
        except Exception as error:
            job.failure = error
            self._decoded_nothing(job, len(rows))
            return
        job.outcome.timing.decode += time.perf_counter() - started
        if good:
            with self._lock:
                self._under_way -= len(rows) - len(good)
            self._submit(job, good, pixels[: len(good)], len(rows))
        else:
            self._decoded_nothing(job, len(rows))

    def _prepare(
        self, outcome: Outcome, rows: range, images: Pixels | Sequence[File], measure: bool
    ) -> tuple[Pixels, list[int]]:
        prepared = images if isinstance(images, np.ndarray) else None
        pixels = np.empty((len(rows), *self._predictor.info.image_shape), np.uint8) if prepared is None else prepared
        good: list[int] = []
        for row, image in zip(rows, images, strict=True):
            slot = pixels[len(good)]
            if prepared is None:
                try:
                    slot[...], outcome.damage[row] = self._predictor.prepare_noting(image)
                except ImageError as error:
                    outcome.errors[row] = " ".join(str(error).split())
                    continue
                except MemoryError:
                    outcome.errors[row] = "there is not enough memory to decode it"
                    continue
            if measure:
                outcome.statistics[row] = image_statistics(slot)
            good.append(row)
        return pixels, good

    def _submit(self, job: _Job, rows: Sequence[int], pixels: Pixels, decoded: int) -> None:
        with self._lock:
            self._decoding -= decoded
            self._waiting.append(_Part(job, rows, pixels, time.perf_counter()))
            self._wake()

    def _decoded_nothing(self, job: _Job, count: int) -> None:
        with self._lock:
            self._decoding -= count
            self._under_way -= count
            job.left -= 1
            done = job.left == 0
            self._wake()
        if done:
            self._deliver([job])

    def _wake(self) -> None:
        """Tell the thread that something is new for; the lock is held."""
        (self._gathering if self._gathers else self._idle).notify()

    def _work(self) -> None:
        while batch := self._next():
            self._run(batch)

    def _next(self) -> _Batch | None:
        """The next batch; None when it is over."""
        with self._lock:
            while not self._may_run():
                if self._closed and not self._under_way:
                    self._idle.notify_all()  # it is over for the other threads, too
                    return None
                self._idle.wait()
            until = self._waiting[0].submitted + self._delay
            self._gathers = True
            while self._decoding and sum(len(part.rows) for part in self._waiting) < self._most():
                left = until - time.perf_counter()
                if left <= 0 or not self._gathering.wait(left):
                    break
            self._gathers = False
            streams = self._streams if self._crowded() else None
            most = self._most()
            taken = [self._waiting.popleft()]
            count = len(taken[0].rows)
            while self._waiting and count + len(self._waiting[0].rows) <= most:
                taken.append(self._waiting.popleft())
                count += len(taken[-1].rows)
            self._running += 1
            if self._may_run():
                self._idle.notify()
            return _Batch(taken, self._predictor if streams is None else streams.predictor)

    def _may_run(self) -> bool:
        """Whether a batch can be made up; the lock is held."""
        return bool(self._waiting) and not self._gathers and (self._running == 0 or self._crowded())

    def _crowded(self) -> bool:
        """Whether batches run in streams; the lock is held."""
        return self._streams is not None and self._under_way > _CROWD * self._streams.number

    def _most(self) -> int:
        """Images of the next batch, at most; the lock is held."""
        if not self._crowded():
            return self._batch_size
        return min(self._batch_size, _ENOUGH)

    def _run(self, batch: _Batch) -> None:
        now = time.perf_counter()
        wanted = [part for part in batch.parts if not part.job.future.done()]
        if wanted:
            try:
                self._run_batch(batch.predictor, wanted, now)
            except Exception as error:
                for part in wanted:
                    part.job.failure = error
        done = []
        with self._lock:
            self._running -= 1
            for part in batch.parts:
                self._under_way -= len(part.rows)
                part.job.left -= 1
                if part.job.left == 0:
                    done.append(part.job)
        if done:
            self._deliver(done)

    def _run_batch(self, predictor: Predictor, parts: list[_Part], now: float) -> None:
        count = sum(len(part.rows) for part in parts)
        pixels = parts[0].pixels if len(parts) == 1 else np.concatenate([part.pixels for part in parts])
        fed = pixels
        if predictor.fixed_batches and count < self._batch_size:
            fed = np.concatenate([pixels, np.zeros((self._batch_size - count, *pixels.shape[1:]), np.uint8)])
        logits, probabilities = (values[:count] for values in predictor.run(fed))
        seconds = time.perf_counter() - now
        start = 0
        for part in parts:
            of_batch = slice(start, start + len(part.rows))
            outcome = part.job.outcome
            outcome.logits[part.rows], outcome.probabilities[part.rows] = logits[of_batch], probabilities[of_batch]
            outcome.timing.queue += now - part.submitted
            outcome.timing.run += seconds
            start = of_batch.stop
        self._on_batch(BatchRecord(count, seconds, pixels, probabilities))

    def _deliver(self, jobs: list[_Job]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(_give_back, jobs)


def _give_back(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.failure is not None:
            job.future.set_exception(job.failure)
        else:
            job.future.set_result(job.outcome)


def check_outcome(outcome: Outcome) -> None:
    """Raise a RefusalError that names the index of the first image that can't be decoded, if there is one."""
    for index, error in enumerate(outcome.errors):
        if error is not None:
            raise RefusalError(400, f"image {index} of {len(outcome.errors)}: {error}")

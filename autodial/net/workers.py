"""Processes that work ahead for a trainer, in order. When one dies, others do its work again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from autodial.data.image_data import init_worker
from autodial.errors import WorkError
from autodial.system.allocator import keep_freed_memory

_log = logging.getLogger(__name__)

DEATHS, WITHIN = 5, 100
"""So many deaths within so many results end the work: what kills the processes does not pass by itself."""
_LOOK = 5.0
"""Seconds between two looks of a worker at whether the trainer is still there."""
_PATIENCE = 1.0
"""Seconds to wait for a worker to end, which a disk may keep from it."""

T = TypeVar("T")


class Workers(Iterator[T]):
    """The results of `work`, a picklable function, made by processes ahead of whoever iterates.

    `work` takes an index, which alone decides the result, and the number of a place to put it in, less than
    `places(processes, ahead)`. No result that is being made, or was given last, has the same place.

    A process that is killed takes the pool with it. It is started again then, and makes what is still missing, so that
    the results are those of an undisturbed run. This happens where the trainer waits for a result, and nowhere else.

    Args:
        work: what the processes do.
        indexes: its arguments, in the order of the results; it may be endless.
        processes: their number, at least 1.
        ahead: results that each has ready or in the making.
        finish: done to each result by a thread of this process, in order; None for nothing.
        start: called in that thread first.

    Raises:
        WorkError: the processes can't be started. Iterating: they died DEATHS times within WITHIN results.
    """

    def __init__(
        self,
        work: Callable[[int, int], T],
        indexes: Iterable[int],
        processes: int,
        *,
        ahead: int,
        finish: Callable[[T], T] | None = None,
        start: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._indexes = iter(indexes)
        self._count = processes
        self._finish = finish
        self._finishing = None if finish is None else ThreadPoolExecutor(1, "finish", start)
        self._pending: deque[tuple[int, int, Future[T]]] = deque()
        """Index, place and result, in order."""
        self._free = list(range(places(processes, ahead)))
        self._given_place: int | None = None
        self._given = 0
        self._deaths: deque[int] = deque(maxlen=DEATHS)
        self._pool = self._new_pool()
        with self._starting():
            for _ in range(processes * ahead):
                self._add()

    def __next__(self) -> T:
        if self._given_place is not None:
            self._free.append(self._given_place)
            self._given_place = None
        while self._pending:
            _, place, future = self._pending[0]
            try:
                result = future.result()
            except BrokenProcessPool:
                self._start_again()
                continue
            self._pending.popleft()
            self._given_place = place
            self._given += 1
            self._add()
            return result
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the processes; there are no more results then."""
        self._pending.clear()
        self._indexes = iter(())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_PATIENCE)
        if self._finishing is not None:
            self._finishing.shutdown(wait=False, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._count, initializer=_begin, initargs=(self._work, os.getpid()))

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """While processes are started: signals reach this process alone."""
        others = set(multiprocessing.active_children())
        try:
            with _holding_signals():
                yield
        except OSError as error:
            raise WorkError(
                f"processes that read images can't be started ({error.strerror}): set `workers` lower, or to 0"
            ) from error
        self._processes = set(multiprocessing.active_children()) - others

    def _add(self) -> None:
        """Have the next index worked on, if there is one."""
        for index in self._indexes:
            place = self._free.pop()
            self._pending.append((index, place, self._submit(index, place)))
            return

    def _submit(self, index: int, place: int) -> Future[T]:
        try:
            made: Future[T] = self._pool.submit(_do, index, place)
        except BrokenProcessPool as error:
            made = Future()
            made.set_exception(error)
        if self._finish is None or self._finishing is None:
            return made
        return self._finishing.submit(_finish, self._finish, made)

    def _start_again(self) -> None:
        """Start the processes again, one of which has died, and have them make what is still missing."""
        self._pool.shutdown()
        cause = _cause(self._processes)
        self._deaths.append(self._given)
        if len(self._deaths) == DEATHS and self._given - self._deaths[0] < WITHIN:
            raise WorkError(
                f"a process that reads images died ({cause}), and so did {DEATHS - 1} before it within "
                f"{WITHIN} batches; too little memory, or shared memory in /dev/shm, is the usual cause: set `workers` "
                "lower, or to 0"
            )
        _log.warning(
            "A process that reads images died (%s), and another one reads the same images again: too little memory is "
            "the usual cause, and fewer workers take less",
            cause,
        )
        self._pool = self._new_pool()
        with self._starting():
            for i, (index, place, future) in enumerate(self._pending):
                if isinstance(future.exception(), BrokenProcessPool):
                    self._pending[i] = index, place, self._submit(index, place)


def places(processes: int, ahead: int) -> int:
    """How many places the results of Workers take: those ready or in the making, and the one that was given last."""
    return processes * ahead + 1


def _finish(finish: Callable[[T], T], made: Future[T]) -> T:
    return finish(made.result())


def _cause(processes: Iterable[BaseProcess]) -> str:
    """What ended the process that died first; the others got a SIGTERM then."""
    for process in processes:
        code = process.exitcode
        if code is not None and code < 0 and code != -signal.SIGTERM:
            return f"killed by {signal.Signals(-code).name}"
        if code:
            return f"exit status {code}"
    return "of an unknown cause"


@contextmanager
def _holding_signals() -> Iterator[None]:
    """Hold back signals that ask to stop, in this process and, until it is ready for them, in each that it starts."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the processes

_work: Callable[[int, int], Any]


def _begin(work: Callable[[int, int], Any], trainer: int) -> None:
    global _work
    _work = work
    # An interrupt from the keyboard, the end of the terminal, and what torchrun or a cluster's scheduler ends jobs by
    # go to every process. The trainer decides when to stop, and needs its workers until then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
        if sys.platform != "linux":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with, args=(trainer, os.getppid()), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()  # a batch has the size of the one before
    init_worker()


def _end_with(trainer: int, parent: int) -> None:
    """End this process when the trainer says so by SIGTERM, or is gone; a SIGTERM from others is ignored."""
    while os.getppid() == parent:
        if sys.platform != "linux":  # where it is not told who sends a signal
            time.sleep(_LOOK)
            continue
        told = signal.sigtimedwait({signal.SIGTERM}, _LOOK)
        if told is not None and told.si_pid == trainer:
            break
    os._exit(0)


def _do(index: int, place: int) -> Any:
    return _work(index, place)

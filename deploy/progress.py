"""How far a run over many images is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from autodial.system.terminal import Console

SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[int], None]]:
    """Yield a function of the number of images done that shows it on standard error; how many come is not known."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed} images"), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("predict", total=None, rate="")
        rate = _Rate()
        yield lambda done: bar.update(task, completed=done, rate=f"{rate(done):.0f} images/s")


class _Rate:
    """Images per second from the first call on: the rows of a run that is resumed don't count."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: int | None = None

    def __call__(self, done: int) -> float:
        if self._first is None:
            self._started, self._first = time.perf_counter(), done
            return 0.0
        return (done - self._first) / (time.perf_counter() - self._started)


class _Lines:
    def __init__(self) -> None:
        self._rate = _Rate()
        self._last = time.perf_counter()

    def __call__(self, done: int) -> None:
        rate = self._rate(done)
        now = time.perf_counter()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            print(f"{done} images, {rate:.0f} images/s", file=sys.stderr, flush=True)

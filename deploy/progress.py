"""How far a run over many images is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (images done, images in all) that shows them on standard error."""
    started = time.perf_counter()
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(started)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]:.0f} images/s"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("predict", total=None, rate=0.0)
        yield lambda done, total: bar.update(
            task, completed=done, total=total, rate=done / (time.perf_counter() - started)
        )


class _Lines:
    def __init__(self, started: float) -> None:
        self._started = self._last = started

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            print(f"{done}/{total} images, {done / (now - self._started):.0f} images/s", file=sys.stderr, flush=True)

"""Progress bars on standard error; nothing is shown where that is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from autodial.wording import counted

if TYPE_CHECKING:
    import torch

    from autodial.selection.job import Result
    from autodial.selection.processes import AnyJob

T = TypeVar("T")


class Show(Protocol):
    """Show how much of a total is done; `what` replaces the description."""

    def __call__(self, done: float, total: float, what: str | None = None) -> None: ...


@contextmanager
def progress_bar(what: str, *, transient: bool = False) -> Iterator[Show]:
    """Yield a function that moves a bar; the bar appears with its first call.

    Args:
        what: the bar's description.
        transient: whether the bar disappears at the end.
    """
    from rich.progress import Progress

    from autodial.system.terminal import Console

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=transient) as bar:
        task = bar.add_task(what, visible=False)

        def show(done: float, total: float, what: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=what, visible=True)

        yield show


def tracked(items: Iterable[T], what: str, total: int) -> Iterable[T]:
    """The items, with a bar that moves as they are taken; `total` is their number."""
    from rich.progress import track

    from autodial.system.terminal import Console

    console = Console(stderr=True)
    return track(items, what, total=total, console=console, disable=not console.is_terminal)


@contextmanager
def job_progress(
    total: int,
    left: Sequence[AnyJob],
    parallel: int,
    device: torch.device,
    result_of: Callable[[AnyJob], Result | None],
    failures: dict[Path, str],
    noun: str = "training",
) -> Iterator[Callable[[AnyJob, int | None], None]]:
    """Yield a function that reports jobs: a bar on a terminal, a line per finished job.

    Args:
        total: number of jobs, finished ones included.
        left: those to be run.
        parallel: how many run at the same time.
        device: where they run.
        result_of: reads a job's result; None if it has none.
        failures: is filled with the reasons why jobs ended without a result, by their folder.
        noun: what a job is called.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from autodial.selection.job import failure
    from autodial.system.terminal import Console

    done = total - len(left)
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    earlier = f", {done} of them finished earlier" if done else ""
    if left:
        console.print(f"{counted(total, noun)}{earlier}; {parallel} at a time on {device}")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[running]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=done, running="")
        running = 0

        def report(job: AnyJob, status: int | None) -> None:
            nonlocal running
            if status is None:
                running += 1
            else:
                running -= 1
                result = result_of(job)
                if result is None:
                    failures[job.folder] = failure(job, status)
                    console.print(f"{job.name} failed: {failures[job.folder]}")
                else:
                    outcome = "done" if result["error"] is None else f"failed: {result['error']}"
                    console.print(f"{job.name} {outcome}, {result['seconds']:.0f} s")
                progress.advance(task)
            progress.update(task, running=f"{running} running")

        yield report

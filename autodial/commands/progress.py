"""Progress bars on standard error; nothing is shown where that is not a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

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

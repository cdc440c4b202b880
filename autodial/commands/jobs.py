"""Trainings in processes of their own, as commands run and show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.errors import INTERRUPTED
from autodial.wording import counted

if TYPE_CHECKING:
    import torch

    from autodial.selection.process_job import ProcessJob
    from autodial.selection.processes import Shares

JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Trainings that run at the same time.",
        show_default="one per CPU, or one per two CPUs with a GPU, as memory allows",
    ),
]
"""A number for `autodial.selection.processes.share_machine`."""
JobWorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="Processes that read images ahead, per training.", show_default="the CPUs that are left"),
]
"""A number for the same."""


def run_and_show(
    waves: Iterable[Sequence[ProcessJob]],
    shares: Shares,
    device: torch.device,
    folder: Path,
    *,
    total: int,
    left: int,
    noun: str = "training",
) -> dict[Path, str]:
    """Run jobs, with a bar on a terminal, and a line per finished job.

    Args:
        waves: the jobs to run; a wave begins when the one before has ended.
        shares: how they share the machine.
        device: where they run.
        folder: where the results are.
        total: number of jobs, finished ones included.
        left: number of jobs that are not finished.
        noun: what a job is called.

    Returns:
        The reasons why jobs ended without a result, by their folder.

    Raises:
        typer.Exit: after Ctrl-C.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from autodial.selection.processes import run_jobs
    from autodial.system.terminal import Console

    failures: dict[Path, str] = {}
    done = total - left
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    earlier = f", {done} of them finished earlier" if done else ""
    if left:
        console.print(f"{counted(total, noun)}{earlier}; {shares.parallel} at a time on {device}")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[running]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=done, running="")
        running = 0

        def report(job: ProcessJob, status: int | None) -> None:
            nonlocal running
            if status is None:
                running += 1
            else:
                running -= 1
                result = job.result()
                if result is None:
                    failures[job.folder] = job.failure(status)
                    console.print(f"{job.name} failed: {failures[job.folder]}")
                else:
                    outcome = "done" if result["error"] is None else f"failed: {result['error']}"
                    console.print(f"{job.name} {outcome}, {result['seconds']:.0f} s")
                progress.advance(task)
            progress.update(task, running=f"{running} running")

        finished = all(run_jobs(wave, shares, report) for wave in waves)
    if not finished:
        typer.echo(f"Interrupted. What is finished stays in {folder}; the same command goes on from there.", err=True)
        raise typer.Exit(INTERRUPTED)
    return failures

"""The command `autodial select`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodial.commands.inputs import split_names
from autodial.commands.options import JsonOption, SeedOption, SolverDeviceOption, VariantOption
from autodial.wording import command_line

if TYPE_CHECKING:
    from rich.table import Table

    from autodial.selection.choice import Choice, Row
    from autodial.selection.experiment import Experiment
    from autodial.selection.job import Job

_FEW = 30
"""Images that importance-weighted ones are worth, below which the table's reader is warned."""
_WIDTH = 120
"""Of the table where it goes to a file."""


def select(
    solver: Annotated[Path, typer.Option(metavar="SOLVER.prototxt", help="The solver; it names the net.")],
    tries: Annotated[
        list[str],
        typer.Option(
            "--try",
            metavar="LAYER.FIELD=V1,V2",
            help="A field that `autodial train --set` can set, and the values to choose from. May be repeated: every "
            "combination is tried. Write a value that is a list in brackets.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The folder for all results. Naming it again continues the selection."
        ),
    ],
    weights: Annotated[
        str | None,
        typer.Option(metavar="W1,W2", help="Start from these .caffemodel files; layers are matched by name."),
    ] = None,
    criterion: Annotated[
        str,
        typer.Option(help="The criterion that decides: source, weighted, alignment, entropy or density."),
    ] = "alignment",
    folds: Annotated[
        int,
        typer.Option(
            min=1, max=5, help="The number of source fifths that are held out in turn, each in its own training."
        ),
    ] = 1,
    target_labels: Annotated[
        bool,
        typer.Option(
            "--target-labels",
            help="Show how much target accuracy each choice loses; the TEST phase's list must have the labels.",
        ),
    ] = False,
    device: SolverDeviceOption = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trainings that run at the same time.",
            show_default="one per CPU, or one per two CPUs with a GPU, as memory allows",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="LAYER.FIELD=VALUE",
            help="Change a field in every candidate, as in train; may be repeated.",
        ),
    ] = None,
    variants: VariantOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Processes that read images ahead, per training.", show_default="the CPUs that are left"
        ),
    ] = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose settings, such as lambda, without target labels.

    Each candidate is trained on the source without a stratified fifth, which is held out, and on the unlabelled
    target. The table shows five criteria: `source`, the accuracy on the held-out images (the paper's
    cross-validation); `weighted`, the loss on them, weighted by how much each resembles the target; `alignment`, the
    error on them plus how well a classifier tells the domains apart (the default); `entropy` and soft-neighbourhood
    `density` of the target's predictions, both of which prefer collapsed models. All but `source` are guarded: they
    pass over a candidate that assigns the target far fewer classes than the others do.

    DIR gets select.json, the held-out lists, and the logs of each candidate; its snapshots are deleted once it has
    been measured. Finished trainings are not repeated, and more values can be added later. Adding --target-labels
    later repeats all trainings. Ctrl-C keeps snapshots from which the same command continues. A failed training is a
    row of the table.
    """
    import json

    from autodial.errors import INTERRUPTED, InputError, WorkError
    from autodial.selection.candidates import grid
    from autodial.selection.choice import CRITERIA, choose
    from autodial.selection.experiment import locked, prepare
    from autodial.selection.processes import default_parallel, free_memory, run_jobs
    from autodial.system.cpus import available_cpus
    from autodial.system.files import replacing

    if criterion not in CRITERIA:
        raise InputError(f"--criterion {criterion}: no such criterion; there are {', '.join(CRITERIA)}")
    candidates = grid(tries)
    experiment = prepare(
        solver,
        candidates,
        output,
        weights=split_names(weights),
        settings=settings or (),
        variants=variants or (),
        folds=folds,
        device=device,
        seed=seed,
        target_labels=target_labels,
    )
    failures: dict[Path, str] = {}
    with locked(output):
        left = experiment.unfinished()
        gpu = experiment.device.type == "cuda"
        cpus = available_cpus()
        memory = _gpu_memory(experiment) if gpu else free_memory()
        parallel = jobs or default_parallel(len(left), cpus, gpu=gpu, memory=memory, job_memory=experiment.job_memory)
        share = max(1, cpus // parallel)
        with _progress(experiment, left, parallel, failures) as report:
            finished = run_jobs(
                left, parallel, threads=share, workers=share - 1 if workers is None else workers, report=report
            )
    if not finished:
        typer.echo(f"Interrupted. What is finished stays in {output}; the same command goes on from there.", err=True)
        raise typer.Exit(INTERRUPTED)

    rows = experiment.rows(failures)
    choices = choose(rows)
    decided = choices[criterion]
    command = None
    if decided.row is not None:
        chosen = rows[decided.row].candidate.settings
        command = _train_command(solver, weights, variants or [], [*(settings or []), *chosen], seed)
    record = _record(experiment, rows, choices, decided, command)
    with replacing(output / "select.json") as file:
        file.write(json.dumps(record, indent=2).encode())
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        _print(rows, choices, decided, command)
    if command is None:
        raise WorkError(
            f"{criterion} has nothing to choose from: every candidate failed or is passed over by its guard; try "
            "another --criterion, a smaller loss_weight of the entropy loss, larger batches, or --variant fixed-alpha"
        )


def _gpu_memory(experiment: Experiment) -> int:
    import torch

    return int(torch.cuda.mem_get_info(experiment.device)[0])


@contextmanager
def _progress(
    experiment: Experiment, left: Sequence[Job], parallel: int, failures: dict[Path, str]
) -> Iterator[Callable[[Job, int | None], None]]:
    """What follows the jobs: a bar on a terminal, a line for each that ends; `failures` gets why one left no result."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from autodial.selection.job import failure, read_result
    from autodial.system.terminal import Console
    from autodial.wording import counted

    total = sum(map(len, experiment.jobs))
    done = total - len(left)
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    earlier = f", {done} of them finished earlier" if done else ""
    if left:
        console.print(f"{counted(total, 'training')}{earlier}; {parallel} at a time on {experiment.device}.")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[running]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=done, running="")
        running = 0

        def report(job: Job, status: int | None) -> None:
            nonlocal running
            name = f"{', '.join(job.settings)} (fold {job.fold + 1})"
            if status is None:
                running += 1
            else:
                running -= 1
                result = read_result(job)
                if result is None:
                    failures[job.folder] = failure(job, status)
                    console.print(f"{name} failed: {failures[job.folder]}")
                else:
                    outcome = "done" if result["error"] is None else f"failed: {result['error']}"
                    console.print(f"{name} {outcome}, {result['seconds']:.0f} s")
                progress.advance(task)
            progress.update(task, running=f"{running} running")

        yield report


def _train_command(
    solver: Path, weights: str | None, variants: Sequence[str], settings: Sequence[str], seed: int | None
) -> str:
    """The command line that trains the chosen candidate on the whole source."""
    options = {
        **{"--solver": solver, "--weights": weights, "--variant": list(variants), "--set": list(settings)},
        **{"--seed": seed},
    }
    return command_line("autodial train", options)


def _record(
    experiment: Experiment,
    rows: Sequence[Row],
    choices: Mapping[str, Choice],
    decided: Choice,
    command: str | None,
) -> dict[str, Any]:
    """What select.json holds."""
    from dataclasses import asdict

    def settings(number: int | None) -> tuple[str, ...] | None:
        return None if number is None else rows[number].candidate.settings

    return {
        "schema": 1,
        **experiment.inputs,
        "criterion": decided.criterion,
        "chosen": settings(decided.row),
        "train": command,
        "candidates": [
            {
                "settings": row.candidate.settings,
                "folds": row.folds,
                "measures": None if row.measures is None else asdict(row.measures),
                "collapsed_at": row.collapsed_at,
                "error": row.error,
            }
            for row in rows
        ],
        "choices": [
            {
                "criterion": choice.criterion,
                "chosen": settings(choice.row),
                "tied": [settings(number) for number in choice.tied],
                "excluded": [settings(number) for number in choice.excluded],
                "cost": choice.cost,
            }
            for choice in choices.values()
        ],
    }


def _print(rows: Sequence[Row], choices: Mapping[str, Choice], decided: Choice, command: str | None) -> None:
    from autodial.system.terminal import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_WIDTH)
    console.print(_candidates(rows, choices))
    console.print(_choices(rows, choices))
    for text in _notes(rows, decided):
        console.print(text, soft_wrap=True)
    if command is not None:
        console.print(f"\nTo train it on the whole source:\n{command}", soft_wrap=True)


def _candidates(rows: Sequence[Row], choices: Mapping[str, Choice]) -> Table:
    """A row per candidate; what a criterion chooses is marked with a star in its column."""
    from rich.box import SIMPLE
    from rich.table import Table

    paths = [setting.partition("=")[0] for setting in rows[0].candidate.settings]
    labelled = any(row.measures is not None and row.measures.target_accuracy is not None for row in rows)
    table = Table(title=", ".join(paths), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for path in paths:
        table.add_column(path.rpartition(".")[2], overflow="fold")
    titles = ["source accuracy", "weighted loss", "alignment", "entropy", "density", "diversity"]
    for title in [*titles, "target accuracy"] if labelled else titles:
        table.add_column(title, justify="right")
    for number, row in enumerate(rows):
        values = [setting.partition("=")[2] for setting in row.candidate.settings]
        if row.measures is None:
            table.add_row(*values, "failed")
            continue
        m = row.measures
        cells = {
            "source": f"{m.source_accuracy:.2%}",
            "weighted": f"{m.weighted_loss:.4f}",
            "alignment": f"{m.misalignment:.3f}",
            "entropy": f"{m.entropy:.3f}",
            "density": f"{m.density:.3f}",
            "diversity": f"{m.diversity:.2f}",
            "target": "" if m.target_accuracy is None else f"{m.target_accuracy:.2%}",
        }
        if not labelled:
            del cells["target"]
        stars = {name for name, choice in choices.items() if choice.row == number}
        table.add_row(*values, *(f"{'*' if name in stars else ''}{text}" for name, text in cells.items()))
    return table


def _choices(rows: Sequence[Row], choices: Mapping[str, Choice]) -> Table:
    """A row per criterion."""
    from rich.box import SIMPLE
    from rich.table import Table

    from autodial.selection.choice import CRITERIA

    costed = any(choice.cost is not None for choice in choices.values())
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for title in (
        "criterion",
        "looks at",
        "* chooses",
        "can't tell from",
        *(["target accuracy lost"] if costed else []),
    ):
        table.add_column(title)
    for name, choice in choices.items():
        cost = [] if not costed else ["" if choice.cost is None else f"{choice.cost:.2%}"]
        chosen = "none: no candidate passes its guard" if choice.row is None else _values(rows[choice.row])
        tied = "; ".join(_values(rows[number]) for number in choice.tied)
        table.add_row(name, CRITERIA[name].title, chosen, tied, *cost)
    return table


def _values(row: Row) -> str:
    return ", ".join(setting.partition("=")[2] for setting in row.candidate.settings)


def _notes(rows: Sequence[Row], decided: Choice) -> Iterator[str]:
    """What else is to be said, a sentence each."""
    from autodial.selection.choice import is_trusted

    for row in rows:
        name = row.candidate.name
        if row.error is not None:
            yield f"{name} failed: {row.error}"
        elif row.measures is not None and not is_trusted(row.measures):
            yield (
                f"{name}: the held-out images resemble the target's so little (weighted, they are worth "
                f"{row.measures.effective:.0f} of {row.measures.held_out:.0f}) that `weighted` passes it over."
            )
        if row.collapsed_at is not None:
            yield f"{name}: the target's predictions collapsed in training, at iteration {row.collapsed_at}."
    if decided.row is None:
        return
    measures = rows[decided.row].measures
    if decided.criterion == "weighted" and measures is not None and measures.effective < _FEW:
        yield f"The weighted loss rests on what {measures.effective:.0f} images would tell: hold out more with --folds."
    yield f"\nChosen by {decided.criterion}: {rows[decided.row].candidate.name}"

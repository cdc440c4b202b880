"""The command `autodial select`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodial.commands.inputs import split_names
from autodial.commands.jobs import JobsOption, JobWorkersOption, run_and_show
from autodial.commands.options import (
    JsonOption,
    SeedOption,
    SolverDeviceOption,
    SolverOption,
    StartOption,
    VariantOption,
    naming_options,
)
from autodial.wording import command_line

if TYPE_CHECKING:
    from rich.table import Table

    from autodial.selection.choice import Choice, Ensemble, Trial
    from autodial.selection.experiment import Experiment
    from autodial.selection.training_job import TrainingJob

_WIDTH = 140
"""Columns of the tables if they go to a file."""
_CHOSEN = "chosen"
"""Name of the chosen weights without the suffix, and prefix of the snapshots when they are trained once more."""
_MODEL = "target_predictor.onnx"
_OPTIONS = {
    **{"tries": "--try", "overrides": "--set", "variants": "--variant", "folder": "-o", "restarts": "--restarts"},
    **{"target_labels": "--target-labels", "ensemble": "--ensemble"},
}
"""The options behind the parameters of `autodial.selection.experiment.prepare`."""


def select(
    solver: SolverOption,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The folder for all results. Naming it again continues the selection."
        ),
    ],
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="LAYER.FIELD=V1,V2",
            help="A field that `autodial train --set` can set, and the values to choose from; or variant=NAME,NAME, "
            "where `learned` is the net as it is. May be repeated: every combination is tried. Write a value that is a "
            "list in brackets.",
        ),
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Trainings of each combination, with N seeds from --seed on.")
    ] = 1,
    weights: StartOption = None,
    criterion: Annotated[
        str,
        typer.Option(
            # the names are those of autodial.selection.criteria, which takes too long to import for a help text
            help="The criterion that decides: agreement, entropy, information, consensus, nuclear-norm, density or "
            "clusters; or source, weighted or alignment, which look at held-out source images.",
        ),
    ] = "nuclear-norm",
    hold_out: Annotated[
        bool | None,
        typer.Option(
            "--hold-out/--no-hold-out",
            help="Hold out a fifth of the source, which some criteria look at.",
            show_default="where --criterion needs it",
        ),
    ] = None,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate/--no-recalibrate",
            help="After each training, compute the Dial layers' statistics over all images, as `autodial recalibrate` "
            "does, in place of training's moving averages.",
        ),
    ] = True,
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble", help="Propose the average of all candidates, too, with the command to export it."),
    ] = False,
    target_labels: Annotated[
        bool,
        typer.Option(
            "--target-labels",
            help="Show how much target accuracy each choice loses; the TEST phase's list must have the labels.",
        ),
    ] = False,
    device: SolverDeviceOption = "auto",
    jobs: JobsOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="LAYER.FIELD=VALUE",
            help="Change a field in every candidate, as in train; may be repeated.",
        ),
    ] = None,
    variants: VariantOption = None,
    workers: JobWorkersOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose a training, and with it lambda or any setting, without labels of the target.

    Every combination of the values to try is trained with every seed. A candidate is one of these trainings, as seeds
    often differ more than settings do. Each criterion judges all candidates by their predictions for the unlabelled
    target. `nuclear-norm` decides unless --criterion names another: it is the larger, the more decided the predictions
    are and the more evenly they are spread over the classes. A candidate that gives the target far fewer classes than
    others do is passed over; the column `diversity` shows it: near 1, the target is spread over as many classes as the
    source, near 0 over one.

    DIR gets the chosen weights, chosen.caffemodel; select.json, which holds the tables; and for each candidate its
    weights, its scores and its logs. What is finished is not run again: the same command goes on after an interruption,
    and values, restarts and --target-labels can be added. A training that fails is a row of the table.
    """
    import json

    from autodial.errors import InputError, WorkError
    from autodial.selection.choice import average, choose
    from autodial.selection.criteria import CRITERIA
    from autodial.selection.experiment import prepare
    from autodial.selection.processes import share_machine
    from autodial.system.files import replacing
    from autodial.system.outputs import locked

    if criterion not in CRITERIA:
        raise InputError(f"--criterion {criterion}: no such criterion; there are {', '.join(CRITERIA)}")
    needed = CRITERIA[criterion].needs_held_out
    if needed and hold_out is False:
        raise InputError(f"--criterion {criterion} looks at held-out source images: leave out --no-hold-out")
    with naming_options(**_OPTIONS):
        experiment = prepare(
            solver,
            tries or (),
            output,
            restarts=restarts,
            weights=split_names(weights),
            overrides=settings or (),
            variants=variants or (),
            hold_out=needed if hold_out is None else hold_out,
            recalibrate=recalibrate,
            device=device,
            seed=seed,
            target_labels=target_labels,
        )
        if ensemble:
            experiment.check_ensemble()
    with locked(output, "autodial select"):
        left = experiment.unfinished()
        shares = share_machine(len(left), experiment.device, experiment.job_memory, parallel=jobs, workers=workers)
        failures = run_and_show([left], shares, experiment.device, output, total=len(experiment.jobs), left=len(left))
        trials = experiment.trials(failures)
        found = _Findings(experiment, trials, choose(trials), average(trials) if ensemble else None, criterion)
        chosen = output / f"{_CHOSEN}.caffemodel"
        if found.chosen is None:
            chosen.unlink(missing_ok=True)
        else:
            with replacing(chosen) as file:
                file.write(experiment.jobs[found.chosen].trained.read_bytes())
        commands = _commands(found, solver, weights, settings or [], variants or [], output)
        record = _record(found, output, commands)
        with replacing(output / "select.json") as file:
            file.write(json.dumps(record, indent=2).encode())
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        _print(found, output, commands)
    if found.chosen is None:
        raise WorkError(
            f"{criterion} has nothing to choose from: every candidate failed or is passed over by its guard; try "
            "another --criterion, a smaller loss_weight of the entropy loss, larger batches, or --variant fixed-alpha"
        )


@dataclass(frozen=True)
class _Findings:
    """A selection's results; `criterion` is the one that decides."""

    experiment: Experiment
    trials: Sequence[Trial]
    choices: Mapping[str, Choice]
    ensemble: Ensemble | None
    criterion: str

    @property
    def chosen(self) -> int | None:
        """Number of the candidate that is handed over."""
        return self.choices[self.criterion].trial if self.criterion in self.choices else None


def _commands(
    found: _Findings,
    solver: Path,
    weights: str | None,
    settings: Sequence[str],
    variants: Sequence[str],
    output: Path,
) -> dict[str, str]:
    """Command lines by purpose: export the chosen weights, train them once more, export the ensemble."""
    commands: dict[str, str] = {}
    experiment = found.experiment
    if found.chosen is not None:
        candidate = experiment.candidates[found.chosen]
        commands["export"] = command_line(
            "autodial export",
            {**experiment.exports[found.chosen], "--weights": output / f"{_CHOSEN}.caffemodel", "-o": _MODEL},
        )
        again = [*settings, *candidate.settings, f"solver.snapshot_prefix={output / _CHOSEN}"]
        commands["train"] = command_line(
            "autodial train",
            {
                **{"--solver": solver, "--weights": weights, "--variant": [*variants, *candidate.variants]},
                **{"--set": again, "--seed": candidate.seed},
            },
        )
    if found.ensemble is not None:
        members = [output / "candidates" / _place(experiment.jobs[number], output) for number in found.ensemble.trials]
        commands["ensemble"] = command_line(
            "autodial export --ensemble",
            {**experiment.exports[found.ensemble.trials[0]], "--weights": members, "-o": _MODEL},
        )
    return commands


def _place(job: TrainingJob, output: Path) -> Path:
    """A path of a candidate's weights, relative to the folder of all candidates."""
    return job.trained.relative_to((output / "candidates").absolute())


def _record(found: _Findings, output: Path, commands: Mapping[str, str]) -> dict[str, Any]:
    """The contents of select.json. Candidates are numbered from 0, in the order of the grid."""
    from autodial.selection.choice import accuracy, diversities

    experiment, ensemble = found.experiment, found.ensemble
    shares = diversities(found.trials)
    candidates = []
    for number, (trial, job) in enumerate(zip(found.trials, experiment.jobs, strict=True)):
        done = trial.outputs is not None
        candidates.append({
            **{"settings": trial.candidate.settings, "variant": trial.candidate.variant, "seed": trial.candidate.seed},
            "weights": str(Path("candidates") / _place(job, output)) if done else None,
            "values": {name: choice.values[number] for name, choice in found.choices.items()},
            "diversity": shares[number],
            "target_accuracy": accuracy(trial),
            **{"collapsed_at": trial.collapsed_at, "error": trial.error},
        })  # fmt: skip
    return {
        "schema": 2,
        **experiment.inputs,
        "criterion": found.criterion,
        "chosen": found.chosen,
        "weights": None if found.chosen is None else f"{_CHOSEN}.caffemodel",
        "candidates": candidates,
        "choices": {
            name: {"chosen": choice.trial, "tied": choice.tied, "excluded": choice.excluded, "cost": choice.cost}
            for name, choice in found.choices.items()
        },
        "ensemble": None
        if ensemble is None
        else {"members": ensemble.trials, "agreement": ensemble.agreement, "target_accuracy": ensemble.accuracy},
        "commands": dict(commands),
    }


def _print(found: _Findings, output: Path, commands: Mapping[str, str]) -> None:
    from autodial.system.terminal import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_WIDTH)
    console.print(_candidates(found))
    console.print(_choices(found))
    for text in _notes(found):
        console.print(text, soft_wrap=True)
    if found.chosen is None:
        return
    name = found.trials[found.chosen].candidate.name
    console.print(
        f"\nChosen by {found.criterion}: {name}\n{output / _CHOSEN}.caffemodel holds its weights", soft_wrap=True
    )
    console.print(f"\nTo export the chosen weights:\n{commands['export']}", soft_wrap=True)
    again = "on the whole source" if found.experiment.inputs["hold_out"] else "once more"
    console.print(f"\nTo train it {again}:\n{commands['train']}", soft_wrap=True)
    if found.ensemble is not None:
        console.print(f"\nTo export the ensemble:\n{commands['ensemble']}", soft_wrap=True)


def _candidates(found: _Findings) -> Table:
    """A row per candidate, the best first; a star marks each criterion's choice in its column."""
    from rich.box import SIMPLE
    from rich.table import Table

    from autodial.selection.choice import accuracy, diversities
    from autodial.selection.criteria import CRITERIA

    trials, choices = found.trials, found.choices
    fields = list(trials[0].candidate.choices)
    shares, right = diversities(trials), [accuracy(trial) for trial in trials]
    labelled = any(value is not None for value in right)
    table = Table(title=", ".join(fields), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for title in ("#", *(field.rpartition(".")[2] for field in fields), "seed"):
        table.add_column(title, overflow="fold")
    for title in (*choices, "diversity", *(["target accuracy"] if labelled else [])):
        table.add_column(title, justify="right")
    for number in _ordered(found):
        trial = trials[number]
        cells = [str(number + 1), *trial.candidate.choices.values(), str(trial.candidate.seed)]
        if trial.outputs is None:
            table.add_row(*cells, "failed")
            continue
        for name, choice in choices.items():
            value = choice.values[number]
            sign = 1 if CRITERIA[name].larger_is_better else -1
            cells.append("-" if value is None else f"{'*' if choice.trial == number else ''}{sign * value + 0:.3f}")
        share, accurate = shares[number], right[number]
        cells.append("-" if share is None else f"{share:.2f}")
        table.add_row(*cells, *([] if accurate is None else [f"{accurate:.1%}"]))
    return table


def _ordered(found: _Findings) -> list[int]:
    """Numbers of the candidates, from the best to the worst by the deciding criterion, then those not judged."""
    values = found.choices[found.criterion].values if found.criterion in found.choices else ()
    known = {number: value for number, value in enumerate(values) if value is not None}
    ranked = sorted(known, key=lambda number: -known[number])
    return [*ranked, *(number for number in range(len(found.trials)) if number not in known)]


def _choices(found: _Findings) -> Table:
    """A row per criterion."""
    from rich.box import SIMPLE
    from rich.table import Table

    from autodial.selection.criteria import CRITERIA

    costed = any(choice.cost is not None for choice in found.choices.values())
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    lost = ["target accuracy lost"] if costed else []
    for title in ("criterion", "looks at", "* chooses", "can't tell from", *lost):
        table.add_column(title)
    for name, choice in found.choices.items():
        cost = [] if not costed else ["" if choice.cost is None else f"{100 * choice.cost:.1f} points"]
        chosen = "none that passes its guard" if choice.trial is None else f"#{choice.trial + 1}"
        tied = ", ".join(f"#{number + 1}" for number in choice.tied)
        table.add_row(name, CRITERIA[name].title, chosen, tied, *cost)
    return table


def _notes(found: _Findings) -> Iterator[str]:
    """Failures, collapses, and how far the ensemble agrees: a sentence each."""
    for number, trial in enumerate(found.trials):
        if trial.error is not None:
            yield f"#{number + 1} ({trial.candidate.name}) failed: {trial.error}"
        elif trial.collapsed_at is not None:
            yield f"#{number + 1}: the target's predictions collapsed in training, at iteration {trial.collapsed_at}"
    ensemble = found.ensemble
    if ensemble is not None:
        right = "" if ensemble.accuracy is None else f", and is right for {ensemble.accuracy:.1%}"
        yield (
            f"The ensemble of {len(ensemble.trials)} candidates agrees with each of them on {ensemble.agreement:.1%} "
            f"of the target's images on average{right}"
        )

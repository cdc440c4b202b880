"""The results of a comparison, and the tables made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from autodial.comparison.folder import RESULTS, Comparison
from autodial.comparison.methods import METHODS, Method, Shallow
from autodial.comparison.table import ACCURACY, COLLAPSED, FORMATS, RANK, Column, Table, Values
from autodial.errors import InputError
from autodial.selection.choice import Trial, accuracy, collapsed, diverse, diversities
from autodial.selection.criteria import CRITERIA, DEFAULT
from autodial.system import json_files
from autodial.system.files import replacing_files
from autodial.wording import counted

_SCHEMA = 1
_CRITERIA = ("agreement", "information", DEFAULT)


class Run(TypedDict):
    """One cell.

    Attributes:
        seed: its seed.
        accuracy: on the labelled target images, in [0, 1]; None without labels, or if it failed.
        values: by criterion, the higher the better; None if the run failed or can't be judged.
        diversity: as in `autodial.selection.choice.diversities`.
        collapsed: whether its predictions for the target have collapsed (`autodial.selection.choice.collapsed`).
        collapsed_at: iteration of the last alarm that the target's predictions had collapsed.
        error: why it failed; None if it did not.
    """

    seed: int
    accuracy: float | None
    values: dict[str, float | None]
    diversity: float | None
    collapsed: bool
    collapsed_at: int | None
    error: str | None


class Chosen(TypedDict):
    """The run that is chosen without labels, with the commands that use it (see `Comparison.commands`).

    It is a trained net's if there is one, as nothing exports a Shallow method's. It has not collapsed.
    """

    method: str
    seed: int
    commands: dict[str, str]


class Results(TypedDict):
    """The file `results.json`: the pair of domains, what all methods have in common, their runs, and the chosen run."""

    schema: int
    pair: str
    conditions: list[str]
    methods: dict[str, list[Run]]
    chosen: Chosen | None


def judge(comparison: Comparison, methods: Sequence[str], trials: Sequence[Trial]) -> Results:
    """Judge all runs of a comparison, with each other, without labels of the target; labels give accuracies.

    Args:
        comparison: the comparison.
        methods: names in METHODS, in the order of rows.
        trials: their runs.
    """
    eligible, fallen = diverse(trials), collapsed(trials)
    values: list[dict[str, float | None]] = [dict.fromkeys(_CRITERIA) for _ in trials]
    for name in _CRITERIA if eligible else ():
        outputs = [output for number in eligible if (output := trials[number].outputs) is not None]
        for number, value in zip(eligible, CRITERIA[name].rank(outputs).values, strict=True):
            values[number][name] = float(value)
    shares = diversities(trials)
    runs: dict[str, list[Run]] = {name: [] for name in methods}
    for number, trial in enumerate(trials):
        runs[str(trial.candidate.variant)].append(
            Run(
                seed=trial.candidate.seed,
                accuracy=accuracy(trial),
                values=values[number],
                diversity=shares[number],
                collapsed=number in fallen,
                collapsed_at=trial.collapsed_at,
                error=trial.error,
            )
        )
    chosen = None
    if sound := [number for number in eligible if number not in fallen]:
        nets = [number for number in sound if isinstance(METHODS[str(trials[number].candidate.variant)], Method)]
        best = max(nets or sound, key=lambda number: values[number][DEFAULT] or -np.inf)
        method, seed = str(trials[best].candidate.variant), trials[best].candidate.seed
        chosen = Chosen(method=method, seed=seed, commands=comparison.commands(method, seed))
    return Results(
        schema=_SCHEMA,
        pair=comparison.pair,
        conditions=comparison.conditions(methods, measured=any(accuracy(trial) is not None for trial in trials)),
        methods=runs,
        chosen=chosen,
    )


def about_choice(results: Results) -> str | None:
    """The run that is chosen, in sentences; None if there is none."""
    chosen = results["chosen"]
    if chosen is None:
        return None
    shallow = [name for name in results["methods"] if isinstance(METHODS[name], Shallow)]
    rank = f" ({_ranked(results)[chosen['method'], chosen['seed']]:g})"
    text = f"Chosen without target labels: {chosen['method']}, seed {chosen['seed']}"
    if chosen["method"] in shallow:
        return f"{text}, the run with the best rank{rank}; no trained net can be proposed"
    text += f", the trained net with the best rank{rank}"
    return text if not shallow else f"{text}; results of {', '.join(shallow)} can't be exported, and are not proposed"


def read_results(folder: Path) -> Results:
    """The results in a comparison's folder.

    Raises:
        InputError: there are none, or the file is damaged.
    """
    path = folder / RESULTS
    if not path.is_file():
        raise InputError(f"{folder} holds no finished comparison: run `autodial compare {folder}` first")
    results = json_files.read(path, Results, remedy=f"run `autodial compare {folder}` again")
    if results["schema"] != _SCHEMA:
        raise InputError(f"{path} is of another version of AutoDIAL: run `autodial compare {folder}` again")
    return results


def table_of(results: Results) -> Table:
    """The table of one pair of domains: accuracies if they are known, and ranks without labels."""
    accuracies, ranks = _accuracies(results), _ranks(results)
    measured = any(values.values for values in accuracies.values())
    columns = [*([Column(ACCURACY, accuracies)] if measured else []), Column(RANK, ranks)]
    runs = sum(map(len, results["methods"].values()))
    notes = [
        *results["conditions"],
        f"The rank is a run's place among {counted(runs, 'run')}, by the {CRITERIA[DEFAULT].title}, as `autodial "
        "select` ranks candidates without labels of the target: the lower the better; it favours predictions that are "
        "decided and spread over the classes, which may still be wrong",
        *_of_shallow(results["methods"]),
        *_failures(results),
    ]
    return Table(_caption(results), _titles(results["methods"]), columns, averaged=False, notes=notes)


def joined_table(results: Mapping[str, Results]) -> Table:
    """The table of several pairs of domains, a column for each: accuracies if all have them, otherwise ranks.

    Args:
        results: by the pair's name.
    """
    measured = all(any(v.values for v in _accuracies(each).values()) for each in results.values())
    columns = [Column(name, (_accuracies if measured else _ranks)(each)) for name, each in results.items()]
    named = [name for name in METHODS if any(name in each["methods"] for each in results.values())]
    notes = [f"{name}: {each['pair']}" for name, each in results.items()]
    notes += [f"{name}: {text}" for name, each in results.items() for text in each["conditions"]]
    notes += _of_shallow(named)
    notes += [f"{name}: {text}" for name, each in results.items() for text in _failures(each)]
    what = f"Target {ACCURACY}" if measured else f"{RANK.capitalize()}, among the runs of a pair"
    return Table(f"{what}: mean and deviation over the seeds", _titles(named), columns, averaged=True, notes=notes)


def save(folder: Path, table: Table, results: Results | None = None) -> None:
    """Write a table in every form as `table` with the form's suffix, and the results: all files or none.

    Raises:
        WorkError: a file can't be written.
    """
    files = {f"table{form.suffix}": form.encode(table) for form in FORMATS}
    if results is not None:
        files[RESULTS] = json.dumps(results, indent=2).encode()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(folder, last=list(files)[-1]) as aside:
        for name, content in files.items():
            (aside / name).write_bytes(content)


def _caption(results: Results) -> str:
    seeds = max(map(len, results["methods"].values()), default=0)
    return f"{results['pair']}: mean and deviation over {counted(seeds, 'seed')}"


def _titles(names: Sequence[str] | Mapping[str, object]) -> dict[str, str]:
    return {name: METHODS[name].title if name in METHODS else name for name in names}


def _accuracies(results: Results) -> dict[str, Values]:
    return {
        name: Values(
            tuple(100 * run["accuracy"] for run in runs if run["accuracy"] is not None),
            *_counts(runs),
        )
        for name, runs in results["methods"].items()
    }


def _ranks(results: Results) -> dict[str, Values]:
    ranks = _ranked(results)
    return {
        name: Values(tuple(ranks[name, run["seed"]] for run in runs if (name, run["seed"]) in ranks), *_counts(runs))
        for name, runs in results["methods"].items()
    }


def _ranked(results: Results) -> dict[tuple[str, int], float]:
    """The rank of each run that has one, by method and seed: 1 for the best; equal runs share their mean rank."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    values = {
        (name, run["seed"]): -value
        for name, runs in results["methods"].items()
        for run in runs
        if (value := run["values"].get(DEFAULT)) is not None
    }
    return dict(zip(values, map(float, rankdata(list(values.values()))), strict=True))


def _counts(runs: Sequence[Run]) -> tuple[int, int]:
    """Numbers of the runs that failed, and that collapsed."""
    return sum(run["error"] is not None for run in runs), sum(run["collapsed"] for run in runs)


def _of_shallow(names: Sequence[str] | Mapping[str, object]) -> list[str]:
    """What the rows of shallow methods are."""
    shallow = {name: method.net for name in names if isinstance(method := METHODS.get(name), Shallow)}
    return [
        f"{METHODS[name].title} ({name}) aligns the features of {METHODS[net].title}'s net, and fits a linear "
        "classifier to them"
        for name, net in shallow.items()
    ]


def _failures(results: Results) -> list[str]:
    notes = []
    fallen = [
        f"{name}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        for name, runs in results["methods"].items()
        if (seeds := [run["seed"] for run in runs if run["collapsed"]])
    ]
    if fallen:
        notes.append(
            f"{COLLAPSED} marks runs that collapsed: they give the target hardly more than one class, or far fewer "
            f"than other runs do ({'; '.join(fallen)})"
        )
    for name, runs in results["methods"].items():
        for run in runs:
            what = f"{name}, seed {run['seed']}"
            if run["error"] is not None:
                notes.append(f"{what} failed: {run['error']}")
            elif run["values"].get(DEFAULT) is None:
                notes.append(f"{what} gives the target far fewer classes than others do, and has no rank")
            elif run["collapsed_at"] is not None:
                notes.append(f"{what}: the target's predictions collapsed at iteration {run['collapsed_at']}")
    return notes

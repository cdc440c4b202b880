"""The command `autodial compare`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.dialize import OPTIONS as DIALIZE_OPTIONS
from autodial.commands.inputs import different, split_names
from autodial.commands.jobs import JobsOption, JobWorkersOption, run_and_show
from autodial.commands.options import (
    TARGET,
    EpochsOption,
    JsonOption,
    SkipBadOption,
    SolverDeviceOption,
    naming_options,
    with_options,
)
from autodial.commands.progress import progress_bar
from autodial.errors import InputError

if TYPE_CHECKING:
    from autodial.comparison.folder import Comparison, Inputs, Request
    from autodial.comparison.table import Table

_SEEDS = (1, 2, 3)
_OPTIONS = {
    **{"source": "--source", "target": "--target", "test": "--test", "base": "--base", "weights": "--weights"},
    **{"epochs": "--epochs", "batch_size": "--batch-size", "skip": "--skip-bad", "skip_bad": "--skip-bad"},
    **{"same_schedule": "--same-schedule", "methods": "--methods", "seeds": "--seeds"},
    **{"target_labels": "--target-labels", "arch": "--base"},
    **{name: f"`autodial dialize`'s {option}" for name, option in DIALIZE_OPTIONS.items() if name != "weights"},
}
"""The options behind the library's parameters; `compare` lacks those of `dialize`."""


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="The folder for all results. Named alone, it continues its comparison. Several folders are shown as "
            "one table.",
        ),
    ],
    source: Annotated[
        list[Path] | None,
        typer.Option(metavar="S", help="The labelled images: a folder with a folder per class, or a list."),
    ] = None,
    target: Annotated[Path | None, TARGET] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="L",
            help="Labelled target images for --target-labels: a folder with class folders, or a list.",
            show_default="T, if it has the source's class folders",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|NET.prototxt|torchvision:NAME|timm:NAME",
            help="The net from which each method's net is made, named as in --arch of `autodial init`.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W",
            help="What every training starts from, as in `autodial init`.",
            show_default="those that the net's solver names, else random weights",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="M1,M2",
            # the names are those of autodial.comparison.methods, which takes too long to import for a help text
            help="The methods to compare: source-only, entropy-only, adabn, coral, deep-coral, ddc, dan, reversegrad, "
            "rtn, jan, fixed-alpha, autodial, sa, tca, gfk.",
            show_default="all but entropy-only, fixed-alpha, sa, tca and gfk",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N1,N2", help="A run of each method for each seed.", show_default="1,2,3")
    ] = None,
    epochs: EpochsOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=4, help="Images in a batch, half of them from the source.", show_default="the net's"),
    ] = None,
    skip_bad: SkipBadOption = False,
    same_schedule: Annotated[
        bool,
        typer.Option(
            "--same-schedule",
            help="Give all methods the base net's course of the learning rate. Otherwise each has the one that its "
            "authors released, stretched to the same number of iterations.",
        ),
    ] = False,
    target_labels: Annotated[
        bool,
        typer.Option("--target-labels", help="Show accuracies on the labelled target images; needs no new training."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="With several DIRs: a folder for their table."),
    ] = None,
    device: SolverDeviceOption = "auto",
    jobs: JobsOption = None,
    workers: JobWorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare methods of domain adaptation on one pair of domains: the paper's table, for your images.

    Each method's net is made from one base net, with the losses and weights that its authors released. All methods get
    the same images, batches, starting weights and number of iterations. The table ranks the runs without target labels,
    as `autodial select` ranks candidates; --target-labels adds accuracies.

    DIR gets METHOD/train_val.prototxt and METHOD/solver.prototxt for `autodial train`, a folder per run with its
    weights and logs, results.json, and the table as table.txt, table.csv, table.tex and table.html. What is finished is
    not run again: the same command, or DIR alone, goes on after an interruption, and methods, seeds and --target-labels
    can be added. A run that fails is marked in the table.
    """
    made_from: dict[str, object] = {
        "--source": source or None,
        "--target": target,
        "--base": base,
        "--test": test,
        "--weights": weights,
    }
    made_from |= {"--epochs": epochs, "--batch-size": batch_size}
    made_from |= {"--skip-bad": skip_bad or None, "--same-schedule": same_schedule or None}
    named = [option for option, value in made_from.items() if value is not None]
    if len(folders) > 1:
        wanted: dict[str, object] = {"--methods": methods, "--seeds": seeds, "--target-labels": target_labels or None}
        # nothing is run: their tables are put together
        wanted |= {"--device": None if device == "auto" else device, "--jobs": jobs, "--workers": workers}
        for option in (*named, *(option for option, value in wanted.items() if value is not None)):
            raise InputError(f"{option} is for one comparison, and several are named: give it to that one's command")
        _join(folders, output, as_json=as_json)
        return
    if output is not None:
        raise InputError("-o is for the table of several comparisons: that of one lies in its folder")
    (folder,) = folders
    with naming_options(**_OPTIONS), ExitStack() as undo:
        inputs = None
        if named:
            inputs = _inputs(
                *(source or [], target, test, base, weights),
                epochs=epochs,
                batch_size=batch_size,
                skip_bad=skip_bad,
                same_schedule=same_schedule,
            )
        comparison = _opened(folder, inputs)
        request = _request(folder, comparison, methods, seeds, target_labels=target_labels)
        _check_device(device)
        if comparison is None:
            assert inputs is not None, "`_opened` refuses this"
            comparison = _begin(folder, inputs, request, undo)
        _run(comparison, request, undo.pop_all(), device=device, jobs=jobs, workers=workers, as_json=as_json)


def _inputs(
    sources: Sequence[Path],
    target: Path | None,
    test: Path | None,
    base: str | None,
    weights: str | None,
    *,
    epochs: float | None,
    batch_size: int | None,
    skip_bad: bool,
    same_schedule: bool,
) -> Inputs:
    from autodial.comparison.folder import Inputs

    if not sources or target is None or base is None:
        raise InputError(
            "a comparison takes `source`, `target` and `base`: name all three, or the folder alone to go on with it"
        )
    if len(sources) > 1:
        raise InputError(
            f"`source` is given {len(sources)} times, but a comparison has one source: put the images of all into one "
            "list, or run a comparison for each"
        )
    (source,) = sources
    return Inputs(
        source=str(source.absolute()),
        target=str(target.absolute()),
        test=None if test is None else str(test.absolute()),
        base=base,
        weights=weights,
        epochs=epochs,
        batch_size=batch_size,
        skip_bad=skip_bad,
        same_schedule=same_schedule,
    )


def _opened(folder: Path, inputs: Inputs | None) -> Comparison | None:
    """The folder's comparison, with these inputs if they are named; None if it is to be begun with them."""
    from autodial.comparison.folder import Comparison, holds_comparison

    if inputs is not None and not holds_comparison(folder):
        return None
    comparison = Comparison(folder)
    if inputs is not None:
        comparison.check_inputs(inputs)
    return comparison


def _begin(folder: Path, inputs: Inputs, request: Request, undo: ExitStack) -> Comparison:
    """Make a comparison's folder; `undo` takes it away again."""
    from autodial.comparison.folder import Comparison, create
    from autodial.project.project import prepare

    with progress_bar("decoding the images", transient=True) as show:
        project = prepare(
            folder,
            inputs["base"],
            Path(inputs["source"]),
            Path(inputs["target"]),
            test=None if inputs["test"] is None else Path(inputs["test"]),
            weights=inputs["weights"],
            epochs=inputs["epochs"],
            batch_size=inputs["batch_size"],
            halves=True,
            target_labels=request["target_labels"],
            skip=inputs["skip_bad"],
            warn=lambda warning: typer.echo(warning, err=True),
            report=show,
        )
    for note in project.notes:
        typer.echo(f"Note: {with_options(note, _OPTIONS)}", err=True)
    undo.callback(create(project, inputs, request))
    return Comparison(folder)


def _request(
    folder: Path, comparison: Comparison | None, methods: str | None, seeds: str | None, *, target_labels: bool
) -> Request:
    """The cells that are asked for; what is not named is as it was the last time, or the default for a new one."""
    from autodial.comparison.folder import Request
    from autodial.comparison.methods import DEFAULT, check_methods

    names = None if methods is None else check_methods([name for name in split_names(methods) if name.strip()])
    numbers = None if seeds is None else _numbers(seeds)
    last = Request(methods=list(DEFAULT), seeds=list(_SEEDS), target_labels=False)
    if comparison is not None and (known := comparison.request()) is not None:
        last = known
    elif comparison is not None and (names is None or numbers is None):
        raise InputError(f"{folder} doesn't say which runs were asked for: name `methods` and `seeds`")
    return Request(
        methods=names or last["methods"],
        seeds=numbers or last["seeds"],
        target_labels=target_labels or last["target_labels"],
    )


def _check_device(device: str) -> None:
    from autodial.system.devices import choose_device

    choose_device(device)


def _numbers(seeds: str) -> list[int]:
    words = [word.strip() for word in split_names(seeds)]
    if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise InputError(f"`seeds` {seeds}: must be whole numbers, separated by commas, such as 1,2,3")
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"`seeds` {seeds}: a seed is given twice")
    return numbers


def _run(
    comparison: Comparison,
    request: Request,
    undo: ExitStack,
    *,
    device: str,
    jobs: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Run the cells that are not finished, then show the table; what `undo` has to do is done if they are refused."""
    from autodial.comparison.methods import about_nets
    from autodial.comparison.results import about_choice, judge, save, table_of
    from autodial.errors import WorkError
    from autodial.selection.processes import share_machine
    from autodial.system.outputs import locked

    with locked(comparison.folder, "autodial compare"):
        with undo:
            chosen_device = comparison.device(device)
            cells = comparison.cells(
                request["methods"], request["seeds"], device=device, target_labels=request["target_labels"]
            )
            needed = comparison.check(cells)
            undo.pop_all()
        comparison.remember(request)
        left = sum(not cell.finished for cell in cells)
        if left and (note := about_nets(request["methods"], len(request["seeds"]))) is not None:
            typer.echo(f"Note: {note}", err=True)
        shares = share_machine(left, chosen_device, needed, parallel=jobs, workers=workers)
        # a cell that waits for a net is ready only when the wave before has ended
        waves = ([cell.job for cell in wave if cell.ready] for wave in comparison.waves(cells))
        failures = run_and_show(
            waves, shares, chosen_device, comparison.folder, total=len(cells), left=left, noun="run"
        )
        trials = comparison.trials(request["methods"], cells, failures)
        found = judge(comparison, request["methods"], trials)
        table = table_of(found)
        save(comparison.folder, table, found)
    if as_json:
        _print_json(found)
    else:
        _print_table(table)
        if found["chosen"] is not None:
            typer.echo(f"\n{about_choice(found)}")
            if "export" in found["chosen"]["commands"]:
                typer.echo(f"To export it:\n{found['chosen']['commands']['export']}")
    if all(trial.outputs is None for trial in trials):
        raise WorkError(f"every run failed: see the notes in {comparison.folder / 'table.txt'}")


def _join(folders: Sequence[Path], output: Path | None, *, as_json: bool) -> None:
    """Show the results of several comparisons in one table."""
    from autodial.comparison.folder import holds_comparison
    from autodial.comparison.results import joined_table, read_results, save
    from autodial.system.outputs import check_folder

    folders = different(folders, "folder")
    if output is not None:
        check_folder(output)
        if holds_comparison(output):
            raise InputError(f"-o {output} holds a comparison, and its table lies there: name another folder")
    names = [folder.absolute().name for folder in folders]
    if len(set(names)) < len(names):
        names = list(map(str, folders))
    found = {name: read_results(folder) for name, folder in zip(names, folders, strict=True)}
    table = joined_table(found)
    if output is not None:
        save(output, table)
    if as_json:
        _print_json(found)
    else:
        _print_table(table)


def _print_table(table: Table) -> None:
    from autodial.comparison.table import Text
    from autodial.wording import printable

    typer.echo(printable(Text().encode(table).decode(), but="\n"), nl=False)


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))

"""The command `autodial init`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from autodial.commands.dialize import OPTIONS as DIALIZE_OPTIONS
from autodial.commands.inputs import read_weights, split_names
from autodial.commands.options import with_options
from autodial.commands.progress import progress_bar
from autodial.errors import InputError

if TYPE_CHECKING:
    from autodial.project.data import Data
    from autodial.project.net_template import NetTemplate
    from autodial.project.plan import Plan
    from autodial.project.scan import Domain
    from autodial.proto import Weights

_CLASSES_SHOWN = 50
"""Rows of the table."""
_MOST_EPOCHS = 100_000
_DEFAULT_SCHEDULE = "alexnet"
"""The shipped net whose solver nets without one of their own get."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make, or an empty one.")],
    arch: Annotated[
        str,
        typer.Option(
            metavar="NAME|NET.prototxt",
            # the names are those of autodial.netparam.shipped; a help text must not look at the disk for them
            help="A net that ships (alexnet, digits, inception_bn, svhn_mnist), or a train_val of your own, with its "
            "solver.prototxt beside it.",
        ),
    ],
    source: Annotated[
        Path, typer.Option(metavar="S", help="Labelled images: a folder with a folder per class, or a list.")
    ],
    target: Annotated[
        Path, typer.Option(metavar="T", help="Images of the target domain: a folder of any kind, or a list.")
    ],
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="L",
            help="Labelled target images to measure accuracy on: class folders, or a list.",
            show_default="T, if it has the source's class folders",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="W1,W2", help="The .caffemodel files to start from.", show_default="random weights"),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Passes over the source.", show_default="as the net's own schedule has it"),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=4, help="Images in a batch, source and target together.", show_default="the net's"),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that can't be decoded, instead of refusing them.")
    ] = False,
) -> None:
    """Write a project for your own images, which `autodial train` takes as it is.

    DIR gets source.txt, target.txt and, where labels are known, test.txt (lists of absolute paths), labels.txt, and
    train_val.prototxt and solver.prototxt filled in for these images: classes, a batch split in proportion to the
    domains, slice points, resizing, iterations, learning rate steps, tests, snapshots. Labels of the target never get
    into target.txt. DIR may be moved, and trained from anywhere: snapshots and logs lie beside the solver.

    Every image is decoded first; nothing is written if anything is wrong.
    """
    from autodial.project.checks import check_apart, notes_on_copies
    from autodial.project.files import check_folder, write_files
    from autodial.project.plan import START, plan
    from autodial.project.scan import read_source, read_target, read_test

    if epochs is not None and not 0 < epochs <= _MOST_EPOCHS:
        raise InputError(f"--epochs {epochs:g}: state a number above 0, up to {_MOST_EPOCHS:,}")
    check_folder(folder, [origin for origin in (source, target, test) if origin is not None])
    recipe = _read_arch(arch)
    start = read_weights(weights) if weights else None
    classes, source_domain = read_source(source)
    others = [read_target(target, classes, measured=test is not None)]
    if test is not None:
        others.append(read_test(test, classes))
    check_apart(source_domain, others)
    template, dialized = _template(recipe, len(classes), start)

    data = _look_at(classes, source_domain, others, skip_bad=skip_bad)
    planned = plan(
        template,
        recipe.solver,
        data,
        epochs=recipe.epochs if epochs is None else epochs,
        batch_size=batch_size,
        weights=start if dialized is None else dialized,
    )
    notes = [note for domain in (source_domain, *others) for note in domain.notes]
    notes += [*recipe.notes, *notes_on_copies(data), *planned.notes]
    _print_summary(arch, data, planned, notes)
    if dialized is not None:
        weights = str(folder / START)
    command = _train_command(folder, weights)
    write_files(folder, _contents(arch, data, planned, weights, dialized))
    typer.echo(f"Wrote {folder}. To train:\n{command}")


class _Recipe(NamedTuple):
    """What --arch names.

    Attributes:
        path: of the net.
        net: NetParameter.
        template: of the net; None where it is a plain Caffe net.
        solver: SolverParameter with a schedule.
        epochs: passes over the source that it is made for; None where it is made for a number of iterations.
        notes: on where it is from.
    """

    path: Path
    net: Any
    template: NetTemplate | None
    solver: Any
    epochs: float | None
    notes: list[str]


def _read_arch(arch: str) -> _Recipe:
    from autodial import proto
    from autodial.netparam.shipped import shipped_names, shipped_net, shipped_solver
    from autodial.project.net_template import NetTemplate
    from autodial.project.schedule import EPOCHS

    notes: list[str] = []
    if arch in shipped_names():
        path, solver, epochs = shipped_net(arch), shipped_solver(arch), EPOCHS.get(arch)
    else:
        path = Path(arch)
        if not path.is_file():
            names = ", ".join(shipped_names())
            raise InputError(f"--arch {arch}: no file of this name, and no net that ships ({names})")
        solver, epochs = path.with_name("solver.prototxt"), None
        if solver.is_file():
            notes.append(f"Learning rate and steps are those of {solver}.")
        else:
            solver, epochs = shipped_solver(_DEFAULT_SCHEDULE), EPOCHS[_DEFAULT_SCHEDULE]
            notes.append(
                f"There is no solver.prototxt beside {arch}: learning rate and steps are those of the paper's AlexNet."
            )
    net = proto.read_net(path)
    is_plain = not any(layer.type == "Dial" for layer in net.layer)
    template = None if is_plain else NetTemplate(net, arch, path.parent)
    return _Recipe(path, net, template, proto.read_solver(solver), epochs, notes)


def _template(recipe: _Recipe, classes: int, start: Weights | None) -> tuple[NetTemplate, Weights | None]:
    """The net as a template, and, where it is a plain net that has to be dialized, its weights, dialized too."""
    from autodial.project.net_template import NetTemplate

    if recipe.template is not None:
        return recipe.template, None
    from autodial.converters.dialize import dialize

    try:
        made = dialize(recipe.net, start, classes=classes, base_dir=recipe.path.parent)
    except InputError as error:
        raise InputError(
            f"{recipe.path}: {_naming_dialize(str(error))} (`autodial dialize` has options for such nets, and --arch "
            "takes the net that it writes)"
        ) from error
    recipe.notes.append(
        f"{recipe.path} is a plain net: {len(made.report.replaced)} BatchNorm layers became Dial layers, and "
        f"{len(made.report.inserted)} layers got one behind them (`autodial dialize` has choices)."
    )
    recipe.notes.extend(f"{recipe.path}: {_naming_dialize(note)}" for note in made.report.notes)
    return NetTemplate(made.net, str(recipe.path), recipe.path.parent), made.weights


def _naming_dialize(advice: str) -> str:
    """Advice of `autodial dialize` for those who run `init`, which lacks its options."""
    return with_options(advice, {name: f"`autodial dialize`'s {option}" for name, option in DIALIZE_OPTIONS.items()})


def _look_at(classes: Sequence[str], source: Domain, others: Sequence[Domain], *, skip_bad: bool) -> Data:
    """Decode all images, those of the target and of a test set being `others`; with a progress bar on a terminal."""
    from autodial.project.checks import check_enough, without_bad
    from autodial.project.data import Data
    from autodial.project.look import look_at

    paths = [image.path for domain in (source, *others) for image in domain.images]
    number, total = count(1), len(set(paths))
    with progress_bar("looking at the images", transient=True) as show:
        looks = look_at(paths, lambda: show(next(number), total))
    source, target, *rest = (without_bad(domain, looks, skip=skip_bad) for domain in (source, *others))
    for look in looks.values():
        if look.problem:
            typer.echo(f"Left out: {look.problem}", err=True)
    for path, look in looks.items():
        if look.damage:
            typer.echo(f"Warning: {path} is damaged, and used as far as it could be decoded: {look.damage}", err=True)
    tested = rest[0] if rest else target
    usable = {path: look for path, look in looks.items() if not look.problem}
    data = Data(classes, source, target, tested if tested.labelled else None, usable)
    check_enough(data)
    return data


# --- what is printed


def _print_summary(arch: str, data: Data, planned: Plan, notes: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from autodial.project.schedule import drops
    from autodial.system.terminal import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None)
    table.add_column("class")
    for domain in data.domains:
        table.add_column(domain.role, justify="right")
    counts = [domain.counts(len(data.classes)) if domain.labelled else None for domain in data.domains]
    for label, name in enumerate(data.classes[:_CLASSES_SHOWN]):
        table.add_row(Text(name), *("" if count is None else str(count[label]) for count in counts))
    if len(data.classes) > _CLASSES_SHOWN:
        table.add_row(f"... {len(data.classes) - _CLASSES_SHOWN} more")
    table.add_row("all", *(str(len(domain.images)) for domain in data.domains), style="bold")
    console.print(table)

    solver, split = planned.solver, planned.split
    height, width = planned.size
    steps = f", learning rate down at {', '.join(map(str, drops(solver)))}" if drops(solver) else ""
    tests = (
        f"every {solver.test_interval} iterations" if data.test else "none, as no labels are known: --test names some"
    )
    console.print(f"net          {arch}, {len(data.classes)} classes, images resized to {height} x {width}")
    console.print(f"batch        {split.total}: {split.source} source and then {split.target} target images")
    console.print(f"iterations   {solver.max_iter} ({planned.epochs:.4g} epochs over the source){steps}")
    console.print(f"accuracy     {tests}")
    console.print(f"snapshots    every {solver.snapshot} iterations")
    for domain in data.domains:
        if domain.ignored:
            console.print(f"ignored      {domain.ignored} files in {domain.origin} that are hidden or no images")
    for note in notes:
        console.print(f"Note: {note}")


def _train_command(folder: Path, weights: str | None) -> str:
    """The command line that trains the project from the working directory."""
    from autodial.project.plan import NAMES, SOLVER

    words = ["autodial", "train", "--solver", str(folder / SOLVER)]
    before = ""
    # relative paths in prototxts mean the working directory first, where another project's files may lie
    if any(Path(name).exists() for name in NAMES):
        words[-1] = SOLVER
        before = f"cd {shlex.quote(str(folder))} && "
        weights = weights and _resolved(weights)
    if weights is not None:
        words += ["--weights", weights]
    return before + shlex.join(words)


def _resolved(weights: str) -> str:
    return ",".join(os.path.realpath(name) for name in split_names(weights))


# --- what is written


def _contents(
    arch: str, data: Data, planned: Plan, weights: str | None, dialized: Weights | None
) -> dict[str, str | Weights]:
    """The project's files, the solver last, as nothing trains without it."""
    from autodial.converters.net_text import net_to_text
    from autodial.project.files import list_text
    from autodial.project.net_template import SOURCE_LIST, TARGET_LIST, TEST_LIST
    from autodial.project.plan import LABELS, NET, SOLVER, START
    from autodial.proto import to_text

    split = planned.split
    about_net = [
        f"{arch} for {len(data.classes)} classes, filled in by `autodial init`. A batch holds {split.source} source",
        f"images, then {split.target} target images. The lists lie beside this file; in target.txt each label is -1.",
    ]
    about_solver = [
        f"{planned.epochs:.4g} epochs over {len(data.source.images)} source images, filled in by `autodial init`.",
        "Without a snapshot_prefix, snapshots (solver_iter_N) and logs (solver_run) lie beside this file.",
        *([f"It starts from {_resolved(weights)}"] if weights else []),
    ]
    return {
        SOURCE_LIST: list_text(data.source, labels=True),
        TARGET_LIST: list_text(data.target, labels=False),
        **({TEST_LIST: list_text(data.test, labels=True)} if data.test else {}),
        LABELS: "".join(f"{name}\n" for name in data.classes),
        **({START: dialized} if dialized is not None else {}),
        NET: net_to_text(planned.net, header=about_net),
        SOLVER: "".join(f"# {line}\n" for line in about_solver) + to_text(planned.solver),
    }

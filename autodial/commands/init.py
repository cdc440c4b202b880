"""The command `autodial init`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from autodial.commands.dialize import OPTIONS as DIALIZE_OPTIONS
from autodial.commands.inputs import read_weights, split_names
from autodial.commands.options import naming_options, with_options
from autodial.commands.progress import progress_bar
from autodial.errors import InputError
from autodial.wording import every

if TYPE_CHECKING:
    from autodial.project.data import Data
    from autodial.project.net_template import NetTemplate
    from autodial.project.plan import Plan
    from autodial.project.scan import DomainImages
    from autodial.proto import Weights
    from autodial.proto import messages as pb

_CLASSES_SHOWN = 50
"""The most rows of the table."""
_MOST_EPOCHS = 100_000
_DEFAULT_SCHEDULE = "alexnet"
"""The shipped net whose solver is used for nets that have none."""
_OPTIONS = {"epochs": "--epochs", "skip": "--skip-bad", "test": "--test", "weights": "--weights"}
"""The options of parameters that messages and notes name."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make. It may exist if it is empty.")],
    arch: Annotated[
        str,
        typer.Option(
            metavar="NAME|NET.prototxt|torchvision:NAME|timm:NAME",
            # the names are those of autodial.netparam.shipped; a help text must not look at the disk for them
            help="A net that comes with AutoDIAL (alexnet, digits, inception_bn, svhn_mnist), your own train_val "
            "file, with the solver.prototxt in its folder, or a network of torchvision or timm.",
        ),
    ],
    source: Annotated[
        Path, typer.Option(metavar="S", help="The labelled images: a folder with a folder per class, or a list.")
    ],
    target: Annotated[
        Path, typer.Option(metavar="T", help="The unlabelled images of the target domain: any folder, or a list.")
    ],
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="L",
            help="Labelled target images that measure accuracy: a folder with class folders, or a list.",
            show_default="T, if it has the source's class folders",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W",
            help="Start from these .caffemodel files, separated by commas. For torchvision and timm: a .pth or "
            ".safetensors file, or the name of weights that these libraries fetch, such as IMAGENET1K_V2.",
            show_default="random weights",
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Passes over the source.", show_default="the net's own schedule"),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=4, help="Images in a batch, source and target together.", show_default="the net's"),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that can't be decoded. Otherwise they are an error.")
    ] = False,
) -> None:
    """Make a project that trains on folders of your own images.

    DIR gets the image lists source.txt and target.txt, test.txt if target labels are known, labels.txt, and a
    train_val.prototxt and solver.prototxt that suit these images: number of classes, batch sizes in proportion to the
    domains, image size, iterations, learning rate steps, tests and snapshots. target.txt never contains labels. DIR
    can be moved, and trained from any working directory: snapshots and logs go beside the solver.

    Every image is decoded first. If anything is wrong, nothing is written.
    """
    from autodial.project.checks import check_apart, notes_on_copies
    from autodial.project.files import check_folder, write_files
    from autodial.project.plan import START, plan
    from autodial.project.scan import read_source, read_target, read_test

    if epochs is not None and not 0 < epochs <= _MOST_EPOCHS:
        raise InputError(f"--epochs {epochs:g}: choose a number above 0, up to {_MOST_EPOCHS:,}")
    check_folder(folder, [origin for origin in (source, target, test) if origin is not None])
    recipe = _read_arch(arch, weights)
    start = recipe.start
    with naming_options(**_OPTIONS):
        classes, source_images = read_source(source)
        others = [read_target(target, classes, measured=test is not None)]
        if test is not None:
            others.append(read_test(test, classes))
        check_apart(source_images, others)
        template, dialized = _template(recipe, len(classes), start)

        data = _inspect(classes, source_images, others, skip_bad=skip_bad)
        planned = plan(
            template,
            recipe.solver,
            data,
            epochs=recipe.epochs if epochs is None else epochs,
            batch_size=batch_size,
            weights=start if dialized is None else dialized,
        )
    notes = [note for domain in (source_images, *others) for note in domain.notes]
    notes += [*recipe.notes, *notes_on_copies(data), *planned.notes]
    _print_summary(arch, data, planned, [with_options(note, _OPTIONS) for note in notes])
    if dialized is not None:
        weights = str(folder / START)
    command = _train_command(folder, weights)
    write_files(folder, _contents(arch, data, planned, weights, dialized))
    typer.echo(
        f"Wrote {folder}. Training ends with the command that exports the net: autodial export --recalibrate ..."
    )
    typer.echo(f"To train:\n{command}")


class _Recipe(NamedTuple):
    """The net that --arch names, and its solver.

    Attributes:
        path: the file of the net.
        net: the net.
        template: the net as a template; None if it is a plain Caffe net.
        solver: a solver with a schedule.
        epochs: passes over the source in that schedule; None if it is made for a number of iterations.
        notes: sentences that the user should read.
        start: the weights that training starts from; None for random ones.
        size: height and width to which images are resized; None if the net says it, or the images do.
        transform: the transform_param of the data layers; None if the net has one.
        logits: the blob with the scores of classes; None if the net's layers show it.
    """

    path: Path
    net: pb.NetParameter
    template: NetTemplate | None
    solver: pb.SolverParameter
    epochs: float | None
    notes: list[str]
    start: Weights | None
    size: tuple[int, int] | None = None
    transform: pb.TransformationParameter | None = None
    logits: str | None = None


def _read_arch(arch: str, weights: str | None) -> _Recipe:
    from autodial import proto
    from autodial.netparam.shipped import shipped_names, shipped_net, shipped_solver
    from autodial.project.net_template import NetTemplate
    from autodial.project.schedule import EPOCHS

    if arch.startswith(("torchvision:", "timm:")):
        from autodial.project.architectures import read_architecture

        with naming_options(**_OPTIONS):
            made = read_architecture(arch, weights)
        return _Recipe(
            Path(arch),
            made.net,
            None,
            proto.read_solver(shipped_solver(_DEFAULT_SCHEDULE)),
            EPOCHS[_DEFAULT_SCHEDULE],
            [*made.notes, "The learning rate and its steps are those of the paper's AlexNet"],
            made.weights,
            made.size,
            made.transform,
            made.logits,
        )
    notes: list[str] = []
    if arch in shipped_names():
        path, solver, epochs = shipped_net(arch), shipped_solver(arch), EPOCHS.get(arch)
    else:
        path = Path(arch)
        if not path.is_file():
            names = ", ".join(shipped_names())
            raise InputError(
                f"--arch {arch}: no such file, and no net that comes with AutoDIAL ({names}); networks of torchvision "
                "and timm are named like torchvision:resnet18 and timm:resnet18d"
            )
        solver, epochs = path.with_name("solver.prototxt"), None
        if solver.is_file():
            notes.append(f"The learning rate and its steps come from {solver}")
        else:
            solver, epochs = shipped_solver(_DEFAULT_SCHEDULE), EPOCHS[_DEFAULT_SCHEDULE]
            notes.append(
                f"There is no solver.prototxt beside {arch}: the learning rate and its steps are those of the paper's "
                "AlexNet"
            )
    net = proto.read_net(path)
    is_plain = not any(layer.type == "Dial" for layer in net.layer)
    template = None if is_plain else NetTemplate(net, arch, path.parent)
    start = read_weights(weights) if weights else None
    return _Recipe(path, net, template, proto.read_solver(solver), epochs, notes, start)


def _template(recipe: _Recipe, classes: int, start: Weights | None) -> tuple[NetTemplate, Weights | None]:
    """The net as a template; if it is a plain net, both it and its weights, which also come back, are dialized."""
    from autodial.project.net_template import NetTemplate

    if recipe.template is not None:
        return recipe.template, None
    from autodial.converters.dialize import dialize

    types = {layer.type for layer in recipe.net.layer}
    try:
        made = dialize(
            recipe.net,
            start,
            # a network without layers that say where, such as SqueezeNet
            after=None if {"BatchNorm", "InnerProduct"}.intersection(types) or recipe.logits is None else ["conv"],
            classes=classes,
            size=recipe.size,
            transform=recipe.transform,
            logits=recipe.logits,
            base_dir=recipe.path.parent,
        )
    except InputError as error:
        raise InputError(
            f"{recipe.path}: {_naming_dialize(str(error))} (run `autodial dialize`, which has options for such nets, "
            "and give its result to --arch)"
        ) from error
    became, inserted = len(made.report.replaced), len(made.report.inserted)
    done = [f"{became} BatchNorm layers became Dial layers"] if became else []
    done += [f"Dial layers were inserted after {inserted} layers"] if inserted else []
    recipe.notes.append(f"{recipe.path} is a plain net: {' and '.join(done)} (`autodial dialize` offers choices)")
    recipe.notes.extend(f"{recipe.path}: {_naming_dialize(note)}" for note in made.report.notes)
    return NetTemplate(made.net, str(recipe.path), recipe.path.parent), made.weights


def _naming_dialize(advice: str) -> str:
    """Advice of `autodial dialize` for those who run `init`, which lacks its options."""
    return with_options(advice, {name: f"`autodial dialize`'s {option}" for name, option in DIALIZE_OPTIONS.items()})


def _inspect(classes: Sequence[str], source: DomainImages, others: Sequence[DomainImages], *, skip_bad: bool) -> Data:
    """Decode all images, with a progress bar on a terminal; `others` are the target and a test set."""
    from autodial.project.checks import check_enough, without_bad
    from autodial.project.data import Data
    from autodial.project.inspection import inspect_images

    paths = [image.path for domain in (source, *others) for image in domain.images]
    number, total = count(1), len(set(paths))
    with progress_bar("decoding the images", transient=True) as show:
        inspections = inspect_images(paths, lambda: show(next(number), total))
    source, target, *rest = (without_bad(domain, inspections, skip=skip_bad) for domain in (source, *others))
    for inspection in inspections.values():
        if inspection.problem:
            typer.echo(f"Left out: {inspection.problem}", err=True)
    for path, inspection in inspections.items():
        if inspection.damage:
            typer.echo(
                f"Warning: {path} is damaged; the part that could be decoded is used: {inspection.damage}", err=True
            )
    tested = rest[0] if rest else target
    usable = {path: inspection for path, inspection in inspections.items() if not inspection.problem}
    data = Data(classes, source, target, tested if tested.labelled else None, usable)
    check_enough(data)
    return data


# --- what is printed


def _print_summary(arch: str, data: Data, planned: Plan, notes: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from autodial.project.schedule import describe_epochs, drops
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
    steps = f", learning rate drops at iteration {', '.join(map(str, drops(solver)))}" if drops(solver) else ""
    tests = (
        every(solver.test_interval, "iteration")
        if data.test
        else "not measured, as no target labels are known: --test adds labelled images"
    )
    console.print(f"net          {arch}, {len(data.classes)} classes, images resized to {height} x {width}")
    console.print(f"batch        {split.total}: {split.source} source images, then {split.target} target images")
    console.print(f"iterations   {solver.max_iter} ({describe_epochs(planned.epochs)} over the source){steps}")
    console.print(f"accuracy     {tests}")
    console.print(f"snapshots    {every(solver.snapshot, 'iteration')}")
    for domain in data.domains:
        if domain.ignored:
            console.print(f"ignored      {domain.ignored} files in {domain.origin} that are hidden or not images")
    for note in notes:
        console.print(f"Note: {note}")


def _train_command(folder: Path, weights: str | None) -> str:
    """The command line that trains the project from the working directory."""
    from autodial.project.plan import NAMES, SOLVER

    words = ["autodial", "train", "--solver", str(folder / SOLVER)]
    before = ""
    # relative paths in prototxts start from the working directory, where files of another project may lie
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
    """The project's files. The solver comes last, as nothing trains without it."""
    from autodial.converters.net_text import net_to_text
    from autodial.project.files import list_text
    from autodial.project.net_template import SOURCE_LIST, TARGET_LIST, TEST_LIST
    from autodial.project.plan import LABELS, NET, SOLVER, START
    from autodial.project.schedule import describe_epochs
    from autodial.proto import to_text

    split = planned.split
    about_net = [
        f"{arch} for {len(data.classes)} classes, made by `autodial init`. A batch holds {split.source} source images,",
        f"then {split.target} target images. The lists lie beside this file; each label in target.txt is -1.",
    ]
    about_solver = [
        f"{describe_epochs(planned.epochs)} over {len(data.source.images)} source images, made by `autodial init`.",
        "Without a snapshot_prefix, snapshots (solver_iter_N) and logs (solver_run) lie beside this file.",
        *([f"Training starts from {_resolved(weights)}"] if weights else []),
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

"""The command `autodial init`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.dialize import OPTIONS as DIALIZE_OPTIONS
from autodial.commands.options import TARGET, EpochsOption, SkipBadOption, naming_options, with_options
from autodial.commands.progress import progress_bar
from autodial.wording import counted, every

if TYPE_CHECKING:
    from autodial.project.project import Project

_CLASSES_SHOWN = 50
"""The most rows of the table."""
_OPTIONS = {
    "arch": "--arch",
    "batch_size": "--batch-size",
    "epochs": "--epochs",
    "labelled_target": "--labelled-target",
    "latent": "--latent",
    "skip": "--skip-bad",
    "test": "--test",
    "weights": "--weights",
    **{name: f"`autodial dialize`'s {option}" for name, option in DIALIZE_OPTIONS.items()},
}
"""The options of parameters that messages and notes name; `init` lacks those of `dialize`."""


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
        list[Path],
        typer.Option(
            metavar="S",
            help="The labelled images: a folder with a folder per class, or a list. Repeat it for several sources.",
        ),
    ],
    target: Annotated[Path, TARGET],
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="L",
            help="Labelled target images that measure accuracy: a folder with class folders, or a list.",
            show_default="T, if it has the source's class folders",
        ),
    ] = None,
    labelled_target: Annotated[
        Path | None,
        typer.Option(
            metavar="L",
            help="A few target images with labels to train on: a folder with class folders, a list, or the table of "
            "`autodial predict --to-label` with its column label filled in.",
            show_default="none",
        ),
    ] = None,
    latent: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Find K domains among the images of all sources, instead of taking each source as one.",
            show_default="each source is a domain",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W",
            help="Start from these .caffemodel files, separated by commas. For torchvision and timm: a .pth or "
            ".safetensors file, or the name of weights that these libraries fetch, such as IMAGENET1K_V2.",
            show_default="those that the net's solver names, else random weights",
        ),
    ] = None,
    epochs: EpochsOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=4, help="Images in a batch, source and target together.", show_default="the net's"),
    ] = None,
    skip_bad: SkipBadOption = False,
) -> None:
    """Make a project that trains on folders of your own images.

    DIR gets the image lists source.txt (source_1.txt and so on for several sources) and target.txt, test.txt if target
    labels are known, labels.txt, and a train_val.prototxt and solver.prototxt that suit these images: number of
    classes, batch sizes in proportion to the domains, image size, iterations, learning rate steps, tests and snapshots.
    target.txt never contains labels; those of --labelled-target are in target_labelled.txt, and test.txt leaves out
    their images. DIR can be moved, and trained from any working directory: snapshots and logs go beside the solver.

    Every image is decoded first. If anything is wrong, nothing is written.
    """
    from autodial.project.project import prepare

    with naming_options(**_OPTIONS), progress_bar("decoding the images", transient=True) as show:
        project = prepare(
            folder,
            arch,
            source,
            target,
            test=test,
            labelled_target=labelled_target,
            latent=latent,
            weights=weights,
            epochs=epochs,
            batch_size=batch_size,
            skip=skip_bad,
            warn=lambda warning: typer.echo(warning, err=True),
            report=show,
        )
    _print_summary(project)
    command = _train_command(project)
    project.write()
    export = "autodial export" if latent else "autodial export --recalibrate"
    typer.echo(f"Wrote {folder}. Training ends with the command that exports the net: {export} ...")
    typer.echo(f"To train:\n{command}")


def _print_summary(project: Project) -> None:
    from rich.table import Table
    from rich.text import Text

    from autodial.project.schedule import describe_epochs, drops
    from autodial.system.terminal import Console

    data, planned = project.data, project.plan
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
    console.print(f"net          {project.arch}, {len(data.classes)} classes, images resized to {height} x {width}")
    few = f", the first {planned.labelled} of them with labels" if planned.labelled else ""
    rows = " + ".join(map(str, planned.sources))
    console.print(f"batch        {split.total}: {rows} source images, then {split.target} target images{few}")
    each = counted(split.source * solver.iter_size, "source image")
    passes = f"{describe_epochs(planned.epochs)} over the source"
    console.print(f"iterations   {solver.max_iter} with {each} each: {passes}{steps}")
    console.print(f"accuracy     {tests}")
    console.print(f"snapshots    {every(solver.snapshot, 'iteration')}")
    for domain in data.domains:
        if domain.ignored:
            what = "is hidden or not an image" if domain.ignored == 1 else "are hidden or not images"
            console.print(f"ignored      {counted(domain.ignored, 'file')} in {domain.origin} that {what}")
    for note in project.notes:
        console.print(f"Note: {with_options(note, _OPTIONS)}")


def _train_command(project: Project) -> str:
    """The command line that trains the project from the working directory."""
    from autodial.project.plan import NAMES, SOLVER
    from autodial.project.project import real_paths

    words = ["autodial", "train", "--solver", str(project.folder / SOLVER)]
    before, weights = "", project.weights
    # relative paths in prototxts start from the working directory, where files of another project may lie
    if any(Path(name).exists() for name in NAMES):
        words[-1] = SOLVER
        before = f"cd {shlex.quote(str(project.folder))} && "
        weights = weights and real_paths(weights)
    if weights is not None:
        words += ["--weights", weights]
    return before + shlex.join(words)

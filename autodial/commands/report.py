"""The command `autodial report`."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.inputs import different, split_names
from autodial.commands.options import DeviceOption, WorkersOption, naming_options
from autodial.commands.progress import progress_bar
from autodial.errors import INTERRUPTED, InputError
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.report.run import Run


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders written by `autodial train`; several are compared."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="REPORT.html",
            help="The page to write. Its figures go beside it, as REPORT-*.png.",
            show_default="RUN/report.html; for several runs, comparison.html",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="The Dial layers whose features are shown, for one run. A net with latent domains has none.",
            show_default="the first, a middle and the last one",
        ),
    ] = None,
    images: Annotated[
        int, typer.Option(min=2, help="Images of each domain to run the net on, evenly spaced over the list.")
    ] = 1000,
    allow_python: Annotated[
        bool,
        typer.Option(
            "--allow-python",
            help="Run the code of Python layers. Use it only if you trust the author; without it, a net with Python "
            "layers is not evaluated.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Show a training run, or compare several, on one HTML page.

    The page of a run shows what was run, every alpha, the losses, and the net's predictions for the target. It needs
    no other file and no network. The curves come from RUN's log; a run that has not finished is shown as far as it got.
    Features, predictions and the confusion matrix come from running the newest snapshot on images of the training and
    test lists. Missing parts explain why they are missing.

    The page of several runs compares them: scores with mean and spread over the runs that differ by their seed alone,
    what else differs between the runs' settings, curves, alphas by depth, and confusion matrices side by side.

    No code from the run folder is run, and only the page and its figures are written. The page shows images from any
    place that the net's lists name: look at it before you pass it on.
    """
    from autodial.net.feed import default_workers
    from autodial.report.comparison import write_comparison
    from autodial.report.contents import write_report
    from autodial.report.evaluation import PICTURES, evaluate
    from autodial.report.run import Run
    from autodial.system.devices import choose_device, warn_of_cpu

    read = [Run.read(run) for run in different(runs, "run")]
    if len(read) > 1 and layers is not None:
        raise InputError(f"--layers {layers}: a comparison shows no features: leave it out, or name one run")
    given = output or (runs[0] / "report.html" if len(read) == 1 else Path("comparison.html"))
    chosen_layers = _choose_layers(read[0], layers) if len(read) == 1 else []
    page = _check_output(given, read)
    _refuse_links(given)
    chosen = choose_device(device)
    warn_of_cpu(device, chosen)
    try:
        with naming_options(workers="--workers"), progress_bar("running the net") as show:
            evaluations = [
                evaluate(
                    run,
                    images=images,
                    layers=chosen_layers,
                    device=chosen,
                    workers=default_workers() if workers is None else workers,
                    pictures=PICTURES if len(read) == 1 else 0,
                    allow_python=allow_python,
                    progress=lambda share, number=number: show(number + share, len(read)),  # type: ignore[misc]
                )
                for number, run in enumerate(read)
            ]
            written = write_report(read[0], evaluations[0]) if len(read) == 1 else write_comparison(read, evaluations)
    except KeyboardInterrupt:
        typer.echo("Interrupted: nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None
    written.save(page)
    # a terminal takes no bytes that are not UTF-8
    shown = os.fsencode(given).decode("utf-8", "backslashreplace")
    typer.echo(
        f"Wrote {shown} ({len(written.html) / 1e6:.1f} MB) and, in its folder, "
        f"{counted(len(written.figures), 'figure')}, {Path(shown).stem}-*.png"
    )


def _choose_layers(run: Run, names: str | None) -> Sequence[str]:
    """The Dial layers that `names` lists, or the first, a middle and the last one."""
    from autodial.report.evaluation import without_dials

    dials = run.dials
    if names is None:
        return list(dict.fromkeys([*dials[:1], *dials[len(dials) // 2 :][:1], *dials[-1:]]))
    if not dials:
        raise InputError(f"--layers {names}: {without_dials(run)}, whose features the page would show: leave it out")
    asked = list(dict.fromkeys(split_names(names)))
    for name in asked:
        if name not in dials:
            raise InputError(f'--layers {names}: the net has no Dial layer "{name}"; it has {", ".join(dials)}')
    return asked


def _check_output(output: Path, runs: Sequence[Run]) -> Path:
    """The page's path, checked before the work."""
    from autodial.netparam.data_files import files_of
    from autodial.system.outputs import check_output

    inputs = [
        Path(run.record["folder"]) / path
        for run in runs
        for net, folder in ((run.train_net, run.train_folder), (run.test_net, run.test_folder))
        for path in files_of(net, folder or Path())
    ]
    return check_output(output, inputs, suffixes=[".html", ".htm"])


def _refuse_links(page: Path) -> None:
    """Refuse to write the page or a figure through a link: a run folder that somebody sent may have any."""
    for path in (page, *page.parent.glob(f"{glob.escape(page.stem)}-*.png")):
        if path.is_symlink():
            raise InputError(f"{path} is a link, and a report does not follow links: remove it")

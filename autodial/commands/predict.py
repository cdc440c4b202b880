"""The command `autodial predict`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodial.commands.options import JsonOption, ModelDeviceOption, naming_options
from autodial.errors import INTERRUPTED, InputError, WorkError
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.deploy.drift import Drift
    from autodial.deploy.runner import Summary
    from autodial.deploy.to_label import ToLabel

CLASSES_SHOWN = 10
BALANCE_SHOWN = 3
OPTIONS = {
    **{name: f"--{name}" for name in ("logits", "entropy", "copy", "shard", "drift", "resume", "column", "ray")},
    **{name: f"--{name}" for name in ("device", "threads")},
    "output": "-o",
    "top_k": "--top-k",
    "spreadsheet_safe": "--spreadsheet-safe",
    "batch_size": "--batch-size",
    "sort_into": "--sort-into",
    "raw_input": "--raw-input",
    "count": "--to-label",
    "label_damaged": "--on-damage label",
}
"""The options by which parameters of `predict_folder` and `choose_to_label` are set, and `raw_input` of `export`."""


class OnError(StrEnum):
    """What an image that can't be read does to the run."""

    skip = "skip"
    fail = "fail"


class OnDamage(StrEnum):
    """What becomes of a damaged image that can be decoded."""

    label = "label"
    skip = "skip"


def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An .onnx file written by `autodial export`, or its address.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Images, folders (searched recursively), .txt lists (a path per line, with or without a label), "
            ".parquet tables with a column of images, quoted glob patterns ('photos/**/*.jpg'), or - for a list on "
            "standard input, whose relative paths start from the working directory. All but - may be addresses such "
            "as s3://bucket/photos.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="The table to write: OUT.csv, OUT.jsonl or OUT.parquet, or such an address; - for CSV on standard "
            "output.",
        ),
    ],
    top_k: Annotated[int, typer.Option(min=1, help="Labels per image, the most probable first.")] = 1,
    logits: Annotated[bool, typer.Option("--logits", help="Also write the logits of all classes.")] = False,
    entropy: Annotated[
        bool, typer.Option("--entropy", help="Also write the entropy of the probabilities, in nats.")
    ] = False,
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="In CSV, put ' in front of paths, labels and errors that a spreadsheet would run as formulas.",
        ),
    ] = False,
    sort_into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Make a folder per label in DIR, with links to the images.", show_default=False
        ),
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Let --sort-into make copies instead of links.")] = False,
    on_error: Annotated[
        OnError,
        typer.Option(help="What to do about an unreadable image: skip writes a row without labels, fail ends the run."),
    ] = OnError.skip,
    max_failures: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="End the run when more than N images have got no label.",
            show_default="any number",
        ),
    ] = None,
    on_damage: Annotated[
        OnDamage,
        typer.Option(
            help="What to do about a damaged image that can still be decoded: label writes its labels, skip writes a "
            "row without labels, which counts as a failure. The row's status is damaged either way."
        ),
    ] = OnDamage.label,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue an interrupted run, if there is one. Images that have changed since their rows were written "
            "are refused.",
        ),
    ] = False,
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Label only every N-th image, starting with the I-th (1/N to N/N), into OUT-I-of-N.csv.",
        ),
    ] = "1/1",
    drift: Annotated[
        Path | None,
        typer.Option(
            metavar="SUMMARY.json",
            help="Compare the images, and the entropy, confidence and balance of their labels, with the model's "
            "training list; warn if they differ, and write the comparison to this file.",
            show_default=False,
        ),
    ] = None,
    to_label: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="Write only the N images that are most worth labelling: the model is uncertain of them, and they are "
            "unlike one another. Fill in the empty column label, and give OUT.csv to `autodial init "
            "--labelled-target`.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 32,
    device: ModelDeviceOption = "auto",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads that decode images; with --ray, the number of Ray's workers.",
            show_default="one per CPU, at least 16 for addresses; with --ray, as many as there is room for",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="CPUs that the model uses if it runs on the CPU (ONNX Runtime's intra-op threads); with --ray, the "
            "CPUs of each worker.",
            show_default="all; with --ray, 1",
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The column of .parquet tables that has the image files, or their paths.",
            show_default="bytes, image or path",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Let a Ray cluster label the images: auto (the cluster that this machine belongs to), HOST:PORT, "
            "ray://HOST:PORT, or local (Ray on this machine alone). The table is the same.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only warnings and errors: no progress and no summary.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Label images with an exported model and write a table.

    The table has one row per image, in a fixed order. Its columns are path, status, label_1, probability_1, ...,
    label_K, probability_K, error. An image that can't be read gets a row with status "error", and the run continues.
    A damaged image gets labels and the status "damaged"; the column error has the decoder's complaint.

    The exit status is 0 if at least one image was labelled or the shard is empty, 1 if no image was labelled or the
    work failed, 2 if the input can't be used, and 130 after Ctrl-C. The rows of an interrupted run, even one that was
    killed, stay in OUT.partial for --resume; an existing OUT stays unchanged.

    --json prints the summary as one JSON object on standard output: the table, rows, counts by status and by class,
    seconds, and the device.
    """
    import json

    from autodial.deploy.drift import Verdict
    from autodial.deploy.options import PredictOptions
    from autodial.deploy.progress import show_progress
    from autodial.deploy.runner import predict_folder
    from autodial.deploy.to_label import choose_to_label

    if copy and sort_into is None:
        raise InputError("--copy says how --sort-into sorts: name a folder with --sort-into")
    if as_json and output == "-":
        raise InputError("-o - and --json both take standard output: name a file for the table")
    if on_error is OnError.fail:
        if max_failures:
            raise InputError("--on-error fail ends at the first failure, so it allows no --max-failures: leave out one")
        max_failures = 0
    options = PredictOptions(
        top_k=top_k,
        logits=logits,
        entropy=entropy,
        spreadsheet_safe=spreadsheet_safe,
        batch_size=batch_size,
        device=device,
        workers=workers,
        threads=threads,
        max_failures=max_failures,
        label_damaged=on_damage is OnDamage.label,
        sort_into=sort_into,
        copy=copy,
        shard=_shard(shard),
        resume=resume,
        drift=drift,
        column=column,
        ray=ray,
    )
    try:
        with naming_options(**OPTIONS), nullcontext() if quiet else show_progress() as progress:
            if to_label is not None:
                chosen = choose_to_label(model, inputs, output, to_label, options, progress=progress)
                if as_json:
                    typer.echo(json.dumps(chosen.record(), indent=2))
                elif not quiet:
                    typer.echo(describe_chosen(chosen, sort_into), err=True)
                return
            summary = predict_folder(model, inputs, output, options, progress=progress)
    except KeyboardInterrupt as stop:
        typer.echo("Interrupted" + (f": {stop}" if str(stop) else ""), err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(summary.record(), indent=2))
    elif not quiet:
        typer.echo(describe(summary), err=True)
    if (quiet or as_json) and summary.drift is not None and summary.drift.verdict is Verdict.SHIFTED:
        typer.echo("\n".join(describe_drift(summary.drift)), err=True)
    if not (quiet or as_json) and str(summary.table) != str(Path(output)):
        typer.echo(f"The table is {summary.table}", err=True)
    if summary.images and summary.errors == summary.images:
        what = "The only image" if summary.images == 1 else f"None of the {summary.images} images"
        verb = "can't" if summary.images == 1 else "can"
        raise WorkError(f"{what} {verb} be labelled: the table's column error says why")


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None:
        raise InputError(f"--shard {text}: write I/N, as in 2/8")
    return int(match[1]), int(match[2])


def describe(summary: Summary) -> str:
    """A Summary as a few lines of text."""
    new = summary.images - summary.resumed
    lines = [
        f"{counted(new, 'image')} in {summary.seconds:.1f} s ({summary.images_per_second:.0f} images/s) "
        f"on {summary.provider} ({summary.reason})"
    ]
    if summary.resumed:
        lines.append(f"{counted(summary.resumed, 'more row')} from the interrupted run")
    if summary.cuda_failure is not None:
        lines.append(f"The GPU was not used: {summary.cuda_failure}")
    rates = [f"{stage.name} ({stage.images_per_second:.0f} images/s)" for stage in summary.stages if stage.seconds]
    if rates:
        lines.append(f"Slowest: {'; then '.join([rates[0], ', '.join(rates[1:])]) if rates[1:] else rates[0]}")
    if summary.errors:
        lines.append(f"{summary.errors} without labels: the column error says why")
    if damaged := summary.statuses.get("damaged"):
        lines.append(f"{damaged} damaged: their rows have that status, and what the decoder said")
    if summary.passed_over:
        lines += describe_passed_over(summary.passed_over)
    shown = list(summary.counts.items())[:CLASSES_SHOWN]
    lines += [f"{count:>9}  {label}" for label, count in shown]
    if len(shown) < len(summary.counts):
        lines.append(f"{'':>9}  and {counted(len(summary.counts) - len(shown), 'more class', 'more classes')}")
    if summary.drift is not None:
        lines += describe_drift(summary.drift)
    return "\n".join(lines)


def describe_chosen(chosen: ToLabel, sorted_into: Path | None) -> str:
    """A ToLabel as a few lines of text."""
    lines = [f"{counted(chosen.images, 'image')} in {chosen.seconds:.1f} s on {chosen.provider}"]
    if chosen.errors:
        lines.append(f"{chosen.errors} without labels, such as {chosen.first_error}")
    lines.append(f"{chosen.table} lists {counted(chosen.chosen, 'image')} to label, the most useful first")
    what = "Fill in its column label with class names"
    if sorted_into is not None:
        what += f", or move the images in {sorted_into} to the right folders"
    given = "it" if sorted_into is None else "either"
    lines.append(f"{what}, and give {given} to `autodial init --labelled-target`")
    return "\n".join(lines)


def describe_passed_over(kinds: Mapping[str, int]) -> list[str]:
    """What was passed over, by kind, in a line or two."""
    from autodial.deploy.inputs import LINK, describe_kinds

    lines = []
    if files := {kind: count for kind, count in kinds.items() if kind != LINK}:
        lines.append(f"Passed over, as hidden or no image by the name: {describe_kinds(files)}")
    if links := kinds.get(LINK, 0):
        what = (
            "lead to folders that are there anyway, or hold the link"
            if links > 1
            else ("leads to a folder that is there anyway, or holds the link")
        )
        lines.append(f"Not followed: {counted(links, 'link')} that {what}")
    return lines


def describe_drift(drift: Drift) -> list[str]:
    """What a Drift says, in a line or more."""
    from autodial.deploy.drift import Verdict

    reference = drift.reference
    listed = f"{counted(len(reference.classes), 'image')} of {reference.list_name}"
    if drift.verdict is Verdict.TOO_FEW:
        if not drift.images:
            return [f"Drift: no image got a label, so there is nothing to compare with {listed}"]
        few = counted(min(drift.images, len(reference.classes)), "image")
        return [f"Drift: nothing beyond chance against {listed}, but {few} would show an extreme difference only"]
    if drift.verdict is Verdict.ALIKE:
        return [f"Drift: the images look like the {reference.domain}'s that the model was trained on ({listed})"]
    lines = []
    if drift.verdict is Verdict.SHIFTED:
        lines.append(
            f"Warning: the images don't look like the {reference.domain}'s that the model was trained on ({listed}); "
            "its labels may be worse here"
        )
    for statistic in drift.statistics:
        if statistic.shifted:
            less = statistic.below > statistic.reference_below
            found, expected = statistic.below, statistic.reference_below
            shares = (found, expected) if less else (1 - found, 1 - expected)
            where = f"below {statistic.edge:.4g}" if less else f"at {statistic.edge:.4g} or more"
            lines.append(f"  {statistic.name}: {shares[0]:.0%} {where}, where {shares[1]:.0%} would be expected")
    if drift.classes is not None and drift.classes.shifted:
        most = drift.classes.moved()[:BALANCE_SHOWN]
        moved = ", ".join(f"{name} {share:.0%} (not {expected:.0%})" for name, expected, share in most)
        start = "  " if lines else f"Drift: the images look like {listed}, class by class; "
        lines.append(f"{start}the balance of the labels is another (label shift): {moved}")
    return lines

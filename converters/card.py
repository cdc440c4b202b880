"""Writes an exported file's model card: what the file is, how good it is, where it fails, and how to use it.

A card is Markdown under a head of YAML, as the Hugging Face Hub reads it. It names files, and no folders of the machine
that it was written on.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import yaml

from autodial.converters.destinations import Destination, ExportOptions
from autodial.converters.verification import ExportReport
from autodial.data.image_statistics import Reference
from autodial.errors import InputError
from autodial.system.files import replacing
from autodial.system.outputs import check_output, real_path
from autodial.wording import counted, described_size, printable

_MARK = "# autodial export --card wrote this file, and replaces it when it is run again"
_LISTED = 100
"""Most classes, and most alphas, that a card lists."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$])")
_HUB_LICENSES = frozenset((
    "afl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "bsl-1.0",
    "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0",
    "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1", "eupl-1.2", "isc", "lppl-1.3c", "mit", "mpl-2.0",
    "ms-pl", "ncsa", "ofl-1.1", "osl-3.0", "postgresql", "unlicense", "wtfpl", "zlib",
))  # fmt: skip
"""Licenses that the Hub knows by SPDX's name in small letters."""
_GNU = re.compile(r"(a?gpl|lgpl)-([\d.]+)-(?:only|or-later)")
"""SPDX's names of GNU's licenses, of which the Hub knows the first two parts."""


@dataclass(frozen=True)
class TestScores:
    """What a net scored on labelled images.

    Attributes:
        data: name of the list or database of the images.
        images: how many were scored; None if that is not known.
        accuracy: share of the images whose most probable class is right, in [0, 1]; None if that is not known.
        balanced_accuracy: the classes' mean recall, likewise.
        recalls: each class's recall, likewise; empty if they are not known.
    """

    __test__ = False  # not a test case, whatever pytest makes of the name

    data: str
    images: int | None = None
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    recalls: Sequence[float | None] = ()


@dataclass(frozen=True)
class TrainedNet:
    """What the record of a training says of a net that it left.

    Attributes:
        iteration: number of updates.
        seed: of the training.
        variants: the method, if it is another one than the net's own: "adabn", for example.
        sources: names of the lists or databases of the source, or of each source; empty if they are not known.
        target: name of the target's; None if it is not known.
        labelled_target: name of the list of target images whose labels were trained on; None if there were none.
        labelled_images: how many these are; None if that is not known.
        statistics: domain of the statistics that its test normalized with, as the metadata of a file has it.
        alphas: of the domain alignment layers by name, from the net's input to its output, in [0.5, 1], with several
            sources [1 / D, 1] for D domains.
        recalibrated: whether the stored statistics were computed once more after training, over all training images.
        recalibrated_on: names of the lists, databases or folders over whose images `autodial recalibrate` computed the
            stored statistics after the test; empty if the net was tested as it is.
        scores: of the test of these weights, after the last update; None if there was none.
        untested: why there was none, as a clause that follows "as"; None if that is not known.
    """

    iteration: int
    seed: int
    variants: Sequence[str] = ()
    sources: Sequence[str] = ()
    target: str | None = None
    labelled_target: str | None = None
    labelled_images: int | None = None
    statistics: str | None = None
    alphas: Mapping[str, float] = field(default_factory=dict)
    recalibrated: bool = False
    recalibrated_on: Sequence[str] = ()
    scores: TestScores | None = None
    untested: str | None = None


def check_card(
    path: Path,
    options: ExportOptions,
    destination: Destination,
    inputs: Iterable[str | Path] = (),
    output: Path | None = None,
) -> None:
    """Refuse, before any work, a card that can't be written.

    Args:
        inputs: files that the same command reads.
        output: what it writes besides.

    Raises:
        InputError: the file would not take images; the place can't be written to; or a file that is no such card is
            there.
    """
    if options.raw_input or destination.takes_blobs:
        raise InputError("`card` describes an ONNX file that takes images: leave it out, or export such a file")
    if output is not None and real_path(path) == real_path(output):
        raise InputError(f"`card` {path}: the exported file is written there: name another file, such as README.md")
    try:
        final = check_output(path, inputs, suffixes=(".md",))
    except InputError as error:
        raise InputError(f"`card` {error}") from error
    if final.exists() and _MARK.encode() not in final.read_bytes()[:1000]:
        raise InputError(f"{path} is there, and no card that an export wrote: name another file, or move it away")


def write_card(
    report: ExportReport,
    path: str | Path,
    trainings: Sequence[TrainedNet | None] = (None,),
    *,
    recalibrated: bool = False,
) -> None:
    """Write the card of an exported ONNX file that takes images.

    Args:
        report: of the export.
        path: the card, such as README.md; an existing file is replaced.
        trainings: what is known of the exported net, or of each net of an ensemble; None for one of which nothing is
            known. For a PyTorch module, `TrainedNet` takes what you know yourself.
        recalibrated: whether the statistics were computed once more after the trainings' tests.

    Raises:
        InputError: the file takes no images.
        WorkError: the card can't be written.
    """
    if report.metadata["raw_input"] or report.opset is None:
        raise InputError("a card describes an ONNX file that takes images, and this export takes the net's input blob")
    text = _render(report, trainings, recalibrated)
    with replacing(path) as file:
        file.write(text.encode())


def _render(report: ExportReport, trainings: Sequence[TrainedNet | None], recalibrated: bool) -> str:
    changes = _changes(report, trainings, recalibrated)
    known = [training for training in trainings if training is not None]
    scored = [training.scores for training in known if training.scores is not None]
    tested = scored[0] if len(scored) == 1 else None
    exact = None if changes else tested
    file = next((name for name in report.files if name.endswith(".onnx")), next(iter(report.files)))
    name = report.output.stem if report.output.name == file else report.output.name
    head = yaml.safe_dump(_head(name, report.license, exact), sort_keys=False, allow_unicode=True)
    height, width = report.metadata["size"]
    return (
        _environment()
        .get_template("card.md.jinja")
        .render(
            mark=_MARK,
            head=head,
            name=name,
            file=file,
            weights=f"{file}.data",
            report=report,
            metadata=report.metadata,
            adapted=report.metadata["statistics"] is not None,
            height=height,
            width=width,
            color=report.metadata["channel_order"] == "BGR",
            nets=len(trainings),
            trainings=known,
            sources=max((len(training.sources) for training in known), default=1),
            labelled=next((training for training in known if training.labelled_target is not None), None),
            scored=scored,
            untested=next((training.untested for training in known if training.untested is not None), None),
            changes=changes,
            classes=_class_rows(report, tested),
            more_classes=max(0, len(report.metadata["classes"]) - _LISTED),
            reference=_reference_rows(report.metadata.get("reference")),
            recalls=tested is not None and bool(tested.recalls),
            listed=_LISTED,
        )
    )


def _changes(report: ExportReport, trainings: Sequence[TrainedNet | None], recalibrated: bool) -> list[str]:
    """What sets the file apart from the nets that trainings tested, a phrase each."""
    changes = []
    if len(trainings) > 1:
        changes.append(f"averages {len(trainings)} nets")
    known = [training for training in trainings if training is not None]
    images = list(dict.fromkeys(_code(name) for training in known for name in training.recalibrated_on))
    if recalibrated:
        changes.append("has statistics that were computed once more, over all training images")
    elif images:
        changes.append(f"has statistics that were computed once more, over all images of {_listed(images)}")
    tested = {training.statistics for training in known}
    if tested and tested != {report.metadata["statistics"]}:
        changes.append(f"has {report.metadata['statistics'] or 'no'} statistics")
    if report.precision != "float32":
        changes.append(f"computes in {report.precision}")
    return changes


def _head(name: str, license: str | None, scores: TestScores | None) -> dict[str, Any]:
    """The card's YAML, whose accuracy is the file's own or is left out."""
    head: dict[str, Any] = {**_hub_license(license), "library_name": "onnx", "pipeline_tag": "image-classification"}
    head["tags"] = ["autodial", "domain-adaptation", "image-classification", "onnx"]
    if scores is None:
        return head
    metrics = [
        {"type": kind, "name": kind.replace("_", " ").capitalize(), "value": round(value, 4)}
        for kind, value in (("accuracy", scores.accuracy), ("balanced_accuracy", scores.balanced_accuracy))
        if value is not None
    ]
    if metrics:
        task = {"type": "image-classification", "name": "Image classification"}
        data = {"type": "imagefolder", "name": printable(f"labelled test images ({scores.data})")}
        head["metrics"] = [metric["type"] for metric in metrics]
        head["model-index"] = [
            {"name": printable(name), "results": [{"task": task, "dataset": data, "metrics": metrics}]}
        ]
    return head


def _hub_license(license: str | None) -> dict[str, str]:
    """A license as the Hub names it: one that it lacks is `other`, with a name."""
    if license is None:
        return {}
    small = license.lower()
    if gnu := _GNU.fullmatch(small):
        small = f"{gnu[1]}-{gnu[2]}"
    elif small not in _HUB_LICENSES:
        return {"license": "other", "license_name": small.replace(" ", "-")}
    return {"license": small}


def _class_rows(report: ExportReport, scores: TestScores | None) -> list[dict[str, Any]]:
    """The first classes, with their recall and their share of the training list's predictions where these are known."""
    names = [str(name) for name in report.metadata["classes"]]
    record = report.metadata.get("reference")
    shares = None
    if record is not None:
        predicted = Reference.parse(record).classes
        shares = np.bincount(predicted, minlength=len(names)) / len(predicted)
    recalls = scores.recalls if scores is not None and len(scores.recalls) == len(names) else [None] * len(names)
    return [
        {"name": name, "recall": recall, "share": None if shares is None else float(shares[i])}
        for i, (name, recall) in enumerate(zip(names[:_LISTED], recalls, strict=False))
    ]


def _reference_rows(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Each statistic of the training images: its mean, and between which values nine tenths of the images lie."""
    if record is None:
        return []
    reference = Reference.parse(record)
    statistics = zip(reference.names, reference.means, reference.edges, strict=True)
    return [{"name": name, "mean": mean, "low": edges[0], "high": edges[-1]} for name, mean, edges in statistics]


def _escaped(text: object) -> str:
    """Text that Markdown shows as it is, in a table too."""
    return _MARKDOWN.sub(r"\\\1", printable(str(text)))


def _code(name: str) -> str:
    """A file's name as Markdown shows it unchanged, outside of tables."""
    name = printable(name)
    if "`" not in name:
        return f"`{name}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", name))))
    return f"{fence} {name} {fence}"


def _listed(phrases: Sequence[str]) -> str:
    return " and ".join([*([", ".join(phrases[:-1])] if phrases[1:] else []), phrases[-1]])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("autodial.converters", package_path=""),
        autoescape=False,  # it is Markdown: `md` escapes what others named
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "md": _escaped,
        "code": _code,
        "percent": _percent,
        "shell": lambda text: shlex.quote(text),
        "python": lambda text: json.dumps(text, ensure_ascii=False),
        "counted": counted,
        "listed": _listed,
        "size": described_size,
    }
    return environment

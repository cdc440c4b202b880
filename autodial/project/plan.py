"""The plan of a project: a net and a solver that suit a user's images."""

from __future__ import annotations

from dataclasses import dataclass

from autodial.errors import InputError
from autodial.project.data import Data
from autodial.project.net_template import (
    LABELLED_LIST,
    SOURCE_LIST,
    TARGET_LIST,
    TEST_LIST,
    Filling,
    NetTemplate,
    source_lists,
)
from autodial.project.schedule import describe_epochs, fill_intervals, iterations, stretch
from autodial.project.split import (
    MINIMUM,
    Split,
    even_batches,
    halved_batch,
    labelled_rows,
    split_batch,
    split_sources,
)
from autodial.proto import Weights
from autodial.proto import messages as pb
from autodial.wording import counted

NET, SOLVER, LABELS = "train_val.prototxt", "solver.prototxt", "labels.txt"
"""Names of a project's files; its lists have theirs in `net_template`."""
START = "start.caffemodel"
"""The name of the weights to start from, if the user's had to be changed."""
MOST_SOURCES = 32
"""The most sources of a project."""
_SOURCES = tuple(name for number in range(2, MOST_SOURCES + 1) for name in source_lists(number))
NAMES = tuple(dict.fromkeys((NET, SOURCE_LIST, *_SOURCES, TARGET_LIST, LABELLED_LIST, TEST_LIST)))
"""Files that other files of the project name."""

PARTS = (*NAMES, LABELS, START)
"""All files of a project but the solver, without which nothing trains."""

_BATCH = 64
"""Images in a batch, for nets that don't state a number."""
_FEW_ITERATIONS = 100
_MANY_EPOCHS = 200


@dataclass(frozen=True)
class Plan:
    """A project that is ready to be written.

    Attributes:
        net: the net for these images.
        solver: the solver for them.
        split: the source and target images in a batch.
        sources: each source's images in a batch.
        labelled: how many of these target images have labels.
        latent: the number of latent domains to find among the source's images; 0 for none.
        epochs: passes over the source in the whole training.
        size: height and width to which images are resized.
        notes: sentences that the user should read; parameters are in backticks.
    """

    net: pb.NetParameter
    solver: pb.SolverParameter
    split: Split
    sources: tuple[int, ...]
    labelled: int
    latent: int
    epochs: float
    size: tuple[int, int]
    notes: list[str]


def plan(
    template: NetTemplate,
    solver: pb.SolverParameter,
    data: Data,
    *,
    epochs: float | None = None,
    batch_size: int | None = None,
    weights: Weights | None = None,
    latent: int = 0,
    halves: bool = False,
) -> Plan:
    """Adapt a net and a solver to a user's images.

    Args:
        template: the net.
        solver: a solver with a schedule for any number of iterations; it is not changed.
        data: the images.
        epochs: passes over the source; None for the solver's number of iterations.
        batch_size: images in a batch, source and target together; None for the template's.
        weights: the weights that training starts from.
        latent: the number of latent domains to find among the source's images; 0 for none.
        halves: whether a batch has as many source as target images; otherwise their numbers follow the domains' sizes.

    Raises:
        InputError: the images have several sizes and the net doesn't state one, the schedule can't be stretched,
            the weights have none of the net's layers, or a batch or the sources are too small for all domains.
    """
    source, target = len(data.source.images), len(data.target.images)
    total = batch_size or template.split.total or _BATCH
    number = latent or len(data.sources)
    if min(total, source + target) < MINIMUM * (number + 1):
        of_source = counted(number, "latent domain" if latent else "source")
        raise InputError(
            f"a batch of {total} is too small for {of_source} and a target, which need {MINIMUM} "
            f"images each: raise `batch_size` to {MINIMUM * (number + 1)} or more"
        )
    split = halved_batch(total, source, target) if halves else split_batch(total, source, target, number)
    shares = split_sources(split.source, [len(domain.images) for domain in data.sources])
    notes = [] if halves else _notes_on_split(total, split, source, target)

    known = None if data.labelled_target is None else len(data.labelled_target.images)
    rows = 0 if known is None else labelled_rows(split.target, known)
    labelled = data.test is not None
    tested = data.test or data.target
    test_batch, test_batches = even_batches(len(tested.images), template.test_batch or total)
    size = template.size or _common_size(data)
    grey = all(inspection.grey for inspection in data.inspections.values())
    filling = Filling(
        classes=len(data.classes),
        split=split,
        test_list=TEST_LIST if labelled else TARGET_LIST,
        test_batch=test_batch,
        labelled=labelled,
        size=size,
        color=not grey,
        weights=weights,
        labelled_rows=rows,
        sources=shares,
        latent=latent,
    )
    net, more = template.filled(filling)
    notes += [*_notes_on_color(template, data), *more, *_notes_on_weights(net, weights)]

    filled = pb.SolverParameter()
    filled.CopyFrom(solver)
    nets = ("train_net", "test_net", "net_param", "train_net_param", "test_net_param")
    for field in (*nets, "snapshot_prefix", "weights"):
        filled.ClearField(field)
    filled.net = NET
    per_iteration = split.source * filled.iter_size
    stretch(filled, filled.max_iter if epochs is None else iterations(epochs, source, per_iteration))
    fill_intervals(filled, test_batches if labelled else None)
    done = filled.max_iter * per_iteration / source
    if filled.max_iter < _FEW_ITERATIONS or done < 1:
        notes.append(
            f"{counted(filled.max_iter, 'iteration')} ({describe_epochs(done)}) may be too few to learn from: raise "
            "`epochs`"
        )
    elif done > _MANY_EPOCHS:
        notes.append(
            f"{counted(filled.max_iter, 'iteration')} are {describe_epochs(done)} over so few images: lower `epochs` "
            "if the losses stop changing long before the end"
        )
    return Plan(net, filled, split, shares, rows, latent, done, size, notes)


def _notes_on_split(total: int, split: Split, source: int, target: int) -> list[str]:
    if split.total < total:
        return [f"The domains have only {source + target} images, so that a batch has {split.total} instead of {total}"]
    if split.source != total * source // (source + target):
        return [
            f"{source} and {target} images can't fill a batch of {total} proportionally, as each domain needs two: the "
            f"batch has {split.source} source and {split.target} target images"
        ]
    return []


def _common_size(data: Data) -> tuple[int, int]:
    """The common size of all images, for nets that don't state one."""
    sizes = {(inspection.height, inspection.width): path for path, inspection in data.inspections.items()}
    if len(sizes) > 1:
        ((height, width), one), ((other_height, other_width), other) = list(sizes.items())[:2]
        raise InputError(
            f"the net states no image size, and {one} has {height} x {width} pixels, but {other} has "
            f"{other_height} x {other_width}: add new_height and new_width to the net's data layers"
        )
    return next(iter(sizes))


def _notes_on_color(template: NetTemplate, data: Data) -> list[str]:
    colored = sum(not inspection.grey for inspection in data.inspections.values())
    if template.color is False and colored:
        return [f"The net takes grey images: {colored} of {len(data.inspections)} images are coloured and become grey"]
    return []


def _notes_on_weights(net: pb.NetParameter, weights: Weights | None) -> list[str]:
    """Notes on the layers that start from weights, or should."""
    learning = [layer for layer in net.layer if layer.type in ("Convolution", "InnerProduct")]
    if weights is None:
        frozen = [layer.name for layer in learning if layer.param and not any(param.lr_mult for param in layer.param)]
        if not frozen:
            return []
        return [
            f"{counted(len(frozen), 'layer')} of the net can't learn, such as {frozen[0]} (lr_mult 0), and would keep "
            "random weights: name trained ones with `weights`"
        ]
    stored = {layer.name for layer in weights.layers if layer.blobs}
    found = [layer.name for layer in learning if layer.name in stored]
    if not found:
        raise InputError(
            f"the weights have none of the net's layers ({', '.join(layer.name for layer in learning[:5])}, ...): name "
            "weights of the same network"
        )
    new = [layer.name for layer in learning if layer.name not in stored]
    return [
        f"{len(found)} of {len(learning)} Convolution and InnerProduct layers start from the weights"
        + (f"; the others are {', '.join(new[:5])}{', ...' if len(new) > 5 else ''}" if new else "")
    ]

"""From domains, a net and a solver to what a project holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autodial.errors import InputError
from autodial.project.data import Data
from autodial.project.net_template import SOURCE_LIST, TARGET_LIST, TEST_LIST, Filling, NetTemplate
from autodial.project.schedule import fill_intervals, iterations, stretch
from autodial.project.split import Split, even_batches, split_batch
from autodial.proto import Weights
from autodial.proto import messages as pb

NET, SOLVER, LABELS = "train_val.prototxt", "solver.prototxt", "labels.txt"
"""Names of a project's files, beside its lists."""
START = "start.caffemodel"
"""Weights to start from, where they could not be taken as they were."""
NAMES = (NET, SOURCE_LIST, TARGET_LIST, TEST_LIST)
"""Files that others of the project name."""

PARTS = (*NAMES, LABELS, START)
"""All of a project's files but its solver, without which nothing trains."""

_BATCH = 64
"""Images in a batch of a net that does not say how many."""
_FEW_ITERATIONS = 100


@dataclass(frozen=True)
class Plan:
    """A project that is ready to be written.

    Attributes:
        net, solver: NetParameter and SolverParameter, filled in.
        split: images in a batch.
        epochs: passes over the source in the whole training.
        size: height and width that images are resized to.
        notes: what the user should know, a sentence each.
    """

    net: Any
    solver: Any
    split: Split
    epochs: float
    size: tuple[int, int]
    notes: list[str]


def plan(
    template: NetTemplate,
    solver: Any,
    data: Data,
    *,
    epochs: float | None = None,
    batch_size: int | None = None,
    weights: Weights | None = None,
) -> Plan:
    """Fill in a net and a solver for a user's images.

    Args:
        template: the net.
        solver: a SolverParameter with a schedule for any number of iterations; it is not changed.
        data: the images.
        epochs: passes over the source; None for the solver's number of iterations.
        batch_size: images in a batch, source and target together; None for the template's.
        weights: what training starts from.

    Raises:
        InputError: the net does not say how large images are, and they are of several sizes; a schedule that can't be
            stretched; weights of which the net takes none.
    """
    source, target = len(data.source.images), len(data.target.images)
    total = batch_size or template.split.total or _BATCH
    split = split_batch(total, source, target)
    notes = _notes_on_split(total, split, source, target)

    labelled = data.test is not None
    tested = data.test or data.target
    test_batch, test_batches = even_batches(len(tested.images), template.test_batch or total)
    size = template.size or _common_size(data)
    grey = all(look.grey for look in data.looks.values())
    filling = Filling(
        classes=len(data.classes),
        split=split,
        test_list=TEST_LIST if labelled else TARGET_LIST,
        test_batch=test_batch,
        labelled=labelled,
        size=size,
        color=not grey,
        weights=weights,
    )
    net, more = template.filled(filling)
    notes += [*_notes_on_color(template, data), *more, *_notes_on_weights(net, weights)]

    filled = pb.SolverParameter()
    filled.CopyFrom(solver)
    for field in ("train_net", "test_net", "net_param", "train_net_param", "test_net_param", "snapshot_prefix"):
        filled.ClearField(field)
    filled.net = NET
    per_iteration = split.source * filled.iter_size
    stretch(filled, filled.max_iter if epochs is None else iterations(epochs, source, per_iteration))
    fill_intervals(filled, test_batches if labelled else None)
    done = filled.max_iter * per_iteration / source
    if filled.max_iter < _FEW_ITERATIONS or done < 1:
        notes.append(f"{filled.max_iter} iterations ({done:.3g} epochs) are few to learn from: --epochs asks for more.")
    return Plan(net, filled, split, done, size, notes)


def _notes_on_split(total: int, split: Split, source: int, target: int) -> list[str]:
    if split.total < total:
        return [f"The domains have {source + target} images, less than a batch of {total}: all of them make a batch."]
    if split.source != total * source // (source + target):
        return [
            f"{source} and {target} images make no batch of {total} in proportion, as each domain needs two: it holds "
            f"{split.source} and {split.target}."
        ]
    return []


def _common_size(data: Data) -> tuple[int, int]:
    """The one size of all images, for nets that state none."""
    sizes = {(look.height, look.width): path for path, look in data.looks.items()}
    if len(sizes) > 1:
        ((height, width), one), ((other_height, other_width), other) = list(sizes.items())[:2]
        raise InputError(
            f"the net does not say how large images are, and {one} has {height} x {width} pixels while {other} has "
            f"{other_height} x {other_width}: state new_height and new_width in the net's data layers"
        )
    return next(iter(sizes))


def _notes_on_color(template: NetTemplate, data: Data) -> list[str]:
    colored = sum(not look.grey for look in data.looks.values())
    if template.color is False and colored:
        return [f"{colored} of {len(data.looks)} images are in colour, and are read as grey ones, which the net takes."]
    return []


def _notes_on_weights(net: Any, weights: Weights | None) -> list[str]:
    """What starts from weights, or should."""
    learning = [layer for layer in net.layer if layer.type in ("Convolution", "InnerProduct")]
    if weights is None:
        frozen = [layer.name for layer in learning if layer.param and not any(param.lr_mult for param in layer.param)]
        if not frozen:
            return []
        return [
            f"{len(frozen)} layers of the net are frozen, such as {frozen[0]}, and stay at random without trained "
            "weights: name some with --weights."
        ]
    stored = {layer.name for layer in weights.layers if layer.blobs}
    found = [layer.name for layer in learning if layer.name in stored]
    if not found:
        raise InputError(
            f"the weights hold none of the net's layers ({', '.join(layer.name for layer in learning[:5])}, ...): name "
            "those of the same network"
        )
    new = [layer.name for layer in learning if layer.name not in stored]
    return [
        f"{len(found)} of {len(learning)} convolutions and inner products start from the weights"
        + (f"; new are {', '.join(new[:5])}{', ...' if len(new) > 5 else ''}." if new else ".")
    ]

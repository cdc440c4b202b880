"""Training one net on several ranks: how they share out its batch, and for which nets they can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from autodial.errors import InputError
from autodial.layers import (
    BatchNorm,
    Bias,
    Concat,
    DomainAlignment,
    InfogainLoss,
    Layer,
    LayerError,
    Reduction,
    Reshape,
    Scale,
    Shape,
    Slice,
)
from autodial.layers.base import canonical_axis
from autodial.layers.shares import Rows, Shares
from autodial.net.net import Net
from autodial.system.ranks import BegunSum, Ranks

Parts = tuple[int, ...]
"""Rows of a blob by the data layer that they come from (`Shares.parts`)."""
Layout = Parts | None
"""None: the blob holds sums, to which each rank adds the share of its rows."""

BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that are summed in one call."""

_ALONE = "train without torchrun"


class DataParallel:
    """A train net whose batch is shared out over ranks, so that they train it as one process would.

    Each rank reads its share of every data layer's rows, and its layers see only these rows. What they need from the
    whole batch comes from autodial.layers.shares. So a rank's loss is what its rows add to the whole batch's loss, and
    the same holds for its gradients.

    Args:
        net: the train net, on the device where it stays; this sets the `shares` of its layers.
        ranks: the ranks.

    Raises:
        InputError: a layer that looks across the rows of the batch in a way that can't be shared out, or a batch with
            fewer rows than there are ranks; it names the layer.
    """

    def __init__(self, net: Net, ranks: Ranks) -> None:
        self._ranks = ranks
        self._layouts = _share_out(net, ranks)
        self._learned = [param.tensor for param in reversed(net.params) if param.tensor.requires_grad]
        """In the order in which a backward pass completes their gradients."""
        for blob in self._learned:
            blob.register_post_accumulate_grad_hook(self._complete)  # type: ignore[no-untyped-call,unused-ignore]
        self._buckets: list[list[Tensor]] = []
        """Of the blobs that got a gradient in the iteration before."""
        self._missing: list[set[int]] = []
        """The blobs of each bucket, by id, whose gradient a last pass has not completed."""
        self._begun: list[BegunSum] = []

    def begin_last_pass(self) -> None:
        """Say that the next backward pass is the last before `sum`.

        The sums of the gradients that it completes begin while it goes on, all but the last ones. What Dial and
        BatchNorm sum cannot wait, as their own gradients follow from it.
        """
        self._begun = []
        self._missing = [set(map(id, bucket)) for bucket in self._buckets[:-1]]

    def sum(self, loss: Tensor, device: torch.device) -> Tensor:
        """Replace the gradients by the whole batch's, and return the whole batch's loss. All ranks take part."""
        self._missing = []
        loss = loss.reshape(1)
        done = {id(blob) for bucket in self._buckets[: len(self._begun)] for blob in bucket}
        reached = [blob for blob in self._learned if blob.grad is not None]
        rest = [blob.grad for blob in reached if id(blob) not in done and blob.grad is not None]
        self._begun += map(self._ranks.begin_sum, _buckets([*rest, loss]))
        for begun in self._begun:
            begun.finish()
        self._begun = []
        self._ranks.settle(device)
        self._buckets = list(_buckets(reached))
        return loss.reshape(())

    def _complete(self, blob: Tensor) -> None:
        """Begin the sums that can begin now that a blob's gradient is complete, in one order on all ranks."""
        for missing in self._missing:
            missing.discard(id(blob))
        while self._missing and not self._missing[0]:
            del self._missing[0]
            bucket = self._buckets[len(self._begun)]
            self._begun.append(self._ranks.begin_sum([blob.grad for blob in bucket if blob.grad is not None]))

    def outputs(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The output blobs of the whole batch. All ranks take part."""
        whole = {}
        for name, value in outputs.items():
            parts = self._layouts[name]
            value = value.detach().clone()
            whole[name] = self._ranks.sum(value) if parts is None else Shares(self._ranks, parts).gather(value)
        return whole


def check_test_net(net: Net) -> None:
    """Raise InputError, which names the layer, unless several ranks can test a net, each with some of the batches."""
    for message, layer in zip(net.param.layer, net.layers.values(), strict=True):
        where = f'layer "{message.name}" ({message.type})'
        assert isinstance(layer, Layer)
        if layer.rows is Rows.ALL_IN_ONE_PROCESS:
            raise InputError(f"{where} needs to see every batch of a test in one process: train without torchrun")
        if not isinstance(layer, (BatchNorm, DomainAlignment)):
            continue
        stored = not layer.training if layer.use_global_stats is None else layer.use_global_stats
        if not stored:
            raise InputError(
                f"{where}: a test would change the statistics, which must stay the same in all processes: leave "
                "use_global_stats out in the TEST phase, or train without torchrun"
            )


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors, in order, as lists of about BUCKET_BYTES bytes."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(tensor.nbytes for tensor in bucket) >= BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _share_out(net: Net, ranks: Ranks) -> dict[str, Layout]:
    """Set the shares of the layers; returns the layouts of all blobs."""
    layouts: dict[str, Layout] = {}
    shapes: dict[str, Shape] = {}
    for message, layer in zip(net.param.layer, net.layers.values(), strict=True):
        assert isinstance(layer, Layer)
        bottoms = [layouts[name] for name in message.bottom]
        bottom_shapes = [shapes[name] for name in message.bottom]
        top_shapes = layer.top_shapes(bottom_shapes)
        try:
            tops = _layouts(layer, bottoms, bottom_shapes, top_shapes, ranks)
        except LayerError as error:
            raise InputError(f'layer "{message.name}" ({message.type}) {error}') from None
        parts = next(iter(bottoms or tops), None)
        if parts is not None:
            layer.shares = Shares(ranks, parts)
        shapes.update(zip(message.top, top_shapes, strict=True))
        layouts.update(zip(message.top, tops, strict=True))
    return layouts


def _layouts(
    layer: Layer, bottoms: Sequence[Layout], bottom_shapes: Sequence[Shape], top_shapes: Sequence[Shape], ranks: Ranks
) -> Sequence[Layout]:
    """The layouts of a layer's tops; LayerError, without the subject, where the layer can't be shared out."""
    if layer.rows is Rows.MADE:
        return [_data_parts(shape, ranks.size) for shape in top_shapes]
    if layer.rows is Rows.PASSED_ON:
        return [bottoms[0]] * len(top_shapes)
    if layer.rows in (None, Rows.NONE, Rows.ALL_IN_ONE_PROCESS):
        raise LayerError(f"has a type that does not support training in several processes: {_ALONE}")
    if None in bottoms:
        raise LayerError(f"computes with a loss or an accuracy, and each process has only a part of that: {_ALONE}")
    parts, *others = (bottom for bottom in bottoms if bottom is not None)
    axis = getattr(layer, "axis", None)
    across = axis is not None and canonical_axis(axis, len(bottom_shapes[0])) == 0
    if isinstance(layer, Concat) and across:
        return [sum((bottom for bottom in (parts, *others)), ())]
    second = isinstance(layer, (Scale, Bias)) and bool(others)
    if (second and not across) or (isinstance(layer, InfogainLoss) and len(others) > 1):
        raise LayerError(f"has a bottom that belongs to the batch as a whole, not a row to each of its rows: {_ALONE}")
    for other in others:
        if other != parts:
            raise LayerError(
                f"has bottoms whose rows come from different data layers, {_listed(parts)} and {_listed(other)}: "
                f"{_ALONE}"
            )
    if isinstance(layer, DomainAlignment):
        if not layer.uses_stored:
            _check_points(ranks, parts, layer.points(sum(parts)))
        return [parts]
    if isinstance(layer, Slice) and across:
        points = layer.points(sum(parts))
        _check_points(ranks, parts, points)
        return _cut(parts, points)
    if isinstance(layer, Reduction) and across and layer.operation != "MEAN":
        return [None]
    if isinstance(layer, Reshape):
        _check_reshape(layer, bottom_shapes[0], top_shapes[0], Shares(ranks, parts).here)
    elif across and not second:
        raise LayerError(
            f"works across the rows of the batch (axis 0), and each process has only some of them: {_ALONE}"
        )
    if layer.rows is Rows.SUMMED:
        return [None] * len(top_shapes)
    if layer.rows is Rows.SUMMED_FIRST:
        return [None, parts][: len(top_shapes)]
    return [parts] * len(top_shapes)


def _data_parts(shape: Shape, ranks: int) -> Parts:
    rows = shape[0] if shape else 1
    if rows < ranks:
        raise LayerError(
            f"has a batch of {rows}, too small for {ranks} processes, which need a row each: start at most {rows}, or "
            "make the batch larger"
        )
    return (rows,)


def _check_points(ranks: Ranks, parts: Parts, points: Sequence[int]) -> None:
    """Raise LayerError unless a part of the batch begins at each of these rows."""
    for point in points:
        try:
            Shares(ranks, parts).before(point)
        except ValueError:
            raise LayerError(
                f"splits the batch at row {point}, inside the rows of one data layer (the batch has {_listed(parts)}): "
                "for several processes, source and target need a data layer each, and a Concat that joins them"
            ) from None


def _cut(parts: Parts, points: Sequence[int]) -> list[Parts]:
    """The parts between points, all of which lie on boundaries of parts."""
    starts = list(accumulate(parts, initial=0))
    cuts = [starts.index(point) for point in (0, *points, sum(parts))]
    return [parts[start:end] for start, end in pairwise(cuts)]


def _check_reshape(layer: Reshape, bottom: Shape, top: Shape, here: int) -> None:
    """Raise LayerError unless each row stays a row, whatever their number."""
    try:
        kept = top[:1] == bottom[:1] and layer.top_shapes([(here, *bottom[1:])]) == [(here, *top[1:])]
    except LayerError:
        kept = False
    if not kept:
        raise LayerError(
            f"turns {bottom} into {top}: for several processes it must keep the batch's axis, whatever its "
            "length (dim: 0)"
        )


def _listed(parts: Parts) -> str:
    return " + ".join(map(str, parts)) + " rows"

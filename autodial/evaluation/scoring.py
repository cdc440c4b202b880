"""A trained net's TEST phase over an image list: means of the output blobs, and scores image by image."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autodial.data.source import FILE_OPTIONS, Source
from autodial.errors import InputError
from autodial.net.data_checks import label_readers
from autodial.net.feed import Feed, sources
from autodial.net.net import Net
from autodial.system.devices import full_memory_errors
from autodial.system.files import replacing
from autodial.training.monitor import BlobValues, NotFinite, Recalls
from autodial.training.recall import RecallWatch, recalls
from autodial.training.score_watch import ScoreWatch, not_finite

_NO_LIST = "has no image list to score image by image, or several, and no label layer says which one"


@dataclass(frozen=True)
class ScoredImage:
    """One image.

    Attributes:
        path: the image's path in the list, its key in a database, or its HDF5 file and row.
        label: the label; None if the data layer has none.
        probabilities: float32 (classes,), the softmax of the logits.
    """

    path: str
    label: int | None
    probabilities: NDArray[np.float32]

    @property
    def predicted(self) -> int:
        """The most probable class; the last of several equal ones, as in Caffe's Accuracy layer, or if all are NaN."""
        return len(self.probabilities) - 1 - int(self.probabilities[::-1].argmax())

    @property
    def loss(self) -> float | None:
        """-log of the label's probability, at least FLT_MIN as in Caffe's loss; None if the label is no class."""
        if self.label is None or not 0 <= self.label < len(self.probabilities):
            return None
        return float(0 - np.log(max(self.probabilities[self.label], np.finfo(np.float32).tiny)))


class Scorer:
    """Runs a net in its TEST phase over its only image list, or the one whose labels it reads.

    Every image counts once: the last batch is cut to the remaining images. With `iterations`, that many whole batches
    are run instead, as in `caffe test`, and a shorter list starts again.

    Args:
        net: a TEST net, on `device`.
        device: the net's device.
        workers: processes that read images.
        iterations: number of batches; None for every image once.
        logits: blob of class scores, (N, classes) or (N, classes, 1, 1); None for no rows.

    Attributes:
        batches: number of batches that `run` runs.
        rows: each image once, in reading order; filled by `run`, if `logits` is given.
        not_finite: the blobs with scores that are not finite; filled at the end of `run`.
        recalls: recall per class, as in a TestRow; filled at the end of `run`.

    Raises:
        InputError: there is no such list, or several, where one is needed; or the logits have another shape.
    """

    def __init__(
        self, net: Net, *, device: torch.device, workers: int, iterations: int | None = None, logits: str | None = None
    ) -> None:
        self._net, self._device, self._workers, self._logits = net, device, workers, logits
        self._list, self._labels = _scored_list(net)
        if self._list is None and iterations is None:
            raise InputError(f"the TEST phase {_NO_LIST}: state a number of `iterations`")
        if logits is not None and (problem := why_no_rows(net, logits)):
            raise InputError(problem)
        # a batch can be cut only if every input has a row per image of the list
        self._once = iterations is None and len(net.data_layers) == 1
        self.batches = iterations or (-(-len(self._list) // self._list.batch_size) if self._list else 0)
        self.rows: list[ScoredImage] = []
        self.not_finite: NotFinite = {}
        self.recalls: Recalls = {}
        self._totals: dict[str, Tensor] = {}
        self._weight = 0

    def run(self) -> Iterator[None]:
        """Run all batches, pausing after each."""
        wanted = {*self._net.outputs, *([self._logits] if self._logits else ())}
        feed = Feed(self._net, range(self.batches), device=self._device, workers=self._workers)
        with closing(feed), full_memory_errors(), ScoreWatch(self._net) as watch, RecallWatch(self._net) as recall:
            for index, inputs in enumerate(feed):
                new = self._new_rows(index)
                cut = {name: value[:new] for name, value in inputs.items()} if self._once else inputs
                self._net.seed_pass(index)
                with torch.no_grad():
                    blobs = self._net.blobs(cut, wanted)
                self._add_outputs(blobs, new if self._once else 1)
                if self._list is not None and self._logits is not None and new:
                    probabilities = blobs[self._logits][:new].flatten(1).softmax(1).cpu().numpy()
                    self.rows += self._scored(index, inputs, probabilities)
                yield
        self.not_finite = not_finite(watch.counts())
        self.recalls = recalls(recall.counts())

    def _scored(
        self, index: int, inputs: dict[str, Tensor], probabilities: NDArray[np.float32]
    ) -> Iterator[ScoredImage]:
        """The rows of a batch, as many as there are probabilities."""
        assert self._list is not None
        labels = inputs[self._labels].flatten().long().tolist() if self._labels else repeat(None)
        rows = zip(self._list.names(index), labels, probabilities, strict=False)
        return (ScoredImage(*row) for row in rows)

    def _new_rows(self, index: int) -> int:
        """How many rows of a batch hold images that earlier batches did not hold."""
        if self._list is None:
            return 0
        size = self._list.batch_size
        return min(size, max(0, len(self._list) - index * size))

    def _add_outputs(self, blobs: dict[str, Tensor], weight: int) -> None:
        batch_sizes = {self._net.blob_shapes[name][0] for name in self._net.inputs}
        for name in self._net.outputs:
            if not set(self._net.blob_shapes[name][:1]) & batch_sizes:
                value = blobs[name].double() * weight
                self._totals[name] = self._totals[name] + value if name in self._totals else value
        self._weight += weight

    def means(self) -> dict[str, BlobValues]:
        """Output blobs averaged over the images, or with `iterations` over the batches; none with a row per image."""
        return {name: tuple((total / self._weight).flatten().tolist()) for name, total in self._totals.items()}

    def accuracy(self) -> float | None:
        """The share of images whose label is predicted, among those whose label is a class; None if there are none."""
        right = [row.predicted == row.label for row in self.rows if row.loss is not None]
        return sum(right) / len(right) if right else None

    def why_no_accuracy(self) -> str | None:
        """Why `accuracy` is None, and what to do; None if it is not. To be called after `run`, with `logits`."""
        if self.accuracy() is not None or self._list is None or not self.rows:
            return None
        (name,) = (name for name, source in sources(self._net).items() if source is self._list)
        layer = self._net.param.layer[self._net.layer_names.index(name)]
        if self._labels is None:
            return f'layer "{name}" ({layer.type}) reads images without labels: name a net that reads labels, too'
        classes = len(self.rows[0].probabilities)
        field = f"{name}.{FILE_OPTIONS[layer.type]}.source" if layer.type in FILE_OPTIONS else ""
        named = f"`settings` {field}=LIST" if field else "another net"
        return (
            f'no label that layer "{name}" ({layer.type}) reads is one of the {classes} classes, from 0 to '
            f"{classes - 1}: name labelled images with {named}"
        )


def why_no_rows(net: Net, logits: str) -> str | None:
    """The reason why a TEST net can't be scored image by image by a blob; None if it can."""
    if _scored_list(net)[0] is None:
        return f"the TEST phase {_NO_LIST}: leave out `output` and `logits`"
    shape = net.blob_shapes[logits]
    if len(shape) < 2 or any(size != 1 for size in shape[2:]):
        return f'blob "{logits}" has shape {shape}, not a row of scores per image'
    return None


def _scored_list(net: Net) -> tuple[Source | None, str | None]:
    """The data source to score and the blob of its labels; None for what does not exist or is ambiguous."""
    tops = {reader.source: reader.top for reader in label_readers(net)} or dict.fromkeys(sources(net), 1)
    if len(tops) != 1:
        return None, None
    ((name, top),) = tops.items()
    source = sources(net)[name]
    one_per_row = prod(source.top_shapes[top][1:]) == 1 if top < len(source.top_shapes) else False
    return source, net.tops(name)[top] if one_per_row else None


def write_scores(rows: Sequence[ScoredImage], path: Path) -> None:
    """Write rows as CSV: path, label, predicted, loss, probability_0, probability_1, ...

    Raises:
        WorkError: the file can't be written.
    """
    with replacing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        table = csv.writer(text, lineterminator="\n")
        classes = range(len(rows[0].probabilities))
        table.writerow(["path", "label", "predicted", "loss", *(f"probability_{k}" for k in classes)])
        for row in rows:
            loss = "" if row.loss is None else f"{row.loss:.7g}"
            table.writerow(
                [
                    row.path,
                    row.label,
                    row.predicted,
                    loss,
                    *(f"{p:.7g}" for p in row.probabilities),
                ]
            )
        text.detach()

"""The data of a run's nets: which of it is the source's and the target's, and how to read single rows of it."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autodial.data.source import ALL, Source
from autodial.errors import InputError
from autodial.evaluation.domains import DataTop, without_augmentation
from autodial.layers import layer_class
from autodial.layers.data_sources import SourceLayer
from autodial.net.net import Net
from autodial.netparam.data_files import files_of
from autodial.netparam.graph import Graph, Node
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb
from autodial.report.run import Run


class LabelTop(NamedTuple):
    """The data layer that a loss or accuracy takes labels from, and the number of that top."""

    layer: Any
    top: int


@dataclass(frozen=True)
class Sizes:
    """Rows of a run's lists and databases; None where the nets read none of that kind.

    Attributes:
        source: of the training data whose labels the loss reads.
        target: of the other training data.
        test: of the TEST phase's.
    """

    source: int | None
    target: int | None
    test: int | None


class ChosenRows:
    """Some rows of a source of single rows, in batches; a Source itself, of which the last batch may be shorter.

    Args:
        source: batch k is its row k.
        rows: their numbers.
        batch_size: rows per batch.
    """

    def __init__(self, source: Source, rows: Sequence[int], batch_size: int) -> None:
        self._source, self._rows = source, rows
        self.batch_size = batch_size

    @property
    def top_shapes(self) -> list[tuple[int, ...]]:
        return [(self.batch_size, *shape[1:]) for shape in self._source.top_shapes]

    def __len__(self) -> int:
        return len(self._rows)

    def _chosen(self, index: int) -> Sequence[int]:
        return self._rows[index * self.batch_size : (index + 1) * self.batch_size]

    def batch(self, index: int, rows: slice = ALL) -> list[NDArray[np.float32]]:
        batches = [self._source.batch(row) for row in self._chosen(index)[rows]]
        return [np.concatenate(top) for top in zip(*batches, strict=True)]

    def names(self, index: int) -> list[str]:
        return [name for row in self._chosen(index) for name in self._source.names(row)]

    def labels(self, top: int) -> Iterator[tuple[str, float]]:
        return self._source.labels(top)

    def check(self) -> None:
        self._source.check()


def data_nodes(graph: Graph) -> list[Node]:
    """The nodes of data layers."""
    return [node for node in graph.nodes if layer_class(node.param.type).is_data]


def label_top(graph: Graph) -> LabelTop | None:
    """Where the first loss or accuracy takes its labels from; None if that is no data layer."""
    for node in graph.nodes:
        if layer_class(node.param.type).reads_labels:
            producer = graph.producer(node.bottoms[1])
            if layer_class(producer.param.type).is_data:
                return LabelTop(producer.param, producer.tops.index(node.bottoms[1]))
    return None


def row_reader(layer: Any, base_dir: Path | None) -> tuple[Net, SourceLayer]:
    """A net of a data layer alone, of which batch k is row k of its files, unaugmented; and the layer.

    Raises:
        InputError: a program feeds it, or its files can't be read.
    """
    refuse_pipes(layer, base_dir)
    data = DataTop(layer, layer.top[0])
    single = without_augmentation(data, data, batch_size=1).layer
    net = Net(pb.NetParameter(layer=[single]), pb.TEST, base_dir=base_dir)
    return net, source_layer(net)


def mode_of(path: Path) -> int:
    """What a path leads to, as `stat` tells; 0 for nothing, and for a path that the system can't have."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # too long a name, or one with NUL
        return 0


def refuse_pipes(layer: Any, base_dir: Path | None) -> None:
    """Refuse a data layer whose list, database or mean is neither a file nor a folder: reading might never end.

    Raises:
        InputError: it names the path.
    """
    for path in files_of(pb.NetParameter(layer=[layer]), base_dir or Path()):
        mode = mode_of(path)
        if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InputError(f'layer "{layer.name}": {path} is neither a file nor a folder')


def source_layer(net: Net) -> SourceLayer:
    """The only layer of a net that reads files."""
    (layer,) = (layer for layer in net.data_layers.values() if isinstance(layer, SourceLayer))
    return layer


def count_rows(run: Run) -> Sizes:
    """The sizes of a run's data; InputError as `row_reader`."""
    train = Graph(filter_net(run.train_net, pb.TRAIN).layer)
    test = Graph(filter_net(run.test_net, pb.TEST).layer)
    labelled = label_top(train)
    counts: dict[str, int] = {}
    for node in data_nodes(train):
        kind = "source" if labelled is not None and node.param.name == labelled.layer.name else "target"
        counts[kind] = len(row_reader(node.param, run.train_folder)[1].source)
    for node in data_nodes(test):
        counts["test"] = len(row_reader(node.param, run.test_folder)[1].source)
    return Sizes(counts.get("source"), counts.get("target"), counts.get("test"))


def source_shares(run: Run, classes: int) -> NDArray[np.float64]:
    """Each class's share of the source's labels, (classes,); labels that are no class count for nothing.

    Raises:
        InputError: there are no such labels, or the files can't be read.
    """
    found = label_top(Graph(filter_net(run.train_net, pb.TRAIN).layer))
    if found is None:
        raise InputError("the TRAIN phase's loss reads no labels of a data layer")
    labels = [int(label) for _, label in row_reader(found.layer, run.train_folder)[1].source.labels(found.top)]
    real = [label for label in labels if 0 <= label < classes]
    if not real:
        raise InputError(
            f'layer "{found.layer.name}": {"none of its labels is a class" if labels else "too many labels to count"}'
        )
    shares: NDArray[np.float64] = np.bincount(real, minlength=classes) / len(real)
    return shares

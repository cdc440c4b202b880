"""The data of a run's nets: which layers read the source and the target, and how to read single rows."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autodial.data.source import ALL, Source
from autodial.errors import InputError
from autodial.evaluation.domains import DataTop, data_in_train, without_augmentation
from autodial.layers import layer_class
from autodial.layers.data_sources import SourceLayer
from autodial.net.net import Net
from autodial.netparam.data_files import files_of
from autodial.netparam.graph import Graph, Node
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb
from autodial.report.run import Run


class LabelTop(NamedTuple):
    """A data layer, and the number of its top that a loss or an accuracy takes labels from."""

    layer: pb.LayerParameter
    top: int


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows in a run's lists and databases; None where the nets read no such data.

    Attributes:
        source: rows of the training data whose labels the loss reads.
        target: rows of the other training data.
        test: rows that the TEST phase reads.
    """

    source: int | None
    target: int | None
    test: int | None


class ChosenRows:
    """A Source of some rows of another one; the last batch may be shorter.

    Args:
        source: reads one row per batch.
        rows: the numbers of the chosen rows.
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
    """A graph's data layers."""
    return [node for node in graph.nodes if layer_class(node.param.type).is_data]


def label_tops(graph: Graph) -> list[LabelTop]:
    """Where the first loss or accuracy that takes labels from data layers does so: several if Concat layers join them.

    Empty if there is none.
    """
    for node in graph.nodes:
        if layer_class(node.param.type).reads_labels:
            producers = [(graph.producer(value), value) for value in _joined(graph, node.bottoms[1])]
            if all(layer_class(producer.param.type).is_data for producer, _ in producers):
                return [LabelTop(producer.param, producer.tops.index(value)) for producer, value in producers]
    return []


def _joined(graph: Graph, value: int) -> list[int]:
    """The values that Concat layers join to a value; itself if another layer makes it."""
    node = graph.producer(value)
    if node.param.type != "Concat":
        return [value]
    return [part for bottom in node.bottoms for part in _joined(graph, bottom)]


def source_label_tops(net: pb.NetParameter) -> list[LabelTop]:
    """Where the TRAIN phase takes the labels of its sources from; images of the target with labels are not theirs.

    All labels count as the sources' where nothing tells the domains apart, as in a net without alignment.
    """
    found = label_tops(Graph(filter_net(net, pb.TRAIN).layer))
    try:
        domains = data_in_train(net)
    except InputError:
        domains = None
    if domains is None:
        return found
    sources = {data.layer.name for data in domains.sources}
    return [top for top in found if top.layer.name in sources]


def row_reader(layer: pb.LayerParameter, base_dir: Path | None) -> tuple[Net, SourceLayer]:
    """A net that consists of a data layer, and the layer itself; batch k is row k of its files, unaugmented.

    Raises:
        InputError: a program feeds the layer, or its files can't be read.
    """
    refuse_pipes(layer, base_dir)
    data = DataTop(layer, layer.top[0])
    single = without_augmentation(data, data, batch_size=1).layer
    net = Net(pb.NetParameter(layer=[single]), pb.TEST, base_dir=base_dir)
    return net, source_layer(net)


def mode_of(path: Path) -> int:
    """The mode of what a path leads to, as in `os.stat`; 0 if there is nothing, or the system allows no such path."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # too long a name, or one with NUL
        return 0


def refuse_pipes(layer: pb.LayerParameter, base_dir: Path | None) -> None:
    """Refuse a data layer whose list, database or mean is neither a file nor a folder: reading it might never end.

    Raises:
        InputError: there is such a path.
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
    """Count the rows of a run's data.

    Raises:
        InputError: as `row_reader`.
    """
    train = Graph(filter_net(run.train_net, pb.TRAIN).layer)
    test = Graph(filter_net(run.test_net, pb.TEST).layer)
    labelled = {found.layer.name for found in label_tops(train)}
    of_source = {found.layer.name for found in source_label_tops(run.train_net)}
    counts: dict[str, int] = {}
    for node in data_nodes(train):
        name = node.param.name
        if name in labelled and name not in of_source:
            continue  # most of them are in the target's list, too
        kind = "source" if name in of_source else "target"
        rows = len(row_reader(node.param, run.train_folder)[1].source)
        counts[kind] = rows + (counts.get("source", 0) if kind == "source" else 0)
    for node in data_nodes(test):
        counts["test"] = len(row_reader(node.param, run.test_folder)[1].source)
    return Sizes(counts.get("source"), counts.get("target"), counts.get("test"))


def source_labels(run: Run) -> list[int]:
    """The label of every row of the source's data, of several sources one after the other.

    Raises:
        InputError: the loss reads no labels of a data layer, there are too many to read, or the files can't be read.
    """
    labels = []
    for found in source_label_tops(run.train_net):
        some = [int(label) for _, label in row_reader(found.layer, run.train_folder)[1].source.labels(found.top)]
        if not some:
            raise InputError(f'layer "{found.layer.name}": too many labels to count')
        labels += some
    if not labels:
        raise InputError("the TRAIN phase's loss reads no labels of a data layer")
    return labels


def class_shares(labels: Sequence[int], classes: int) -> NDArray[np.float64]:
    """The share of each class among labels, float64 (classes,); labels that are not a class don't count.

    Raises:
        InputError: no label is a class.
    """
    real = [label for label in labels if 0 <= label < classes]
    if not real:
        raise InputError("none of the source's labels is a class")
    shares: NDArray[np.float64] = np.bincount(real, minlength=classes) / len(real)
    return shares

"""What the trained net of a run makes of images: predictions for the target, and features of both domains."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autodial.data.labels import labels_beside
from autodial.errors import InputError
from autodial.evaluation.domains import DataTop, data_in_train, file_options, sources_of, without_augmentation
from autodial.evaluation.scoring import ScoredImage
from autodial.layers import DomainAlignment
from autodial.layers.data_sources import SourceLayer
from autodial.layers.dial import DomainName, domain_names
from autodial.net.feed import Feed
from autodial.net.net import Net
from autodial.netparam.graph import Graph
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb
from autodial.report.data import (
    ChosenRows,
    Sizes,
    class_shares,
    count_rows,
    data_nodes,
    label_tops,
    mode_of,
    refuse_pipes,
    row_reader,
    source_labels,
    source_layer,
)
from autodial.report.features import Capture, LayerFeatures
from autodial.report.images import ImagePair, PredictedImage, thumbnail
from autodial.report.latent_domains import LatentDomains, count_domains, domain_net
from autodial.report.predictions import Predictions, why_unlabelled
from autodial.report.run import LoggedSnapshot, Run
from autodial.system.devices import full_memory_errors
from autodial.system.hashing import file_hash
from autodial.training.solver import load_weights
from autodial.wording import counted

T = TypeVar("T")

PICTURES = 12
"""The most certain images that a report shows, the least certain ones, and pairs of source and target images."""

EXAMPLES = 6
"""The images that a report shows of each latent domain."""


@dataclass(frozen=True)
class Absent:
    """A part that is missing, and why, in one sentence without its full stop."""

    reason: str


@dataclass(frozen=True)
class Evaluation:
    """What a run's net and data gave.

    Attributes:
        snapshot: the weights that were run.
        sizes: numbers of images.
        classes: the classes' names, from labels.txt in the net's folder if it has as many; otherwise numbers.
        predictions: for the target's images.
        source_shares: the share of each class among the source's labels, (classes,).
        features: what enters and leaves the chosen Dial layers.
        certain, uncertain: target images with the largest and the smallest probability of the predicted class, the most
            extreme first.
        pairs: images of source and target by class.
        domains: the latent domains among the source's images; None for a net that looks for none.
    """

    snapshot: LoggedSnapshot | Absent
    sizes: Sizes | Absent
    classes: Sequence[str]
    predictions: Predictions | Absent
    source_shares: NDArray[np.float64] | Absent
    features: Sequence[LayerFeatures] | Absent
    certain: Sequence[PredictedImage] | Absent
    uncertain: Sequence[PredictedImage] | Absent
    pairs: Sequence[ImagePair] | Absent
    domains: LatentDomains | Absent | None = None


def evaluate(
    run: Run,
    *,
    images: int,
    layers: Sequence[str],
    device: torch.device,
    workers: int,
    pictures: int = PICTURES,
    allow_python: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> Evaluation:
    """Run the newest weights of a run whose file has not changed since.

    The working directory is the training's while this runs, if that folder is still there: relative paths in the net
    start there. The target's images are those of the TEST phase. That phase says how they are normalized, usually with
    the target's stored statistics; the source's images, for the features, go through with the source's. A part whose
    files are missing is Absent, and the other parts are there. Only the layers that the logits need are built: other
    layers of the TEST phase, such as ones that write files, do not run.

    Args:
        images: images of each domain, evenly spaced over its list.
        layers: Dial layers to look at.
        workers: processes that read images.
        pictures: at most so many of the most certain images are shown, and of the least certain, and of each domain.
        allow_python: run the code of Python layers, which can do anything; otherwise a net that needs it is not
            evaluated.
        progress: is called with the share of the images that is done, in [0, 1].

    Raises:
        WorkError: the device's memory is full, or a worker process died.
    """
    with _working_directory(run), torch.no_grad():
        sizes = _or_absent(lambda: count_rows(run))
        snapshot = _find_snapshot(run)
        if isinstance(snapshot, Absent):
            return Evaluation(snapshot, sizes, (), *[Absent("there are no weights, as said at the top")] * 6)
        model = _or_absent(lambda: _Model(run, snapshot, device, workers, images, allow_python, progress))
        if isinstance(model, Absent):
            return Evaluation(snapshot, sizes, (), *[model] * 6)
        labels = _or_absent(lambda: source_labels(run))
        shares = labels if isinstance(labels, Absent) else _or_absent(lambda: class_shares(labels, len(model.classes)))
        model.watch(layers)
        predictions = _or_absent(model.predict)
        if isinstance(predictions, Absent):
            return Evaluation(snapshot, sizes, model.classes, predictions, shares, *[predictions] * 4)
        features = _or_absent(model.features)
        certain, uncertain = (
            _or_absent(partial(model.pictures, predictions, numbers)) for numbers in predictions.extremes(pictures)
        )
        pairs = (
            labels if isinstance(labels, Absent) else _or_absent(partial(model.pairs, predictions, labels, pictures))
        )
        domains = _or_absent(model.latent_domains) if count_domains(run.train_net) else None
        return Evaluation(
            snapshot, sizes, model.classes, predictions, shares, features, certain, uncertain, pairs, domains
        )


def without_dials(run: Run) -> str:
    """What a run's net without Dial layers has in their place, as a clause."""
    return f"the net has {'latent domains and ' if count_domains(run.train_net) else ''}no Dial layer"


def _or_absent(make: Callable[[], T]) -> T | Absent:
    try:
        return make()
    except InputError as error:
        return Absent(str(error))


@contextmanager
def _working_directory(run: Run) -> Iterator[None]:
    """Work in the folder where the run was trained, if it is still there, and import nothing from there."""
    folder, before, path = Path(run.record["folder"]), Path.cwd(), list(sys.path)
    safe = os.environ.get("PYTHONSAFEPATH")
    if stat.S_ISDIR(mode_of(folder)):
        sys.path[:] = [place for place in path if Path(place).is_absolute()]
        os.environ["PYTHONSAFEPATH"] = "1"  # for worker processes that start an interpreter of their own
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        if safe is None:
            os.environ.pop("PYTHONSAFEPATH", None)
        else:
            os.environ["PYTHONSAFEPATH"] = safe


def _find_snapshot(run: Run) -> LoggedSnapshot | Absent:
    """The newest snapshot whose file is as the run wrote it.

    The file is looked for where it was written, in the folder that holds the run's folder, and in the run's folder.
    """
    if not run.snapshots:
        return Absent(
            "the run has written no snapshot yet, and predictions and features need its weights: make the report "
            "again when there is one"
        )
    changed = []
    folder = run.folder.resolve()
    for snapshot in run.snapshots:
        places = [snapshot.model, folder.parent / snapshot.model.name, folder / snapshot.model.name]
        for path in (path for path in dict.fromkeys(places) if stat.S_ISREG(mode_of(path))):
            if file_hash(path) == snapshot.sha256:
                return replace(snapshot, model=path)
            changed.append(path)
    if changed:
        return Absent(
            f"{changed[0]} is no longer the file that this run wrote: another run with the same snapshot_prefix has "
            "written over it"
        )
    return Absent(f"{run.snapshots[0].model} is missing: put it back, or into {folder.parent}")


class _Model:
    """The TEST net of a run with its weights, and its data layer, read row by row.

    Attributes:
        classes: the classes' names.

    Raises:
        InputError: the TEST phase can't be built or fed from files, or has no logits.
    """

    def __init__(
        self,
        run: Run,
        snapshot: LoggedSnapshot,
        device: torch.device,
        workers: int,
        images: int,
        allow_python: bool,
        progress: Callable[[float], None],
    ) -> None:
        self._run, self._device, self._workers, self._images = run, device, workers, images
        self._progress, self._weights, self._allow_python = progress, snapshot.model, allow_python
        graph = Graph(filter_net(run.test_net, pb.TEST).layer)
        nodes = data_nodes(graph)
        if len(nodes) != 1:
            raise InputError(f"the TEST phase has {counted(len(nodes), 'data layer')}, and must have one")
        self._label_top = next((labelled.layer.top[labelled.top] for labelled in label_tops(graph)), None)
        self._logits = _logits(graph)
        param = _needed(graph, self._logits)
        if not allow_python:
            _refuse_python(param)
        (layer,) = (layer for layer in param.layer if layer.name == nodes[0].param.name)
        refuse_pipes(layer, run.test_folder)
        self._batch_size: int = file_options(layer).batch_size
        data = DataTop(layer, next(top for top in layer.top if top != self._label_top))
        self._data = without_augmentation(data, data, batch_size=1)
        layer.CopyFrom(self._data.layer)
        self._net = Net(param, pb.TEST, base_dir=run.test_folder).to(device)
        shape = self._net.blob_shapes[self._logits]
        if any(size != 1 for size in shape[2:]):
            raise InputError(f'blob "{self._logits}", the logits, has shape {shape}, not a row of scores per image')
        load_weights(self._net, [snapshot.model])
        names = labels_beside(run.test_folder or Path(), shape[1])
        self.classes = list(map(str, range(shape[1]))) if names is None else list(names)
        self._reader = source_layer(self._net)
        self._source = self._reader.source
        self._dials = [
            dial for name in self._net.layer_names if isinstance(dial := self._net.layer(name), DomainAlignment)
        ]
        self._captures: dict[str, Capture] = {}

    def watch(self, layers: Sequence[str]) -> None:
        """Keep from now on what enters and leaves these layers."""
        for name in layers:
            dial = self._net.layer(name)
            assert isinstance(dial, DomainAlignment)
            self._captures[name] = Capture(dial)

    def predict(self) -> Predictions:
        """Predict the target's images."""
        positions = _evenly(len(self._source), self._images)
        rows: list[ScoredImage] = []
        for names, tops in self._batches(self._net, self._reader, positions, part=0):
            scores = self._forward(tops, "target").flatten(1)
            labels = (
                [None] * len(scores) if self._label_top is None else tops[self._label_top].flatten().long().tolist()
            )
            rows += (ScoredImage(*row) for row in zip(names, labels, scores.softmax(1).cpu().numpy(), strict=True))
        # of scores that are NaN or infinite, softmax makes NaN, whose largest is no class
        whole = [i for i, row in enumerate(rows) if np.isfinite(row.probabilities).all()]
        if not whole:
            raise InputError("the net's scores are not finite: the weights are those of a training that diverged")
        lost = len(rows) - len(whole)
        rows, positions = [rows[i] for i in whole], [positions[i] for i in whole]
        name = str(file_options(self._data.layer).source)
        return Predictions(rows, positions, len(self._source), name, why_unlabelled(rows, name), lost)

    def features(self) -> list[LayerFeatures]:
        """The features of the watched layers; the target's were seen by `predict`, the source's images are run here."""
        if not self._captures:
            raise InputError(without_dials(self._run))
        readers = self._source_readers()
        for number, (domain, (net, reader, source_data)) in enumerate(readers.items()):
            theirs, ours = net.blob_shapes[source_data.blob][1:], self._net.blob_shapes[self._data.blob][1:]
            if theirs != ours:
                raise InputError(
                    f"the {domain}'s images come as {theirs} and the target's as {ours} (channels, height, width)"
                )
            positions = _evenly(len(reader.source), ceil(self._images / len(readers)))
            for _, tops in self._batches(net, reader, positions, part=1 + number):
                images = tops[source_data.blob]
                unused = {top: torch.zeros(len(images), device=self._device) for top in self._data.layer.top}
                self._forward({**unused, self._data.blob: images}, domain)
        return [capture.features(name) for name, capture in self._captures.items()]

    def latent_domains(self) -> LatentDomains:
        """The domains that the net finds among the source's images, which are run here.

        Raises:
            InputError: the part that finds them can't be built or run.
        """
        ((net, reader, data),) = self._source_readers().values()
        source, positions = reader.source, _evenly(len(reader.source), self._images)
        branch = domain_net(self._run.train_net, net.blob_shapes[data.blob][1:])
        if not self._allow_python:
            _refuse_python(branch.param)
        built = Net(branch.param, pb.TEST, base_dir=self._run.train_folder).to(self._device)
        if missing := load_weights(built, [self._weights]):
            raise InputError(f"{self._weights} has nothing for {', '.join(missing)}")
        # Slice layers cut behind the batch's rows, so that each pass has as many
        fed = {name: shape for name, shape in built.blob_shapes.items() if _is_fed(branch.param, name)}
        rows, found = fed[branch.images][0], []
        for _, tops in self._batches(net, reader, positions, part=1, batch_size=rows):
            given = tops[data.blob]
            inputs = {name: torch.zeros(shape, device=self._device) for name, shape in fed.items()}
            inputs[branch.images][: len(given)] = given
            blobs = built.blobs(inputs, branch.weights)
            found.append(torch.stack([blobs[name].flatten()[: len(given)] for name in branch.weights], 1).cpu())
        weights = torch.cat(found).numpy()
        if not np.isfinite(weights).all():
            raise InputError("the weights of the latent domains are not finite")
        most = [np.argsort(-column, kind="stable")[:EXAMPLES] for column in weights.T]
        images = [[thumbnail(source, positions[row]) for row in best] for best in most]
        return LatentDomains(weights, len(source), images)

    def _source_readers(self) -> dict[DomainName, tuple[Net, SourceLayer, DataTop]]:
        """For each source a net of its data layer, prepared as in TEST; the layer that reads; the top of the images."""
        found = data_in_train(self._run.train_net)
        if found is None:
            raise InputError("the TRAIN phase has no Concat layer that joins the source's images with the target's")
        readers = {}
        for domain, top in zip(domain_names(len(found.sources))[:-1], found.sources, strict=True):
            data = without_augmentation(top, self._data, batch_size=1)
            readers[domain] = (*row_reader(data.layer, self._run.train_folder), data)
        return readers

    def _batches(
        self, net: Net, reader: SourceLayer, positions: Sequence[int], part: int, batch_size: int | None = None
    ) -> Iterator[tuple[list[str], dict[str, Tensor]]]:
        """Rows of a net's data layer in batches, with their names.

        Args:
            part: which part of the work this is: 0 the target, or 1 and on a source.
            batch_size: rows of a batch; None: as in the TEST phase.
        """
        batch_size = batch_size or self._batch_size
        chosen = reader.source = ChosenRows(reader.source, positions, batch_size)
        count = -(-len(positions) // batch_size)
        feed = Feed(net, range(count), device=self._device, workers=self._workers)
        with closing(feed), full_memory_errors():
            for index, tops in enumerate(feed):
                yield chosen.names(index), tops
                done = (index + 1) / count
                sources = sources_of(self._run.train_net)
                share = done if part == 0 else 1 + (part - 1 + done) / sources
                self._progress(share / (2 if self._captures or count_domains(self._run.train_net) else 1))

    def _forward(self, inputs: Mapping[str, Tensor], domain: DomainName) -> Tensor:
        """The logits; a source's images go through all Dial layers with that source's statistics."""
        stats = [dial.test_stats for dial in self._dials]
        for capture in self._captures.values():
            capture.domain = domain.partition(" ")[0]
        self._net.seed_pass(0)
        try:
            for dial in self._dials if domain != "target" else ():
                dial.test_stats = domain
            return self._net.blobs(inputs, [self._logits])[self._logits]
        finally:
            for dial, before in zip(self._dials, stats, strict=True):
                dial.test_stats = before

    def pictures(self, predictions: Predictions, numbers: Sequence[int]) -> list[PredictedImage]:
        """The images of some rows.

        Raises:
            InputError: the net's data are not images.
        """
        return [
            PredictedImage(predictions.rows[number], thumbnail(self._source, predictions.positions[number]))
            for number in numbers
        ]

    def pairs(self, predictions: Predictions, labels: Sequence[int], count: int) -> list[ImagePair]:
        """An image of the source and one of the target for each of at most `count` classes, evenly spaced.

        Args:
            labels: the label of each row of the source's data.

        Raises:
            InputError: the nets' data are not images, or the source's can't be read.
        """
        rows = [(reader, row) for _, reader, _ in self._source_readers().values() for row in range(len(reader.source))]
        first = {
            label: row
            for row, label in reversed(list(zip(rows, labels, strict=False)))
            if 0 <= label < len(self.classes)
        }
        there = sorted(first)
        best = predictions.most_certain_by_class()
        pairs = []
        for place in _evenly(len(there), count):
            label = there[place]
            target = self.pictures(predictions, [best[label]])[0] if label in best else None
            reader, row = first[label]
            pairs.append(ImagePair(label, thumbnail(reader.source, row), target))
        return pairs


def _needed(graph: Graph, logits: str) -> pb.NetParameter:
    """A net of the layers that the logits depend on, and of the data layers."""
    value = graph.last(logits)
    assert value is not None
    needed = {*graph.ancestors(value), *data_nodes(graph)}
    return pb.NetParameter(layer=[node.param for node in graph.nodes if node in needed])


def _is_fed(net: pb.NetParameter, blob: str) -> bool:
    return any(layer.type == "Input" and blob in layer.top for layer in net.layer)


def _refuse_python(net: pb.NetParameter) -> None:
    names = [f'"{layer.name}" ({layer.python_param.module})' for layer in net.layer if layer.type == "Python"]
    if names:
        raise InputError(
            f"the net is not evaluated, as it has {counted(len(names), 'Python layer')} ({', '.join(names[:3])}), and "
            "reports run no code that comes with a run unless Python layers are allowed"
        )


def _logits(graph: Graph) -> str:
    value = graph.logits()
    name = str(graph.names[value])
    if graph.last(name) != value:
        raise InputError(f'a layer overwrites blob "{name}", the logits, in place; give its top another name')
    return name


def _evenly(total: int, limit: int) -> list[int]:
    """Up to `limit` numbers of [0, total), evenly spaced."""
    count = min(total, limit)
    return [i * total // count for i in range(count)]

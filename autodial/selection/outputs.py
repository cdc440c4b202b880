"""A trained candidate's scores and features for both domains' images: all that criteria look at, stored in a file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from autodial import proto
from autodial.data.image_list import ImageList
from autodial.errors import DivergedError, InputError, WorkError
from autodial.evaluation.domains import (
    DataTop,
    DomainBatches,
    TrainData,
    data_in_test,
    data_in_train,
    fed_net,
    reading,
    without_augmentation,
)
from autodial.evaluation.recalibrate import recalibrate, with_statistics
from autodial.evaluation.scoring import Scorer
from autodial.layers import Shape
from autodial.layers.dial import DomainAlignment, DomainName, domain_names
from autodial.net.net import Net
from autodial.netparam.graph import Graph
from autodial.proto import messages as pb
from autodial.system.files import replacing
from autodial.system.seeding import derive_seed

GivenLists: TypeAlias = Path | Sequence[Path | None] | None
"""A list of images for the one source, or for each of several; None for none."""
FEATURE_ROWS = 2000
"""Target images whose features are kept; more would change a clustering little."""
_CLASSIFIERS = ("InnerProduct", "Convolution")


@dataclass(frozen=True, eq=False)
class Outputs:
    """One trained net's scores (N images, C classes) and features (N images, D values), in the order of the lists.

    Source images are normalized with their source's statistics, target images with those that the TEST phase uses. All
    images are prepared as in the TEST phase.

    Attributes:
        target_logits: float32 (N_t, C), logits of the target's training images.
        features: float32 (M, D), the classifier's inputs for at most 2,000 target images.
        feature_rows: int64 (M,), the rows of `target_logits` of these images; the same for every candidate.
        source_logits: float32 (N_s, C), logits of source images that were trained on.
        held_out_logits: float32 (N_h, C), logits of held-out source images; N_h is 0 if there are none.
        held_out_labels: int64 (N_h,), their labels.
        test_probabilities: float32 (N, C), probabilities of the TEST phase's labelled images; N is 0 if labels are not
            to be looked at. Criteria don't use them: they show what a choice cost.
        test_labels: int64 (N,), their labels.
    """

    target_logits: NDArray[np.float32]
    features: NDArray[np.float32]
    feature_rows: NDArray[np.int64]
    source_logits: NDArray[np.float32]
    held_out_logits: NDArray[np.float32]
    held_out_labels: NDArray[np.int64]
    test_probabilities: NDArray[np.float32]
    test_labels: NDArray[np.int64]

    def write(self, path: Path) -> None:
        """Write the arrays as an .npz file."""
        with replacing(path) as file:
            np.savez(file, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def read(cls, path: Path) -> Outputs:
        """Read the file that `write` wrote.

        Raises:
            InputError: the file is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                outputs = cls(**{field.name: arrays[field.name] for field in fields(cls)})
        except (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
            raise _damaged(path) from error
        if not outputs._is_whole():
            raise _damaged(path)
        return outputs

    def _is_whole(self) -> bool:
        """Whether types and shapes fit each other, and rows, labels and values are possible."""
        scores = (self.target_logits, self.source_logits, self.held_out_logits, self.test_probabilities)
        numbers = (self.feature_rows, self.held_out_labels, self.test_labels)
        if not all(a.dtype == np.float32 and a.ndim == 2 and np.isfinite(a).all() for a in (*scores, self.features)):
            return False
        if not all(a.dtype == np.int64 and a.ndim == 1 and a.min(initial=0) >= 0 for a in numbers):
            return False
        images, classes = self.target_logits.shape
        return (
            min(images, len(self.source_logits), len(self.features)) > 0
            and all(a.shape[1] == classes for a in scores)
            and (len(self.features), len(self.held_out_logits), len(self.test_probabilities))
            == tuple(map(len, numbers))
            and int(self.feature_rows.max()) < images
            and all(int(labels.max(initial=0)) < classes for labels in (self.held_out_labels, self.test_labels))
        )


def draw_rows(images: int, seed: int) -> NDArray[np.int64]:
    """The rows whose features are kept: at most FEATURE_ROWS, drawn from 0 to `images` - 1, in ascending order."""
    drawn = np.random.default_rng(derive_seed(seed, "features")).permutation(images)[:FEATURE_ROWS]
    return np.sort(drawn)


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged: delete it, and the candidate is measured again")


class TrainedNet:
    """A trained candidate's TEST phase, to be run on the images of both domains.

    Args:
        net: the trained NetParameter, with both phases.
        weights: its caffemodel.
        base_dir: folder of the net's file.
        device: the device to run on.
        workers: processes that read images ahead.
        target: list of the target's images, for nets whose TRAIN phase need not read both domains. Both are then
            prepared by the TEST phase's data layer, and every list of the source must be named.

    Attributes:
        weights: the weights; `recalibrate` changes their statistics.

    Raises:
        InputError: the net has no TEST phase that ends in logits.
    """

    def __init__(
        self,
        net: pb.NetParameter,
        weights: Path,
        *,
        base_dir: Path,
        device: torch.device,
        workers: int,
        target: Path | None = None,
    ) -> None:
        self._net, self._base_dir, self._device, self._workers = net, base_dir, device, workers
        self._test = data_in_test(net, aligned=target is None)
        if target is None:
            trained = data_in_train(net)
            assert trained is not None, "looked at before training"
        else:
            trained = TrainData((self._test,), reading(self._test, target))
        self._sources = [without_augmentation(data, self._test) for data in trained.sources]
        self._target = without_augmentation(trained.target, self._test)
        param, self._logits, self._features = _scoring(net, self._test.blob, self._batches(self._target).shape)
        self._built = Net(param, pb.TEST).to(device)
        layers = (self._built.layer(name) for name in self._built.layer_names)
        self._dials = [layer for layer in layers if isinstance(layer, DomainAlignment)]
        self._test_stats = [dial.test_stats for dial in self._dials]
        self.weights = proto.read_weights(weights)
        self._built.load_weights(self.weights, str(weights))

    def recalibrate(self, source: GivenLists) -> None:
        """Replace the statistics by those of all source and target images.

        Args:
            source: list of the source's images; None: all that the net's source layer reads. For several sources, such
                a list or None for each.

        Raises:
            InputError: the net can't be recalibrated (see `autodial.evaluation.recalibrate.recalibrate`).
            DivergedError: values that are not finite.
        """
        given = [self._batches(data) for data in self._source_data(source)]
        try:
            recalibrate(self._built, given[0] if len(given) == 1 else given, self._batches(self._target))
        except WorkError as error:
            raise DivergedError(f"after training, {error}") from error
        self.weights = with_statistics(self.weights, self._built)

    def outputs(self, *, source: GivenLists, held_out: GivenLists, target_labels: bool, seed: int) -> Outputs:
        """Run the net on all domains.

        Args:
            source: list of source images that were trained on; None: all that the net's source layer reads. For several
                sources, such a list or None for each.
            held_out: list of held-out source images with labels, or one for each source; None if there are none.
            target_labels: whether to compare with the target's labels, which the TEST phase's list must hold.
            seed: seed of the draw of rows whose features are kept.

        Raises:
            InputError: images can't be read, or labels are no classes.
            DivergedError: logits are not finite.
        """
        trained, left, labels_left = [], [], []
        for domain, data, own, path in zip(
            self._names, self._source_data(source), self._sources, self._each(held_out), strict=True
        ):
            self._use(domain)
            trained.append(self._run(data)[0])
            if path is not None:
                left.append(self._run(reading(own, path))[0])
                labels_left += [entry.label for entry in ImageList.read(path)]
        source_logits = np.concatenate(trained)
        held_out_logits = np.concatenate([source_logits[:0], *left])
        held_out_labels = np.array(labels_left, np.int64)
        self._use(None)
        target_logits, features = self._run(self._target, features=True)
        rows = draw_rows(len(features), seed)
        probabilities, labels = self._scores() if target_labels else (target_logits[:0], np.zeros(0, np.int64))
        return Outputs(
            target_logits=target_logits,
            features=features[rows],
            feature_rows=rows,
            source_logits=source_logits,
            held_out_logits=held_out_logits,
            held_out_labels=held_out_labels,
            test_probabilities=probabilities,
            test_labels=labels,
        )

    def features(self, images: Path, domain: DomainName | None = None) -> NDArray[np.float32]:
        """The classifier's inputs (N, D) for the images in a list, in its order.

        Args:
            images: the list.
            domain: whose statistics Dial layers use; None: as the TEST phase states.

        Raises:
            InputError: images can't be read.
            DivergedError: logits are not finite.
        """
        self._use(domain)
        return self._run(reading(self._target, images), features=True)[1]

    def _source_data(self, given: GivenLists) -> list[DataTop]:
        """What reads the images of each source."""
        pairs = zip(self._sources, self._each(given), strict=True)
        return [own if path is None else reading(own, path) for own, path in pairs]

    def _each(self, given: GivenLists) -> Sequence[Path | None]:
        """A list, or None, for each source."""
        return [given] * len(self._sources) if given is None or isinstance(given, Path) else given

    @property
    def _names(self) -> Sequence[DomainName]:
        return domain_names(len(self._sources))[:-1]

    def _batches(self, data: DataTop) -> DomainBatches:
        return DomainBatches(data, self._test.blob, device=self._device, workers=self._workers, base_dir=self._base_dir)

    def _use(self, domain: DomainName | None) -> None:
        """Normalize with a domain's statistics; None: as the TEST phase states."""
        for dial, of_test in zip(self._dials, self._test_stats, strict=True):
            dial.test_stats = of_test if domain is None else domain

    def _run(self, data: DataTop, *, features: bool = False) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits of all images and, if asked for, the classifier's inputs."""
        names = [self._logits, *([self._features] if features else [])]
        found: dict[str, list[NDArray[np.float32]]] = {name: [] for name in names}
        with torch.no_grad():
            for batch in self._batches(data):
                blobs = self._built.blobs(batch, names)
                for name in names:
                    found[name].append(blobs[name].flatten(1).float().cpu().numpy())
        arrays = {name: np.concatenate(parts) for name, parts in found.items()}
        logits = arrays[self._logits]
        if not np.isfinite(logits).all():
            raise DivergedError(f'after training, scores in blob "{self._logits}" are not finite (NaN or infinite)')
        return logits, arrays[names[-1]]

    def _scores(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Probabilities and labels of the TEST phase's labelled images."""
        net = Net(self._net, pb.TEST, base_dir=self._base_dir).to(self._device)
        net.load_weights(self.weights)
        scorer = Scorer(net, device=self._device, workers=self._workers, logits=self._logits)
        for _ in scorer.run():
            pass
        rows = [row for row in scorer.rows if row.loss is not None]
        if not rows:
            raise InputError("`target_labels`: the TEST phase's list has no label that is a class")
        return np.stack([row.probabilities for row in rows]), np.array([row.label for row in rows], np.int64)


def count_features(net: pb.NetParameter, target: Path, base_dir: Path) -> int:
    """How many values D `TrainedNet.features` will give for an image, before the net is trained.

    Args:
        net, target, base_dir: as `TrainedNet` takes them.

    Raises:
        InputError: the net has no TEST phase that ends in logits, or an image can't be read.
    """
    test = data_in_test(net, aligned=False)
    data = without_augmentation(reading(test, target), test)
    images = DomainBatches(data, test.blob, device=torch.device("cpu"), workers=0, base_dir=base_dir)
    param, _, features = _scoring(net, test.blob, images.shape)
    return prod(Net(param, pb.TEST).blob_shapes[features][1:])


def _scoring(net: pb.NetParameter, blob: str, shape: Shape) -> tuple[pb.NetParameter, str, str]:
    """What gives the scores of images in a blob: the net, and the names of the logits and of the classifier's input."""
    param, logits = fed_net(net, blob, shape)
    if logits is None:
        raise InputError("the TEST phase has no blob, or several, that its loss, Accuracy or Softmax layer reads")
    return param, logits, _classifier_input(param, logits)


def _classifier_input(net: pb.NetParameter, logits: str) -> str:
    """The blob that the classifier reads: the last layer with weights before the logits; else the logits themselves."""
    graph = Graph(net.layer)
    value = graph.last(logits)
    assert value is not None
    for node in reversed(graph.ancestors(value)):
        if node.param.type in _CLASSIFIERS:
            name = graph.names[node.bottoms[0]]
            return name if graph.last(name) == node.bottoms[0] else logits
    return logits

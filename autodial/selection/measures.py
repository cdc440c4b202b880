"""What is measured of a trained candidate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autodial.data.image_list import ImageList
from autodial.errors import DivergedError, InputError
from autodial.evaluation.domains import (
    DataTop,
    DomainBatches,
    data_in_test,
    data_in_train,
    fed_net,
    reading,
    without_augmentation,
)
from autodial.evaluation.scoring import Scorer
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.selection import criteria
from autodial.selection.holdout import Fold
from autodial.training.solver import load_weights


@dataclass(frozen=True)
class Measures:
    """One candidate, trained without one fold of the source.

    Attributes:
        held_out: number of source images that were held out.
        source_accuracy: of the source predictor (statistics of the source) on these, in [0, 1].
        weighted_loss: the source predictor's mean -log p(label) on these, with importance weights, in nats.
        weighted_error: its standard error.
        effective: the number of unweighted images that the weighted ones are worth, from 1 to held_out.
        domain_accuracy: of a classifier that tells by the logits which domain an image is from, 0.5 to 1.
        domain_samples: number of images that this was found on.
        entropy: mean entropy of the target's predictions, in nats.
        density: soft-neighbourhood density of the target's predictions, in nats.
        diversity: entropy of the target's mean prediction as a share of that of the source's labels.
        target_accuracy: on the TEST phase's list, if that has the target's labels; else None.
    """

    held_out: int
    source_accuracy: float
    weighted_loss: float
    weighted_error: float
    effective: float
    domain_accuracy: float
    domain_samples: int
    entropy: float
    density: float
    diversity: float
    target_accuracy: float | None = None

    @property
    def misalignment(self) -> float:
        """Error on the held-out source, plus how far the domains' logits are apart, each from 0 to 1.

        This bounds the target's error but for a constant (Ben-David et al., 2010), with half of the proxy A-distance
        2 * (1 - 2 * error of a domain classifier) for the distance of the domains.
        """
        return 1 - self.source_accuracy + max(0.0, 2 * self.domain_accuracy - 1)


def measure(
    net: Any,
    weights: Path,
    fold: Fold,
    *,
    base_dir: Path,
    device: torch.device,
    workers: int,
    target_labels: bool,
) -> Measures:
    """Measure a candidate after its training.

    Source images go through the statistics of the source, target images through those that the TEST phase uses. All are
    prepared as in the TEST phase, without augmentation. Domains are compared by their logits: by the features in front
    of the classifier, they can be told apart in nets that label both well, and a handful of images gets all the weight.

    Args:
        net: the NetParameter that it was trained with, of both phases.
        weights: its caffemodel.
        fold: of the source.
        base_dir: folder of the net's file.
        device: where to run.
        workers: processes that read images.
        target_labels: whether the TEST phase's list holds the target's labels, to see what they would say.

    Raises:
        InputError: a net without a TEST phase that ends in logits, or images that can't be read.
        DivergedError: logits that are not finite.
    """
    domains = _Domains(net, weights, base_dir, device, workers)
    held_out, sample = (domains.source(path) for path in (fold.held_out, fold.sample))
    target = domains.target()
    labels = _labels(fold.held_out)
    classes = held_out.shape[1]
    importance = criteria.importance_weights(sample, target, held_out)
    losses = criteria.log_loss(held_out, labels)
    weighted_loss, weighted_error = criteria.weighted_mean(losses, importance.values)
    predictions = criteria.softmax(target)
    every_label = np.concatenate([labels, _labels(fold.training)])
    return Measures(
        held_out=len(held_out),
        source_accuracy=float((held_out.argmax(axis=1) == labels).mean()),
        weighted_loss=weighted_loss,
        weighted_error=weighted_error,
        effective=importance.effective,
        domain_accuracy=importance.domain_accuracy,
        domain_samples=importance.domain_samples,
        entropy=criteria.mean_entropy(predictions),
        density=criteria.soft_neighbourhood_density(predictions, device),
        diversity=criteria.diversity(predictions) / criteria.label_diversity(every_label, classes),
        target_accuracy=domains.accuracy() if target_labels else None,
    )


class _Domains:
    """The logits of both domains' images."""

    def __init__(self, net: Any, weights: Path, base_dir: Path, device: torch.device, workers: int) -> None:
        self._net, self._weights = net, weights
        self._options: dict[str, Any] = {"device": device, "workers": workers, "base_dir": base_dir}
        self._test = data_in_test(net)
        trained = data_in_train(net)
        assert trained is not None, "looked at before training"
        self._source, self._target = (without_augmentation(data, self._test) for data in trained)

    def source(self, path: Path) -> NDArray[np.float32]:
        """Logits (N, C) of the images in a list, with the source's statistics."""
        return self._logits(reading(self._source, path), pb.DialParameter.SOURCE)

    def target(self) -> NDArray[np.float32]:
        """Logits (N, C) of the target's images, with the statistics of the TEST phase."""
        return self._logits(self._target, None)

    def accuracy(self) -> float:
        """Of the TEST phase on its own list."""
        device, workers = self._options["device"], self._options["workers"]
        net = Net(self._net, pb.TEST, base_dir=self._options["base_dir"]).to(device)
        load_weights(net, [self._weights])
        _, logits = fed_net(self._net, self._test.blob, net.blob_shapes[self._test.blob])
        scorer = Scorer(net, device=device, workers=workers, logits=logits)
        for _ in scorer.run():
            pass
        accuracy = scorer.accuracy()
        if accuracy is None:
            raise InputError("--target-labels: the TEST phase's list has no label that is a class")
        return accuracy

    def _logits(self, data: DataTop, statistics: pb.DialParameter.TestStats | None) -> NDArray[np.float32]:
        batches = DomainBatches(data, self._test.blob, **self._options)
        param, logits = fed_net(self._net, self._test.blob, batches.shape)
        if logits is None:
            raise InputError("the TEST phase has no blob, or several, that its loss, Accuracy or Softmax layer reads")
        for layer in param.layer:
            if layer.type == "Dial" and statistics is not None:
                layer.dial_param.test_stats = statistics
        net = Net(param, pb.TEST).to(self._options["device"])
        load_weights(net, [self._weights])
        with torch.no_grad():
            rows = [net.blobs(batch, [logits])[logits].flatten(1).float().cpu().numpy() for batch in batches]
        scores: NDArray[np.float32] = np.concatenate(rows)
        if not np.isfinite(scores).all():
            raise DivergedError(f'after training, scores in blob "{logits}" are not finite (NaN or infinite)')
        return scores


def _labels(path: Path) -> NDArray[np.int64]:
    return np.array([entry.label for entry in ImageList.read(path)])

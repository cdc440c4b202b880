"""Statistics per channel over whole data sets, and what they change in domain alignment layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autodial.errors import InputError, WorkError
from autodial.layers.dial import DomainAlignment, DomainName, domain_names

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Distance:
    """How far two sets of means and deviations per channel are apart, in units of a reference deviation.

    A channel's distance is sqrt((mean_a - mean_b)^2 + (deviation_a - deviation_b)^2), the Wasserstein distance of two
    normal distributions, divided by the reference deviation. Deviations are sqrt(variance + eps), as in the layer.

    Attributes:
        mean: the mean distance of the channels.
        worst: the largest distance of a channel.
        channel: that channel, from 0.
    """

    mean: float
    worst: float
    channel: int


@dataclass(frozen=True)
class LayerChange:
    """What changed in a Dial layer.

    Attributes:
        name: the layer's name.
        alpha: the layer's alpha, clipped to [0.5, 1], for D domains to [1 / D, 1].
        source_values, target_values: number of values per channel (samples times positions) in the statistics, those of
            all sources together; None for a source that was left as it was.
        moved_source, moved_target: distance from a predictor's stored statistics to its new ones, in new deviations,
            that of the source that moved most; None if nothing had been stored, or if they were left as they were.
        apart: distance of source and target as they enter the layer, in deviations of an even mixture of both; None
            without a source. Of several sources it is that of the one that is farthest from the target.
        aligned: distance of the same two domains as they leave the layer, in the units of its output; None without a
            source. With one source it equals `apart` at alpha 0.5, where both domains are transformed alike. It is 0 at
            alpha 1.
    """

    name: str
    alpha: float
    source_values: int | None
    target_values: int
    moved_source: Distance | None
    moved_target: Distance | None
    apart: Distance | None
    aligned: Distance | None


class Statistics(NamedTuple):
    """Mean and variance per channel, (C,) each."""

    mean: Array
    variance: Array

    def normalized(self, by: Statistics, eps: float) -> tuple[Array, Array]:
        """Mean and deviation behind a layer with the statistics `by`; eps is added to both variances."""
        scale = 1 / np.sqrt(by.variance + eps)
        return (self.mean - by.mean) * scale, np.sqrt(self.variance + eps) * scale


def mixture(parts: Sequence[Statistics], weights: Sequence[float]) -> Statistics:
    """The statistics of a mixture of distributions with these weights, which add up to 1."""
    # a difference from the first is exact where the means are close, and is nothing where another has no weight
    offsets = [part.mean - parts[0].mean for part in parts]
    shift = sum(weight * offset for weight, offset in zip(weights, offsets, strict=True))
    variance = sum(
        weight * (part.variance + (offset - shift) ** 2)
        for weight, part, offset in zip(weights, parts, offsets, strict=True)
    )
    return Statistics(parts[0].mean + shift, np.asarray(variance))


class Moments:
    """Count, mean and sum of squared deviations by channel, in float64 (Chan, Golub and LeVeque, 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Add a batch (n, C, ...), or (n,) of one channel."""
        x = x.double() if x.dim() > 1 else x.double().unsqueeze(1)
        axes = [0, *range(2, x.dim())]
        mean = x.mean(axes)
        squares = (x - mean.view(-1, *[1] * (x.dim() - 2))).square_().sum(axes)
        self._add(x.numel() // x.shape[1], mean, squares)

    def merge(self, other: Moments) -> None:
        """Add everything that was added to `other`."""
        self._add(other.count, other._mean, other._squares)

    def _add(self, count: int, mean: Tensor, squares: Tensor) -> None:
        total = self.count + count
        delta = mean - self._mean
        self._mean = self._mean + delta * (count / total)
        self._squares = self._squares + squares + delta.square() * (self.count * count / total)
        self.count = total

    def statistics(self) -> Statistics:
        """Mean and biased variance of everything added so far."""
        return Statistics(self._mean.cpu().numpy(), (self._squares / self.count).cpu().numpy())


def check_without_source(dials: Mapping[str, DomainAlignment]) -> None:
    """Refuse to leave the source out if the target depends on it, or if it has no statistics to keep."""
    for name, dial in dials.items():
        if dial.mixing < 1:
            raise InputError(
                f"layer \"{name}\" has alpha {dial.mixing:.4g}, which mixes the target's statistics with the source's: "
                "give the source's samples too, by `source`"
            )
        if not dial.normalizer.any():
            raise InputError(
                f'layer "{name}" has never stored statistics that the source could keep: give the source\'s samples '
                "too, by `source`"
            )


def store_statistics(name: str, dial: DomainAlignment, moments: Mapping[DomainName, Moments]) -> LayerChange:
    """Mix all domains' statistics, store them in a layer, and return what changed.

    Args:
        moments: those of all domains, or of the target alone, whose statistics then don't depend on the others.
    """
    found = {domain: so_far.statistics() for domain, so_far in moments.items()}
    for domain, statistics in found.items():
        if not all(np.isfinite(values).all() for values in statistics):
            raise WorkError(
                f'values that are not finite reach layer "{name}" from the {domain}: the weights are from a training '
                "that diverged"
            )
    alpha, eps = dial.mixing, dial.eps
    domains = domain_names(dial.sources)
    had_statistics = bool(dial.normalizer.any())
    old = [_stored(dial, row) for row in range(len(domains))]
    whole = len(found) == len(domains)
    if whole:
        parts = [found[domain] for domain in domains]
        other = (1 - alpha) / dial.sources
        # the predictor's own domain comes first, so that with alpha 1 its statistics stay what they are
        new = [
            mixture([own, *parts[:i], *parts[i + 1 :]], [alpha, *[other] * dial.sources]) for i, own in enumerate(parts)
        ]
    else:
        new = [*old[:-1], found["target"]]
    dial.mean.copy_(torch.from_numpy(np.stack([predictor.mean for predictor in new])))
    dial.variance.copy_(torch.from_numpy(np.stack([predictor.variance for predictor in new])))
    dial.normalizer.fill_(1)

    def distance(a: Statistics, b: Statistics, by_a: Statistics, by_b: Statistics) -> Distance:
        means, deviations = zip(a.normalized(by_a, eps), b.normalized(by_b, eps), strict=True)
        channels = np.hypot(means[0] - means[1], deviations[0] - deviations[1])
        worst = int(channels.argmax())
        return Distance(float(channels.mean()), float(channels[worst]), worst)

    def apart(row: int) -> Distance:
        joint = mixture([parts[row], parts[-1]], [0.5, 0.5])
        return distance(parts[row], parts[-1], joint, joint)

    moved: list[Distance | None] = [None] * len(domains)
    if had_statistics:
        moved = [distance(before, after, after, after) for before, after in zip(old, new, strict=True)]
    farthest = max(range(dial.sources), key=lambda row: apart(row).mean) if whole else None
    return LayerChange(
        name=name,
        alpha=alpha,
        source_values=sum(moments[domain].count for domain in domains[:-1]) if whole else None,
        target_values=moments["target"].count,
        moved_source=max(filter(None, moved[:-1]), key=lambda each: each.mean, default=None) if whole else None,
        moved_target=moved[-1],
        apart=None if farthest is None else apart(farthest),
        aligned=None if farthest is None else distance(parts[farthest], parts[-1], new[farthest], new[-1]),
    )


def _stored(dial: DomainAlignment, row: int) -> Statistics:
    """The statistics that one of a layer's predictors uses."""
    scale = 1 / dial.normalizer.item() if dial.normalizer.any() else 0.0
    return Statistics(*(blob[row].double().cpu().numpy() * scale for blob in (dial.mean, dial.variance)))

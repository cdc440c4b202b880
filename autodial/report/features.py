"""Features of both domains before and after a Dial layer (the paper's appendix on feature distributions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from autodial.errors import InputError
from autodial.layers import DomainAlignment
from autodial.layers.dial import DomainName
from autodial.report.predictions import Floats

_CHANNELS = 4
"""Channels of a layer whose values are kept."""
_POSITIONS = 64
"""Positions of a feature map whose values are kept, evenly spaced."""


class Channel(NamedTuple):
    """A channel's values, of the source's and of the target's images, as they enter a Dial layer and leave it."""

    number: int
    before: tuple[Floats, Floats]
    after: tuple[Floats, Floats]


@dataclass(frozen=True)
class LayerFeatures:
    """Features before and after a Dial layer.

    Attributes:
        layer: the layer's name.
        alpha: clipped as the layer does, to [0.5, 1] where there is one source.
        channels: some channels' values, sorted by channel.
        before, after: how far the two domains are apart: per channel sqrt((difference of means)^2 + (difference of
            deviations)^2), the Wasserstein distance of two normal distributions, averaged over all channels. `before`
            is in deviations of an even mixture of both domains, `after` in the units of the layer's output.
    """

    layer: str
    alpha: float
    channels: Sequence[Channel]
    before: float
    after: float


class Capture:
    """Watches a Dial layer and keeps the values of some channels and the moments of all, by domain.

    Images with values that are not finite are left out.

    Args:
        dial: the layer, with its stored statistics. Channels are ordered by how much their stored means differ between
            the first source and the target; the chosen ones are spread from the first to the middle of that order.

    Attributes:
        domain: whose images are being run: "target", or "source" whichever source they are of.
    """

    def __init__(self, dial: DomainAlignment) -> None:
        self.domain: DomainName = "target"
        self._dial = dial
        self._channels = _spread_channels(dial)
        self._values: dict[tuple[DomainName, bool], list[Tensor]] = {}
        self._sums: dict[tuple[DomainName, bool], Tensor] = {}
        self._handle = dial.register_forward_hook(self._see)

    def close(self) -> None:
        """Stop watching."""
        self._handle.remove()

    def _see(self, layer: nn.Module, bottoms: tuple[Tensor, ...], top: Tensor) -> None:
        for blob, behind in ((bottoms[0], False), (top, True)):
            values = blob.reshape(len(blob), self._dial.num_features, -1)
            step = ceil(values.shape[2] / _POSITIONS)
            values = values[:, :, step // 2 :: step]
            values = values[values.isfinite().flatten(1).all(1)]
            values = values.transpose(0, 1).flatten(1).double().cpu()
            key = self.domain, behind
            self._values.setdefault(key, []).append(values[self._channels])
            sums = torch.stack([torch.full((len(values),), values.shape[1]), values.sum(1), values.square().sum(1)])
            self._sums[key] = self._sums.get(key, torch.zeros(())) + sums

    def features(self, name: str) -> LayerFeatures:
        """What was seen of both domains; `name` is the layer's.

        Raises:
            InputError: every image of a domain has values that are not finite.
        """
        values = {key: torch.cat(parts, 1).numpy() for key, parts in self._values.items()}
        for (domain, _), seen in values.items():
            if not seen.size:
                raise InputError(f'layer "{name}": the features of every {domain} image are not finite')
        channels = [
            Channel(
                channel,
                (values["source", False][i], values["target", False][i]),
                (values["source", True][i], values["target", True][i]),
            )
            for i, channel in enumerate(self._channels)
        ]
        return LayerFeatures(name, self._dial.mixing, channels, self._apart(), self._apart(behind=True))

    def _apart(self, *, behind: bool = False) -> float:
        """The mean distance of the two domains; before the layer, in deviations of their mixture."""
        (source_mean, source_var), (target_mean, target_var) = (self._moments(domain, behind) for domain in _DOMAINS)
        eps = 0.0 if behind else self._dial.eps
        gap = source_mean - target_mean
        distance = np.hypot(gap, np.sqrt(source_var + eps) - np.sqrt(target_var + eps))
        if not behind:
            distance /= np.sqrt((source_var + target_var) / 2 + gap**2 / 4 + eps)
        return float(distance.mean())

    def _moments(self, domain: DomainName, behind: bool) -> tuple[Floats, Floats]:
        count, total, squares = self._sums[domain, behind].numpy()
        mean = total / count
        return mean, np.maximum(squares / count - mean**2, 0)


_DOMAINS: tuple[DomainName, ...] = ("source", "target")


def _spread_channels(dial: DomainAlignment) -> list[int]:
    scale = 1 / dial.normalizer.item() if dial.normalizer.any() else 0.0
    mean, variance = (blob.double().cpu().numpy() * scale for blob in (dial.mean, dial.variance))
    order = np.argsort(-np.abs(mean[0] - mean[-1]) / np.sqrt(variance.mean(0) + dial.eps), kind="stable")
    places = np.linspace(0, (len(order) - 1) / 2, min(_CHANNELS, len(order)))
    return sorted({int(order[round(place)]) for place in places})

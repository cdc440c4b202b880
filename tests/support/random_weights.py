"""Weights that are drawn at random, of sizes that keep the values of a deep net in bounds."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb


def random_weights(param: Any, seed: int = 0, phase: pb.Phase = pb.TEST) -> Weights:
    """Weights for all layers of a net."""
    rng = np.random.default_rng(seed)
    net = Net(param, phase)
    layers = [
        LayerWeights(message, [_drawn(message.type, i, tuple(blob.shape), rng) for i, blob in enumerate(layer.blobs)])
        for message, layer in zip(net.param.layer, net.layers.values(), strict=True)
        if layer.blobs
    ]
    return Weights(param.name, layers)


def _drawn(kind: str, index: int, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    scale = 0.01 if len(shape) == 4 and shape[1] == 3 else 1  # pixels are large
    if kind in ("BatchNorm", "Dial"):
        number = index - (kind == "Dial")  # alpha comes first
        means, variances, one = rng.normal(0, 0.1, shape), rng.uniform(0.5, 1.5, shape), np.ones(shape)
        return (one if number in (-1, 2) else variances if number == 1 else means).astype(np.float32)
    if (kind in ("Scale", "Normalize", "PReLU", "BN") and index == 0) or (kind == "BN" and index == 3):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if len(shape) < 2 or kind == "BN":
        return rng.normal(0, 0.1, shape).astype(np.float32)
    return rng.normal(0, scale * sqrt(2 / prod(shape[1:])), shape).astype(np.float32)

"""Caffe's SPP (spatial pyramid pooling)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.pooling import Pooling
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.system.seeding import derive_seed

_MOST_LEVELS = 31
"""More would have more bins along an axis than a blob has values."""


@register("SPP")
class SPP(Layer):
    """Bins over the whole image, however large it is (spp_layer.cpp): (N, C, H, W) -> (N, C * (4^levels - 1) / 3).

    Level i pools 2^i x 2^i bins; the levels follow one another, in each the channels. A single level gives
    (N, C, 1, 1). The bins of a level are all of one size, ceil(H / 2^i) x ceil(W / 2^i); where they reach beyond the
    image, half of the excess, rounded up, lies before it, and it must be less than a bin.

    Args:
        levels: from 1 on.
        method: "MAX", "AVE" or "STOCHASTIC", as of Pooling.
    """

    rows = Rows.INDEPENDENT
    is_random = True

    def __init__(self, levels: int, method: str = "MAX") -> None:
        super().__init__()
        if not 1 <= levels <= _MOST_LEVELS:
            raise LayerError(f"pyramid_height must be from 1 to {_MOST_LEVELS}, not {levels}")
        self.levels, self.method = levels, method
        self._seed: int | None = None
        self._size: tuple[int, int] | None = None
        self._poolings: list[Pooling] = []

    @classmethod
    def from_caffe(cls, context: LayerContext) -> SPP:
        param = context.param.spp_param
        # engine chooses between implementations of the same numbers.
        return cls(param.pyramid_height, pb.SPPParameter.PoolMethod.Name(param.pool))

    def reseed(self, seed: int) -> None:
        self._seed = seed
        self._reseed()

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if len(shape) != 4 or min(shape[2:]) < 1:
            raise LayerError(f"SPP needs a bottom of 4 axes (N, C, H, W), not {shape}")
        shapes = [pooling.top_shapes(bottom_shapes)[0] for pooling in self._levels((shape[2], shape[3]))]
        if self.levels == 1:
            return shapes
        return [(shape[0], sum(prod(shape[1:]) for shape in shapes))]

    def forward(self, bottom: Tensor) -> Tensor:
        tops = []
        for pooling in self._levels((bottom.shape[2], bottom.shape[3])):
            pooling.shares = self.shares
            tops.append(pooling.train(self.training)(bottom))
        return tops[0] if self.levels == 1 else torch.cat([top.flatten(1) for top in tops], 1)

    def _levels(self, size: tuple[int, int]) -> list[Pooling]:
        """The pooling of each level, for images of that size."""
        if size != self._size:
            self._poolings = [self._pooling(2**level, size) for level in range(self.levels)]
            self._size = size
            self._reseed()
        return self._poolings

    def _pooling(self, bins: int, size: tuple[int, int]) -> Pooling:
        kernel = -(-size[0] // bins), -(-size[1] // bins)
        excess = [extent * bins - length for extent, length in zip(kernel, size, strict=True)]
        pad = (excess[0] + 1) // 2, (excess[1] + 1) // 2
        if pad[0] >= kernel[0] or pad[1] >= kernel[1]:
            raise LayerError(
                f"pyramid_height {self.levels} makes {bins} x {bins} bins, too many for {size[0]} x {size[1]} pixels: "
                "make it smaller, or feed larger images"
            )
        return Pooling(self.method, kernel, stride=kernel, pad=pad)

    def _reseed(self) -> None:
        if self._seed is not None:
            for level, pooling in enumerate(self._poolings):
                pooling.reseed(derive_seed(self._seed, level))

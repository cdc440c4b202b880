"""Random numbers for a layer, which do not depend on how many processes share out the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from autodial.layers.shares import Shares


class Draws:
    """A layer's random numbers, on whatever device its bottoms are.

    After `reseed(seed)` they are a function of the seed and the number of draws since; before the first reseed they
    come from torch's global generator.
    """

    def __init__(self) -> None:
        self._seed: int | None = None
        self._generator: torch.Generator | None = None

    def reseed(self, seed: int) -> None:
        """Restart the random numbers."""
        self._seed = seed
        self._generator = None

    def bernoulli(self, like: Tensor, probability: float, shares: Shares | None) -> Tensor:
        """Ones with that probability, else zeros, of the shape and dtype of `like`.

        Args:
            shares: how the batch is shared out; each process draws for all, and takes its rows.
        """
        generator = self._on(like.device)
        if shares is None:
            return torch.empty_like(like).bernoulli_(probability, generator=generator)
        return shares.take(_like(like, shares.rows).bernoulli_(probability, generator=generator))

    def uniform(self, like: Tensor, shares: Shares | None) -> Tensor:
        """Numbers in [0, 1), of the shape and dtype of `like`; `shares` as for `bernoulli`."""
        generator = self._on(like.device)
        if shares is None:
            return torch.empty_like(like).uniform_(generator=generator)
        return shares.take(_like(like, shares.rows).uniform_(generator=generator))

    def _on(self, device: torch.device) -> torch.Generator | None:
        if self._seed is not None and (self._generator is None or self._generator.device != device):
            self._generator = torch.Generator(device).manual_seed(self._seed)
        return self._generator


def _like(rows: Tensor, count: int) -> Tensor:
    """An empty tensor of another number of rows, whose elements lie in memory in the same order of axes."""
    plain = rows.dim() != 4 or rows.is_contiguous() or not rows.is_contiguous(memory_format=torch.channels_last)
    memory_format = torch.contiguous_format if plain else torch.channels_last
    return torch.empty(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device, memory_format=memory_format)

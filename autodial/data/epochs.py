"""Which rows of a data source make up batch k; this depends only on the seed, the layer's name and k.

A source is read as an endless sequence of epochs, each in the source's order or, with `shuffle`, in a random order of
its own. Batch k starts k * batch_size rows (plus rand_skip's draw) into that sequence and may span epochs.

Everything random comes from streams with a key of the seed, the layer's name, a purpose, and the number of an epoch
(for its order) or of a batch (for its crops and flips). So batch k is the same in every process, in any order, and
after an interruption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purpose of a random stream."""

    ORDER = 0
    SKIP = 1
    TRANSFORM = 2


class Streams:
    """The random streams of a data layer.

    Args:
        seed: the net's seed, any integer.
        name: the layer's name.
    """

    def __init__(self, seed: int, name: str) -> None:
        name_key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
        self._entropy = (seed % 2**64, name_key)

    def rng(self, purpose: Purpose, index: int) -> np.random.Generator:
        """The start of the stream of an epoch or a batch."""
        key = np.random.SeedSequence(self._entropy, spawn_key=(purpose, index))
        return np.random.Generator(np.random.Philox(key))


class Epochs:
    """The rows of a source, epoch after epoch.

    Args:
        blocks: the number of rows in each part (file) of the source. A shuffled epoch has the parts in random order and
            the rows in random order within each, as Caffe has it, so that one part is read at a time.
        streams: the layer's random streams.
        shuffle: whether each epoch has its own order.
        rand_skip: the first epoch starts at a row drawn from [0, rand_skip); 0 starts at the first.
    """

    def __init__(self, blocks: Sequence[int], streams: Streams, *, shuffle: bool = False, rand_skip: int = 0) -> None:
        self._blocks = list(blocks)
        self._count = sum(blocks)
        self._streams = streams
        self._shuffle = shuffle
        self._shuffled: tuple[int, list[int]] = (-1, [])
        self._skip = int(streams.rng(Purpose.SKIP, 0).integers(rand_skip)) if rand_skip else 0

    def rows(self, index: int, batch_size: int) -> list[int]:
        """The rows of batch `index` (from 0), each in [0, sum(blocks))."""
        epoch, start = divmod(self._skip + index * batch_size, self._count)
        rows: list[int] = []
        while len(rows) < batch_size:
            rows += self._order(epoch)[start : start + batch_size - len(rows)]
            epoch, start = epoch + 1, 0
        return rows

    def _order(self, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(self._count)
        if self._shuffled[0] != epoch:
            rng = self._streams.rng(Purpose.ORDER, epoch)
            order = rng.permutation(len(self._blocks)) if len(self._blocks) > 1 else [0]
            firsts = np.cumsum([0, *self._blocks])
            rows = np.concatenate([firsts[block] + rng.permutation(self._blocks[block]) for block in order])
            self._shuffled = (epoch, rows.tolist())
        return self._shuffled[1]

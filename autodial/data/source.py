"""The interface of all readers of data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FILE_OPTIONS = {"ImageData": "image_data_param", "Data": "data_param", "HDF5Data": "hdf5_data_param"}
"""For each type of layer that reads files: the message whose `source` names the files."""
BATCH_OPTIONS = {**FILE_OPTIONS, "MemoryData": "memory_data_param", "WindowData": "window_data_param"}
"""For each type of layer that states a batch size: the message that states it."""


ALL = slice(None)
"""Every row of a batch."""


class Source(Protocol):
    """The batches of a data layer. A source can be pickled, and used in a forked process."""

    batch_size: int
    """Rows per batch."""

    @property
    def top_shapes(self) -> Sequence[tuple[int, ...]]:
        """Shapes of the tops, each with the batch size first."""

    def __len__(self) -> int:
        """Rows in an epoch."""

    def batch(self, index: int, rows: slice = ALL) -> Sequence[NDArray[np.float32]]:
        """The tops of batch `index` (from 0), a function of the seed, the layer's name and `index` alone.

        Args:
            rows: those to read, which are the same, whatever others are read with them.

        Raises:
            InputError: a row can't be read; it names the file and the row.
        """

    def names(self, index: int) -> list[str]:
        """What to call each row of batch `index`: its path, its key, its file and number."""

    def labels(self, top: int) -> Iterator[tuple[str, float]]:
        """Where each label stands and the label itself, for top number `top`, as far as they can be had in seconds."""

    def check(self) -> None:
        """Look, before the first batch, for what can be known to be wrong in seconds.

        Raises:
            InputError: it names the file and the row.
        """

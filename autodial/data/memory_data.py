"""Caffe's MemoryData layer: batches of arrays that a program sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autodial.errors import InputError
from autodial.wording import counted

if TYPE_CHECKING:
    from autodial.proto import messages as pb

_FIELDS = ("batch_size", "channels", "height", "width")


class MemoryData:
    """The batches of a MemoryData layer; `set` gives it arrays, which it reads in a cycle.

    Attributes:
        name: the layer's name.
        batch_size: rows per batch.
        top_shapes: shapes of the data top, (N, C, H, W), and of the label top, (N,).
    """

    def __init__(self, param: pb.LayerParameter) -> None:
        """Read the options of a LayerParameter message.

        Raises:
            InputError: a size is missing, or there is a transform_param, which Caffe does not apply to such arrays; it
                names the layer.
        """
        self.name: str = param.name
        sizes: list[int] = [getattr(param.memory_data_param, field) for field in _FIELDS]
        if not all(sizes):
            raise self._error(f"memory_data_param must state {', '.join(_FIELDS)}, each at least 1")
        if param.HasField("transform_param"):
            raise self._error("arrays in memory are not transformed; remove transform_param")
        self.batch_size = sizes[0]
        self.top_shapes = (tuple(sizes), (sizes[0],))
        self._arrays: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        self._first: int | None = None

    def set(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Set what is read (MemoryDataLayer::Reset); the next batch begins at the first row.

        Args:
            data: (rows, C, H, W), rows a multiple of the batch size; float32 is not copied.
            labels: one per row, in any shape.

        Raises:
            InputError: another shape, or another number of labels; it names the layer.
        """
        data = np.ascontiguousarray(data, dtype=np.float32)
        labels = np.ascontiguousarray(labels, dtype=np.float32)
        if data.shape[1:] != self.top_shapes[0][1:] or not len(data) or len(data) % self.batch_size:
            raise self._error(
                f"the data has shape {data.shape} and must be {self.top_shapes[0]}, or a multiple of {self.batch_size} "
                "rows"
            )
        if labels.size != len(data):
            raise self._error(f"{counted(len(data), 'row')} of data came with {counted(labels.size, 'label')}")
        self._arrays = data, labels.reshape(-1)
        self._first = None

    def batch(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Data and labels of batch `index`, counted from the first batch requested after `set`.

        Returns:
            float32 arrays of `top_shapes`, views of the arrays that were set.

        Raises:
            InputError: no arrays were set.
        """
        if self._arrays is None:
            raise self._error("it has no data yet: call set_input_arrays first")
        if self._first is None:
            self._first = index
        data, labels = self._arrays
        start = (index - self._first) * self.batch_size % len(data)
        rows = slice(start, start + self.batch_size)
        return data[rows], labels[rows]

    def _error(self, reason: str) -> InputError:
        return InputError(f'layer "{self.name}" (MemoryData): {reason}')

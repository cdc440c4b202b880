"""Blobs as pycaffe shows them: numpy arrays that stay the same arrays from one pass to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autodial.layers import Shape

Array = npt.NDArray[np.float32]


class _Lasting:
    """A value that is replaced at each pass, but is kept in one array from when somebody has asked for the array."""

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self._array: Array | None = None

    @property
    def array(self) -> Array:
        if self._array is None:
            # an expanded or shared tensor must not be written to through the array
            self._array = self._value.detach().clone(memory_format=torch.contiguous_format).numpy()
        return self._array

    @property
    def tensor(self) -> Tensor:
        # a copy, since a pass may keep it while the array is overwritten
        return self._value if self._array is None else torch.from_numpy(self._array).clone()

    def set(self, value: Tensor) -> None:
        if self._array is not None and self._array.shape == tuple(value.shape):
            np.copyto(self._array, value.detach().numpy())
        else:
            self._value, self._array = value.detach(), None


class Blob:
    """Data and gradient of a blob of activations: `data` and `diff`, float32 arrays of the blob's shape.

    Writing to the arrays changes what the next forward or backward pass reads, as in pycaffe.
    """

    def __init__(self, shape: Shape, diff: float = 0.0) -> None:
        self.values = _Lasting(torch.zeros(shape))
        self.gradients = _Lasting(torch.full(shape, diff))

    @property
    def data(self) -> Array:
        return self.values.array

    @property
    def diff(self) -> Array:
        return self.gradients.array


class ParamBlob:
    """Data and gradient of a layer's parameter or statistics: `data` and `diff`, arrays that share their memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @property
    def data(self) -> Array:
        return self._tensor.detach().numpy()

    @property
    def diff(self) -> Array:
        if self._tensor.grad is None:
            self._tensor.grad = torch.zeros_like(self._tensor)
        return self._tensor.grad.numpy()


def to_tensor(value: Any, shape: Shape, name: str) -> Tensor:
    """An array for a blob as a float32 tensor; ValueError when its shape is another."""
    array = np.ascontiguousarray(value, np.float32)
    if array.shape != shape:
        raise ValueError(f'blob "{name}" has shape {shape} and is given {array.shape}')
    return torch.from_numpy(array)

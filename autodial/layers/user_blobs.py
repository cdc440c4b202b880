"""Blobs as pycaffe shows them: numpy arrays that stay the same arrays from one pass to the next."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from autodial.layers.base import Layer, Shape

Array = npt.NDArray[np.float32]


class _Shaped:
    """What pycaffe says about the shape of any blob."""

    @property
    def shape(self) -> Shape:
        """Lengths of all axes; () for a scalar."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def num(self) -> int:
        """Length of the first axis, 1 where there is none; like the three after it for blobs of up to 4 axes."""
        return self._axis(0)

    @property
    def channels(self) -> int:
        """Length of the second axis, 1 where there is none."""
        return self._axis(1)

    @property
    def height(self) -> int:
        """Length of the third axis, 1 where there is none."""
        return self._axis(2)

    @property
    def width(self) -> int:
        """Length of the fourth axis, 1 where there is none."""
        return self._axis(3)

    def _axis(self, index: int) -> int:
        if len(self.shape) > 4:
            raise ValueError(f"a blob of shape {self.shape} has no num, channels, height and width: use its shape")
        return self.shape[index] if index < len(self.shape) else 1


class Values:
    """Values that every pass replaces, kept in one array from when somebody has asked for the array.

    Until then they are the tensor that the last pass left, so that nothing is copied that nobody looks at.

    Args:
        shape: of the tensor or array.
        fill: what it holds at first.

    Attributes:
        version: how often the values were replaced or took another shape.
    """

    def __init__(self, shape: Shape, fill: float = 0.0) -> None:
        self.shape = shape
        self.version = 0
        self._fill = fill
        self._tensor: Tensor | None = None
        self._array: Array | None = None

    @property
    def array(self) -> Array:
        """The values, float32, in an array that later passes write to."""
        if self._array is None:
            if self._tensor is None:
                self._array = np.full(self.shape, self._fill, np.float32)
            else:
                # an expanded or shared tensor must not be written to through the array
                whole = torch.contiguous_format
                self._array = self._tensor.to("cpu", copy=True, memory_format=whole).numpy()
                self._tensor = None
        return self._array

    def tensor(self, device: torch.device) -> Tensor:
        """The values on a device; on the CPU the tensor may share the array's memory."""
        if self._array is not None:
            return torch.from_numpy(self._array).to(device)
        if self._tensor is None:
            self._tensor = torch.full(self.shape, self._fill)
        return self._tensor.to(device)

    def snapshot(self, device: torch.device) -> Tensor:
        """The values on a device, which don't change when the array is written to."""
        if self._array is not None:
            return torch.from_numpy(self._array).to(device, copy=True)
        return self.tensor(device)

    def written(self, before: Tensor) -> bool:
        """Whether somebody has written other values to the array than `before`."""
        return self._array is not None and not torch.equal(torch.from_numpy(self._array).to(before.device), before)

    def set(self, values: Tensor) -> None:
        """Replace the values, and the shape by that of `values`."""
        self.version += 1
        if self._array is not None and self._array.shape == values.shape:
            np.copyto(self._array, values.detach().cpu().numpy())
        else:
            self.shape = tuple(values.shape)
            self._tensor, self._array = values.detach(), None

    def reshape(self, shape: Shape) -> None:
        """Change the shape; the first values stay as far as the new shape needs no more than there are."""
        if shape == self.shape:
            return
        self.version += 1
        count = prod(shape)
        fits = count <= prod(self.shape)
        self._array = self._array.reshape(-1)[:count].reshape(shape) if fits and self._array is not None else None
        self._tensor = self._tensor.reshape(-1)[:count].view(shape) if fits and self._tensor is not None else None
        self.shape = shape


class Blob(_Shaped):
    """A blob of activations. Writing to its arrays changes what the next pass reads.

    Forward, a layer reads the `data` of its bottoms. Backward, it reads the `diff` of its tops and, as in Caffe, what
    its bottoms' `data` has become, if its gradient needs that: convolutions, InnerProduct, Scale, activations other
    than Sigmoid and TanH, and all others whose class has `backward_reads_bottoms`; losses read their labels. For any
    other bottom, and for one that the layer overwrites in place, it takes what the forward pass met, such as the mask
    of Dropout, the maxima of Pooling and the probabilities of a loss.

    The `data` of tops is not read backward, where Caffe reads that of ELU, Exp, LRN, MVN, Power, Sigmoid, Softmax and
    TanH, and of layers in place: what such a layer needs of its top follows from its bottom.

    Args:
        shape: of data and diff.
        diff: the gradient until a pass or a script sets another: a loss blob's loss_weight.
    """

    def __init__(self, shape: Shape, diff: float = 0.0) -> None:
        self.values = Values(shape)
        self._gradients = Values(shape, diff)

    @property
    def gradients(self) -> Values:
        """What `diff` shows."""
        self._gradients.reshape(self.values.shape)
        return self._gradients

    @property
    def data(self) -> Array:
        """The values, float32 of the blob's shape; the same array until the shape changes."""
        return self.values.array

    @property
    def diff(self) -> Array:
        """The gradient by the values, float32 of the blob's shape; the same array until the shape changes."""
        return self.gradients.array

    @property
    def shape(self) -> Shape:
        return self.values.shape

    def reshape(self, *shape: int) -> None:
        """Change the shape; later layers follow at the next forward pass, or at once with the net's `reshape`."""
        self.values.reshape(tuple(int(length) for length in shape))


class ParamBlob(_Shaped):
    """A layer's parameter or statistics, which it goes on using: writing to the arrays changes the layer.

    Args:
        layer: the layer.
        index: the blob's place among the layer's.
    """

    def __init__(self, layer: Layer, index: int) -> None:
        self._layer = layer
        self._index = index

    @property
    def tensor(self) -> Tensor:
        """The layer's tensor."""
        return self._layer.blobs[self._index]

    @property
    def gradient(self) -> Tensor | None:
        """The gradient, of the blob's shape; None as long as nobody has asked for it or added to it."""
        grad = self._owner.grad
        return None if grad is None else grad.view(self.shape)

    @property
    def data(self) -> Array:
        """The values, float32 of the blob's shape."""
        return _host_array(self._owner).reshape(self.shape)

    @property
    def diff(self) -> Array:
        """The sum of the gradients since `clear_param_diffs`, float32 of the blob's shape."""
        owner = self._owner
        if owner.grad is None:
            owner.grad = torch.zeros_like(owner)
        return _host_array(owner.grad).reshape(self.shape)

    @property
    def shape(self) -> Shape:
        return tuple(self.tensor.shape)

    def reshape(self, *shape: int) -> None:
        """Accept the shape that the blob has; ValueError for another, as the layer's type decides on it."""
        if shape != self.shape:
            raise ValueError(f"a parameter of shape {self.shape} can't take shape {shape}: change the prototxt")

    def add_gradient(self, gradient: Tensor) -> None:
        """Add to the gradient."""
        owner = self._owner
        if owner.grad is None:
            owner.grad = gradient.clone(memory_format=torch.contiguous_format).view(owner.shape)
        else:
            owner.grad += gradient.reshape(owner.shape)

    @property
    def _owner(self) -> Tensor:
        """The tensor that this one is a view of, where layers share it in another shape."""
        tensor = self.tensor
        return tensor if tensor._base is None else tensor._base


class LayerBlobs(list[ParamBlob]):
    """All parameters and statistics of a layer, in the order in which a caffemodel holds them."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(ParamBlob(layer, i) for i in range(len(layer.blobs)))
        self._layer: Any = layer

    def add_blob(self, *shape: int) -> None:
        """Give a layer that is written in Python one more, of zeros, in its `setup`."""
        self._layer.add_blob(shape)
        self.append(ParamBlob(self._layer, len(self)))


class _Mirror:
    """The array that stands for a tensor on the GPU, from when somebody has asked for it."""

    array: Array | None = None


# Keyed by tensor, as nets that share a parameter must show it in one array.
_mirrors: MutableMapping[Tensor, _Mirror] = WeakTensorKeyDictionary()


def _host_array(tensor: Tensor) -> Array:
    """A tensor as an array: its own memory on the CPU; else a copy, which `upload` and `download` keep in step."""
    if tensor.device.type == "cpu":
        return tensor.detach().numpy()
    mirror = _mirrors.setdefault(tensor, _Mirror())
    if mirror.array is None:
        mirror.array = tensor.detach().cpu().numpy()
    return mirror.array


def share_memory(tensor: Tensor, other: Tensor) -> None:
    """Let a tensor use the memory of another one of its shape."""
    tensor.data = other.data
    if tensor.device.type != "cpu":
        _mirrors[tensor] = _mirrors.setdefault(other, _Mirror())


def upload(blobs: Iterable[ParamBlob]) -> None:
    """Copy the arrays that scripts may have written to, to the GPU: before a pass reads the tensors."""
    for tensor, array in _mirrored(blobs):
        # through `data`, since a graph that has kept the tensor is to go on with what it holds now, as on the CPU
        tensor.data.copy_(torch.from_numpy(array))


def download(blobs: Iterable[ParamBlob]) -> None:
    """Copy the tensors to the arrays that scripts hold: after a pass or an update may have changed them."""
    for tensor, array in _mirrored(blobs):
        np.copyto(array, tensor.detach().cpu().numpy())


def _mirrored(blobs: Iterable[ParamBlob]) -> Iterable[tuple[Tensor, Array]]:
    if not _mirrors:
        return
    for blob in blobs:
        owner = blob._owner
        for tensor in (owner, owner.grad):
            mirror = None if tensor is None else _mirrors.get(tensor)
            if tensor is not None and mirror is not None and mirror.array is not None:
                yield tensor, mirror.array

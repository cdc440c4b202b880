"""What weights and solver states hold, whatever the format of their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class LayerWeights:
    """One layer of a caffemodel."""

    param: Any
    """LayerParameter: the layer as the net had it, without blobs. An HDF5 file knows its name only."""
    blobs: Sequence[NDArray[np.float32] | None]
    """The learned arrays in Caffe's order and shapes: a Convolution's (outputs, inputs, height, width), (outputs,).

    HDF5 files hold a blob that layers share with the first of them only: with the others it is None, or not there at
    the end.
    """
    legacy: frozenset[int] = frozenset()
    """The indices of blobs to which an old file gives no shape but num, channels, height and width: they have four axes
    here, those that they lack in the net being 1, in front."""

    @property
    def name(self) -> str:
        """The layer's name, by which weights find their layer."""
        return str(self.param.name)

    @property
    def type(self) -> str:
        """The layer's type, such as "Convolution"."""
        return str(self.param.type)

    @property
    def bottom(self) -> list[str]:
        """The names of the blobs that the layer reads."""
        return list(self.param.bottom)

    @property
    def top(self) -> list[str]:
        """The names of the blobs that the layer writes."""
        return list(self.param.top)

    def fits(self, index: int, shape: tuple[int, ...]) -> bool:
        """Whether the blob at `index` may be copied into one of this shape (Caffe: Blob::ShapeEquals).

        The shapes must be equal; a legacy one also fits behind leading axes of 1. A blob that is not there fits.
        """
        blob = self.blobs[index] if index < len(self.blobs) else None
        if blob is None:
            return True
        if index in self.legacy and len(shape) < 4:
            shape = (1,) * (4 - len(shape)) + shape
        return blob.shape == shape


@dataclass
class Weights:
    """A caffemodel: the net's name and all its layers in order, those without blobs too."""

    name: str
    layers: list[LayerWeights] = field(default_factory=list)


def merge_weights(files: Sequence[Weights]) -> Weights:
    """Several caffemodels as one, at least one: a later one's layers take the place of an earlier one's."""
    merged = files[0]
    for file in files[1:]:
        names = {layer.name for layer in file.layers}
        merged = Weights(file.name, [*(layer for layer in merged.layers if layer.name not in names), *file.layers])
    return merged


@dataclass
class State:
    """A solverstate: what a solver needs besides the weights to go on."""

    iter: int
    """Iterations done."""
    current_step: int
    """How many steps the multistep policy has taken."""
    learned_net: str
    """The path of the caffemodel that belongs to it."""
    history: list[NDArray[np.float32]]
    """The solver's running arrays, one or more per parameter, in the parameters' shapes."""

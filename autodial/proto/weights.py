"""Weights and solver states, independent of the format of their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autodial.proto import messages as pb


@dataclass
class LayerWeights:
    """One layer of a caffemodel."""

    param: pb.LayerParameter
    """The layer as the net had it, without blobs. An HDF5 file knows its name only."""
    blobs: Sequence[NDArray[np.float32] | None]
    """The learned arrays in Caffe's order and shapes: a Convolution's (outputs, inputs, height, width), (outputs,).

    Where layers share a blob, HDF5 files hold it in the first of the layers only: in the others it is None, or missing
    at the end.
    """
    legacy: frozenset[int] = frozenset()
    """The indices of blobs whose shape an old file gives as num, channels, height and width. They have four axes here;
    the leading ones are 1 where the net's blob has fewer."""

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
        """Whether the blob at `index` may be copied into a blob of this shape (Caffe: Blob::ShapeEquals).

        The shapes must be equal; for a legacy blob, leading axes of 1 are ignored. A missing blob fits.
        """
        blob = self.blobs[index] if index < len(self.blobs) else None
        if blob is None:
            return True
        if index in self.legacy and len(shape) < 4:
            shape = (1,) * (4 - len(shape)) + shape
        return blob.shape == shape


@dataclass
class Weights:
    """A caffemodel: the net's name and all its layers in order, including those without blobs."""

    name: str
    layers: list[LayerWeights] = field(default_factory=list)


def merge_weights(files: Sequence[Weights]) -> Weights:
    """One or more caffemodels as one: layers of a later file replace layers of the same name."""
    merged = files[0]
    for file in files[1:]:
        names = {layer.name for layer in file.layers}
        merged = Weights(file.name, [*(layer for layer in merged.layers if layer.name not in names), *file.layers])
    return merged


@dataclass
class State:
    """A solverstate: what a solver needs in addition to the weights to continue."""

    iter: int
    """Iterations done."""
    current_step: int
    """How many steps the multistep policy has taken."""
    learned_net: str
    """The path of the caffemodel that belongs to it."""
    history: list[NDArray[np.float32]]
    """The solver's running arrays, one or more per parameter, in the parameters' shapes."""

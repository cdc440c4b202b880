"""The base of all Caffe layers: torch modules, built from a prototxt, registered under their Caffe type names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autodial.errors import InputError
from autodial.layers.shares import N, Rows, Shares
from autodial.proto import messages as pb

TRAIN, TEST = pb.TRAIN, pb.TEST
"""Values of caffe.Phase."""

Shape = tuple[int, ...]
Stored = NDArray[np.float32]
"""A blob of a caffemodel."""


LARGEST_BLOB = 2**31 - 1
"""Elements of a blob; Caffe counts them in an int."""


class LayerError(ValueError):
    """A layer can't be built or run as its prototxt says; the net adds the layer's name and type."""


@dataclass(frozen=True)
class LayerContext:
    """All that a layer may know when it is built.

    Attributes:
        param: the layer's message.
        phase: TRAIN or TEST.
        bottom_shapes: one shape per bottom blob.
        num_tops: number of top blobs that the prototxt names.
        generator: CPU random generator for the fillers, a function of (random_seed, layer name) alone.
        seed: the net's random_seed (data layers draw from it and the layer's name).
        base_dir: folder of the file that the prototxt came from; relative paths are tried there second.
    """

    param: pb.LayerParameter
    phase: pb.Phase
    bottom_shapes: tuple[Shape, ...]
    num_tops: int
    generator: torch.Generator
    seed: int = 0
    base_dir: Path | None = None


class Layer(nn.Module):
    """Base of all layers: `forward(*bottoms)` returns a tensor, or a tuple of one tensor per top.

    A subclass is an ordinary torch module with an ordinary constructor; `from_caffe` reads the prototxt.
    `training` decides what Caffe's phase decides (a net built for TRAIN is in training mode).
    """

    type_name: ClassVar[str] = ""
    """Caffe type name, set by `register`."""
    bottoms: ClassVar[tuple[int, int | None]] = (1, 1)
    """Least and largest number of bottoms (None: any)."""
    tops: ClassVar[tuple[int, int | None]] = (1, 1)
    """Least and largest number of tops (None: any)."""
    is_loss: ClassVar[bool] = False
    """Whether the first top has loss_weight 1 unless the prototxt says otherwise."""
    full_precision: ClassVar[bool] = False
    """Whether the layer computes in float32 where others take half precision (torch.autocast); a loss always does."""
    is_data: ClassVar[bool] = False
    """Whether the tops are fed from outside (Input and the data layers), so that `forward` is never called."""
    is_random: ClassVar[bool] = False
    """Whether `reseed(seed: int)` must be called before each forward pass."""
    is_scheduled: ClassVar[bool] = False
    """Whether `begin_iteration(iteration: int)` must be called before each iteration of a solver."""
    statistics: ClassVar[tuple[int, ...]] = ()
    """Indices of the blobs that hold statistics: lr_mult 0 unless stated, and an error if stated non-zero."""
    no_gradient: ClassVar[tuple[int, ...]] = ()
    """Indices of the bottoms through which no gradient flows (labels); -1 is the last."""
    in_place: ClassVar[bool] = True
    """Whether a top may be named like the bottom in its place."""
    options: ClassVar[tuple[str, ...]] = ()
    """The `*_param` messages of a LayerParameter that the layer reads in addition to the one named like its type."""
    fork_fields: ClassVar[tuple[str, ...]] = ()
    """The fields and enum values that a fork added to Caffe's own messages and that the layer reads, such as
    "pooling_param.ceil_mode" or "loss_param.normalization: PRE_FIXED"; all others are refused."""
    rows: ClassVar[Rows | None] = None
    """What the layer does with the rows of its batch. With None a net with the layer trains in one process."""
    reads_scores: ClassVar[bool] = False
    """Whether the first bottom holds scores or probabilities of classes. Code without torch knows it by
    autodial.netparam.layer_types.READS_SCORES."""
    reads_labels: ClassVar[bool] = False
    """Whether the second bottom holds class labels, in [0, classes) or equal to the layer's `ignore_label`, for scores
    whose classes lie along the layer's `axis`; such labels are checked before training."""
    per_channel: ClassVar[bool] = False
    """Whether the layer keeps the channels of its bottom and has parameters or statistics for each, so that they depend
    on the number of classes behind a classifier (autodial.netparam.layer_types.PER_CHANNEL)."""

    backward_reads_bottoms: bool = False
    """Whether Caffe's Backward reads the bottoms' data, so that a pycaffe script that writes there in between
    changes the gradients. Other layers keep in Forward what they need. A loss always reads its labels in Backward."""

    shares: Shares | None = None
    """How the batch is shared out where several processes train; None where all of it is here."""

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Layer:
        """Build the layer from its prototxt; raises LayerError for what can't be honoured."""
        raise NotImplementedError

    @classmethod
    def without_gradient(cls, bottoms: int) -> set[int]:
        """The indices of the bottoms without a gradient, for a layer with that many bottoms."""
        return {j % bottoms for j in cls.no_gradient if j < bottoms}

    @classmethod
    def unread_options(cls, param: pb.LayerParameter) -> list[str]:
        """The `*_param` messages of a LayerParameter that this type of layer does not read."""
        return [
            field.name
            for field, value in param.ListFields()
            if field.name.endswith("_param")
            and field.name not in cls.options
            and (not field.has_presence or value.ListFields())  # a list is given
            # "inner_product_param" for InnerProduct, "elu_param" for ELU
            and field.name.replace("_", "") != f"{cls.type_name.lower()}param"
        ]

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        """Parameters and statistics in the order in which a caffemodel stores them."""
        return ()

    def taken(self, arrays: Sequence[Stored | None]) -> Sequence[Stored | None]:
        """What the layer takes of the blobs that weights hold for it; as a rule all, as they are."""
        return arrays

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        """Shapes of the tops for these bottoms; raises LayerError, naming the shapes, when they don't fit."""
        raise NotImplementedError

    def whole(self, count: N) -> N:
        """A count for the whole batch, from the count for this process's rows (`Shares.whole`)."""
        return count if self.shares is None else self.shares.whole(count)

    def rewind(self) -> None:
        """Restore the state from before the last forward pass, so that the same pass can be run again."""

    def reseed(self, seed: int) -> None:
        """Restart the random state of a layer with `is_random`."""
        raise NotImplementedError

    def begin_iteration(self, iteration: int) -> None:
        """Tell a layer with `is_scheduled` the solver's iteration, from 0."""
        raise NotImplementedError


registry: dict[str, type[Layer]] = {}
"""Layer classes by Caffe type name."""

NOT_SUPPORTED = {
    "Recurrent": "it is what Caffe's recurrent layers have in common; write LSTM or RNN",
    "IPlugin": "it is a plugin of TensorRT, which code chooses by the layer's name; "
    "use the prototxt that the net was trained with",
    "ROIAlign": "forks compute different things under this name; write yours as a Python layer",
    "WindowData": "cut the windows out into image files, and list these for an ImageData layer",
}
"""Layer types of Caffe and of its forks that do not exist here, with what to do instead."""

L = TypeVar("L", bound=type[Layer])


def register(name: str) -> Callable[[L], L]:
    """Class decorator: the class implements the Caffe layer type `name`."""

    def add(cls: L) -> L:
        cls.type_name = name
        registry[name] = cls
        return cls

    return add


def check_size(what: str, shape: Shape) -> Shape:
    """`shape`, or a LayerError, before anything is allocated, if no blob of float32 can have it on this machine.

    Args:
        what: the tensor's name, for the message.
    """
    count = prod(shape)
    if min(shape, default=0) < 0 or count > LARGEST_BLOB or (_MEMORY and 4 * count > _MEMORY):
        limit = "a blob has 2^31 - 1 values at most" if count > LARGEST_BLOB else "this machine has less memory"
        size = f" and need {4 * count / 1e9:,.0f} GB, and {limit}" if count > 0 else ""
        raise LayerError(f"{what} would have the shape {tuple(shape)}{size}")
    return shape


def _physical_memory() -> int:
    """Bytes of the machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 0


_MEMORY = _physical_memory()


def canonical_axis(axis: int, num_axes: int) -> int:
    """A possibly negative axis as an index in [0, num_axes) (Blob::CanonicalAxisIndex); LayerError outside."""
    if not -num_axes <= axis < num_axes:
        raise LayerError(f"axis {axis} is out of range for a blob with {num_axes} axes")
    return axis % num_axes


def layer_class(name: str) -> type[Layer]:
    """The class of a Caffe layer type.

    Raises:
        InputError: there is none; it says what to do instead, or where the types are listed.
    """
    if name in registry:
        return registry[name]
    if name in NOT_SUPPORTED:
        raise InputError(f'layer type "{name}" is not supported: {NOT_SUPPORTED[name]}')
    raise InputError(f'layer type "{name}" is not supported; docs/caffe.md lists the types that are')

"""Weights, solver states and mean images: the binary files.

A net has up to hundreds of millions of weights, and most protobuf runtimes hand over a packed field one Python float at
a time. So the files are read and written by a schema in which these fields are bytes, which NumPy takes as they are;
only floats that a file stores unpacked are left to the ordinary classes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import ArrayLike, NDArray

from autodial.errors import InputError, WorkError

from . import messages, schema
from .files import existing_file, is_binary, read_bytes, replacing
from .old_formats import refuse_old_format

_ORDINARY = vars(messages)
_WIRE = schema.load(packed_as_bytes=True)
_LIMIT = 2**31 - 1  # bytes in the longest message that protobuf reads or writes
_BEYOND_LIMIT = "protobuf ends at 2 GiB, and Caffe's format for more, HDF5, is not supported yet"
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

T = TypeVar("T")


@dataclass
class LayerWeights:
    """One layer of a caffemodel."""

    param: Any
    """LayerParameter: the layer as the net had it, without blobs."""
    blobs: list[NDArray[np.float32]]
    """The learned arrays in Caffe's order and shapes: a Convolution's (outputs, inputs, height, width), (outputs,)."""

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


@dataclass
class Weights:
    """A caffemodel: the net's name and all its layers in order, those without blobs too."""

    name: str
    layers: list[LayerWeights] = field(default_factory=list)


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


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """The weights in a binary caffemodel of up to 2 GiB; values stored as doubles are rounded to float32.

    A blob that gives num, channels, height and width instead of a shape is 4-D, as in Caffe. InputError if the file
    is cut short, damaged, something else, or has V0 or V1 layers.
    """
    return _read(path, "caffemodel", "NetParameter", _weights)


def write_weights(weights: Weights, path: str | os.PathLike[str]) -> None:
    """Write a binary caffemodel with the fields that Caffe writes, whole or not at all.

    WorkError if it can't be written; nothing larger than 2 GiB can.
    """
    # Each blob also takes its tags, lengths and shape: 10 bytes a number at most.
    size = sum(
        layer.param.ByteSize() + sum(4 * np.size(blob) + 10 * (4 + np.ndim(blob)) for blob in layer.blobs)
        for layer in weights.layers
    )
    if size > _LIMIT:
        raise WorkError(f"{path} would take {size / 2**30:.1f} GiB: {_BEYOND_LIMIT}")
    with replacing(path) as file:
        # Layer by layer: the parts of a message, one after the other, are the message.
        file.write(messages.NetParameter(name=weights.name).SerializeToString())
        for layer in weights.layers:
            part = _WIRE["NetParameter"]()
            message = part.layer.add()
            message.MergeFromString(layer.param.SerializeToString())
            _store(layer.blobs, message.blobs)
            file.write(part.SerializeToString())


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in a binary solverstate; InputError as in read_weights."""
    return _read(path, "solverstate", "SolverState", _state)


def write_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write a binary solverstate, whole or not at all; WorkError if it can't be written."""
    if (size := sum(4 * np.size(array) for array in state.history)) > _LIMIT - 2**20:
        raise WorkError(f"{path} would take {size / 2**30:.1f} GiB: {_BEYOND_LIMIT}")
    message = _WIRE["SolverState"](iter=state.iter, learned_net=state.learned_net, current_step=state.current_step)
    _store(state.history, message.history)
    with replacing(path) as file:
        file.write(message.SerializeToString())


def read_blob(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    """The array in a binary BlobProto file, such as a mean image (1, channels, height, width); InputError as above."""
    return _read(path, "binaryproto", "BlobProto", _blob)


class _ContentError(Exception):
    """The message is readable and what it holds is no use; the text says why, without the file's name."""


def _read(path: str | os.PathLike[str], kind: str, message: str, convert: Callable[[Any, str], T]) -> T:
    """`convert` of the message in the file, whose every fault becomes one InputError."""
    path = existing_file(path, kind)
    size = path.stat().st_size
    if size > _LIMIT:
        raise InputError(f"{path} has {size / 2**30:.1f} GiB: {_BEYOND_LIMIT}")
    try:
        try:
            return convert(_WIRE[message].FromString(read_bytes(path, kind)), str(path))
        except _ContentError:
            # Floats stored unpacked are unknown fields to that schema, so that values seem to be missing.
            return convert(_ORDINARY[message].FromString(read_bytes(path, kind)), str(path))
    except (DecodeError, UnicodeDecodeError) as error:
        problem = " is cut short or damaged, or something else than its name says: copy or download it again"
        raise InputError(f"{path}{_other_kind(path, kind) or problem}") from error
    except _ContentError as error:
        raise InputError(f"{path}{_other_kind(path, kind) or f': {error}'}") from error


def _other_kind(path: Path, kind: str) -> str | None:
    """What the file is instead of a binary `kind`, as the end of a sentence, if that is easy to see."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(_HDF5_SIGNATURE):
        return f" is an HDF5 file, which is not supported yet: name a binary {kind}"
    if start and not is_binary(start):
        return f" is a text file: name a binary {kind}"
    if path.suffix in (".caffemodel", ".solverstate") and path.suffix != f".{kind}":
        return f" is a {path.suffix[1:]}: name a {kind}"
    return None


def _weights(net: Any, path: str) -> Weights:
    if net.layers:
        refuse_old_format(net, path)
    if not net.layer:
        raise _ContentError("there are no layers in it, so it is no caffemodel")
    _check_text(net.name)
    layers = []
    for layer in net.layer:
        _check_text(layer.name, layer.type, *layer.bottom, *layer.top)
        blobs = [_array(blob, f'layer "{layer.name}", blob {index}') for index, blob in enumerate(layer.blobs)]
        del layer.blobs[:]
        layers.append(LayerWeights(messages.LayerParameter.FromString(layer.SerializeToString()), blobs))
    return Weights(net.name, layers)


def _state(state: Any, path: str) -> State:
    if not state.HasField("iter"):
        raise _ContentError("there is no iteration in it, so it is no solverstate")
    _check_text(state.learned_net)
    history = [_array(blob, f"history {index}") for index, blob in enumerate(state.history)]
    return State(state.iter, state.current_step, state.learned_net, history)


def _blob(blob: Any, path: str) -> NDArray[np.float32]:
    return _array(blob, "the blob")


def _check_text(*names: Any) -> None:
    for name in names:
        if isinstance(name, bytes):  # protobuf's C runtime hands over a string that isn't UTF-8 like this
            raise _ContentError(f"the name {name!r} is not UTF-8, so the file is probably damaged")


def _array(blob: Any, what: str) -> NDArray[np.float32]:
    """A BlobProto of either schema as a float32 array of its own memory; `what` is its name in errors."""
    legacy = ("num", "channels", "height", "width")
    if any(blob.HasField(name) for name in legacy):
        shape = tuple(getattr(blob, name) for name in legacy)
    else:
        shape = tuple(blob.shape.dim)
    values, dtype = (blob.double_data, "<f8") if len(blob.double_data) else (blob.data, "<f4")
    try:
        flat = np.frombuffer(b"".join(values), dtype) if type(blob) is _WIRE["BlobProto"] else np.array(values, dtype)
    except ValueError as error:
        raise _ContentError(f"{what} ends within a value, so the file is probably damaged") from error
    if min(shape, default=0) < 0 or math.prod(shape) != flat.size:
        raise _ContentError(f"{what} has the shape {shape} and {flat.size} values, so the file is probably damaged")
    return flat.astype(np.float32).reshape(shape)


def _store(arrays: Iterable[ArrayLike], blobs: Any) -> None:
    """Append each array to the BlobProtos of the wire schema, as packed floats with a shape."""
    for array in arrays:
        values = np.asarray(array, "<f4")
        blob = blobs.add()
        blob.shape.dim.extend(values.shape)
        blob.data.append(values.tobytes())

"""Weights, solver states and mean images: the binary files.

A net has up to hundreds of millions of weights, and most protobuf runtimes hand over a packed field one Python float at
a time. So the files are read and written by a schema in which these fields are bytes, which NumPy takes as they are;
only floats that a file stores unpacked are left to protobuf. The parameters of layers pass through it unread, since the
layer's type decides what they are (wire.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import ArrayLike, NDArray

from autodial.errors import InputError, WorkError
from autodial.proto import messages as pb
from autodial.proto import schema, wire
from autodial.proto.upgrade import upgrade_net
from autodial.proto.weights import LayerWeights, State, Weights
from autodial.system.files import existing_file, is_binary, read_bytes, replacing, stand_in

_FRAME, _FRAME_UNPACKED = (schema.load_frame(packed_as_bytes=packed) for packed in (True, False))
_LIMIT = 2**31 - 1  # bytes in the longest message that protobuf reads or writes
_BEYOND_LIMIT = "protobuf ends at 2 GiB, and Caffe's format for more is HDF5, in files that end in .h5"
_MOST_AXES, _LONGEST_AXIS = 32, 2**31 - 1  # of a blob: kMaxBlobAxes, INT_MAX
_LEGACY = ("num", "channels", "height", "width")
_RAW_TYPES = {pb.DOUBLE: "<f8", pb.FLOAT: "<f4", pb.FLOAT16: "<f2"}  # of NVIDIA's Caffe

T = TypeVar("T")


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """The weights in a binary caffemodel of up to 2 GiB, V0 and V1 too; doubles are rounded to float32.

    Raises:
        InputError: the file is cut short, damaged or something else.
    """
    return read_old_weights(path)[0]


def read_old_weights(path: str | os.PathLike[str]) -> tuple[Weights, list[str]]:
    """The weights, as from `read_weights`, and phrases for what was old in the file, as from `upgrade_net`."""
    return _read(path, "caffemodel", "NetParameter", _weights)


def write_weights(weights: Weights, path: str | os.PathLike[str]) -> None:
    """Write a binary caffemodel with the fields that Caffe writes, whole or not at all; legacy shapes stay legacy.

    Raises:
        WorkError: the file can't be written, or would be larger than 2 GiB.
        InputError: blobs are missing, as in weights from an HDF5 file whose layers share blobs.
    """
    blobs = [_complete(layer, path) for layer in weights.layers]
    # Each blob also takes its tags, lengths and shape: 10 bytes a number at most.
    size = sum(layer.param.ByteSize() for layer in weights.layers)
    size += sum(4 * np.size(blob) + 10 * (4 + np.ndim(blob)) for arrays in blobs for blob in arrays)
    if size > _LIMIT:
        raise WorkError(f"{path} would take {size / 2**30:.1f} GiB: {_BEYOND_LIMIT}")
    with replacing(path) as file:
        # Layer by layer: the parts of a message, one after the other, are the message.
        file.write(pb.NetParameter(name=weights.name).SerializeToString())
        params = wire.layers_to_file([layer.param for layer in weights.layers])
        for layer, param, arrays in zip(weights.layers, params, blobs, strict=True):
            part = _FRAME["NetParameter"]()
            message = part.layer.add()
            message.MergeFromString(param)
            _store(arrays, message.blobs, layer.legacy)
            file.write(part.SerializeToString())


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in a binary solverstate; raises as `read_weights`."""
    return _read(path, "solverstate", "SolverState", _state)


def write_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write a binary solverstate, whole or not at all.

    Raises:
        WorkError: the file can't be written, or would be larger than 2 GiB.
    """
    if (size := sum(4 * np.size(array) for array in state.history)) > _LIMIT - 2**20:
        raise WorkError(f"{path} would take {size / 2**30:.1f} GiB: {_BEYOND_LIMIT}")
    message = _FRAME["SolverState"](iter=state.iter, learned_net=state.learned_net, current_step=state.current_step)
    _store(state.history, message.history)
    with replacing(path) as file:
        file.write(message.SerializeToString())


def array_from_blob(blob: pb.BlobProto) -> NDArray[np.float32]:
    """The values of a BlobProto as float32 in its shape, which is 4-D where it gives num, channels, height and width.

    Raises:
        InputError: the shape does not fit the number of values.
    """
    try:
        return _array(blob, "the blob")
    except _ContentError as error:
        raise InputError(str(error)) from error


def blob_from_array(array: ArrayLike) -> pb.BlobProto:
    """A BlobProto with the array's shape and its values as float32."""
    values = np.asarray(array, np.float32)
    return pb.BlobProto(shape={"dim": values.shape}, data=values.ravel())


def read_blob(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    """The array in a binary BlobProto file, such as a mean image (1, channels, height, width).

    Raises:
        InputError: as `read_weights` and `array_from_blob`.
    """
    return _read(path, "binaryproto", "BlobProto", _blob)


class _ContentError(Exception):
    """The message is readable, but its content is unusable; the text says why, without the file's name."""


def _read(path: str | os.PathLike[str], kind: str, message: str, convert: Callable[[Any, str], T]) -> T:
    """Apply `convert` to the message in the file; every fault becomes one InputError."""
    path = existing_file(path, kind)
    size = path.stat().st_size
    if size > _LIMIT:
        raise InputError(f"{path} has {size / 2**30:.1f} GiB: {_BEYOND_LIMIT}")
    try:
        try:
            return convert(_FRAME[message].FromString(read_bytes(path, kind)), str(path))
        except _ContentError:
            # Floats stored unpacked are unknown fields to that schema, so that values seem to be missing.
            return convert(_FRAME_UNPACKED[message].FromString(read_bytes(path, kind)), str(path))
    except (DecodeError, UnicodeDecodeError) as error:
        problem = " is cut short or damaged, or not what its name says: copy or download it again"
        raise InputError(f"{path}{_other_kind(path, kind) or problem}") from error
    except _ContentError as error:
        raise InputError(f"{path}{_other_kind(path, kind) or f': {error}'}") from error


def _other_kind(path: Path, kind: str) -> str | None:
    """The end of a sentence that says what the file is instead of a binary `kind`, if that is easy to see."""
    with path.open("rb") as file:
        start = file.read(4096)
    if problem := stand_in(start):
        return problem
    if path.suffix == ".onnx":
        return f" is an ONNX model, and a {kind} is needed"
    if start and not is_binary(start):
        return f" is a text file: name a binary {kind}"
    pickled = path.suffix in (".pt", ".pth") and start.startswith(b"\x80")
    if pickled or path.suffix == ".safetensors" or (start.startswith(b"PK") and b"/data.pkl" in start):
        return (
            f" holds weights of PyTorch, and a {kind} is needed: `autodial init --arch` and `to_caffe` make a Caffe "
            "net of a PyTorch network, with its weights"
        )
    if path.suffix in (".caffemodel", ".solverstate") and path.suffix != f".{kind}":
        return f" is a {path.suffix[1:]}: name a {kind}"
    return None


def _weights(net: Any, path: str) -> tuple[Weights, list[str]]:
    layers = [*net.layer, *(old.layer if old.HasField("layer") else old for old in net.layers)]
    if not any(layer.name for layer in layers):
        raise _ContentError("it has no layers with names, so it is no caffemodel")
    _check_text(net.name)
    # While the layers are brought up to date, an index stands for each blob: copies would double the memory.
    blobs: list[NDArray[np.float32]] = []
    legacy: set[int] = set()
    for layer in layers:
        _check_text(layer.name)
        for index, blob in enumerate(layer.blobs):
            if _is_legacy(blob):
                legacy.add(len(blobs))
            blobs.append(_array(blob, f'layer "{layer.name}", blob {index}'))
            blob.Clear()
            blob.num = len(blobs) - 1
    whole = wire.net_from_file(net.SerializeToString())
    old = upgrade_net(whole, path)
    weights = Weights(whole.name)
    for layer in whole.layer:
        _check_text(layer.type, *layer.bottom, *layer.top)
        indices = [blob.num for blob in layer.blobs]
        param = pb.LayerParameter()
        param.CopyFrom(layer)
        del param.blobs[:]
        is_legacy = frozenset(i for i, index in enumerate(indices) if index in legacy)
        weights.layers.append(LayerWeights(param, [blobs[index] for index in indices], is_legacy))
    return weights, old


def _state(state: Any, path: str) -> State:
    if not state.HasField("iter"):
        raise _ContentError("it has no iteration, so it is no solverstate")
    _check_text(state.learned_net)
    history = [_array(blob, f"history {index}") for index, blob in enumerate(state.history)]
    return State(state.iter, state.current_step, state.learned_net, history)


def _blob(blob: Any, path: str) -> NDArray[np.float32]:
    return _array(blob, "the blob")


def _check_text(*names: Any) -> None:
    for name in names:
        if isinstance(name, bytes):  # protobuf's C runtime returns bytes for a string that isn't UTF-8
            raise _ContentError(f"the name {name!r} is not UTF-8, so the file is probably damaged")


def _is_legacy(blob: Any) -> bool:
    """Whether a BlobProto gives its shape as num, channels, height and width, which come before `shape`."""
    return any(blob.HasField(name) for name in _LEGACY)


def _array(blob: Any, what: str) -> NDArray[np.float32]:
    """A BlobProto of either schema as a float32 array with its own memory; errors call it `what`."""
    shape = tuple(getattr(blob, name) for name in _LEGACY) if _is_legacy(blob) else tuple(blob.shape.dim)
    values, dtype = (blob.double_data, "<f8") if len(blob.double_data) else (blob.data, "<f4")
    try:
        if blob.HasField("raw_data"):
            if blob.raw_data_type not in _RAW_TYPES:
                raise _ContentError(f"{what} holds integers, and weights are floats, so the file is probably damaged")
            flat = np.frombuffer(blob.raw_data, _RAW_TYPES[blob.raw_data_type])
        elif type(blob) is _FRAME["BlobProto"]:
            flat = np.frombuffer(b"".join(values), dtype)
        else:
            flat = np.array(values, dtype)
    except ValueError as error:
        raise _ContentError(f"{what} ends within a value, so the file is probably damaged") from error
    if len(shape) > _MOST_AXES or max(shape, default=0) > _LONGEST_AXIS:
        raise _ContentError(
            f"{what} has {len(shape)} axes, the longest of {max(shape)}, and Caffe allows {_MOST_AXES} axes "
            f"of {_LONGEST_AXIS}, so the file is probably damaged"
        )
    if min(shape, default=0) < 0 or math.prod(shape) != flat.size:
        raise _ContentError(f"{what} has the shape {shape} and {flat.size} values, so the file is probably damaged")
    with np.errstate(over="ignore", invalid="ignore"):  # A double beyond float32's range becomes infinite, as in C.
        return flat.astype(np.float32).reshape(shape)


def _complete(layer: LayerWeights, path: str | os.PathLike[str]) -> list[NDArray[np.float32]]:
    """The layer's blobs; InputError if one is missing."""
    blobs = [blob for blob in layer.blobs if blob is not None]
    if len(blobs) < len(layer.blobs):
        raise InputError(
            f'{path} can\'t be written: layer "{layer.name}" shares blobs with another layer, and HDF5 files '
            "store these once: load the weights into their net and save that"
        )
    return blobs


def _store(arrays: Iterable[ArrayLike], blobs: Any, legacy: Collection[int] = ()) -> None:
    """Append each array to the BlobProtos of the wire schema, as packed floats with a shape."""
    for index, array in enumerate(arrays):
        values = np.asarray(array, "<f4")
        blob = blobs.add()
        if index in legacy:
            for name, extent in zip(_LEGACY, values.shape, strict=True):
                setattr(blob, name, extent)
        else:
            blob.shape.dim.extend(values.shape)
        blob.data.append(values.tobytes())

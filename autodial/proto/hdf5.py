"""Weights and solver states in Caffe's HDF5 layout, which has no limit of 2 GiB.

Weights are a group "data" with a group for each layer, in which the datasets "0", "1", ... are its blobs. Where
layers share a blob by the name in their `param`s, only the first layer has a dataset. A "/" in a layer's name makes
nested groups. A "diff" group, of gradients, is not read. Solver states are the datasets iter, learned_net and
current_step, and a group "history" with the datasets "0", "1", ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autodial.errors import InputError
from autodial.proto import messages
from autodial.proto.hdf5_file import import_h5py, reading
from autodial.proto.weights import LayerWeights, State, Weights
from autodial.system.files import replacing

_AXES = {
    ("Convolution", 0): 4,
    ("Convolution", 1): 1,
    ("Deconvolution", 0): 4,
    ("Deconvolution", 1): 1,
    ("InnerProduct", 0): 2,
    ("InnerProduct", 1): 1,
}
"""How many axes the blobs of a layer type have, for those types that are older than BlobProto.shape."""


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """The weights in an HDF5 caffemodel as float32, the layers in alphabetical order.

    Raises:
        InputError: the file is cut short, damaged or something else, or h5py is missing.
    """
    with reading(path, "caffemodel") as file:
        datasets = file.datasets("data")
        if datasets is None:
            problem = (
                " is a solverstate: name a caffemodel" if "history" in file.names() else ': it has no group "data"'
            )
            raise InputError(f"{path}{problem}")
        layers: dict[str, dict[int, NDArray[np.float32]]] = {}
        for name, dataset in datasets:
            if dataset is None:  # a layer without blobs
                layers[name] = {}
                continue
            layer, _, index = name.rpartition("/")
            if not layer or not index.isdecimal() or len(index) > 3:
                raise InputError(f'{path}: the dataset "data/{name}" is no blob of a layer')
            layers.setdefault(layer, {})[int(index)] = _blob(dataset)
        return Weights("", [_layer(name, blobs) for name, blobs in layers.items()])


def write_weights(weights: Weights, path: str | os.PathLike[str]) -> None:
    """Write an HDF5 caffemodel, whole or not at all.

    Raises:
        InputError: h5py is missing, or HDF5 can't hold a layer's name, or the legacy shape of a blob in an unknown
            layer type.
        WorkError: the file can't be written.
    """
    with _writing(path) as file:
        data = file.create_group("data")
        shared = set()
        for layer in weights.layers:
            names = [spec.name for spec in layer.param.param]
            blobs = {}
            for index, blob in enumerate(layer.blobs):
                name = names[index] if index < len(names) else ""
                if blob is not None and name not in shared:
                    blobs[str(index)] = np.asarray(blob, np.float32).reshape(_exact_shape(layer, index, path))
                shared.update([name] if name else [])
            try:
                if not {"", "."}.isdisjoint(layer.name.split("/")):
                    raise ValueError
                group = data.require_group(layer.name)
                for number, values in blobs.items():
                    group.create_dataset(number, data=values)
            except (TypeError, ValueError):
                problem = "HDF5 can't hold its name, or another layer takes it: rename it"
                raise InputError(f'{path} can\'t be written: layer "{layer.name}": {problem}') from None


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in an HDF5 solverstate; raises as read_weights."""
    with reading(path, "solverstate") as file:
        datasets = file.datasets("history")
        if datasets is None:
            problem = (
                " is a caffemodel: name a solverstate" if "data" in file.names() else ': it has no group "history"'
            )
            raise InputError(f"{path}{problem}")
        iteration, current_step = (
            int(_values(file.dataset(name), "iu").reshape(-1)[0]) for name in ("iter", "current_step")
        )
        learned_net = file.dataset("learned_net")
        history = {name: _blob(dataset) for name, dataset in datasets}
        return State(
            iteration,
            current_step,
            "" if learned_net is None else _values(learned_net, "SO").item().decode(),
            [history[str(index)] for index in range(len(history))],
        )


def write_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write an HDF5 solverstate, whole or not at all; raises as write_weights."""
    with _writing(path) as file:
        for name, value in (("iter", state.iter), ("current_step", state.current_step)):
            file.create_dataset(name, data=np.array([value], np.int32))
        # One byte longer than the text: Caffe reads up to the zero at the end of C strings.
        text = state.learned_net.encode()
        file.create_dataset("learned_net", data=np.array(text, f"S{len(text) + 1}"))
        history = file.create_group("history")
        for index, array in enumerate(state.history):
            history.create_dataset(str(index), data=np.asarray(array, np.float32))


@contextmanager
def _writing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """An h5py.File that takes the place of `path` when the block ends, as in `replacing`."""
    h5py = import_h5py(path)
    with replacing(path) as aside:
        # The format of HDF5 1.8: every Caffe reads it, and damage to its structures does not go unnoticed. It is made
        # in memory, as the library ends the process where it can't write a file that it closes.
        with h5py.File(aside.name, "w", driver="core", backing_store=False, libver=("v108", "v108")) as file:
            yield file
            file.flush()
            image = file.id.get_file_image()
        aside.write(image)


def _values(dataset: Any, kinds: str) -> NDArray[Any]:
    """The values of a dataset; ValueError if their type is none of NumPy's `kinds`."""
    if dataset.dtype.kind not in kinds:
        raise ValueError(f"{dataset.name} has values of type {dataset.dtype}")
    return np.asarray(dataset[()])


def _blob(dataset: Any) -> NDArray[np.float32]:
    return _values(dataset, "fiu").astype(np.float32, copy=False)


def _layer(name: str, blobs: dict[int, NDArray[np.float32]]) -> LayerWeights:
    in_order = [blobs.get(index) for index in range(max(blobs, default=-1) + 1)]
    return LayerWeights(messages.LayerParameter(name=name), in_order)


def _exact_shape(layer: LayerWeights, index: int, path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The shape of a layer's blob for HDF5, where legacy shapes are not allowed."""
    shape = np.shape(layer.blobs[index])  # type: ignore[arg-type]
    if index not in layer.legacy:
        return shape
    missing = len(shape) - _AXES.get((layer.type, index), 0)
    if missing == len(shape) or any(extent != 1 for extent in shape[:missing]):
        raise InputError(
            f'{path} can\'t be written: layer "{layer.name}", blob {index} has the old four-dimensional shape {shape}, '
            "and HDF5 needs the true shape: load the weights into their net and save that"
        )
    return shape[missing:]

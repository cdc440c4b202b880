"""Weights and solver states, in whichever of Caffe's two formats their files are."""

from __future__ import annotations

import os
from pathlib import Path

from autodial.proto import binary, hdf5
from autodial.proto.weights import State, Weights
from autodial.system.files import is_hdf5


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """The weights in a caffemodel, binary (of V0 and V1 too) or HDF5, as its first bytes say.

    Blobs are float32; doubles are rounded. InputError if the file is cut short, damaged or something else, or HDF5
    and h5py is missing.
    """
    return hdf5.read_weights(path) if is_hdf5(path, "caffemodel") else binary.read_weights(path)


def write_weights(weights: Weights, path: str | os.PathLike[str]) -> None:
    """Write a caffemodel, HDF5 if its name ends in .h5 and else binary, whole or not at all.

    WorkError if it can't be written; nothing larger than 2 GiB can be as binary.
    """
    (hdf5 if Path(path).suffix == ".h5" else binary).write_weights(weights, path)


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in a solverstate, binary or HDF5; InputError as in read_weights."""
    return hdf5.read_state(path) if is_hdf5(path, "solverstate") else binary.read_state(path)


def write_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write a solverstate, HDF5 if its name ends in .h5 and else binary; as write_weights."""
    (hdf5 if Path(path).suffix == ".h5" else binary).write_state(state, path)

"""Caffe's files: nets and solvers as text, weights and solver states as binary and HDF5, and the messages in them.

`messages` has the message classes; the functions here read and write whole files. Old forms are brought up to date as
they are read. A file with a mistake raises an InputError that says where the mistake is.
"""

from autodial.proto.binary import array_from_blob, blob_from_array, read_blob
from autodial.proto.schema import fork_fields
from autodial.proto.snapshots import read_state, read_weights, write_state, write_weights
from autodial.proto.text import parse_net, parse_solver, read_net, read_solver, to_text, write_text
from autodial.proto.upgrade import upgrade_net, upgrade_solver
from autodial.proto.weights import LayerWeights, State, Weights, merge_weights

__all__ = [
    "LayerWeights",
    "State",
    "Weights",
    "array_from_blob",
    "blob_from_array",
    "fork_fields",
    "merge_weights",
    "parse_net",
    "parse_solver",
    "read_blob",
    "read_net",
    "read_solver",
    "read_state",
    "read_weights",
    "to_text",
    "upgrade_net",
    "upgrade_solver",
    "write_state",
    "write_text",
    "write_weights",
]

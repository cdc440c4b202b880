"""Caffe's files: nets and solvers as text, weights and solver states as binary, and the messages in them.

`messages` has the message classes; the functions here read and write whole files. What is wrong with a file is an
InputError that says where.
"""

from .binary import LayerWeights, State, Weights, read_blob, read_state, read_weights, write_state, write_weights
from .old_formats import refuse_old_format
from .text import parse_net, parse_solver, read_net, read_solver, to_text, write_text

__all__ = [
    "LayerWeights",
    "State",
    "Weights",
    "parse_net",
    "parse_solver",
    "read_blob",
    "read_net",
    "read_solver",
    "read_state",
    "read_weights",
    "refuse_old_format",
    "to_text",
    "write_state",
    "write_text",
    "write_weights",
]

"""What a fork of Caffe adds to the messages, and which layers that belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """One fork, or several that agree. Its messages and numbers are in NAME.proto, in the package caffe.NAME.

    A message there with a name that Caffe has holds the fields that the fork adds to it.
    """

    name: str
    types: Mapping[str, tuple[str, ...]]
    """For each field of the fork's LayerParameter the layer types that have it. In binary files the type decides what a
    number stands for, as forks use one number for different messages."""
    without_effect: frozenset[str] = frozenset()
    """Fields of the fork that change nothing in what a net computes, such as those that choose between kernels."""
    v1_types: Mapping[str, str] = field(default_factory=dict)
    """The layer types that the fork adds to V1LayerParameter.LayerType, and today's type for each."""

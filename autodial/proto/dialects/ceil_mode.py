"""Forks with pooling's `ceil_mode`, from BVLC's pull request 3057."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("ceil_mode", {})

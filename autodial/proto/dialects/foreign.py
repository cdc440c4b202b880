"""Layers of types that none of the forks here has: their messages are kept as text."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("foreign", {})

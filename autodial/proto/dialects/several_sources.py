"""Dial layers with a predictor for each of several sources, which no fork has."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("several_sources", {})

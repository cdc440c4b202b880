"""Images that are varied at random (twtygqyy/caffe-augmentation)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("augmentation", {}, without_effect=frozenset({"debug_params"}))

"""The exporter's table of torch's operators in ONNX, made once: each `torch.onnx.export` takes half a second for it."""

from __future__ import annotations

import functools
import sys
from typing import Any


def keep_torchlib() -> None:
    """Keep the table from now on, if torch's exporter is loaded; each export gets a copy."""
    registration: Any = sys.modules.get("torch.onnx._internal.exporter._registration")
    registry = getattr(registration, "ONNXRegistry", None)
    if registry is None or not hasattr(registry, "from_torchlib") or hasattr(registry.from_torchlib, "kept"):
        return
    kept = functools.cache(registry.from_torchlib)

    def from_torchlib(*arguments: Any, **options: Any) -> Any:
        table, copy = kept(*arguments, **options), registry()
        vars(copy).update(vars(table), functions={name: list(metas) for name, metas in table.functions.items()})
        return copy

    from_torchlib.kept = kept  # type: ignore[attr-defined]
    registry.from_torchlib = staticmethod(from_torchlib)

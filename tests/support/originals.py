"""What the tests compare with: the records that ship, and other projects' files, which do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECORDS = Path(__file__).parents[1] / "records"
"""What the original implementation computed (README.md there)."""
UPGRADE = RECORDS / "upgrade"
"""Nets, solvers and weights in old formats, and what the original's upgrade tools made of them."""

_SHARED = Path(__file__).parents[3] / "shared"
_REASON = "needs files of other projects, which lie in ../shared beside the checkout"


def shared(name: str) -> Path:
    """A file or folder of ../shared. Where it is missing, the test skips, or the module that calls this on import."""
    __tracebackhide__ = True  # the reason is reported where the file is asked for
    path = _SHARED / name
    if not path.exists():
        pytest.skip(_REASON, allow_module_level=True)
    return path


def shared_files(*patterns: str, keep: Callable[[Path], bool] = Path.exists) -> list[Any]:
    """Parameters of a test: the files and folders of ../shared that fit, or one that skips where there are none."""
    paths = sorted(path for pattern in patterns for path in _SHARED.glob(pattern) if keep(path))
    if not paths:
        return [pytest.param(None, marks=pytest.mark.skip(_REASON))]
    return [pytest.param(path, id=path.stem) for path in paths]

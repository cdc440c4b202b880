"""What check_layers.py, check_solvers.py and check_images.py share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def difference(name: str, ours: Any, theirs: Any, *, rtol: float, atol: float) -> str | None:
    """How an array differs from the original's, in one line that begins with its name; None if it agrees.

    Args:
        rtol: tolerance as a fraction of each element.
        atol: tolerance as a fraction of the original's largest element, at least of 1.
    """
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        return f"{name}: shape {ours.shape}, original {theirs.shape}"
    off = ~np.isclose(ours, theirs, rtol, atol * max(1, np.abs(theirs).max(initial=0)), equal_nan=True)
    if not off.any():
        return None
    i = np.unravel_index(off.argmax(), off.shape)
    return f"{name}{[int(n) for n in i]}: {ours[i]:.6g}, original {theirs[i]:.6g} ({off.sum()} of {off.size} differ)"


def judge(cases: Mapping[str, Callable[[], list[str]]]) -> int:
    """Print what differs in each case, and how many agree. Gives the exit status: 0 if all do."""
    agree = 0
    for name, check in cases.items():
        try:
            found = check()
        except Exception as error:  # what ends one case is no reason to leave out the others
            found = [f"{type(error).__name__}: {error}"]
        agree += not found
        for text in found:
            print(f"{name}: {text}")
    print(f"{agree} of {len(cases)} records agree")
    return 0 if cases and agree == len(cases) else 1

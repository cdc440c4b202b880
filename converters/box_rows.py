"""Compares rows of boxes, whose order, and whose choice among boxes of nearly equal scores, turns on the last digit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

MOST_ROWS = 2**13
"""Rows that are matched; each is compared with each other."""


@dataclass(frozen=True)
class RowsComparison:
    """How rows agree with those expected.

    Attributes:
        max_difference: of rows that have a counterpart.
        unmatched: rows without one, of those expected or of the others, whichever are more.
        rows: how many there are, likewise.
    """

    max_difference: float
    unmatched: int
    rows: int


def match_rows(expected: NDArray[np.float32], rows: NDArray[np.float32], tolerance: float) -> RowsComparison:
    """Give each expected row the nearest row that is left, if all its numbers are within the tolerance.

    Args:
        expected: (..., M, numbers) with the other axes 1, finite.
        rows: as many numbers a row; (..., K, numbers).
        tolerance: largest difference of two numbers.

    Returns:
        The comparison; without any counterparts where there are more than MOST_ROWS rows.
    """
    one, other = (
        torch.from_numpy(np.nan_to_num(array.reshape(-1, array.shape[-1]).astype(np.float64), nan=np.inf))
        for array in (expected, rows)
    )
    most = max(len(one), len(other))
    if most > MOST_ROWS or one.shape[1] != other.shape[1]:
        return RowsComparison(0.0, most, most)
    distances = torch.cdist(one, other, p=float("inf")).numpy()
    left = np.ones(len(other), bool)
    difference, unmatched = 0.0, 0
    for distance in distances:
        free = np.where(left, distance, np.inf)
        nearest = int(free.argmin()) if len(free) else 0
        if not len(free) or not free[nearest] <= tolerance or not left[nearest]:
            unmatched += 1
            continue
        left[nearest] = False
        difference = max(difference, float(free[nearest]))
    return RowsComparison(difference, max(unmatched, int(left.sum())), most)

"""Compares rows of boxes, whose order, and whose choice among boxes of nearly equal scores, turns on the last digit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
    one, other = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (expected, rows))
    most = max(len(one), len(other))
    if most > MOST_ROWS or one.shape[1] != other.shape[1]:
        return RowsComparison(0.0, most, most)
    left = np.nan_to_num(other, nan=np.inf)
    difference, unmatched = 0.0, 0
    for row in one:
        distances = np.abs(left - row).max(1)
        nearest = int(distances.argmin()) if len(left) else -1
        if nearest < 0 or distances[nearest] > tolerance:
            unmatched += 1
            continue
        difference = max(difference, float(distances[nearest]))
        left = np.delete(left, nearest, axis=0)
    return RowsComparison(difference, max(unmatched, len(left)), most)

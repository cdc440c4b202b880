"""Compares a converted net's ONNX file with the net itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray

from autodial.converters.box_rows import match_rows
from autodial.converters.net_inputs import Arrays
from autodial.converters.verification import NUDGES, TOLERANCE, nudged
from autodial.errors import WorkError
from autodial.net.net import Net

Runs = Callable[[Arrays], dict[str, NDArray[np.float32]]]
"""Gives the outputs, by name, for inputs."""

_HUGE = np.float32(1e37)
"""Where float32 is about to end: such numbers are infinite in one runtime and finite in the other."""
_PROBABILITY = 1e-6
"""A difference of probabilities that is none: a runtime's exponential has such errors where all of them are near 0."""
_OWN_CHANGES = 4
"""How many times its own change the net's output may differ by: every layer rounds, and not the input alone."""
_UNMATCHED = 0.01
"""The part of the rows of boxes that may lack a counterpart: of nearly equal scores, rounding decides which is best."""
_DETECTION = (7, 15)
"""Numbers in a row of DetectionOutput: without and with a quadrangle."""


class Empty(StrEnum):
    """Why a comparison says nothing."""

    CONSTANT = "the same number throughout"
    NOT_FINITE = "numbers that are not finite"
    NO_DETECTIONS = "no detections"


@dataclass(frozen=True)
class OutputComparison:
    """How far an output of the file is from the net's, over all compared inputs.

    Attributes:
        max_difference: largest absolute difference.
        range: largest minus smallest value of the net's output.
        empty: why the comparison says nothing; None if it says something.
        own_change: how far the net's own output moves when each input moves by one unit in the last place of float32
            (1e-7); None where it did not need to be tried.
        floor: the difference below which numbers count as equal, however small the range.
        unmatched: of an output of boxes, the rows without a counterpart.
        rows: of an output of boxes, how many rows there are.
    """

    max_difference: float
    range: float
    empty: Empty | None
    own_change: float | None = None
    floor: float = 0.0
    unmatched: int = 0
    rows: int = 0

    @property
    def relative_difference(self) -> float:
        """`max_difference` as a fraction of `range`."""
        return self.max_difference / self.range if self.max_difference else 0.0

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.max_difference <= max(TOLERANCE * self.range, self.floor)


class NetRunner:
    """Runs a net as an ONNX file runs: each pass begins without the states of the one before.

    Args:
        net: in evaluation.
        outputs: the blobs to give, by name.
    """

    def __init__(self, net: Net, outputs: Mapping[str, str]) -> None:
        self._net, self._outputs = net, outputs

    def __call__(self, inputs: Arrays) -> dict[str, NDArray[np.float32]]:
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.no_grad():
            blobs = self._net.blobs(tensors, set(self._outputs.values()))
        for name in self._net.layer_names:
            self._net.layer(name).rewind()
        return {name: blobs[blob].numpy() for name, blob in self._outputs.items()}


def compare(
    run: Runs,
    net: NetRunner,
    inputs: Sequence[Arrays],
    reader: str,
    *,
    exact: Collection[str] = (),
    unordered: Collection[str] = (),
    probabilities: Collection[str] = (),
) -> dict[str, OutputComparison]:
    """Run the file and the net on each of the inputs.

    Args:
        run: runs the file.
        net: runs the net.
        inputs: one set of arrays for each pass.
        reader: what runs the file, in words.
        exact: inputs that are not moved, such as indices.
        unordered: outputs whose rows are compared as a set.
        probabilities: outputs between 0 and 1.

    Returns:
        the comparison of each output.

    Raises:
        WorkError: an output differs, and by more than four times what the net's own output moves by when its input
            moves by 1e-7.
    """
    expected = [net(arrays) for arrays in inputs]
    results = [run(arrays) for arrays in inputs]
    found = {
        name: _compare(
            [each[name] for each in expected],
            [each[name] for each in results],
            floor=_PROBABILITY if name in probabilities else 0.0,
            boxes=name in unordered,
        )
        for name in expected[0]
    }
    if all(one.agrees for one in found.values()):
        return found
    nudged = [
        (before, net(_nudged(arrays, seed, exact)))
        for arrays, before in zip(inputs, expected, strict=True)
        for seed in range(NUDGES)
    ]
    for name, one in found.items():
        if one.agrees:
            continue
        moved = _rows_moved if name in unordered else _difference
        change = max(moved(before[name], after[name]) for before, after in nudged)
        if not one.max_difference <= _OWN_CHANGES * change:
            raise WorkError(
                f"nothing was written: {reader}'s \"{name}\" differs from the net's by {one.max_difference:.3g}, more "
                f"than {TOLERANCE:g} of its range {one.range:.3g}, and the net's own moves by {change:.3g} when its "
                "input moves by 1e-7"
            )
        found[name] = replace(one, own_change=change)
    return found


def _compare(
    expected: Sequence[NDArray[np.float32]], results: Sequence[NDArray[np.float32]], *, floor: float, boxes: bool
) -> OutputComparison:
    """One output's comparison. Boxes without an end are not compared: runtimes differ in which they leave out."""
    values = np.concatenate([one.ravel() for one in expected]) if expected else np.zeros(0, np.float32)
    finite = values[np.isfinite(values)]
    usual = values[np.abs(values) < _HUGE]
    spread = float(usual.max()) - float(usual.min()) if usual.size else 0.0
    differences, unmatched, rows = [0.0], 0, 0
    for one, other in zip(expected, results, strict=True):
        difference = _difference(one, other)
        if boxes:
            if not np.isfinite(one).all():
                continue
            if difference > TOLERANCE * spread:
                found = match_rows(one, other, TOLERANCE * spread)
                if found.unmatched <= _UNMATCHED * found.rows:
                    difference = found.max_difference
                    unmatched += found.unmatched
            rows += len(one.reshape(-1, one.shape[-1]))
        differences.append(difference)
    empty = None
    if finite.size < values.size:
        empty = Empty.NOT_FINITE
    elif all(map(_without_detections, expected)):
        empty = Empty.NO_DETECTIONS
    elif spread <= floor:
        empty = Empty.CONSTANT if usual.size == values.size else Empty.NOT_FINITE
    return OutputComparison(max(differences), spread, empty, floor=floor, unmatched=unmatched, rows=rows)


def _without_detections(rows: NDArray[np.float32]) -> bool:
    """Whether these are the rows of a DetectionOutput that has found nothing: an image's number, and -1 behind it."""
    return rows.ndim == 4 and rows.shape[3] in _DETECTION and bool((rows[..., 1:] == -1).all())


def _rows_moved(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Largest difference of rows of boxes in the best order; infinite for another number of them."""
    if one.shape != other.shape:
        return float("inf")
    found = match_rows(one, other, float("inf"))
    return _difference(one, other) if found.unmatched else found.max_difference


def _difference(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Largest absolute difference; infinite for other shapes."""
    if one.shape != other.shape:
        return float("inf")
    one, other = (np.clip(array, -_HUGE, _HUGE) for array in (one, other))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0, np.abs(one.astype(np.float64) - other))
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0))


def _nudged(inputs: Arrays, seed: int, exact: Collection[str]) -> Arrays:
    return {name: array if name in exact else nudged(array, seed) for name, array in inputs.items()}


def describe_difference(name: str, one: OutputComparison) -> str:
    """One output's comparison as a sentence."""
    if one.own_change is None and one.max_difference > TOLERANCE * one.range:
        near = f"{one.max_difference:.2g}, and below {one.floor:g} probabilities count as equal"
        return f'"{name}" differs by at most {near}'
    if one.own_change is None:
        return f'"{name}" differs by at most {one.max_difference:.2g}, {one.relative_difference:.1g} of its range'
    return (
        f'"{name}" differs by up to {one.max_difference:.2g}, {one.relative_difference:.1g} of its range; the net\'s '
        f"own result moves by {one.own_change:.2g} when its input moves by 1e-7"
    )

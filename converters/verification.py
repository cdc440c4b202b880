"""Compares an exported net with the original, before anything is written, and reports on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autodial.converters.precision import Agreement, Precision
from autodial.errors import WorkError

TOLERANCE = 1e-4
"""Largest difference between the exported and the unfolded net, as a fraction of the logits' range."""
BATCHES = (1, 2, 7)
"""Batch sizes of the comparison."""

NUDGES = 4
"""How often the net's own sensitivity is tried."""

Runner = Callable[[NDArray[Any]], Sequence[NDArray[Any]]]
"""Runs N rows; returns (logits, probabilities), float32 (N, classes) each."""


@dataclass(frozen=True)
class ExportReport:
    """What was exported, what was compared and how far off it was.

    Attributes:
        output: the file, or the folder if there are several files.
        files: size in bytes of each written file, by name; in a Triton model repository by path within the model's
            folder, which is the output.
        opset, ir_version: the ONNX file's; None for plain Caffe.
        input: name of the input: `image`, or the prototxt's blob with raw_input and for plain Caffe.
        logits: name of the logits' blob, or a torch module's class.
        metadata: the JSON object under the metadata key `autodial`.
        merged: names of the layers that folding removed, with the layer that each was merged into.
        kept: names of the folded layers that remain, as Mul and Add nodes or, in plain Caffe, Scale layers.
        compared_on: in words, the rows that the exported float32 net was compared on with the unfolded net.
        batches: batch sizes of the comparison.
        runtime: in words, what ran the exported net.
        tolerance: the largest `relative_difference` with which a file is written.
        max_difference: largest absolute difference of a logit between the exported and the unfolded net.
        logits_range: largest minus smallest logit of the unfolded net, over all compared rows.
        precision: of weights and computation.
        agreement: how far a file of lower precision agrees with the float32 file; None for float32.
        license: the SPDX license expression that the file names; None for none.
        notes: further sentences for the user.
    """

    output: Path
    files: dict[str, int]
    opset: int | None
    ir_version: int | None
    input: str
    logits: str
    metadata: dict[str, Any]
    merged: dict[str, str]
    kept: tuple[str, ...]
    compared_on: str
    batches: tuple[int, ...]
    runtime: str
    tolerance: float
    max_difference: float
    logits_range: float
    precision: Precision
    agreement: Agreement | None
    license: str | None
    notes: tuple[str, ...]

    @property
    def file_size(self) -> int:
        """Total size of the files in bytes."""
        return sum(self.files.values())

    @property
    def relative_difference(self) -> float:
        """`max_difference` as a fraction of `logits_range`."""
        return self.max_difference / self.logits_range if self.max_difference else 0.0

    def record(self) -> dict[str, object]:
        """The report as a JSON object."""
        return {
            **asdict(self),
            "output": str(self.output),
            "file_size": self.file_size,
            "relative_difference": self.relative_difference,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """What an exported net is compared with.

    Attributes:
        unfolded: the trained net, from its input blob to its logits, (N, classes).
        blobs: rows of the input blob, enough for every batch size of BATCHES.
        fed: the same rows as the exported net takes them.
        words: what the rows are, in words.
    """

    unfolded: nn.Module
    blobs: Tensor
    fed: NDArray[Any]
    words: str


@dataclass(frozen=True)
class Verified:
    """What a comparison found.

    Attributes:
        difference: largest absolute difference of a logit.
        spread: largest minus smallest logit of the unfolded net.
        notes: a sentence where the difference is above the tolerance, and the net is as sensitive itself.
    """

    difference: float
    spread: float
    notes: tuple[str, ...] = ()


def verify(run: Runner, comparison: Comparison, reader: str) -> Verified:
    """Run the exported and the unfolded net at each batch size.

    Args:
        run: runs the exported net on rows of `comparison.fed`.
        comparison: the unfolded net and its rows.
        reader: what runs the exported net, in words.

    Raises:
        WorkError: logits differ by more than TOLERANCE of their range, and by more than the unfolded net's own logits
            move when its input moves by 1e-7; a logit of the unfolded net is not finite; or the probabilities are not
            the softmax of the logits.
    """
    results, expected, start = [], [], 0
    for size in BATCHES:
        rows = slice(start, start + size)
        start += size
        results.append(run(comparison.fed[rows]))
        with torch.no_grad():
            expected.append(comparison.unfolded(comparison.blobs[rows]).numpy())
    ours, probabilities = (np.concatenate(parts) for parts in zip(*results, strict=True))
    theirs = np.concatenate(expected)
    if not np.isfinite(theirs).all():
        raise WorkError("nothing was written: the unfolded net's logits are not finite, so the weights are of no use")
    softmax = torch.from_numpy(ours).softmax(1).numpy()
    if not np.allclose(probabilities, softmax, rtol=0, atol=1e-5):
        raise WorkError(f"nothing was written: {reader}'s probabilities are not the softmax of its logits")
    difference, spread = float(np.abs(ours - theirs).max()), float(theirs.max() - theirs.min())
    if difference <= TOLERANCE * spread:
        return Verified(difference, spread)
    change = 0.0
    for seed in range(NUDGES):
        with torch.no_grad():
            moved = comparison.unfolded(torch.from_numpy(nudged(comparison.blobs.numpy(), seed))).numpy()
        change = max(change, float(np.abs(moved[: len(theirs)] - theirs).max()))
    if not difference <= change:
        raise WorkError(
            f"nothing was written: {reader}'s logits differ from the unfolded net's by {difference:.3g}, more than "
            f"{TOLERANCE:g} of their range {spread:.3g} (on {comparison.words}), and the net's own logits move by "
            f"{change:.3g} when its input moves by 1e-7"
        )
    note = (
        f"the logits differ by {difference:.3g} in a range of {spread:.3g}, which is rounding: the net's own logits "
        f"move by {change:.3g} when its input moves by 1e-7"
    )
    return Verified(difference, spread, (note,))


def nudged(array: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """The array, each number a unit in the last place above or below."""
    up = np.random.default_rng(seed).integers(0, 2, array.shape) == 1
    moved: NDArray[np.float32] = np.nextafter(array, np.where(up, np.float32(np.inf), np.float32(-np.inf)))
    return moved

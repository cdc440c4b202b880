"""The source in stratified parts, of which one at a time is held out of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodial.data.image_data import ImageData
from autodial.errors import InputError
from autodial.system.files import replacing
from autodial.system.seeding import derive_seed

PARTS = 5
"""Parts of the source; held out is a fifth."""
_SAMPLE = 2000
"""Source images that are trained on and measured; see autodial.selection.criteria.importance_weights."""


@dataclass(frozen=True)
class Fold:
    """Lists of the source's images, with absolute paths.

    Attributes:
        training: what is trained on.
        held_out: what is not.
        sample: at most 2,000 of `training`, to compare with.
    """

    training: Path
    held_out: Path
    sample: Path


def stratified_parts(labels: Sequence[int], seed: int) -> NDArray[np.int64]:
    """The part, from 0 to 4, of each labelled sample: classes are spread over all parts as evenly as can be.

    A sample that is the only one of its class is in no part (-1), so that it is always trained on.
    """
    rng = np.random.default_rng(derive_seed(seed, "held-out source"))
    array = np.asarray(labels)
    parts = np.full(len(array), -1)
    start = 0  # classes go on where the one before left off, which keeps the parts' sizes equal, too
    for label in np.unique(array):
        members = rng.permutation(np.flatnonzero(array == label))
        if len(members) > 1:
            parts[members] = (start + np.arange(len(members))) % PARTS
            start += len(members)
    return parts


def write_folds(source: ImageData, folder: Path, seed: int) -> list[Fold]:
    """Write the lists of all five folds, the same for the same seed.

    Args:
        source: the source's images.
        folder: gets a folder for each fold, fold_0 to fold_4.
        seed: what the parts follow from.

    Raises:
        InputError: an image that is not there, or too few images to hold any out.
    """
    parts = stratified_parts([entry.label for entry in source.entries], seed)
    if len(set(parts.tolist()) - {-1}) < PARTS:
        raise InputError(
            f"{source.list_path} has too few images to hold out a fifth of them: it takes at least {PARTS} of classes "
            "with more than one"
        )
    lines = [f"{source.path(entry).absolute()} {entry.label}" for entry in source.entries]
    folds = []
    for number in range(PARTS):
        fold = folder / f"fold_{number}"
        fold.mkdir(parents=True, exist_ok=True)
        training = np.flatnonzero(parts != number)
        drawn = np.random.default_rng(derive_seed(seed, "sample", number)).permutation(training)[:_SAMPLE]
        rows = {"training": training, "held_out": np.flatnonzero(parts == number), "sample": np.sort(drawn)}
        paths = {name: fold / f"{name}.txt" for name in rows}
        for name, numbers in rows.items():
            with replacing(paths[name]) as file:
                file.write("".join(f"{lines[row]}\n" for row in numbers).encode())
        folds.append(Fold(**paths))
    return folds

"""Splits the source's images: those to train on, those to hold out, and a sample to compare with the target."""

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
"""Number of equal parts of the source; one part can be held out."""
_SAMPLE = 2000
"""Trained-on source images in the sample; see autodial.selection.criteria.importance_weights."""


@dataclass(frozen=True)
class SourceLists:
    """Lists of the source's images, with absolute paths.

    Attributes:
        training: the images to train on; None: all that the net's source layer reads.
        held_out: the images that are held out; None if there are none.
        sample: at most 2,000 of the images to train on, to compare with the target; None: all of them.
    """

    training: Path | None
    held_out: Path | None
    sample: Path | None


def stratified_parts(labels: Sequence[int], seed: int) -> NDArray[np.int64]:
    """The part, from 0 to 4, of each labelled sample; classes are spread over the parts as evenly as possible.

    The only sample of a class is in no part (-1), so that it is always trained on.
    """
    rng = np.random.default_rng(derive_seed(seed, "held-out source"))
    array = np.asarray(labels)
    parts = np.full(len(array), -1)
    start = 0  # each class starts where the class before ended, which keeps the parts' sizes equal too
    for label in np.unique(array):
        members = rng.permutation(np.flatnonzero(array == label))
        if len(members) > 1:
            parts[members] = (start + np.arange(len(members))) % PARTS
            start += len(members)
    return parts


def write_lists(source: ImageData, folder: Path, seed: int, *, hold_out: bool) -> SourceLists:
    """Write the lists; equal seeds give equal lists.

    Args:
        source: the source's images.
        folder: the folder for the lists.
        seed: determines the parts and the sample.
        hold_out: whether to hold out a stratified fifth.

    Raises:
        InputError: an image is missing, or there are too few images to hold any out.
    """
    lines = [f"{source.path(entry).absolute()} {entry.label}" for entry in source.entries]
    parts = np.full(len(lines), -1)
    if hold_out:
        parts = stratified_parts([entry.label for entry in source.entries], seed)
        if len(set(parts.tolist()) - {-1}) < PARTS:
            raise InputError(
                f"{source.list_path} has too few images to hold out a fifth of them: at least {PARTS} must be of "
                "classes with more than one image"
            )
    training = np.flatnonzero(parts != 0)
    drawn = np.random.default_rng(derive_seed(seed, "sample")).permutation(training)[:_SAMPLE]
    rows = {"sample": np.sort(drawn)}
    if hold_out:
        rows |= {"training": training, "held_out": np.flatnonzero(parts == 0)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, numbers in rows.items():
        with replacing(folder / f"{name}.txt") as file:
            file.write("".join(f"{lines[row]}\n" for row in numbers).encode())
    paths = {name: folder / f"{name}.txt" if name in rows else None for name in ("training", "held_out", "sample")}
    return SourceLists(**paths)

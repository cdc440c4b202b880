"""Finds images to calibrate a file of lower precision on, and to compare it on with the float32 file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autodial.converters.reference import TrainingImages
from autodial.data.folders import is_hidden, is_image, walk
from autodial.data.image_data import ImageData
from autodial.data.image_list import read_paths
from autodial.data.paths import find
from autodial.errors import InputError

_LIMIT = 4096
"""Most files that are drawn from a list or a folder."""


@dataclass(frozen=True)
class TargetFiles:
    """Image files of an exported file's domain, without repeats, in a reproducible random order.

    Attributes:
        name: the list's or folder's.
        paths: the files; whether they are images is not known yet.
        missing: number of further listed files that are not there.
    """

    name: str
    paths: tuple[Path, ...]
    missing: int = 0

    @classmethod
    def of(cls, given: Path) -> TargetFiles:
        """The images in a folder and its subfolders, or in a list of paths with or without labels.

        Raises:
            InputError: the folder or list isn't there, can't be read, or holds no image that is there.
        """
        if given.is_dir():
            images = (Path(name) for name in walk(given) if is_image(name) and not is_hidden(name))
            return cls._drawn(str(given), images, lambda path: path)
        if given.is_file():
            return cls._drawn(str(given), read_paths(given), lambda name: find(name, given.parent))
        raise InputError(f"{given}: there is no such folder or list of images")

    @classmethod
    def of_training(cls, training: TrainingImages) -> TargetFiles:
        """The training images."""
        found = cls._drawn(training.name, training.files, lambda path: path)
        return replace(found, missing=training.missing)

    @classmethod
    def of_test(cls, listed: ImageData) -> TargetFiles:
        """The images of the TEST phase's list; InputError if none of them is there."""
        entries = {entry.path: entry for entry in listed.entries}
        return cls._drawn(str(listed.list_path), entries.values(), listed.path)

    @classmethod
    def _drawn(cls, name: str, listed: Iterable[Any], find_file: Callable[[Any], Path]) -> TargetFiles:
        unique = list(dict.fromkeys(listed))
        if not unique:
            raise InputError(f"{name} holds no images")
        paths, errors = [], []
        for i in np.random.default_rng(0).permutation(len(unique))[:_LIMIT]:
            try:
                paths.append(find_file(unique[i]))
            except InputError as error:
                errors.append(error)
        if not paths:
            raise InputError(f"none of the images of {name} is there: {errors[0]}")
        return cls(name, tuple(paths), len(errors))

"""Measures training images with an exported file, so that the file can detect a domain shift later."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autodial.converters.file_batches import FileBatches
from autodial.converters.image_input import ImageInput
from autodial.converters.runtime import cpu_session
from autodial.data.image_data import ImageData
from autodial.data.image_statistics import Reference, all_statistics, image_statistics, statistic_names
from autodial.data.sequences import is_one_name
from autodial.errors import InputError
from autodial.evaluation.domains import data_in_train
from autodial.model_file import PROBABILITIES
from autodial.proto import messages as pb
from autodial.wording import counted

LIMIT = 2000
"""Most images of a list that are measured, evenly spread over the list. With so many, sampling adds at most 0.06 to a
distance that chance explains, a fraction of the tolerance; more would take long on slow nets."""

Progress = Callable[[int, int], None]
"""Called with the number of images done, and the number of all images."""


@dataclass(frozen=True)
class TrainingImages:
    """The files of a training list that are measured, in its order.

    Attributes:
        domain: "target" or "source".
        name: the list's.
        listed: number of the list's images.
        files: the images to measure, at most LIMIT.
        missing: number of images that were left out because they are not there.
    """

    domain: str
    name: str
    listed: int
    files: tuple[Path, ...]
    missing: int = 0

    @classmethod
    def of_caffe(cls, net_param: pb.NetParameter, statistics: str | None, base_dir: Path | None) -> TrainingImages:
        """The training images of a net's TRAIN phase.

        Args:
            statistics: domain of the exported net's statistics; all but "source" means the target.

        Raises:
            InputError: there is no such list, or none of its images is there.
        """
        domains = data_in_train(net_param)
        if domains is None:
            raise InputError("the net has no TRAIN phase that joins a source and a target")
        layer = pb.LayerParameter()
        layer.CopyFrom((domains.sources[0] if statistics == "source" else domains.target).layer)
        if layer.type != "ImageData":
            raise InputError(f'layer "{layer.name}" ({layer.type}) reads no list of image files')
        # Only the list is needed: with a stated size, the layer opens no image.
        layer.ClearField("transform_param")
        layer.image_data_param.new_height = layer.image_data_param.new_width = 1
        listed = ImageData(layer, phase=pb.TEST, seed=0, base_dir=base_dir)
        files, missing = [], []
        for entry in _spread(listed.entries):
            try:
                files.append(listed.path(entry))
            except InputError as error:
                missing.append(error)
        if not files:
            raise InputError(f"{listed.list_path}: {missing[0]}")
        domain = "source" if statistics == "source" else "target"
        return cls(domain, listed.list_path.name, len(listed), tuple(files), len(missing))

    @classmethod
    def of_files(cls, files: Iterable[str | Path]) -> TrainingImages:
        """Files as target images; InputError for a single path, or for anything but paths."""
        if isinstance(files, str | os.PathLike):
            raise InputError(f'`target_images` is a list of image files, not one path, "{files}": list what it holds')
        named = [] if is_one_name(files) else list(files)
        if is_one_name(files) or not all(isinstance(file, str | os.PathLike) for file in named):
            raise InputError("`target_images` is a list of image files' names: give no images or bytes")
        paths = [Path(file) for file in named]
        return cls("target", "target_images", len(paths), tuple(_spread(paths)))


def measure(
    model: bytes | str, training: TrainingImages, images: ImageInput, progress: Progress | None = None
) -> tuple[Reference | None, list[str]]:
    """Run an exported file over training images as `autodial predict` would, on the CPU.

    Args:
        model: the file, or its path. It takes such images, uint8 (n, height, width, channels), and gives logits and
            probabilities.
        images: size and channels of the images that the file takes.

    Returns:
        the images' statistics, None if no image can be read; notes on images that can't be read.
    """
    session = cpu_session(model)
    (put,) = session.get_inputs()
    batches = FileBatches(training.files, images)
    classes, values, done = [], [], 0
    for batch in batches:
        (probabilities,) = session.run([PROBABILITIES], {put.name: batch})
        rows = all_statistics(probabilities, np.array(list(map(image_statistics, batch))))
        finite = np.isfinite(rows).all(axis=1)
        classes.append(probabilities.argmax(axis=1)[finite])
        values.append(rows[finite])
        done += len(batch)
        if progress is not None:
            progress(done + len(batches.unreadable), len(training.files))
    lost = training.missing + len(training.files) - done
    notes = []
    if lost:
        why = f", as {next(iter(batches.unreadable.values()))}" if batches.unreadable else ""
        notes.append(
            f"{lost} of {counted(training.missing + len(training.files), 'image')} of {training.name} could not "
            f"be measured, so no domain shift is detected with them{why}"
        )
    if not sum(map(len, classes)):
        return None, notes
    reference = Reference.measured(
        training.domain,
        training.name,
        training.listed,
        np.concatenate(classes),
        statistic_names(images.channels),
        np.concatenate(values),
    )
    return reference, notes


def _spread(listed: Sequence[Any]) -> list[Any]:
    """At most LIMIT items, in equal steps."""
    count = min(len(listed), LIMIT)
    return [listed[i * len(listed) // count] for i in range(count)]

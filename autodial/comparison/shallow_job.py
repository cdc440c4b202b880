"""A cell of a shallow method in a process: `python -m autodial.comparison.shallow_job JOB WORKERS`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autodial.selection.process_job import FILE, ProcessJob
from autodial.selection.training_job import TrainingJob


@dataclass(frozen=True, kw_only=True)
class ShallowJob(ProcessJob):
    """An alignment of a trained net's features, and a classifier behind it; paths are absolute.

    Attributes:
        method: a name in `autodial.comparison.shallow.ALIGNMENTS`.
        net: folder of the TrainingJob that trained the net.
        source, target: lists of the images; the source's labels count.
        test: list of labelled target images; None if labels are not to be compared with.
        classes: number of classes.
        draw: seed of random draws.
    """

    module: ClassVar[str] = "autodial.comparison.shallow_job"

    method: str
    net: Path
    source: Path
    target: Path
    test: Path | None
    classes: int
    draw: int

    def run(self, workers: int) -> None:
        """Align the features, fit the classifier, and keep the outputs and the result.

        Raises:
            InputError: images can't be read.
        """
        from autodial.comparison.shallow import ALIGNMENTS, log_probabilities, subspace_size
        from autodial.selection.outputs import Outputs, draw_rows

        started = time.perf_counter()
        training = TrainingJob.read(self.net / FILE)
        net = training.open_net(training.trained, workers)
        source = net.features(self.source, "source").astype(np.float64)
        target = net.features(self.target).astype(np.float64)
        test = target[:0] if self.test is None else net.features(self.test).astype(np.float64)
        both = np.concatenate([source, target])
        mean, scale = both.mean(axis=0), both.std(axis=0)
        source, target, test = ((rows - mean) / np.where(scale > 0, scale, 1) for rows in (source, target, test))
        size = subspace_size(source.shape[1], min(len(source), len(target)), self.classes)
        aligned = ALIGNMENTS[self.method](source, target, size, self.draw)
        mapped = aligned.source(source), aligned.target(target)
        others = [*mapped, *([aligned.target(test)] if len(test) else [])]
        source_logits, target_logits, *tested = log_probabilities(mapped[0], _labels(self.source), others, self.classes)
        rows = draw_rows(len(target), self.draw)
        Outputs(
            target_logits=target_logits,
            features=mapped[1][rows].astype(np.float32),
            feature_rows=rows,
            source_logits=source_logits,
            held_out_logits=source_logits[:0],
            held_out_labels=np.zeros(0, np.int64),
            test_probabilities=np.exp(tested[0]) if tested else target_logits[:0],
            test_labels=np.zeros(0, np.int64) if self.test is None else _labels(self.test),
        ).write(self.outputs)
        self.keep(started)


def _labels(path: Path) -> NDArray[np.int64]:
    from autodial.data.image_list import ImageList

    return np.array([entry.label for entry in ImageList.read(path)], np.int64)


if __name__ == "__main__":
    sys.exit(ShallowJob.main(sys.argv[1:]))

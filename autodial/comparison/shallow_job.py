"""A cell of a shallow method in a process: `python -m autodial.comparison.shallow_job JOB WORKERS`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray

from autodial.errors import INTERRUPTED, AutodialError, InputError
from autodial.selection.job import Job, Result, open_net, stop_with_parent
from autodial.system import json_files
from autodial.system.files import replacing
from autodial.system.json_files import FilePath

_MOST_FEATURES = 8192
"""Most features for which matrices of all pairs are computed."""


@dataclass(frozen=True)
class ShallowJob:
    """An alignment of a trained net's features, and a classifier behind it; paths are absolute.

    Attributes:
        folder: the folder for all results.
        name: the cell's name in messages.
        method: a name in `autodial.comparison.shallow.ALIGNMENTS`.
        net: folder of the Job that trained the net.
        source, target: lists of the images; the source's labels count.
        test: list of labelled target images; None if labels are not to be compared with.
        target_labels: a hash of their labels, or "".
        classes: number of classes.
        draw: seed of random draws.
    """

    module: ClassVar[str] = "autodial.comparison.shallow_job"
    """What a process runs."""

    folder: Path
    name: str
    method: str
    net: Path
    source: Path
    target: Path
    test: Path | None
    target_labels: str
    classes: int
    draw: int

    @property
    def outputs(self) -> Path:
        """The file of the cell's outputs, which criteria look at."""
        return self.folder / "outputs.npz"

    @property
    def log(self) -> Path:
        """The file of the process's output."""
        return self.folder / "log.txt"

    def write(self) -> Path:
        """Write the job into its folder, for `main`; returns the file."""
        path = self.folder / "job.json"
        with replacing(path) as file:
            file.write(json.dumps(asdict(self), default=str, indent=2).encode())
        return path

    @classmethod
    def read(cls, path: Path) -> ShallowJob:
        """Read the file that `write` wrote.

        Raises:
            InputError: the file is damaged.
        """
        fields: dict[str, Any] = {**json_files.read(path, _JobFile, remedy="run `autodial compare` again")}
        for name in ("folder", "net", "source", "target", "test"):
            fields[name] = None if fields[name] is None else Path(fields[name])
        return cls(**{field.name: fields[field.name] for field in dataclass_fields(cls)})


class _JobFile(TypedDict):
    """A ShallowJob as JSON."""

    folder: FilePath
    name: str
    method: str
    net: FilePath
    source: FilePath
    target: FilePath
    test: FilePath | None
    target_labels: str
    classes: int
    draw: int


def read_result(job: ShallowJob) -> Result | None:
    """A job's result; None if the job is not finished, or if its outputs lack the labels asked for.

    Raises:
        InputError: the file is damaged.
    """
    path = job.folder / "result.json"
    if not path.exists():
        return None
    result = json_files.read(path, Result, remedy="delete it, and the cell is computed again")
    known = not job.target_labels or result["target_labels"] == job.target_labels
    return result if known and job.outputs.exists() else None


def run(job: ShallowJob, workers: int) -> None:
    """Align the features, fit the classifier, and write the outputs and result.json.

    Args:
        job: the job.
        workers: processes that read images ahead.

    Raises:
        InputError: images can't be read, or there are too many features.
    """
    from autodial.comparison.shallow import ALIGNMENTS, log_probabilities, subspace_size
    from autodial.selection.outputs import FEATURE_ROWS, Outputs
    from autodial.system.seeding import derive_seed

    started = time.perf_counter()
    trained = Job.read(job.net / "job.json")
    net = open_net(trained, trained.trained, workers)
    source = net.features(job.source, "source").astype(np.float64)
    target = net.features(job.target).astype(np.float64)
    test = target[:0] if job.test is None else net.features(job.test).astype(np.float64)
    if source.shape[1] > _MOST_FEATURES:
        raise InputError(
            f"the classifier reads {source.shape[1]} values, more than the {_MOST_FEATURES} that {job.method} can take"
        )
    both = np.concatenate([source, target])
    mean, scale = both.mean(axis=0), both.std(axis=0)
    source, target, test = ((rows - mean) / np.where(scale > 0, scale, 1) for rows in (source, target, test))
    size = subspace_size(source.shape[1], min(len(source), len(target)), job.classes)
    aligned = ALIGNMENTS[job.method](source, target, size, job.draw)
    mapped = aligned.source(source), aligned.target(target)
    others = [*mapped, *([aligned.target(test)] if len(test) else [])]
    source_logits, target_logits, *tested = log_probabilities(mapped[0], _labels(job.source), others, job.classes)
    rng = np.random.default_rng(derive_seed(job.draw, "features"))
    rows = np.sort(rng.permutation(len(target))[:FEATURE_ROWS])
    Outputs(
        target_logits=target_logits,
        features=mapped[1][rows].astype(np.float32),
        feature_rows=rows,
        source_logits=source_logits,
        held_out_logits=source_logits[:0],
        held_out_labels=np.zeros(0, np.int64),
        test_probabilities=np.exp(tested[0]) if tested else target_logits[:0],
        test_labels=np.zeros(0, np.int64) if job.test is None else _labels(job.test),
    ).write(job.outputs)
    result = Result(name=job.name, target_labels=job.target_labels, collapsed_at=None, error=None, seconds=0.0)
    result["seconds"] = round(time.perf_counter() - started, 1)
    with replacing(job.folder / "result.json") as file:
        file.write(json.dumps(result, indent=2).encode())


def _labels(path: Path) -> NDArray[np.int64]:
    from autodial.data.image_list import ImageList

    return np.array([entry.label for entry in ImageList.read(path)], np.int64)


def main(arguments: list[str]) -> int:
    """Run a job; the arguments are its file and the number of processes that read images. Returns the exit status."""
    stop_with_parent()
    try:
        run(ShallowJob.read(Path(arguments[0])), int(arguments[1]))
    except KeyboardInterrupt:
        return INTERRUPTED
    except AutodialError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One candidate in a process that trains it and keeps its outputs: `python -m autodial.selection.job JOB WORKERS`."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from autodial.errors import INTERRUPTED, TERMINATED, AutodialError, DivergedError
from autodial.selection.holdout import SourceLists
from autodial.system import json_files
from autodial.system.files import replacing
from autodial.system.json_files import FilePath
from autodial.wording import command_line

if TYPE_CHECKING:
    from autodial.selection import processes
    from autodial.selection.outputs import Outputs, TrainedNet
    from autodial.training.run import TrainingResult
    from autodial.training.run_record import KeptTest

_PREFIX = "net"
_ITERATION = re.compile(r"_iter_([0-9]{1,10})$")
"""The end of a snapshot's name."""
_LOOK = 2.0
"""Seconds between two checks that the parent process still runs."""


@dataclass(frozen=True)
class Job:
    """A candidate's training and measurement; paths are absolute or relative to the working directory.

    Attributes:
        folder: the folder for all results.
        name: the candidate's name in messages.
        lists: lists of each source's images.
        solver, weights, variants, device: arguments of `Training`.
        overrides: the training's settings, including the candidate's.
        seed: seed of the training.
        draw: seed of the draw of target images whose features are kept; all candidates have the same.
        base_dir: folder of the net's file.
        recalibrate: whether statistics of all images replace training's moving averages.
        target_labels: a hash of the TEST phase's labels if they are to be compared with, or "".
        target: list of the target's images; None: what the net's TRAIN phase reads (see `TrainedNet`).
    """

    module: ClassVar[str] = "autodial.selection.job"
    """What a process runs."""

    folder: Path
    name: str
    lists: tuple[SourceLists, ...]
    solver: Path
    weights: tuple[str, ...]
    variants: tuple[str, ...]
    overrides: tuple[str, ...]
    seed: int
    draw: int
    base_dir: Path
    device: str
    recalibrate: bool
    target_labels: str
    target: Path | None = None

    @property
    def net(self) -> Path:
        """The file of the net that is trained, with both phases."""
        return self.folder / "net.prototxt"

    @property
    def prefix(self) -> Path:
        """The snapshots' prefix."""
        return self.folder / _PREFIX

    @property
    def trained(self) -> Path:
        """The file of the trained weights."""
        return self.folder / "weights.caffemodel"

    @property
    def outputs(self) -> Path:
        """The file of the candidate's outputs, which criteria look at."""
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
    def read(cls, path: Path) -> Job:
        """Read the file that `write` wrote.

        Raises:
            InputError: the file is damaged.
        """
        fields: dict[str, Any] = {**json_files.read(path, _JobFile, remedy="run `autodial select` again")}
        for name in ("folder", "solver", "base_dir"):
            fields[name] = Path(fields[name])
        for name in ("weights", "variants", "overrides"):
            fields[name] = tuple(fields[name])
        fields["target"] = fields["target"] and Path(fields["target"])
        fields["lists"] = tuple(
            SourceLists(**{name: None if path is None else Path(path) for name, path in lists.items()})
            for lists in fields["lists"]
        )
        return cls(**{field.name: fields[field.name] for field in dataclass_fields(cls)})


class _Lists(TypedDict):
    training: FilePath | None
    held_out: FilePath | None
    sample: FilePath | None


class _JobFile(TypedDict):
    """A Job as JSON."""

    folder: FilePath
    name: str
    lists: list[_Lists]
    solver: FilePath
    weights: list[str]
    variants: list[str]
    overrides: list[str]
    seed: int
    draw: int
    base_dir: FilePath
    device: str
    recalibrate: bool
    target_labels: str
    target: FilePath | None


class Result(TypedDict):
    """How a job ended.

    Attributes:
        name: the candidate's name.
        target_labels: a hash of the labels that the outputs hold, or "" if they hold none.
        collapsed_at: the iteration of the last collapse alarm.
        error: why there are no outputs; None if there are.
        seconds: how long the job took.
    """

    name: str
    target_labels: str
    collapsed_at: int | None
    error: str | None
    seconds: float


def read_result(job: Job) -> Result | None:
    """A job's result; None if the job is not finished, or if its outputs lack the labels asked for.

    Raises:
        InputError: the file is damaged.
    """
    path = job.folder / "result.json"
    if not path.exists():
        return None
    result = json_files.read(path, Result, remedy="delete it, and the candidate is measured again")
    if result["error"] is not None:
        return result
    known = not job.target_labels or result["target_labels"] == job.target_labels
    return result if known and job.outputs.exists() and job.trained.exists() else None


def failure(job: processes.Job, status: int) -> str:
    """Why a process ended with an exit status and without a result, according to its log."""
    if status < 0:
        return f"killed by signal {-status}; see {job.log}"
    lines = job.log.read_text("utf-8", errors="replace").split("\n")
    return f"{next((line for line in reversed(lines) if line.strip()), f'exit status {status}')}; see {job.log}"


class InterruptedTrainingError(Exception):
    """A signal ended a training early; `exit_status` is the process's exit status."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status


def run(job: Job, workers: int) -> None:
    """Train, keep the weights and the outputs, write result.json and delete the snapshots.

    An interrupted job continues from its snapshot. A training that diverged is a result; after another error, the job
    is run again the next time.

    Args:
        job: the job.
        workers: processes that read images ahead.

    Raises:
        InterruptedTrainingError: a signal ended the training, which left a snapshot.
    """
    from autodial.training.run import Outcome
    from autodial.training.run_log import log_weights

    started = time.perf_counter()
    result = Result(name=job.name, target_labels=job.target_labels, collapsed_at=None, error=None, seconds=0.0)
    try:
        if not job.trained.exists():
            trained = _train(job, workers)
            if trained.outcome is Outcome.DIVERGED:
                assert trained.error is not None
                raise trained.error
            assert trained.snapshot is not None and trained.snapshot.weights is not None
            _keep(job, open_net(job, trained.snapshot.weights, workers))
        outputs = open_net(job, job.trained, workers).outputs(
            source=[lists.sample for lists in job.lists],
            held_out=[lists.held_out for lists in job.lists],
            target_labels=bool(job.target_labels),
            seed=job.draw,
        )
        outputs.write(job.outputs)
        log_weights(job.folder / "run", job.trained, recalibrated=job.recalibrate, test=_test(outputs))
        result["collapsed_at"] = _collapsed_at(job)
    except DivergedError as error:
        result["error"] = str(error)
    result["seconds"] = round(time.perf_counter() - started, 1)
    with replacing(job.folder / "result.json") as file:
        file.write(json.dumps(result, indent=2).encode())
    for snapshot in job.folder.glob(f"{_PREFIX}_iter_*"):
        snapshot.unlink()


def _train(job: Job, workers: int) -> TrainingResult:
    """Train, from the last snapshot if there is one, and print the training's progress."""
    from autodial.training.console import Lines, write_line
    from autodial.training.run import Outcome, Training
    from autodial.training.signals import heeding_signals

    logs = job.folder / "run"
    states = job.folder.glob(f"{_PREFIX}_iter_*.solverstate")
    snapshots = sorted((state for state in states if _ITERATION.search(state.stem)), key=_iteration)
    if not snapshots:
        shutil.rmtree(logs, ignore_errors=True)
        for model in job.folder.glob(
            f"{_PREFIX}_iter_*"
        ):  # left by a process that was killed before it wrote the state
            model.unlink()
    snapshot = snapshots[-1] if snapshots else None
    weights = () if snapshots else job.weights
    training = Training(
        job.solver,
        weights=weights,
        snapshot=snapshot,
        device=job.device,
        seed=job.seed,
        workers=workers,
        overrides=job.overrides,
        variants=job.variants,
        folder=logs,
    )
    options = {
        **{"--solver": job.solver, "--weights": ",".join(weights) or None, "--snapshot": snapshot},
        **{"--device": job.device, "--variant": list(job.variants), "--set": list(job.overrides)},
        **{"--workers": workers, "--seed": job.seed, "-o": logs},
    }
    with heeding_signals(training.solver) as heeded:
        result = training.run(
            [Lines(write_line)],
            command=command_line("autodial train", options),
            begun=lambda: write_line(training.describe()),
        )
    if result.outcome is Outcome.STOPPED:
        raise InterruptedTrainingError(TERMINATED if signal.SIGTERM in heeded else INTERRUPTED)
    return result


def open_net(job: Job, weights: Path, workers: int) -> TrainedNet:
    """The job's net with some weights of it, to be run on images."""
    from autodial.proto import read_net
    from autodial.selection.outputs import TrainedNet
    from autodial.system.devices import choose_device

    device = choose_device(job.device)
    return TrainedNet(
        read_net(job.net), weights, base_dir=job.base_dir, device=device, workers=workers, target=job.target
    )


def _keep(job: Job, net: TrainedNet) -> None:
    """Write the weights that the user gets if this candidate is chosen."""
    from autodial.proto import write_weights

    if job.recalibrate:
        net.recalibrate([lists.training for lists in job.lists])
    write_weights(net.weights, job.trained)


def _test(outputs: Outputs) -> KeptTest | None:
    """What the weights scored on the TEST phase's labelled images; None if labels were not looked at."""
    from autodial.training.recall import balanced_accuracy

    labels, classes = outputs.test_labels, outputs.test_probabilities.shape[1]
    if not len(labels):
        return None
    right = outputs.test_probabilities.argmax(1) == labels
    by_class = [right[labels == number] for number in range(classes)]
    recalls = tuple(float(some.mean()) if some.size else math.nan for some in by_class)
    return {
        "images": len(labels),
        "accuracy": float(right.mean()),
        "balanced_accuracy": balanced_accuracy(recalls),
        "recalls": list(recalls),
    }


def _collapsed_at(job: Job) -> int | None:
    """The iteration of the last alarm that the target's predictions had collapsed."""
    from autodial.training.run_record import read_events

    alarms = [row["iteration"] for row in read_events(job.folder / "run") if row["event"] == "collapse"]
    return alarms[-1] if alarms else None


def _iteration(snapshot: Path) -> int:
    found = _ITERATION.search(snapshot.stem)
    assert found is not None
    return int(found[1])


def stop_with_parent() -> None:
    """Stop this process as after Ctrl-C once its parent process is gone."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGINT)


def main(arguments: list[str]) -> int:
    """Run a job; the arguments are its file and the number of processes that read images. Returns the exit status."""
    stop_with_parent()
    try:
        run(Job.read(Path(arguments[0])), int(arguments[1]))
    except InterruptedTrainingError as interruption:
        return interruption.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except AutodialError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

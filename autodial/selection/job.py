"""One candidate without one fold of the source, as a process: `python -m autodial.selection.job JOB.json WORKERS`."""

from __future__ import annotations

import json
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
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from autodial.errors import INTERRUPTED, TERMINATED, AutodialError, InputError
from autodial.selection.holdout import Fold
from autodial.system import json_files
from autodial.system.files import replacing
from autodial.system.json_files import FilePath, WrongValueError
from autodial.wording import command_line

if TYPE_CHECKING:
    from autodial.training.run import TrainingResult

_PREFIX = "net"
_ITERATION = re.compile(r"_iter_([0-9]{1,10})$")
"""What the name of a snapshot ends in."""
_LOOK = 2.0
"""Seconds between two looks at whether the process that started this one is still there."""


@dataclass(frozen=True)
class Job:
    """What to train and measure; all paths are absolute, or mean the working directory.

    Attributes:
        folder: for all that comes of it.
        settings: of the candidate.
        fold: number of the fold that is held out.
        lists: that fold's.
        solver, weights, variants: as `Training` takes them.
        overrides: settings of the training, the candidate's among them.
        seed: of the training.
        max_iter: number of iterations.
        base_dir: folder of the net's file.
        device: as `Training` takes it.
        target_labels: a hash of the TEST phase's labels, to compare with them; "" leaves them alone.
    """

    folder: Path
    settings: tuple[str, ...]
    fold: int
    lists: Fold
    solver: Path
    weights: tuple[str, ...]
    variants: tuple[str, ...]
    overrides: tuple[str, ...]
    seed: int
    max_iter: int
    base_dir: Path
    device: str
    target_labels: str

    @property
    def net(self) -> Path:
        """The net that is trained, of both phases."""
        return self.folder / "net.prototxt"

    @property
    def prefix(self) -> Path:
        """Of the snapshots."""
        return self.folder / _PREFIX

    @property
    def log(self) -> Path:
        """What the process prints."""
        return self.folder / "log.txt"

    def write(self) -> Path:
        """Write the job into its folder, for `main`; returns the file."""
        path = self.folder / "job.json"
        with replacing(path) as file:
            file.write(json.dumps(asdict(self), default=str, indent=2).encode())
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        """What `write` wrote.

        Raises:
            InputError: the file is damaged.
        """
        fields: dict[str, Any] = {**json_files.read(path, _JobFile, remedy="run `autodial select` again")}
        for name in ("folder", "solver", "base_dir"):
            fields[name] = Path(fields[name])
        for name in ("settings", "weights", "variants", "overrides"):
            fields[name] = tuple(fields[name])
        fields["lists"] = Fold(**{name: Path(list_) for name, list_ in fields["lists"].items()})
        return cls(**{field.name: fields[field.name] for field in dataclass_fields(cls)})


def _share(value: float) -> None:
    if not 0 <= value <= 1:
        raise WrongValueError("from 0 to 1", value)


def _not_negative(value: float) -> None:
    if value < 0:
        raise WrongValueError("0 or more", value)


_Share = Annotated[float, _share]
_NotNegative = Annotated[float, _not_negative]
_Count = Annotated[int, range(1, 2**31)]


class _Lists(TypedDict):
    training: FilePath
    held_out: FilePath
    sample: FilePath


class _JobFile(TypedDict):
    """A Job as JSON."""

    folder: FilePath
    settings: list[str]
    fold: int
    lists: _Lists
    solver: FilePath
    weights: list[str]
    variants: list[str]
    overrides: list[str]
    seed: int
    max_iter: int
    base_dir: FilePath
    device: str
    target_labels: str


class _Measures(TypedDict):
    """autodial.selection.measures.Measures as JSON."""

    held_out: _Count
    source_accuracy: _Share
    weighted_loss: _NotNegative
    weighted_error: _NotNegative
    effective: _NotNegative
    domain_accuracy: _Share
    domain_samples: _Count
    entropy: _NotNegative
    density: _NotNegative
    diversity: _NotNegative
    target_accuracy: _Share | None


class Result(TypedDict):
    """What came of a job: measures, or an error."""

    settings: list[str]
    fold: int
    seed: int
    target_labels: str
    measures: _Measures | None
    collapsed_at: int | None
    error: str | None
    seconds: float


def read_result(job: Job) -> Result | None:
    """What came of a job; None if it is not finished, or lacks the accuracy asked for.

    Raises:
        InputError: the file is damaged.
    """
    path = job.folder / "result.json"
    if not path.exists():
        return None
    remedy = "delete it, and the candidate is trained again"
    result = json_files.read(path, Result, remedy=remedy)
    if result["measures"] is None and result["error"] is None:
        raise InputError(f"{path} is damaged, it has neither measures nor an error: {remedy}")
    known = result["error"] is not None or not job.target_labels or result["target_labels"] == job.target_labels
    return result if known else None


def failure(job: Job, status: int) -> str:
    """Why a process ended with an exit status and without a result, as far as its log tells."""
    if status < 0:
        return f"killed by signal {-status}; see {job.log}"
    lines = job.log.read_text("utf-8", errors="replace").split("\n")
    return f"{next((line for line in reversed(lines) if line.strip()), f'exit status {status}')}; see {job.log}"


class InterruptedTrainingError(Exception):
    """A training was told to end before it was done; `exit_status` is the process's."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status


def run(job: Job, workers: int) -> None:
    """Train, measure, write result.json and delete the snapshots; goes on where an earlier run was interrupted.

    That the training diverged is a result, too. Other errors are not, and are tried again.

    Args:
        job: what to do.
        workers: processes that read images ahead.

    Raises:
        InterruptedTrainingError: a signal ended the training, which left a snapshot.
    """
    from autodial.training.run import Outcome

    started = time.perf_counter()
    result: dict[str, Any] = {
        **{"settings": job.settings, "fold": job.fold, "seed": job.seed, "target_labels": job.target_labels}
    }
    trained = _train(job, workers)
    if trained.outcome is Outcome.DIVERGED:
        result |= {"measures": None, "collapsed_at": None, "error": str(trained.error)}
    else:
        assert trained.snapshot is not None and trained.snapshot.weights is not None
        measures = _measure(job, trained.snapshot.weights, workers)
        result |= {"measures": measures, "collapsed_at": _collapsed_at(job), "error": None}
    result["seconds"] = round(time.perf_counter() - started, 1)
    with replacing(job.folder / "result.json") as file:
        file.write(json.dumps(result, indent=2).encode())
    for snapshot in job.folder.glob(f"{_PREFIX}_iter_*"):
        snapshot.unlink()


def _train(job: Job, workers: int) -> TrainingResult:
    """Train from the last snapshot if there is one; what the training shows is printed."""
    from autodial.training.console import Lines, write_line
    from autodial.training.run import Outcome, Training
    from autodial.training.signals import heeding_signals

    logs = job.folder / "run"
    states = job.folder.glob(f"{_PREFIX}_iter_*.solverstate")
    snapshots = sorted((state for state in states if _ITERATION.search(state.stem)), key=_iteration)
    if not snapshots:
        shutil.rmtree(logs, ignore_errors=True)
        for model in job.folder.glob(f"{_PREFIX}_iter_*"):  # of a process that was killed before it wrote the state
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


def _measure(job: Job, weights: Path, workers: int) -> dict[str, Any]:
    from autodial.proto import read_net
    from autodial.selection.measures import measure
    from autodial.system.devices import choose_device

    measures = measure(
        read_net(job.net),
        weights,
        job.lists,
        base_dir=job.base_dir,
        device=choose_device(job.device),
        workers=workers,
        target_labels=bool(job.target_labels),
    )
    return asdict(measures)


def _collapsed_at(job: Job) -> int | None:
    """The iteration of the last alarm that the target's predictions had collapsed."""
    from autodial.training.run_record import read_events

    alarms = [row["iteration"] for row in read_events(job.folder / "run") if row["event"] == "collapse"]
    return alarms[-1] if alarms else None


def _iteration(snapshot: Path) -> int:
    found = _ITERATION.search(snapshot.stem)
    assert found is not None
    return int(found[1])


def _stop_with_parent(parent: int) -> None:
    """Stop as after Ctrl-C when the process that started this one is gone."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGINT)


def main(arguments: list[str]) -> int:
    """Run a job: its file, and the number of processes that read images; returns the exit status."""
    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()
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

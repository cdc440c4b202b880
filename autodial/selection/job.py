"""One candidate without one fold of the source, as a process: `python -m autodial.selection.job JOB.json WORKERS`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autodial.errors import AutodialError, DivergedError, InputError
from autodial.options import INTERRUPTED
from autodial.proto.files import replacing
from autodial.selection.holdout import Fold

_PREFIX = "net"
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
        solver, weights, variants: as `autodial train` takes them.
        overrides: settings of the training, the candidate's among them.
        seed: of the training.
        max_iter: number of iterations.
        base_dir: folder of the net's file.
        device: as `autodial train` takes it.
        target_labels: a hash of the TEST phase's labels, to compare with them; "" leaves them alone.
    """

    folder: Path
    settings: tuple[str, ...]
    fold: int
    lists: Fold
    solver: Path
    weights: str | None
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
        """What `write` wrote."""
        fields = json.loads(path.read_text("utf-8"))
        for name in ("folder", "solver", "base_dir"):
            fields[name] = Path(fields[name])
        for name in ("settings", "variants", "overrides"):
            fields[name] = tuple(fields[name])
        fields["lists"] = Fold(**{name: Path(list_) for name, list_ in fields["lists"].items()})
        return cls(**fields)


def read_result(job: Job) -> dict[str, Any] | None:
    """What came of a job: "measures", or "error"; None if it is not finished, or lacks the accuracy asked for."""
    path = job.folder / "result.json"
    if not path.exists():
        return None
    try:
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
        known = result["error"] is not None or not job.target_labels or result["target_labels"] == job.target_labels
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} can't be read ({error}): delete it, and the candidate is trained again") from error
    return result if known else None


def failure(job: Job, status: int) -> str:
    """Why a process ended with an exit status and without a result, as far as its log tells."""
    if status < 0:
        return f"killed by signal {-status}; see {job.log}"
    lines = job.log.read_text("utf-8", errors="replace").split("\n")
    return f"{next((line for line in reversed(lines) if line.strip()), f'exit status {status}')}; see {job.log}"


def run(job: Job, workers: int) -> None:
    """Train, measure, write result.json and delete the snapshots; goes on where an earlier run was interrupted.

    Args:
        job: what to do.
        workers: processes that read images ahead.

    That the training diverged is a result, too. Other errors are not, and are tried again.
    """
    started = time.perf_counter()
    result: dict[str, Any] = {
        **{"settings": job.settings, "fold": job.fold, "seed": job.seed, "target_labels": job.target_labels}
    }
    try:
        weights = _train(job, workers)
        result |= {"measures": _measure(job, weights, workers), "collapsed_at": _collapsed_at(job), "error": None}
    except DivergedError as error:
        result |= {"measures": None, "collapsed_at": None, "error": str(error)}
    result["seconds"] = round(time.perf_counter() - started, 1)
    with replacing(job.folder / "result.json") as file:
        file.write(json.dumps(result, indent=2).encode())
    for snapshot in job.folder.glob(f"{_PREFIX}_iter_*"):
        snapshot.unlink()


def _train(job: Job, workers: int) -> Path:
    """`autodial train`, from the last snapshot if there is one; returns the caffemodel."""
    from autodial.train_command import train

    logs = job.folder / "run"
    snapshots = sorted(job.folder.glob(f"{_PREFIX}_iter_*.solverstate"), key=_iteration)
    if snapshots and _iteration(snapshots[-1]) >= job.max_iter:
        return snapshots[-1].with_suffix(".caffemodel")
    if not snapshots:
        shutil.rmtree(logs, ignore_errors=True)
        for model in job.folder.glob(f"{_PREFIX}_iter_*"):  # of a process that was killed before it wrote the state
            model.unlink()
    train(
        solver=job.solver,
        weights=None if snapshots else job.weights,
        snapshot=snapshots[-1] if snapshots else None,
        device=job.device,
        settings=list(job.overrides),
        variants=list(job.variants),
        workers=workers,
        seed=job.seed,
        output=logs,
    )
    return Path(f"{job.prefix}_iter_{job.max_iter}.caffemodel")


def _measure(job: Job, weights: Path, workers: int) -> dict[str, Any]:
    from autodial.devices import choose_device
    from autodial.proto import read_net
    from autodial.selection.measures import measure

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
    from autodial.run_log import read_events

    rows = [row for row in read_events(job.folder / "run") if row["event"] == "collapse"]
    return rows[-1]["iteration"] if rows else None


def _iteration(snapshot: Path) -> int:
    return int(snapshot.stem.rpartition("_")[2])


def _stop_with_parent(parent: int) -> None:
    """Stop as after Ctrl-C when the process that started this one is gone."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGINT)


def main(arguments: list[str]) -> int:
    """Run a job: its file, and the number of processes that read images; returns the exit status."""
    import typer

    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        run(Job.read(Path(arguments[0])), int(arguments[1]))
    except typer.Exit as interruption:
        return interruption.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except AutodialError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One candidate in a process that trains and measures it: `python -m autodial.selection.training_job JOB WORKERS`."""

from __future__ import annotations

import math
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from autodial.errors import INTERRUPTED, TERMINATED, DivergedError
from autodial.selection.holdout import SourceLists
from autodial.selection.process_job import InterruptedJobError, ProcessJob
from autodial.wording import command_line

if TYPE_CHECKING:
    import torch

    from autodial.proto import messages as pb
    from autodial.selection.outputs import Outputs, TrainedNet
    from autodial.training.run_record import KeptTest
    from autodial.training.solver import Solver

_PREFIX = "net"
_ITERATION = re.compile(r"_iter_([0-9]{1,10})$")
"""The end of a snapshot's name."""


CONTEXT_BYTES = 2**29
"""Bytes that a process takes before it has a net: the interpreter, torch, and the context on a GPU."""


def training_device(solver: pb.SolverParameter, device: str) -> torch.device:
    """The device that a training chooses for `device` (see `choose_device`); nothing is built on it."""
    from autodial.proto import messages as pb
    from autodial.system.devices import choose_device

    return choose_device(device, prefer_gpu=solver.solver_mode == pb.SolverParameter.GPU, index=solver.device_id)


def training_memory(run: Solver) -> int:
    """Bytes that a training takes: blobs and their gradients; parameters, their gradients and history."""
    blobs = sum(math.prod(shape) for shape in run.net.blob_shapes.values())
    params = sum(param.tensor.numel() for param in run.net.params)
    return CONTEXT_BYTES + 4 * (2 * blobs + 3 * params)


def snapshot_settings(folder: Path) -> list[str]:
    """A job's settings of the solver: snapshots go to the job's folder, the last one is kept, and nothing is tested."""
    return [
        f"solver.snapshot_prefix={(folder / _PREFIX).absolute()}",
        "solver.snapshot_format=BINARYPROTO",
        "solver.snapshot_after_train=true",
        "solver.test_initialization=false",
        f"solver.test_interval={2**31 - 1}",
    ]


@dataclass(frozen=True, kw_only=True)
class TrainingJob(ProcessJob):
    """A candidate's training and measurement; paths are absolute or relative to the working directory.

    Attributes:
        lists: lists of each source's images.
        solver, weights, variants, device: arguments of `Training`.
        overrides: the training's settings, including the candidate's.
        seed: seed of the training.
        draw: seed of the draw of target images whose features are kept; all candidates have the same.
        base_dir: folder of the net's file.
        recalibrate: whether statistics of all images replace training's moving averages.
        target: list of the target's images; None: what the net's TRAIN phase reads (see `TrainedNet`).
    """

    module: ClassVar[str] = "autodial.selection.training_job"

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
    target: Path | None = None

    @property
    def net(self) -> Path:
        """The file of the net that is trained, with both phases."""
        return self.folder / "net.prototxt"

    @property
    def trained(self) -> Path:
        """The file of the trained weights."""
        return self.folder / "weights.caffemodel"

    @property
    def products(self) -> Sequence[Path]:
        """The files that a job without an error leaves."""
        return (self.outputs, self.trained)

    def run(self, workers: int) -> None:
        """Train, keep the weights, the outputs and the result, and delete the snapshots.

        An interrupted job continues from its snapshot. A training that diverged is a result; after another error, the
        job is run again the next time.
        """
        from autodial.training.run_log import log_weights

        started = time.perf_counter()
        try:
            if not self.trained.exists():
                _keep(self, self.open_net(_train(self, workers), workers))
            outputs = self.open_net(self.trained, workers).outputs(
                source=[lists.sample for lists in self.lists],
                held_out=[lists.held_out for lists in self.lists],
                target_labels=bool(self.target_labels),
                seed=self.draw,
            )
        except DivergedError as error:
            self.keep(started, error=str(error))
        else:
            outputs.write(self.outputs)
            log_weights(self.folder / "run", self.trained, recalibrated=self.recalibrate, test=_test(outputs))
            self.keep(started, collapsed_at=_collapsed_at(self))
        for snapshot in self.folder.glob(f"{_PREFIX}_iter_*"):
            snapshot.unlink()

    def open_net(self, weights: Path, workers: int) -> TrainedNet:
        """The job's net with some weights of it, to be run on images."""
        from autodial.proto import read_net
        from autodial.selection.outputs import TrainedNet
        from autodial.system.devices import choose_device

        return TrainedNet(
            read_net(self.net),
            weights,
            base_dir=self.base_dir,
            device=choose_device(self.device),
            workers=workers,
            target=self.target,
        )


def _train(job: TrainingJob, workers: int) -> Path:
    """Train, from the last snapshot if there is one, and print the training's progress; returns the weights' file.

    Raises:
        DivergedError: the training diverged.
        InterruptedJobError: a signal ended the training, which left a snapshot.
    """
    from autodial.training.console import Lines, write_line
    from autodial.training.run import Outcome, Training
    from autodial.training.signals import heeding_signals

    logs = job.folder / "run"
    states = job.folder.glob(f"{_PREFIX}_iter_*.solverstate")
    snapshots = sorted((state for state in states if _ITERATION.search(state.stem)), key=_iteration)
    if not snapshots:
        shutil.rmtree(logs, ignore_errors=True)
        for model in job.folder.glob(f"{_PREFIX}_iter_*"):  # left by a process that was killed before the state
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
            [Lines(write_line, training.solver.net.base_dir)],
            command=command_line("autodial train", options),
            begun=lambda: write_line(training.describe()),
        )
    if result.outcome is Outcome.STOPPED:
        raise InterruptedJobError(TERMINATED if signal.SIGTERM in heeded else INTERRUPTED)
    if result.error is not None:
        raise result.error
    assert result.snapshot is not None and result.snapshot.weights is not None
    return result.snapshot.weights


def _keep(job: TrainingJob, net: TrainedNet) -> None:
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


def _collapsed_at(job: TrainingJob) -> int | None:
    """The iteration of the last alarm that the target's predictions had collapsed."""
    from autodial.training.run_record import read_events

    alarms = [row["iteration"] for row in read_events(job.folder / "run") if row["event"] == "collapse"]
    return alarms[-1] if alarms else None


def _iteration(snapshot: Path) -> int:
    found = _ITERATION.search(snapshot.stem)
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    sys.exit(TrainingJob.main(sys.argv[1:]))

"""A training in a folder: `autodial train` without its command line.

    from autodial.training.run import Outcome, Training

    training = Training("solver.prototxt", weights=["bvlc.caffemodel"], variants=["fixed-alpha"])
    result = training.run()
    if result.outcome is Outcome.FINISHED:
        print(result.snapshot.weights)

Snapshots go where the solver's snapshot_prefix says. The folder gets run.json, log.jsonl (see
`autodial.training.run_record`), and the same numbers for TensorBoard.
"""

from __future__ import annotations

import glob
import itertools
import logging
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import cv2

from autodial import __version__
from autodial.errors import DivergedError, InputError
from autodial.net.feed import default_workers
from autodial.proto import messages as pb
from autodial.proto import to_text
from autodial.system.allocator import keep_freed_memory
from autodial.system.devices import describe_device, warn_of_cpu
from autodial.system.hashing import file_hash
from autodial.system.outputs import check_folder, lock
from autodial.system.ranks import Ranks
from autodial.training.monitor import Monitor
from autodial.training.run_log import RunLog
from autodial.training.run_record import holds_run, read_events, read_starts
from autodial.training.snapshots import newest_state
from autodial.training.solver import Solver, tests_end

_log = logging.getLogger(__name__)


class SnapshotsError(InputError):
    """Snapshots are where a new run would write its own.

    Attributes:
        newest: the .solverstate of the newest, to resume from; None if no snapshot is whole.
    """

    def __init__(self, found: Path, newest: Path | None) -> None:
        which, end = f"{found} is a snapshot", ", or delete the snapshots"
        if newest is not None:
            which, end = f"{newest} is the newest snapshot", ", delete the snapshots, or resume from it with `snapshot`"
        super().__init__(
            f"{which} that lies where this training would write its own: name another place with `overrides` "
            f"solver.snapshot_prefix=PREFIX{end}"
        )
        self.newest = newest


class Outcome(StrEnum):
    """How a training ended: at max_iter, after `Solver.stop`, or at a loss or a weight that is not finite."""

    FINISHED = "finished"
    STOPPED = "stopped"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class Snapshot:
    """The files of a snapshot.

    Attributes:
        iteration: number of updates before it.
        state: the .solverstate, to resume from.
        weights: the .caffemodel; None where training was resumed from a .solverstate that names none.
    """

    iteration: int
    state: Path
    weights: Path | None


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training.

    Attributes:
        outcome: how it ended.
        iteration: number of updates done, those before it was resumed included.
        folder: the folder of the run, with its record and its log.
        snapshot: the last one, written or resumed from; None if there is none. After DIVERGED it may be an older one.
        collapsed_at: iteration of the last alarm that the target's predictions had collapsed; None without one.
        error: after DIVERGED, what was not finite and where; else None.
    """

    outcome: Outcome
    iteration: int
    folder: Path
    snapshot: Snapshot | None
    collapsed_at: int | None
    error: DivergedError | None = None


class Training:
    """A solver to be trained into a folder. The constructor finds what would stop it later, before anything is written.

    The logger `autodial.training.run` warns if all weights of several layers are 0, and if a run continues in another
    precision.

    Args:
        solver: solver.prototxt.
        weights: .caffemodel files to start from, by layer name; a later file's layers replace an earlier one's. Without
            any, and without `snapshot`, those that the solver names, as in Caffe.
        snapshot: a .solverstate to resume from.
        device, seed, precision, overrides, variants, ranks, keep: as `Solver` takes them.
        workers: processes that read images ahead; None: one less than the CPUs, 1 to 8, shared by the machine's ranks.
        folder: for the run's record and log. None: <snapshot_prefix>_run, or _run2 and so on, the first that holds no
            run; with `snapshot`, the last that holds one.

    Attributes:
        solver: the Solver; `solver.stop()` ends `run` after the iteration.
        folder: the run's.
        weights: the .caffemodel files that the run starts from.
        missing: names of layers with blobs that no file of `weights` holds; their fillers made the blobs.

    Raises:
        InputError: what `Solver`, `Solver.load_weights`, `Solver.restore` or `Solver.check` raises; both `weights` and
            `snapshot`; snapshots of another run that this one might overwrite (SnapshotsError); a snapshot whose
            weights are not the ones written with it; or a folder that can't be written to, or holds a run of other
            variants.
        WorkError: a device that is not there.
    """

    def __init__(
        self,
        solver: str | os.PathLike[str],
        *,
        weights: Sequence[str | os.PathLike[str]] = (),
        snapshot: str | os.PathLike[str] | None = None,
        device: str = "auto",
        seed: int | None = None,
        workers: int | None = None,
        precision: Literal["float32", "bf16"] = "float32",
        overrides: Sequence[str] = (),
        variants: Sequence[str] = (),
        ranks: Ranks | None = None,
        keep: int | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if weights and snapshot is not None:
            raise InputError("`weights` starts a run and `snapshot` resumes one: give one of them")
        if folder is not None:
            check_folder(Path(folder))
        self._variants, self._overrides = list(variants), list(overrides)
        self._wanted_device = device
        self.solver = Solver.from_file(
            solver,
            device=device,
            seed=seed,
            workers=default_workers(ranks.local_size if ranks else 1) if workers is None else workers,
            precision=precision,
            overrides=overrides,
            variants=variants,
            ranks=ranks,
            keep=keep,
        )
        if self.solver.device.type == "cpu":
            keep_freed_memory()
        prefix = self.solver.param.snapshot_prefix
        self.folder = _choose_folder(prefix, resumed=snapshot is not None) if folder is None else Path(folder)
        self.weights: list[Path] = []
        self.missing: list[str] = []
        self._resumed: Snapshot | None = None
        if snapshot is None:
            _check_free(prefix)
            self.weights = [Path(path) for path in weights] or self.solver.own_weights
            if self.weights:
                self.missing = self.solver.load_weights(self.weights)
        else:
            state = Path(snapshot)
            model = self.solver.restore(state)
            _check_pair(self.folder, state, model)
            self._check_same_run()
            self._resumed = Snapshot(self.solver.iter, state, model)
        if not self.done:
            self.solver.check()
            _warn_of_zeros(self.solver)

    def describe(self) -> str:
        """What is trained, and where, in a line for users."""
        solver = self.solver
        several = "" if solver.ranks is None else f" in each of {solver.ranks.size} processes"
        untested = ""
        if solver.test_nets and not tests_end(solver.param):
            intervals = (
                f"test_interval ({solver.param.test_interval}) is larger than max_iter ({solver.param.max_iter})"
            )
            untested = f"; nothing is tested, as {intervals} and test_initialization is false"
        half = "" if solver.precision == "float32" else f" in {solver.precision}"
        return (
            f"Training {solver.net_names[0]} on {describe_device(solver.device)}{half}{several} from iteration "
            f"{solver.iter} to {solver.param.max_iter}, logs: {self.folder}{untested}"
        )

    @property
    def done(self) -> bool:
        """Whether the snapshot resumed from is already at max_iter or beyond, so that `run` has nothing to do."""
        param = self.solver.param
        return self._resumed is not None and param.HasField("max_iter") and self._resumed.iteration >= param.max_iter

    @property
    def snapshot(self) -> Snapshot | None:
        """The last snapshot, written or resumed from; None if there is none yet."""
        iteration = self.solver.saved_at
        if iteration is None or (self._resumed is not None and iteration == self._resumed.iteration):
            return self._resumed
        prefix = f"{self.solver.param.snapshot_prefix}_iter_{iteration}"
        weights, state = (Path(f"{prefix}{suffix}") for suffix in self.solver.snapshot_suffixes)
        return Snapshot(iteration, state, weights)

    def run(
        self,
        monitors: Iterable[Monitor] = (),
        *,
        command: str | None = None,
        begun: Callable[[], object] | None = None,
    ) -> TrainingResult:
        """Train to max_iter; to be called once. All ranks take part, and rank 0 writes.

        A locked file <snapshot_prefix>.lock keeps other trainings from writing snapshots of the same names meanwhile.
        Nothing is written if the snapshot resumed from is already at max_iter.

        Args:
            monitors: what watches the solver in addition to the log; with several ranks, only those of rank 0 are used.
            command: the command of this start, for run.json; None: the command line of this process.
            begun: called on rank 0 right before training, when the lock is held and the log is open.

        Returns:
            how it ended; diverging is a result, too.

        Raises:
            InputError: an image can't be read; another training writes snapshots of these names; or the folder holds
                a run, and this is not its continuation.
            WorkError: a device, a disk or another rank fails. It leaves a snapshot of the last whole iteration, if that
                is possible (see `snapshot`).
        """
        error = None
        finished = self.done
        if not finished:
            try:
                finished = self._run(monitors, command or shlex.join(sys.orig_argv), begun)
            except DivergedError as diverged:
                error = diverged
        collapses = self.solver.collapses
        return TrainingResult(
            outcome=Outcome.DIVERGED if error else Outcome.FINISHED if finished else Outcome.STOPPED,
            iteration=self.solver.iter,
            folder=self.folder,
            snapshot=self.snapshot,
            collapsed_at=collapses[-1].iteration if collapses else None,
            error=error,
        )

    def _run(self, monitors: Iterable[Monitor], command: str, begun: Callable[[], object] | None) -> bool:
        """Train under the lock, with the log; returns whether training got to max_iter."""
        solver = self.solver
        with ExitStack() as stack:
            if solver.ranks is None or solver.ranks.rank == 0:
                stack.enter_context(_alone_at(solver.param.snapshot_prefix))
                resumed = self._resumed is not None
                log = RunLog(self.folder, self._record(command), iteration=solver.iter, resumed=resumed)
                stack.callback(log.close)
                solver.monitors += [log, *monitors]
                gpu = solver.param.solver_mode == pb.SolverParameter.GPU
                warn_of_cpu(self._wanted_device, solver.device, prefer_gpu=gpu)
                if begun is not None:
                    begun()
            return solver.solve()

    def _check_same_run(self) -> None:
        """Refuse to continue a run of other variants of the net; warn if it had another precision."""
        if not holds_run(self.folder):
            return
        last = read_starts(self.folder)[-1]
        precision = last.get("precision", "float32")
        if precision != self.solver.precision:
            _log.warning("%s holds a run in %s, which continues in %s", self.folder, precision, self.solver.precision)
        before = last.get("variants", [])
        if before != self._variants:
            named = f"`variants` {', '.join(before)}" if before else "no `variants`"
            raise InputError(
                f"{self.folder} holds a run with {named}: resume it with the same, or name another folder with `folder`"
            )

    def _record(self, command: str) -> dict[str, Any]:
        """What run.json says about this start of the run."""
        solver = self.solver
        nets = {
            id(param): (param, net)
            for param, net in zip(solver.net_params, (solver.net, *solver.test_nets), strict=True)
        }
        return {
            "command": command,
            "folder": str(Path.cwd()),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "iteration": solver.iter,
            "seed": solver.seed,
            "variants": self._variants,
            "settings": self._overrides,
            "device": describe_device(solver.device),
            **({} if solver.ranks is None else {"ranks": solver.ranks.size}),
            "workers": solver.workers,
            "precision": solver.precision,
            "keep": solver.keep,
            "versions": {
                "autodial": __version__,
                **{name: version(name) for name in ("torch", "numpy", "protobuf")},
                "opencv": cv2.__version__,
                "python": platform.python_version(),
            },
            "solver": to_text(solver.param),
            "nets": [to_text(param) for param, _ in nets.values()],
            # where relative paths in a net lead if not from the working directory
            "net_folders": [net.base_dir and str(net.base_dir.absolute()) for _, net in nets.values()],
        }


def _choose_folder(prefix: str, *, resumed: bool) -> Path:
    """PREFIX_run, PREFIX_run2 and so on: the first that holds no run, or to resume the last one that does."""
    folders = (Path(f"{prefix}_run{n if n > 1 else ''}") for n in itertools.count(1))
    last = None
    for folder in folders:
        if not holds_run(folder):
            return last if resumed and last is not None else folder
        last = folder
    raise AssertionError("unreachable")


def _check_free(prefix: str) -> None:
    """Refuse to overwrite the snapshots of another run."""
    names = (f"{glob.escape(Path(prefix).name)}_iter_*.{kind}*" for kind in ("caffemodel", "solverstate"))
    found = sorted(path for name in names for path in Path(prefix).parent.glob(name))
    if found:
        raise SnapshotsError(found[0], newest_state(prefix))


@contextmanager
def _alone_at(prefix: str) -> Iterator[None]:
    """Keep other trainings from writing snapshots of the same names, by a locked file PREFIX.lock."""
    path = Path(f"{prefix}.lock")
    with ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("ab"))
            if not lock(file):
                raise InputError(
                    f"another training writes its snapshots to {prefix}: name another place with "
                    "`overrides` solver.snapshot_prefix=PREFIX, or wait until it is done"
                )
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                break  # otherwise its last owner has just ended and removed the file
        stack.callback(_remove, path)
        yield


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _warn_of_zeros(solver: Solver) -> None:
    """Warn if several layers start at 0, as those of a deploy file do: no gradient gets through two of them."""
    names = [
        message.name
        for message in solver.net.param.layer
        if message.type in ("Convolution", "InnerProduct") and not solver.net.layer(message.name).blobs[0].any()
    ]
    if len(names) > 1:
        _log.warning(
            "All weights of %s are 0, and nothing is learned through them: start from trained weights, or state a "
            "weight_filler",
            f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}",
        )


def _check_pair(folder: Path, state: Path, model: Path | None) -> None:
    """Refuse weights that, by the run's log, are not the ones written with the state."""
    if model is None or not holds_run(folder):
        return
    try:
        snapshots = [row for row in read_events(folder) if row["event"] == "snapshot"]
    except InputError:  # the log is gone or damaged
        return
    here = [row for row in snapshots if row.get("state") == str(state.absolute())]
    moved = [row for row in snapshots if Path(str(row.get("state"))).name == state.name]
    written = next((row.get("sha256") for row in reversed(here or moved)), None)
    if written is not None and written != file_hash(model):
        raise InputError(
            f"{model} is not the file that was written with {state}, by the log in {folder}: put that file back, "
            "resume from another snapshot, or name another folder with `folder` to continue from these two"
        )

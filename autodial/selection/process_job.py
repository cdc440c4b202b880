"""A job that runs in a process of its own: its files, its result, and how the process ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Self, TypedDict

from autodial.errors import INTERRUPTED, AutodialError
from autodial.system import json_files
from autodial.system.files import replacing

FILE = "job.json"
"""The file of a job in its folder."""
_LOOK = 2.0
"""Seconds between two checks that the parent process still runs."""


class Result(TypedDict):
    """How a job ended.

    Attributes:
        name: the job's name.
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


class InterruptedJobError(Exception):
    """A signal ended a job early; `exit_status` is the process's exit status."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status


@dataclass(frozen=True, kw_only=True)
class ProcessJob(ABC):
    """What a process runs: `python -m MODULE FILE WORKERS`, with the file that `write` writes.

    Attributes:
        module: name of the module, which calls `main`.
        folder: the folder for all results.
        name: the job's name in messages.
        target_labels: a hash of the target's labels if the outputs are to be compared with them, or "".
    """

    module: ClassVar[str]

    folder: Path
    name: str
    target_labels: str

    @property
    def outputs(self) -> Path:
        """The file of the outputs, which criteria look at."""
        return self.folder / "outputs.npz"

    @property
    def log(self) -> Path:
        """The file of the process's output."""
        return self.folder / "log.txt"

    @property
    def products(self) -> Sequence[Path]:
        """The files that a job without an error leaves."""
        return (self.outputs,)

    @abstractmethod
    def run(self, workers: int) -> None:
        """Do the work, in the job's process, and keep a result.

        Args:
            workers: processes that read images ahead.

        Raises:
            InterruptedJobError: a signal ended the work, which goes on when the job is run again.
        """

    def write(self) -> Path:
        """Write the job into its folder, for `main`; returns the file."""
        path = self.folder / FILE
        with replacing(path) as file:
            file.write(json.dumps(asdict(self), default=str, indent=2).encode())
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file that `write` wrote.

        Raises:
            InputError: the file is damaged.
        """
        return json_files.read_dataclass(path, cls, remedy="run the same command again")

    def result(self) -> Result | None:
        """The result; None if the job is not finished, or if its outputs lack the labels asked for.

        Raises:
            InputError: the file is damaged.
        """
        path = self._result
        if not path.exists():
            return None
        result = json_files.read(path, Result, remedy="delete it, and it is computed again")
        if result["error"] is not None:
            return result
        known = not self.target_labels or result["target_labels"] == self.target_labels
        return result if known and all(file.exists() for file in self.products) else None

    def keep(self, started: float, *, collapsed_at: int | None = None, error: str | None = None) -> None:
        """Write the result; the job is finished.

        Args:
            started: `time.perf_counter()` when the work began.
            collapsed_at, error: as in Result.
        """
        result = Result(
            name=self.name,
            target_labels=self.target_labels,
            collapsed_at=collapsed_at,
            error=error,
            seconds=round(time.perf_counter() - started, 1),
        )
        with replacing(self._result) as file:
            file.write(json.dumps(result, indent=2).encode())

    def failure(self, status: int) -> str:
        """Why the process ended with an exit status and without a result, according to its log."""
        if status < 0:
            return f"killed by signal {-status}; see {self.log}"
        lines = self.log.read_text("utf-8", errors="replace").split("\n")
        return f"{next((line for line in reversed(lines) if line.strip()), f'exit status {status}')}; see {self.log}"

    @classmethod
    def main(cls, arguments: Sequence[str]) -> int:
        """Run a job in this process, which ends with its parent process.

        Args:
            arguments: the job's file, and the number of processes that read images.

        Returns:
            The exit status.
        """
        _stop_with_parent()
        try:
            cls.read(Path(arguments[0])).run(int(arguments[1]))
        except InterruptedJobError as interruption:
            return interruption.exit_status
        except KeyboardInterrupt:
            return INTERRUPTED
        except AutodialError as error:
            print(error, file=sys.stderr)
            return error.exit_status
        return 0

    @property
    def _result(self) -> Path:
        return self.folder / "result.json"


def _stop_with_parent() -> None:
    """Stop this process as after Ctrl-C once its parent process is gone."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGINT)

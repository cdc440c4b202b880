"""The demo's steps: each is shown as the command that a user could type, and what it reports goes to a file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import IO, TextIO

from autodial.errors import WorkError
from autodial.system.terminal import Console

_POLL = 0.05
"""Seconds between two looks at the running commands."""
_THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class _Running:
    """A command that is running, and the file for what it prints."""

    command: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]


@dataclass
class Steps:
    """Shows steps and runs them.

    Args:
        console: where steps are shown.
        log: the file for what they report.
    """

    console: Console
    log: TextIO

    def title(self, text: str) -> None:
        """Show what the steps that follow are about."""
        self.console.print(f"\n[bold]{text}[/bold]")

    def show(self, command: str) -> None:
        """Show a command."""
        self.console.print(f"$ {command}", markup=False)

    def report(self, text: str) -> None:
        """Add lines to the file."""
        print(text, file=self.log)

    @contextmanager
    def step(self, command: str) -> Iterator[None]:
        """Show a command while the block does its work; what the block prints goes to the file."""
        self.show(command)
        self.report(f"\n$ {command}")
        with self.console.status("running"), redirect_stdout(self.log), redirect_stderr(self.log):
            yield

    def run_side_by_side(self, commands: Sequence[str], processes: int, threads: int) -> None:
        """Run several commands, some at a time, without showing them.

        What they print goes to the file, one command after the other. After an exception, such as Ctrl-C, no process is
        left.

        Args:
            commands: command lines of `autodial`.
            processes: how many to run at a time.
            threads: CPU threads for each.

        Raises:
            WorkError: a command failed.
        """
        environment = {**os.environ, **dict.fromkeys(_THREAD_LIMITS, str(threads))}
        waiting = list(commands)
        running: list[_Running] = []
        done = 0
        with ExitStack() as stack, self.console.status("running") as status:
            stack.callback(_stop, running)
            while waiting or running:
                while waiting and len(running) < processes:
                    running.append(_start(waiting.pop(0), stack.enter_context(tempfile.TemporaryFile()), environment))
                for ended in [one for one in running if one.process.poll() is not None]:
                    running.remove(ended)
                    done += 1
                    self._finish(ended)
                status.update(f"{done} of {len(commands)} done")
                time.sleep(_POLL)

    def _finish(self, ended: _Running) -> None:
        ended.output.seek(0)
        printed = ended.output.read().decode("utf-8", "replace")
        self.report(f"\n$ {ended.command}\n{printed}")
        if ended.process.returncode:
            last = printed.strip().rpartition("\n")[2]
            raise WorkError(f"`{ended.command}` failed with status {ended.process.returncode}: {last}")


def _start(command: str, output: IO[bytes], environment: Mapping[str, str]) -> _Running:
    arguments = [sys.executable, "-m", *shlex.split(command)]
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
    )
    return _Running(command, process, output)


def _stop(running: Sequence[_Running]) -> None:
    for one in running:
        one.process.kill()
        one.process.wait()

"""Commands in forked processes, which are killed at any moment; all imports are done before."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path


def preload() -> None:
    """Import what commands import when they run, so that a kill meets their work and not their imports."""
    import autodial.commands.export
    import autodial.converters.destinations.caffe
    import autodial.converters.destinations.onnx
    import autodial.converters.destinations.triton
    import autodial.converters.dialize
    import autodial.converters.net_export
    import autodial.deploy.runner
    import autodial.evaluation.recalibrate
    import autodial.project.plan
    import autodial.report.contents
    import autodial.report.evaluation
    import autodial.selection.experiment
    import autodial.training.run_log
    import autodial.training.solver  # noqa: F401


def start(arguments: list[str], folder: Path, log: Path) -> int:
    """Start a command; returns the process's number, which is its group's, too."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        from victim import run

        status, trace = run(arguments)
        print(trace, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def end(process: int) -> int:
    """Wait for a command; its exit status, or minus the signal that ended it."""
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def kill_after(process: int, seconds: float) -> int | None:
    """Kill a command alone, not the processes that it started, if it still runs by then; else its exit status."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None

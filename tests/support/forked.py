"""`python -m MODULE ...` in forks of one process that has torch loaded, which takes seconds.

What is run is the same. That it starts as a process of its own, tests without these forks show.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import pytest

PRELOADED = ("autodial.cli", "autodial.selection.outputs", "autodial.training.run")


def forkserver() -> multiprocessing.context.ForkServerContext:
    """Where processes come from that have torch loaded, and no threads of its."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("Windows has no forkserver")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


class Forked:
    """What this package uses of `subprocess.Popen`, for a command `[sys.executable, "-m", MODULE, *ARGUMENTS]`."""

    def __init__(self, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **options: object) -> None:
        executable, flag, *module = command
        assert (executable, flag) == (sys.executable, "-m")
        self._process = forkserver().Process(target=_run, args=(module, _Output(stdout), dict(env)))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Output:
    """A file on its way to the fork, which gets its descriptor."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return _detached, (DupFd(self._file.fileno()),)


def _detached(descriptor: Any) -> int:
    number: int = descriptor.detach()
    return number


def _run(module: Sequence[str], output: int, environment: Mapping[str, str]) -> None:
    import torch

    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.argv = list(module)
    runpy.run_module(module[0], run_name="__main__", alter_sys=True)


@contextmanager
def commands_are_forked(*modules: ModuleType) -> Iterator[None]:
    """Inside this context, forks are what these modules start; processes on Windows, which has no forks."""
    if sys.platform == "win32":
        yield
        return
    stand_in = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "subprocess", stand_in)
        yield

"""Runs several jobs at the same time, each in its own process, within the machine's limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from autodial.errors import INTERRUPTED, WorkError
from autodial.selection.process_job import ProcessJob
from autodial.system.cpus import available_cpus

if TYPE_CHECKING:
    import torch

CGROUP = Path("/sys/fs/cgroup")
"""The folder in which a container sees its resource limits."""
_POLL = 0.1
"""Seconds between two checks of the processes."""
_CPUS_PER_GPU_JOB = 2
"""CPUs per job on a GPU: one launches kernels, one reads images."""
_THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Shares:
    """How jobs share the machine.

    Attributes:
        parallel: number of jobs that run at the same time.
        threads: CPU threads per job.
        workers: processes per job that read images ahead.
    """

    parallel: int
    threads: int
    workers: int


def share_machine(
    jobs: int, device: torch.device, job_memory: int, *, parallel: int | None = None, workers: int | None = None
) -> Shares:
    """Share the machine out to jobs, by its CPUs and its free memory.

    Args:
        jobs: number of jobs.
        device: where they run.
        job_memory: bytes that a job is expected to take.
        parallel, workers: as in Shares; None: as many as there is room for.
    """
    cpus, gpu = available_cpus(), device.type == "cuda"
    memory = _free_gpu_memory(device) if gpu else free_memory()
    parallel = parallel or default_parallel(jobs, cpus, gpu=gpu, memory=memory, job_memory=job_memory)
    threads = max(1, cpus // parallel)
    return Shares(parallel, threads, threads - 1 if workers is None else workers)


def _free_gpu_memory(device: torch.device) -> int:
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def free_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that new processes may take: the machine's free memory, or the rest of a container's limit (cgroup v2).

    psutil knows the machine's free memory, but no container's limit.

    Args:
        cgroup: the folder with the container's limits.
    """
    free = sys.maxsize
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):  # of "max", too
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, limit - used)
    return free


def default_parallel(jobs: int, cpus: int, *, gpu: bool, memory: int, job_memory: int) -> int:
    """The number of jobs to run at the same time, at least 1.

    Each job gets a CPU, or two CPUs if the jobs share a GPU, and all jobs together fit into memory.

    Args:
        jobs: number of jobs.
        cpus: number of CPUs for all jobs.
        gpu: whether the jobs run on one GPU.
        memory: free bytes on the GPU or in the machine.
        job_memory: bytes that a job is expected to take.
    """
    return max(1, min(jobs, cpus // _CPUS_PER_GPU_JOB if gpu else cpus, memory // job_memory))


def run_jobs(jobs: Sequence[ProcessJob], shares: Shares, report: Callable[[ProcessJob, int | None], None]) -> bool:
    """Run jobs until all have ended, or until Ctrl-C.

    Ctrl-C interrupts the trainings, and each writes a snapshot to continue from; a second Ctrl-C stops them at once.

    Args:
        jobs: the jobs, in the order in which they are started.
        shares: how they share the machine.
        report: called with a job and None when the job starts, and with the job and its exit status when it ends.

    Returns:
        whether all jobs were run; False after Ctrl-C.
    """
    environment = {**os.environ, **dict.fromkeys(_THREAD_LIMITS, str(shares.threads))}
    waiting = list(jobs)
    running: dict[subprocess.Popen[bytes], ProcessJob] = {}
    with _forwarding_interrupts(running) as interrupts:
        while running or (waiting and not interrupts):
            while waiting and len(running) < shares.parallel and not interrupts:
                job = waiting.pop(0)
                running[_start(job, shares.workers, environment)] = job
                report(job, None)
            for process in [process for process in running if process.poll() is not None]:
                job = running.pop(process)
                if process.returncode == INTERRUPTED or (interrupts and process.returncode):
                    waiting.append(job)
                else:
                    report(job, process.returncode)
            time.sleep(_POLL)
    return not waiting


def _start(job: ProcessJob, workers: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        with job.log.open("ab") as log:
            # in its own session: otherwise Ctrl-C would reach it both from the terminal and from here
            return subprocess.Popen(
                [sys.executable, "-m", job.module, str(job.write()), str(workers)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        raise WorkError(f"{job.folder} can't be written: {error.strerror}") from error


@contextmanager
def _forwarding_interrupts(running: dict[subprocess.Popen[bytes], ProcessJob]) -> Iterator[list[int]]:
    """Pass SIGINT on to the processes; yields the list of signals received so far."""
    came: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for process in list(running):
            process.send_signal(number)
        text = b"\nStopping: each training writes a snapshot; press Ctrl-C again to stop at once.\n"
        os.write(2, text)  # not print, which the signal may have interrupted

    previous = signal.signal(signal.SIGINT, forward)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, previous)
        for process in running:  # after an error in the loop
            process.terminate()

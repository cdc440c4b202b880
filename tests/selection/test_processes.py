"""How many trainings run side by side, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autodial.selection import processes
from autodial.selection.holdout import SourceLists
from autodial.selection.training_job import TrainingJob

GIB = 2**30


def test_jobs_fill_cpus_gpus_and_memory() -> None:
    def parallel(jobs: int, cpus: int, *, gpu: bool = False, memory: int = 64 * GIB) -> int:
        return processes.default_parallel(jobs, cpus, gpu=gpu, memory=memory, job_memory=4 * GIB)

    assert parallel(3, 16) == 3
    assert parallel(30, 12) == 12
    assert parallel(30, 12, gpu=True) == 6
    assert parallel(30, 12, memory=9 * GIB) == 2
    assert parallel(30, 1, gpu=True) == 1
    assert parallel(30, 12, memory=GIB) == 1
    assert parallel(0, 12) == 1


def test_parallel_jobs_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "available_cpus", lambda: 8)

    def shares(**asked: int) -> tuple[int, int, int]:
        got = processes.share_machine(3, torch.device("cpu"), 1, **asked)
        return got.parallel, got.threads, got.workers

    assert shares() == (3, 2, 1)
    assert shares(parallel=2) == (2, 4, 3)
    assert shares(parallel=2, workers=0) == (2, 4, 0)
    assert shares(parallel=16) == (16, 1, 0)


def test_container_limits(tmp_path: Path) -> None:
    unlimited = processes.free_memory(tmp_path)
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 4}\n")
    assert processes.free_memory(tmp_path) == min(unlimited, GIB * 3 // 4)
    (tmp_path / "memory.max").write_text("max\n")
    assert processes.free_memory(tmp_path) > GIB // 4


@pytest.fixture
def job(tmp_path: Path) -> TrainingJob:
    return TrainingJob(
        folder=tmp_path,
        name="loss.loss_weight=1, seed 3",
        lists=(SourceLists(None, tmp_path / "held_out.txt", tmp_path / "sample.txt"),),
        solver=Path("solver.prototxt"),
        weights=(),
        variants=(),
        overrides=("loss.loss_weight=1",),
        seed=3,
        draw=1,
        base_dir=tmp_path,
        device="cpu",
        recalibrate=True,
        target_labels="",
    )


def test_job_survives_its_file(job: TrainingJob) -> None:
    assert TrainingJob.read(job.write()) == job
    assert job.result() is None


def test_processes_that_fail_are_reported(job: TrainingJob) -> None:
    reports: list[int | None] = []
    # the solver does not exist
    assert processes.run_jobs([job], processes.Shares(1, 1, 0), lambda _, status: reports.append(status))
    assert reports == [None, 2]
    assert job.failure(2) == f"solver.prototxt does not exist: check the name of the prototxt file; see {job.log}"
    assert job.failure(-9) == f"killed by signal 9; see {job.log}"
    assert job.result() is None

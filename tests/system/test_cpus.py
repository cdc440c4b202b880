from __future__ import annotations

import os
from pathlib import Path

import pytest

from autodial.system import cpus
from autodial.system.cpus import available_cpus, cgroup_quota


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


def quota(tmp_path: Path, lines: str) -> float | None:
    (tmp_path / "cgroup").write_text(lines)
    return cgroup_quota(tmp_path / "cgroup", tmp_path / "fs")


def test_version_2_takes_the_tightest_group_above(tmp_path: Path) -> None:
    group(tmp_path / "fs")
    group(tmp_path / "fs/slurm", cpu__max="250000 100000")
    group(tmp_path / "fs/slurm/job", cpu__max="max 100000")
    assert quota(tmp_path, "0::/slurm/job\n") == 2.5
    group(tmp_path / "fs/slurm/job", cpu__max="50000 100000")
    assert quota(tmp_path, "0::/slurm/job\n") == 0.5
    assert quota(tmp_path, "0::/elsewhere\n") is None


def test_version_2_in_a_container(tmp_path: Path) -> None:
    """The mount is the container's own group, whatever the host calls it."""
    group(tmp_path / "fs", cpu__max="200000 100000")
    assert quota(tmp_path, "0::/\n") == 2
    assert quota(tmp_path, "0::/docker/0123abcd\n") == 2


def test_version_1(tmp_path: Path) -> None:
    lines = "12:cpuset:/docker/1\n5:cpu,cpuacct:/docker/1\n1:name=systemd:/docker/1\n0::/\n"
    group(tmp_path / "fs/cpu,cpuacct", cpu__cfs_quota_us="150000", cpu__cfs_period_us="50000")
    assert quota(tmp_path, lines) == 3
    group(tmp_path / "fs/cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert quota(tmp_path, lines) is None


def test_without_control_groups(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "nothing", tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
@pytest.mark.parametrize(
    ("granted", "affinity", "expected"), [(None, 6, 6), (2.5, 6, 3), (0.5, 6, 1), (64.0, 6, 6), (4.0, 1, 1)]
)
def test_both_count(monkeypatch: pytest.MonkeyPatch, granted: float | None, affinity: int, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(os, "process_cpu_count", lambda: affinity, raising=False)
    monkeypatch.setattr(cpus, "cgroup_quota", lambda: granted)
    assert available_cpus() == expected

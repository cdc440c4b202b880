"""How many CPUs this process may keep busy.

Python knows a process's affinity, but no container's quota. joblib does, and the plain install does without it.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_CGROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """The CPUs that affinity (taskset, a batch system) and a container's quota leave to this process, at least 1.

    A quota of two and a half CPUs counts as three.
    """
    if sys.version_info >= (3, 13):
        affinity = os.process_cpu_count() or 1
    else:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def cgroup_quota(cgroups: Path = _CGROUPS, mount: Path = _MOUNT) -> float | None:
    """CPUs' worth of time that the tightest of this process's control groups grants it; None without a limit.

    Reads cpu.max of version 2 and cpu.cfs_quota_us of version 1, in the process's own group and all above it.

    Args:
        cgroups: the file that lists this process's groups.
        mount: the folder with the groups' files.
    """
    try:
        lines = cgroups.read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top, read = (mount / controllers, _version_1) if controllers else (mount, _version_2)
        group = top / path.lstrip("/")
        # In a container the path may be the host's; the group's files then lie in the mount itself.
        for folder in dict.fromkeys((group, *group.parents, top)):
            if folder == top or top in folder.parents:
                quotas.append(read(folder))
    return min((quota for quota in quotas if quota is not None), default=None)


def _version_1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _version_2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return _ratio(quota, period)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


def _ratio(quota: str, period: str) -> float | None:
    # "max" in version 2 and -1 in version 1 mean no limit.
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None

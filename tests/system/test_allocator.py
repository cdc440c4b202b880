"""Memory that is freed and asked for again, by the page faults that it costs."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from autodial.system.allocator import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
for _ in range(30):  # until the heap has room for the block however what lies around it is placed
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, keep: bool) -> int:
    """The page faults of a request for 64 MiB after many like it."""
    command = [sys.executable, "-c", PROGRAM.format(keep=keep)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_large_blocks_are_used_again() -> None:
    assert page_faults(keep=True) < page_faults(keep=False) / 10


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    from autodial.system.allocator import keep_freed_memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()

"""Processes that a test starts in groups of their own, and that end with the test, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_started: list[subprocess.Popen[str]] = []


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command in a group of its own; text comes and goes as str."""
    process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    _started.append(process)
    return process


def end_all() -> None:
    """Kill what is left of all that was started."""
    while _started:
        process = _started.pop()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

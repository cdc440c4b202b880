"""What the service takes from its clients at most."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
_OWN_FILES = 64
"""Open files that the service needs for itself."""


@dataclass(frozen=True)
class Limits:
    """Bounds on requests; each has a status of its own where a request goes beyond it."""

    body: int = 64 * MIB
    """Bytes of a request's body, both as it comes and unpacked (413)."""
    bodies: int = 256 * MIB
    """Bytes of all bodies that are in memory at a time (503)."""
    pixels: int = 2**26
    """Pixels of one image file, by its header, before it is decoded (400)."""
    images: int = 256
    """Images of one request (413)."""
    queue: int = 512
    """Images of a model that are being decoded, wait or run (503)."""
    seconds: float = 30.0
    """From a body's last byte to the answer (503)."""
    head_seconds: float = 10.0
    """For a request's head, from its first byte or from the connection's beginning (408)."""
    body_seconds: float = 60.0
    """For a request's body (408)."""
    connections: int = 4096
    """Connections at a time (503)."""


def open_files() -> int | None:
    """Raise this process's number of open files to the most that it may have; that number, None where there is none."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS names a limit that it doesn't allow
            pass
    return None if soft == resource.RLIM_INFINITY else soft


def connections_within(wanted: int, files: int | None) -> int:
    """How many connections fit into a number of open files."""
    return wanted if files is None else max(1, min(wanted, files - _OWN_FILES))

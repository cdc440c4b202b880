"""Hashes that identify files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def file_hash(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal digits; OSError if it can't be read."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()

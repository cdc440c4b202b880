"""Hashes that identify files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def text_hash(text: str) -> str:
    """SHA-256 of a text in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_hash(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal digits; OSError if it can't be read."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha1(path: str | os.PathLike[str]) -> str:
    """SHA-1 of a file, which ONNX identifies files with weights by; in hexadecimal digits; OSError as in file_hash."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.sha1(usedforsecurity=False)).hexdigest()

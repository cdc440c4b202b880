"""Virtual environments with packages of other versions than ours, for tests that are marked `network`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def environment(folder: Path, *requirements: str) -> Path:
    """A virtual environment with these packages; its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    for requirement in requirements:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirement.split()], check=True, timeout=600)
    return python

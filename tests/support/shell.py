"""Commands as a page shows them, with this environment's programs first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def run_commands(code: str) -> subprocess.CompletedProcess[str]:
    """Run lines of bash; the first that fails ends them, with its status."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash") or "bash"  # Windows itself would look into its own folder first, where WSL's lies
    command = [bash, "-euo", "pipefail", "-c", code]
    return subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)

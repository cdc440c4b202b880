"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `numpy==2.0` for `numpy>=2.0`."""

from __future__ import annotations

import re
from pathlib import Path

text = Path("pyproject.toml").read_text("utf-8")
bounds = re.findall(r'"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)["; ]', text)
print("\n".join(sorted({f"{name}=={version}" for name, version in bounds if name != "setuptools"})))

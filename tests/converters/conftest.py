"""What the tests of the converters share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # for image_nets, which pytest's importlib mode would not find

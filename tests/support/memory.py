"""What `ru_maxrss` counts in, which systems see differently."""

from __future__ import annotations

import sys

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in one unit of `resource.getrusage(...).ru_maxrss`."""

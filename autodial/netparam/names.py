"""Names for layers and blobs that are added to a net."""

from __future__ import annotations

from collections.abc import Collection


def free_name(name: str, taken: Collection[str]) -> str:
    """The name with "-new" appended until it is not taken."""
    while name in taken:
        name += "-new"
    return name

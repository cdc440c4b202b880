"""What a reader of files says about damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autodial.errors import InputError


def is_refused_in_one_sentence(read: Callable[[Path], object], path: Path, data: bytes) -> bool:
    """Whether a file with these bytes is refused.

    Any exception but an InputError of one line that names the file fails the test.
    """
    path.write_bytes(data)
    try:
        read(path)
    except InputError as error:
        assert str(error).startswith(f"{path}")
        assert "\n" not in str(error)
        return True
    return False

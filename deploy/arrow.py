"""pyarrow, which is imported where a Parquet file is read or written."""

from __future__ import annotations

from typing import Any

from autodial.errors import WorkError


def load_pyarrow() -> Any:
    """The package pyarrow, with pyarrow.parquet; WorkError where it is not installed."""
    try:
        import pyarrow  # type: ignore[import-untyped,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise WorkError(
            'a .parquet table needs pyarrow, which is not installed: pip install ".[parquet]" in AutoDIAL\'s '
            "checkout brings it"
        ) from error
    return pyarrow

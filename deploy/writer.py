"""Writes the table of predictions row by row, without ever showing half a table under its final name."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from autodial.errors import AutodialError, InputError, WorkError
from autodial.outputs import check_output

STANDARD_OUTPUT = "-"


class Table:
    """A CSV table that is being written: columns path, status, label_1, probability_1, ..., error.

    Rows end in a line feed, fields with a comma, a quote or a line feed in them are quoted, and the encoding is UTF-8
    (a file name that isn't UTF-8 keeps its bytes).
    """

    def __init__(self, file: TextIO, top_k: int) -> None:
        self._file = file
        self._top_k = top_k
        self._csv = csv.writer(file, lineterminator="\n")
        ranks = [f"{column}_{rank}" for rank in range(1, top_k + 1) for column in ("label", "probability")]
        self._csv.writerow(["path", "status", *ranks, "error"])
        self._rows = 0
        self.flushed_rows = 0
        """Rows that are sure to outlive this process."""

    def labelled(self, path: str, labels: Sequence[str], probabilities: Sequence[float]) -> None:
        """A row of an image and its best classes, the best one first."""
        fields = [field for pair in zip(labels, probabilities, strict=True) for field in (pair[0], f"{pair[1]:.6g}")]
        self._row([path, "ok", *fields, ""])

    def unreadable(self, path: str, error: str) -> None:
        """A row of an image without labels, and why it has none."""
        self._row([path, "error", *[""] * (2 * self._top_k), error])

    def flush(self) -> None:
        """Hand the rows so far to the operating system."""
        self._file.flush()
        self.flushed_rows = self._rows

    def _row(self, fields: Sequence[str]) -> None:
        self._csv.writerow(fields)
        self._rows += 1


@contextlib.contextmanager
def open_table(output: str | Path, top_k: int) -> Iterator[Table]:
    """A Table that becomes the file `output` when the block ends well; "-" is standard output.

    Until then it is `output`.partial (.partial-2, ... where an earlier run left one). When the block is left by an
    exception, Ctrl-C included, the rows written so far stay there, the exception's message says so, and `output` is as
    it was before.

    Raises:
        InputError: `output` can't be a file.
        WorkError: writing fails, on a full disk say.
    """
    if str(output) == STANDARD_OUTPUT:
        yield Table(_standard_output(), top_k)
        sys.stdout.flush()
        return
    final = check_output(output)
    file = _create_beside(final)
    partial = Path(file.name)
    rows = 0
    try:
        with file:
            table = Table(file, top_k)
            try:
                yield table
            finally:
                rows = table.flushed_rows
        partial.replace(final)
    except BaseException as error:
        if rows == 0:
            partial.unlink()
        kept = f" The rows of the first {rows} images are in {partial}." if rows else ""
        if isinstance(error, OSError):
            raise WorkError(f"{output}: can't write: {error.strerror}.{kept}") from error
        if isinstance(error, (AutodialError, KeyboardInterrupt)):
            raise type(error)(f"{error}{kept}") from error
        raise


def _create_beside(final: Path) -> TextIO:
    for attempt in itertools.count(1):
        partial = final.with_name(f"{final.name}.partial{f'-{attempt}' if attempt > 1 else ''}")
        # "x": what an earlier run could not finish is worth keeping, and another run may be writing right now.
        try:
            return partial.open("x", encoding="utf-8", errors="surrogateescape", newline="")
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{final}: can't write here: {error.strerror}.") from error
    raise AssertionError("unreachable")


def _standard_output() -> TextIO:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="")
    return sys.stdout

"""What the table says about each image, in the forms in which a table is written: CSV, JSON Lines, Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autodial.data.image_statistics import Float64Array, all_statistics, entropies
from autodial.deploy.arrow import load_pyarrow
from autodial.deploy.binding import Scores
from autodial.deploy.predictions import DAMAGED, ERROR, OK
from autodial.errors import InputError

ROW_GROUP = 2**16
"""Rows that a Parquet file holds together."""
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001 - of full width, for Japanese spreadsheets
"""What makes spreadsheets take a cell of CSV for a formula, where it begins with it."""


class TableRow(NamedTuple):
    """One image: its labels, or the error that left it without."""

    path: str
    error: str | None = None
    classes: Sequence[int] = ()
    """Indices of the most probable classes, the best first."""
    probabilities: Sequence[float] = ()
    """The probabilities of these classes."""
    entropy: float | None = None
    """The entropy of all classes' probabilities, in nats: from 0 to the logarithm of the number of classes."""
    logits: Sequence[float] = ()
    """The logits of all classes, in their order."""
    statistics: Sequence[float] = ()
    """The statistics of `autodial.data.image_statistics`; they are not part of the table."""
    damage: str = ""
    """What shows that the image's file is damaged; empty where nothing does. It has labels if there is no error."""

    @property
    def status(self) -> str:
        """ "ok", "error" (no labels), or "damaged": with labels, unless those weren't wanted."""
        return DAMAGED if self.damage else OK if self.error is None else ERROR

    @property
    def remark(self) -> str | None:
        """What the column `error` says."""
        return self.error or self.damage or None


@dataclass(frozen=True)
class Columns:
    """Which columns a table has."""

    classes: tuple[str, ...]
    """Names of the model's classes."""
    top_k: int = 1
    """Labels per image."""
    entropy: bool = False
    logits: bool = False
    spreadsheet_safe: bool = False
    """Whether texts that a spreadsheet would run as formulas have ' in front of them, in CSV."""


def score(
    paths: Sequence[str],
    logits: Scores,
    probabilities: Scores,
    columns: Columns,
    image_statistics: Float64Array | None = None,
) -> list[TableRow]:
    """The rows of images from the model's float32 (images, classes); equally probable classes stand in their order.

    With `image_statistics`, (images, ...), the rows have `statistics`.
    """
    if columns.top_k == 1:
        best = probabilities.argmax(axis=1)[:, np.newaxis]
    else:
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, : columns.top_k]
    values = np.take_along_axis(probabilities, best, axis=1).tolist()
    uncertain = entropies(probabilities).tolist() if columns.entropy else [None] * len(paths)
    all_logits = logits.tolist() if columns.logits else [()] * len(paths)
    row_statistics = (
        repeat(()) if image_statistics is None else all_statistics(probabilities, image_statistics).tolist()
    )
    rows = list(map(TableRow, paths, repeat(None), best.tolist(), values, uncertain, all_logits, row_statistics))
    for i in np.flatnonzero(~np.isfinite(probabilities).all(axis=1)).tolist():
        rows[i] = TableRow(paths[i], "the model gives no finite probabilities for it")
    return rows


class Format(ABC):
    """A form of the table. Rows are appended to a file as `encode` gives them, and `finish` makes the table of it."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    @abstractmethod
    def header(self) -> bytes:
        """What stands before the first row."""

    @abstractmethod
    def encode(self, rows: Sequence[TableRow]) -> bytes:
        """Some rows as bytes to append."""

    def finish(self, rows: Path, table: Path) -> None:
        """Make the file `table` of the file `rows`, which may be moved; OSError if that fails."""
        rows.replace(table)

    def _ranks(self) -> range:
        return range(1, self.columns.top_k + 1)


class Csv(Format):
    """Comma-separated, in UTF-8 with line feeds; a name that isn't UTF-8 keeps its bytes.

    Columns: path, status (ok, error or damaged), label_1, probability_1, ..., then entropy and logit_CLASS if asked
    for, error. A field with a comma, a quote or the end of a line in it is quoted. With `spreadsheet_safe`, ' is put in
    front of a path, a label or an error that begins with what begins a formula.
    """

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._text: Callable[[str], str] = _no_formula if columns.spreadsheet_safe else str
        self._names = [self._text(name) for name in columns.classes]

    def header(self) -> bytes:
        ranks = [f"{column}_{rank}" for rank in self._ranks() for column in ("label", "probability")]
        entropy = ["entropy"] if self.columns.entropy else []
        logits = [f"logit_{name}" for name in self.columns.classes] if self.columns.logits else []
        return self._lines([["path", "status", *ranks, *entropy, *logits, "error"]])

    def encode(self, rows: Sequence[TableRow]) -> bytes:
        return self._lines([self._fields(row) for row in rows])

    def _fields(self, row: TableRow) -> list[str]:
        names, width = self._names, 2 * self.columns.top_k + self.columns.entropy
        if row.error is not None:
            blank = [""] * (width + self.columns.logits * len(names))
            return [self._text(row.path), row.status, *blank, self._text(row.error)]
        fields = [self._text(row.path), row.status]
        for index, probability in zip(row.classes, row.probabilities, strict=True):
            fields += (names[index], f"{probability:.6g}")
        if row.entropy is not None:
            fields.append(f"{row.entropy:.6g}")
        fields += [f"{logit:.9g}" for logit in row.logits]
        fields.append(self._text(row.remark or ""))
        return fields

    @staticmethod
    def _lines(rows: Sequence[Sequence[str]]) -> bytes:
        file = io.StringIO()
        plain = csv.writer(file, lineterminator="\n")
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in rows:
            # Where lines end in \n, Python before 3.13 leaves \r unquoted, and readers take it for the end of a line.
            (quoted if any("\r" in field for field in row) else plain).writerow(row)
        return file.getvalue().encode("utf-8", "surrogateescape")


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


class JsonLines(Format):
    r"""An object per line, in UTF-8, with the columns of Csv; `logits` is a list. What an image doesn't have is null.

    A byte of a name that isn't UTF-8 is an escape from \udc80 to \udcff, as json.loads and os.fsencode undo it.
    """

    def header(self) -> bytes:
        return b""

    def encode(self, rows: Sequence[TableRow]) -> bytes:
        lines = [json.dumps(self._object(row), ensure_ascii=False) + "\n" for row in rows]
        # backslashreplace writes a lone surrogate as JSON does, too.
        return "".join(lines).encode("utf-8", "backslashreplace")

    def _object(self, row: TableRow) -> dict[str, Any]:
        ok = row.error is None
        record: dict[str, Any] = {"path": row.path, "status": row.status}
        for rank in self._ranks():
            record[f"label_{rank}"] = self.columns.classes[row.classes[rank - 1]] if ok else None
            record[f"probability_{rank}"] = float(f"{row.probabilities[rank - 1]:.6g}") if ok else None
        if self.columns.entropy:
            record["entropy"] = None if row.entropy is None else float(f"{row.entropy:.6g}")
        if self.columns.logits:
            record["logits"] = [float(f"{logit:.9g}") for logit in row.logits] if ok else None
        return record | {"error": row.remark}


class Parquet(Format):
    r"""Apache Parquet with the columns of Csv; numbers are float32, `logits` is a list, what is missing is null.

    A byte of a name that isn't UTF-8 is written as \xNN. Until the table is finished, its rows lie in a file of Arrow's
    record batches, which can be appended to.
    """

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._arrow = pa = load_pyarrow()
        fields = [("path", pa.string()), ("status", pa.string())]
        for rank in self._ranks():
            fields += [(f"label_{rank}", pa.string()), (f"probability_{rank}", pa.float32())]
        fields += [("entropy", pa.float32())] if columns.entropy else []
        fields += [("logits", pa.list_(pa.float32()))] if columns.logits else []
        self._schema = pa.schema([*fields, ("error", pa.string())])

    def header(self) -> bytes:
        return b""

    def encode(self, rows: Sequence[TableRow]) -> bytes:
        ok = [row.error is None for row in rows]
        arrays: list[list[Any]] = [[_utf8(row.path) for row in rows], [row.status for row in rows]]
        for i in range(self.columns.top_k):
            arrays.append(
                [self.columns.classes[row.classes[i]] if good else None for row, good in zip(rows, ok, strict=True)]
            )
            arrays.append([row.probabilities[i] if good else None for row, good in zip(rows, ok, strict=True)])
        if self.columns.entropy:
            arrays.append([row.entropy for row in rows])
        if self.columns.logits:
            arrays.append([row.logits if good else None for row, good in zip(rows, ok, strict=True)])
        arrays.append([None if row.remark is None else _utf8(row.remark) for row in rows])
        columns = [self._arrow.array(values, field.type) for values, field in zip(arrays, self._schema, strict=True)]
        return bytes(self._arrow.RecordBatch.from_arrays(columns, schema=self._schema).serialize())

    def finish(self, rows: Path, table: Path) -> None:
        aside = table.with_name(f"{rows.name}.tmp")
        try:
            with self._arrow.parquet.ParquetWriter(aside, self._schema) as writer:
                for group in self._groups(rows):
                    writer.write_table(group)
            with aside.open("rb+") as file:
                os.fsync(file.fileno())
            aside.replace(table)
        finally:
            aside.unlink(missing_ok=True)
        rows.unlink()

    def _groups(self, path: Path) -> Iterator[Any]:
        """The rows of a file as tables of `ROW_GROUP` rows, the last one smaller."""
        pa = self._arrow
        held: list[Any] = []
        with pa.OSFile(str(path)) as file:
            size = file.size()
            while file.tell() < size:
                held.append(pa.ipc.read_record_batch(pa.ipc.read_message(file), self._schema))
                if sum(batch.num_rows for batch in held) >= ROW_GROUP:
                    group = pa.Table.from_batches(held, self._schema)
                    yield group.slice(0, ROW_GROUP)
                    held = group.slice(ROW_GROUP).to_batches()
        if held:
            yield pa.Table.from_batches(held, self._schema)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


FORMATS: dict[str, type[Format]] = {".csv": Csv, ".jsonl": JsonLines, ".parquet": Parquet}
"""The forms of a table, by the suffix of its file."""


def format_of(output: str | Path) -> type[Format]:
    """The form that a file's suffix asks for; "-" is CSV. Raises InputError for any other suffix."""
    suffix = Path(output).suffix.lower()
    if str(output) == "-":
        return Csv
    if suffix not in FORMATS:
        raise InputError(f"{output}: the table is {', '.join(FORMATS)}, by the name's suffix: choose one of them")
    return FORMATS[suffix]

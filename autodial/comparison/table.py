"""The table of a comparison, or of several side by side, as text, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
import re
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autodial import __version__

ACCURACY, RANK = "accuracy in %", "rank without labels"
COLLAPSED = "*"
"""Marks a cell with collapsed runs."""
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
}


@dataclass(frozen=True)
class Values:
    """The runs of a method on one pair of domains.

    Attributes:
        values: of the runs that did not fail.
        failed: number of the runs that did.
        collapsed: number of the runs whose predictions for the target have collapsed; they mark the cell.
    """

    values: tuple[float, ...] = ()
    failed: int = 0
    collapsed: int = 0

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return statistics.mean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of a sample; None with fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: its heading.
        cells: by the method's name; a method without any run is missing.
    """

    title: str
    cells: Mapping[str, Values]


@dataclass(frozen=True)
class Table:
    """Methods by pairs of domains.

    Attributes:
        caption: what the numbers are.
        methods: titles of the rows, by the method's name.
        columns: one for each pair, or for each kind of number.
        averaged: whether the columns are pairs, over which a last column has the mean.
        notes: sentences below it.
    """

    caption: str
    methods: Mapping[str, str]
    columns: Sequence[Column]
    averaged: bool
    notes: Sequence[str] = ()

    def average(self, method: str) -> float | None:
        """The mean of a method's means over all columns; None if one is missing."""
        means = [column.cells.get(method, Values()).mean for column in self.columns]
        known = [mean for mean in means if mean is not None]
        return statistics.mean(known) if known and len(known) == len(means) else None


class Format(ABC):
    """A form in which a table is written.

    Attributes:
        suffix: of the file's name.
    """

    suffix: str

    @abstractmethod
    def encode(self, table: Table) -> bytes:
        """The whole file, in UTF-8."""


class Text(Format):
    """Columns of plain text."""

    suffix = ".txt"

    def encode(self, table: Table) -> bytes:
        rows = [_heading(table), *_rows(table, " ± ", "failed")]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        notes = ["", *(f"{note}." for note in table.notes)] if table.notes else []
        return "".join(f"{line.rstrip()}\n" for line in [table.caption, "", *lines, *notes]).encode()


class Csv(Format):
    """A row per method; mean, deviation and numbers of runs, failed runs and collapsed runs for each column."""

    suffix = ".csv"

    def encode(self, table: Table) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        parts = ("mean", "deviation", "runs", "failed", "collapsed")
        heading = [f"{column.title} {part}" for column in table.columns for part in parts]
        writer.writerow(["method", *heading, *(["average"] if table.averaged else [])])
        for method in table.methods:
            row: list[object] = [method]
            for column in table.columns:
                values = column.cells.get(method, Values())
                row += [
                    _plain(values.mean),
                    _plain(values.deviation),
                    len(values.values),
                    values.failed,
                    values.collapsed,
                ]
            writer.writerow([*row, *([_plain(table.average(method))] if table.averaged else [])])
        return text.getvalue().encode()


class Latex(Format):
    """A `table` environment with the rules of booktabs."""

    suffix = ".tex"

    def encode(self, table: Table) -> bytes:
        heading, *rows = ([_escaped(cell) for cell in row] for row in [_heading(table), *_rows(table, "±", "failed")])
        rows = [[cell.replace("±", r" $\pm$ ") for cell in row] for row in rows]
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(table.caption)}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(heading) - 1)}}}",
            r"\toprule",
            rf"{' & '.join(heading)} \\",
            r"\midrule",
            *(rf"{' & '.join(row)} \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "".join(f"{line}\n" for line in [*(f"% {note}." for note in table.notes), *lines]).encode()


class Html(Format):
    """A page that needs no other file."""

    suffix = ".html"

    def encode(self, table: Table) -> bytes:
        from autodial.report.page import Page

        page = Page("Methods of domain adaptation")
        page.table(table.caption, _heading(table), _rows(table, " ± ", "failed"))
        for note in table.notes:
            page.paragraph(f"{note}.")
        return page.html(f"Written by AutoDIAL {__version__}.")


FORMATS: Sequence[Format] = (Text(), Csv(), Latex(), Html())
"""All forms."""


def _heading(table: Table) -> list[str]:
    return ["method", *(column.title for column in table.columns), *(["average"] if table.averaged else [])]


def _rows(table: Table, between: str, failed: str) -> list[list[str]]:
    """The cells of each row as text, one digit behind the point."""
    rows = []
    for method, title in table.methods.items():
        row = [title, *(_shown(column.cells.get(method, Values()), between, failed) for column in table.columns)]
        average = table.average(method)
        rows.append([*row, *(["-" if average is None else f"{average:.1f}"] if table.averaged else [])])
    return rows


def _shown(values: Values, between: str, failed: str) -> str:
    mark = f" {COLLAPSED}" if values.collapsed else ""
    if values.mean is None:
        return f"{failed if values.failed else '-'}{mark}"
    spread = "" if values.deviation is None else f"{between}{values.deviation:.1f}"
    of_all = f" ({len(values.values)} of {len(values.values) + values.failed})" if values.failed else ""
    return f"{values.mean:.1f}{spread}{of_all}{mark}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _escaped(text: str) -> str:
    return re.sub(r"[&%$#_{}~^\\]", lambda match: _LATEX[match[0]], text)

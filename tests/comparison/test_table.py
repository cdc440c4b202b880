"""The forms of a comparison's table."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser

import pytest

from autodial.comparison.table import FORMATS, Column, Csv, Html, Latex, Table, Text, Values

TABLE = Table(
    "Target accuracy in %",
    {"source-only": "source only", "dan": "DAN", "autodial": "AutoDIAL & more"},
    [
        Column("a_w", {"source-only": Values((60.0, 62.0)), "dan": Values((70.0,), 1), "autodial": Values((), 2)}),
        Column("d_w", {"source-only": Values((50.0,)), "dan": Values((80.0,))}),
    ],
    averaged=True,
    notes=["dan, seed 2 failed: the loss is 100% NaN"],
)


def test_statistics() -> None:
    values = Values((60.0, 62.0))
    assert values.mean == 61 and values.deviation == pytest.approx(2**0.5)
    assert Values((1.0,)).deviation is None and Values().mean is None
    assert TABLE.average("source-only") == 55.5 and TABLE.average("autodial") is None


def test_text() -> None:
    lines = Text().encode(TABLE).decode().splitlines()
    assert lines[0] == "Target accuracy in %"
    assert [line.split("  ")[0] for line in lines[2:7]][1].strip("-") == ""
    rows = {line.split("  ")[0].strip(): line.split() for line in lines[4:7]}
    assert rows["source only"][2:] == ["61.0", "±", "1.4", "50.0", "55.5"]
    assert rows["DAN"][1:] == ["70.0", "(1", "of", "2)", "80.0", "75.0"]
    assert rows["AutoDIAL & more"][3:] == ["failed", "-", "-"]
    assert len({len(line) for line in lines[3:7]}) == 1
    assert lines[-1] == "dan, seed 2 failed: the loss is 100% NaN."


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(Csv().encode(TABLE).decode())))
    assert [row["method"] for row in rows] == ["source-only", "dan", "autodial"]
    assert float(rows[0]["a_w deviation"]) == pytest.approx(2**0.5, rel=1e-5)
    assert rows[1]["a_w mean"] == "70" and (rows[1]["a_w runs"], rows[1]["a_w failed"]) == ("1", "1")
    assert rows[2]["a_w mean"] == rows[2]["average"] == "" and rows[2]["a_w failed"] == "2"


def test_collapsed_runs_mark_their_cell() -> None:
    cells = {"source-only": Values((60.0,)), "dan": Values((33.3, 33.3), collapsed=2), "autodial": Values(collapsed=1)}
    table = Table("ranks", TABLE.methods, [Column("rank", cells)], averaged=False)
    rows = {line.split("  ")[0].strip(): line.split()[1:] for line in Text().encode(table).decode().splitlines()[4:]}
    assert rows["DAN"] == ["33.3", "±", "0.0", "*"]
    assert r"source only & 60.0 \\" in Latex().encode(table).decode()
    assert r"AutoDIAL \& more & - * \\" in Latex().encode(table).decode()
    counted = csv.DictReader(io.StringIO(Csv().encode(table).decode()))
    assert [row["rank collapsed"] for row in counted] == ["0", "2", "1"]


def test_latex() -> None:
    text = Latex().encode(TABLE).decode()
    assert r"method & a\_w & d\_w & average \\" in text
    assert r"source only & 61.0 $\pm$ 1.4 & 50.0 & 55.5 \\" in text
    assert r"AutoDIAL \& more & failed & - & - \\" in text
    assert r"\caption{Target accuracy in \%}" in text and r"\begin{tabular}{lccc}" in text
    assert all(line.startswith("%") for line in text.splitlines() if "NaN" in line)


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        self._inside = tag in ("th", "td")
        if self._inside:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def test_html() -> None:
    parser = Cells()
    parser.feed(Html().encode(TABLE).decode())
    assert parser.rows[0] == ["method", "a_w", "d_w", "average"]
    assert parser.rows[1] == ["source only", "61.0 ± 1.4", "50.0", "55.5"]
    assert parser.rows[3] == ["AutoDIAL & more", "failed", "-", "-"]


def test_every_form_has_a_name_of_its_own() -> None:
    assert len({form.suffix for form in FORMATS}) == len(FORMATS) == 4

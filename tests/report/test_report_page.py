"""HTML that stays well-formed whatever stands in it, and the reading of logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autodial.errors import InputError
from autodial.report.contents import write_report
from autodial.report.evaluation import Absent, Evaluation
from autodial.report.page import Page, ShownImage, short_path
from autodial.report.run import Run
from autodial.training.run_log import RunLog

HOSTILE = "</td><script>alert('1 & 2')</script> \"quoted\" \udcff \x00 \u202e end"


def test_hostile_names_are_text(tmp_path: Path, read_page: Callable[[Path], Any]) -> None:
    page = Page(HOSTILE)
    page.paragraph(HOSTILE, "note")
    page.section(HOSTILE)
    page.heading(HOSTILE)
    page.key_numbers([(HOSTILE, HOSTILE)])
    page.facts([(HOSTILE, HOSTILE)])
    page.figure(b"<svg/>", b"<svg/>", HOSTILE, HOSTILE)
    page.table("open", [HOSTILE], [[HOSTILE, HOSTILE]])
    page.section("second")
    page.table("folded", ["a"], [["b"]], folded=True)
    page.preformatted(HOSTILE, HOSTILE)
    page.images([ShownImage("data:image/png;base64,", HOSTILE, [HOSTILE], HOSTILE)], pixels=True)
    path = tmp_path / "page.html"
    path.write_bytes(page.html(HOSTILE))
    read = read_page(path)
    shown = "</td><script>alert('1 & 2')</script> \"quoted\" \ufffd \ufffd \ufffd end"
    assert read.tables == {"open": [[shown], [shown, shown]], "folded": [["a"], ["b"]]}
    assert read.alts == [shown, shown]
    assert read.facts == {shown: shown}
    assert read.headings == [shown, "second"]
    assert "<script" not in path.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("日本語 Ünïcode 👩\u200d🔬", "日本語 Ünïcode 👩\u200d🔬"),
        ("a<b>&\"'", "a&lt;b&gt;&amp;&#34;&#39;"),
        ("\x1b[31m", "\ufffd[31m"),
    ],
)
def test_names_as_html(name: str, shown: str) -> None:
    page = Page("title")
    page.section(name)
    assert f"<h2>{shown}</h2>" in page.html("").decode()


def test_absolute_paths_are_shown_short(tmp_path: Path) -> None:
    assert short_path("/home/me/data/webcam/mug/1.jpg") == "mug/1.jpg"
    assert [short_path(path) for path in ("/1.jpg", "/mug/1.jpg")] == ["/1.jpg", "/mug/1.jpg"]
    assert short_path("data/webcam/mug/1.jpg") == "data/webcam/mug/1.jpg"
    page = Page("title")
    page.images([ShownImage("data:image/png;base64,", "", [], "/home/me/webcam/mug/<1>.jpg")], pixels=True)
    html = page.html("").decode()
    assert '<div class="path" title="/home/me/webcam/mug/&lt;1&gt;.jpg">mug/&lt;1&gt;.jpg</div>' in html


NET = 'name: "n" layer { name: "a" type: "Accuracy" bottom: "x" bottom: "y" top: "right" include { phase: TEST } }'
RECORD = {
    **{"command": "autodial train", "folder": "/nowhere", "started": "2024-05-01T10:00:00+00:00", "seed": 0},
    **{"variants": [], "settings": [], "device": "cpu", "versions": {}, "nets": [NET], "net_folders": [None]},
}


def write_run(folder: Path, rows: list[dict[str, Any]]) -> None:
    """A run's folder with that log."""
    folder.mkdir()
    record = {**RECORD, "solver": "max_iter: 100"}
    (folder / "run.json").write_text(json.dumps({"schema": 1, "starts": [record]}))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(iteration: int, time: str, loss: float | None, **outputs: Any) -> dict[str, Any]:
    return {
        **{"event": "train", "time": f"2024-05-01T{time}+00:00", "iteration": iteration, "lr": 0.1, "loss": loss},
        **{"outputs": outputs, "loss_weights": {"l": 0.5}, "alphas": {"b": 0.9, "a": 0.8}},
    }


def test_curves_of_a_log(tmp_path: Path) -> None:
    start = {"event": "start", "time": "2024-05-01T10:00:00+00:00", "iteration": 0}
    rows = [
        start,
        train(0, "10:00:01", 3.0, l=1.0, many=[1, 2]),
        train(10, "10:00:20", None, l=None, many=[1, 2]),
        {**start, "event": "test", "iteration": 10, "net": 0, "outputs": {"right": 0.5, "l": 2.0}, "loss_weights": {}},
        {**start, "event": "test", "iteration": 10, "net": 1, "outputs": {"right": 0.7}, "loss_weights": {}},
        {**start, "event": "something new", "iteration": 12},
        train(20, "10:00:30", 1.0, l=0.5),
        # it went on from iteration 10 an hour later
        {**start, "event": "start", "time": "2024-05-01T11:00:00+00:00", "iteration": 10},
        train(10, "11:00:05", 2.0, l=0.25),
    ]
    write_run(tmp_path / "run", rows)
    run = Run.read(tmp_path / "run")
    assert [(curve.name, curve.values) for curve in run.alphas()] == [("b", [0.9, 0.9]), ("a", [0.8, 0.8])]
    assert (run.loss().iterations, run.loss().values) == ([0, 10], [3.0, 2.0])
    assert [(c.name, c.kind, c.weight, c.values) for c in run.losses()] == [("l", "train", 0.5, [1.0, 0.25])]
    assert run.accuracies() == []
    assert run.resumed_at == [10]
    assert run.seconds == 1 + 5
    assert run.reached == 10
    assert not run.finished


def test_tests_of_two_nets(tmp_path: Path) -> None:
    row = {"event": "test", "iteration": 100, "loss_weights": {"l": 1.0}}
    rows = [{**row, "net": 0, "outputs": {"right": 0.5, "l": 2.0}}, {**row, "net": 1, "outputs": {"right": None}}]
    write_run(tmp_path / "run", [{"event": "start", "iteration": 0}, *rows])
    run = Run.read(tmp_path / "run")
    assert [(c.name, c.values) for c in run.accuracies()] == [("right", [0.5]), ("right (test net 1)", [None])]
    assert [(c.name, c.weight, c.values) for c in run.losses()] == [("l", 1.0, [2.0])]
    assert run.finished
    assert run.seconds is None


def test_what_run_log_writes_is_read(tmp_path: Path) -> None:
    RunLog(tmp_path / "run", {**RECORD, "solver": "max_iter: 3"}, iteration=0, resumed=False).close()
    run = Run.read(tmp_path / "run")
    assert (run.name, run.reached, run.alphas(), run.loss().values) == ("n", 0, [], [])
    (tmp_path / "run/log.jsonl").unlink()
    with pytest.raises(InputError, match=r"run is not a run's folder, as log\.jsonl is missing"):
        Run.read(tmp_path / "run")


def test_a_log_of_many_starts_and_many_outputs_is_drawn(tmp_path: Path) -> None:
    """A line for each would take matplotlib minutes."""
    rows: list[dict[str, Any]] = [{"event": "start", "iteration": i} for i in range(10_000)]
    rows += [train(i, "10:00:00", None, **{f"loss{k}": 1.0 for k in range(2_000)}) for i in range(10_000, 10_010)]
    write_run(tmp_path / "run", rows)
    absent = Absent("there is nothing to run")
    report = write_report(Run.read(tmp_path / "run"), Evaluation(absent, absent, (), *[absent] * 6))
    page = report.html.decode()
    assert "Of 2,001 curves, the first 24; the tables have all." in page
    assert "(the last of 9,999 times)" in page
    assert len(report.figures["losses"].svg) < 1_000_000

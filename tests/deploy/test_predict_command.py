from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autodial.deploy import Summary
from autodial.deploy.command import describe, predict
from autodial.deploy.runner import Stage
from autodial.errors import InputError, WorkError

app = typer.Typer()
app.command()(predict)


def run(*arguments: object) -> None:
    app([str(argument) for argument in arguments], standalone_mode=False)


def test_writes_a_table_and_says_what_it_did(
    model: Any, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "a.png").write_bytes(b"broken")
    run(model.path, photos / "sub", photos / "?.*", "-o", tmp_path / "out.csv", "--top-k", 2, "--workers", 2)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    assert len(table) == 12 and len(table[0]) == 7
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert "11 images in" in stderr and "on CPUExecutionProvider" in stderr
    assert "1 without labels" in stderr and "Slowest: " in stderr


def test_standard_output_holds_the_table_alone(model: Any, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(model.path, photos, "-o", "-")
    table = csv.reader(capsys.readouterr().out.splitlines())
    assert [row[1] for row in table] == ["status", *["ok"] * 12]


def test_fails_if_every_image_failed_and_keeps_the_table(model: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(WorkError, match="The only image can't be labelled"):
        run(model.path, tmp_path / "a.png", "-o", tmp_path / "out.csv")
    assert "a.png" in (tmp_path / "out.csv").read_text()


def test_bad_input_is_an_input_error(model: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        run(model.path, tmp_path / "nowhere", "-o", tmp_path / "out.csv")
    for options in (["--copy"], ["--shard", "1"], ["--on-error", "fail", "--max-failures", "1"]):
        with pytest.raises(InputError, match=options[0]):
            run(model.path, tmp_path, "-o", tmp_path / "out.csv", *options)
    for arguments in (["m", "i"], ["m", "-o", "o.csv"], ["m", "i", "-o", "o.csv", "--batch-size", "0"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2


def test_unreadable_images_end_the_run_where_asked(model: Any, photos: Path, tmp_path: Path) -> None:
    whole = {name: (photos / name).read_bytes() for name in ("b.JPG", "sub/x.png")}
    for name in whole:
        (photos / name).write_bytes(b"broken")
    out = tmp_path / "out.csv"
    run(model.path, photos, "-o", out, "--max-failures", 2)
    with pytest.raises(WorkError, match=r"sub.x.png is not.* 1 failure, so the run stops\. The rows of the first 8 im"):
        run(model.path, photos, "-o", out, "--max-failures", 1, "--batch-size", 4)
    (photos / "sub/x.png").write_bytes(whole["sub/x.png"])
    run(model.path, photos, "-o", out, "--max-failures", 1, "--batch-size", 4, "--resume")
    with pytest.raises(WorkError, match=r"b.JPG .*more than 0 failures, so the run stops\.$"):
        run(model.path, photos, "-o", out, "--on-error", "fail")
    assert [row[1] for row in csv.reader(out.open(encoding="utf-8", newline=""))][1:3] == ["ok", "error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "photos"]


def test_a_shard_says_what_it_wrote(
    model: Any, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(model.path, photos, "-o", tmp_path / "out.csv", "--shard", "2/5")
    assert f"The table is {tmp_path / 'out-2-of-5.csv'}" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process there")
def test_ctrl_c_keeps_the_rows(model: Any, photos: Path, tmp_path: Path) -> None:
    """After 40 images the model takes forever."""
    (tmp_path / "list.txt").write_text(f"{photos / 'a.png'}\n" * 60)
    # a shell's background job, as a test run may be, ignores the signal, and so do its children unless they ask for it
    program = """
import signal, time, typer
signal.signal(signal.SIGINT, signal.default_int_handler)
from autodial.deploy import predictor
from autodial.deploy.command import predict
run, batches = predictor.Predictor.run, iter(range(6))
def slow(*arguments):
    if next(batches) == 4:
        time.sleep(60)
    return run(*arguments)
predictor.Predictor.run = slow
typer.run(predict)
"""
    command = [sys.executable, "-c", program, str(model.path), "list.txt", "-o", "out.csv", "--batch-size", "10"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    partial = tmp_path / "out.csv.partial"
    while process.poll() is None and not (partial.exists() and partial.read_text().count("\n") == 41):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    kept = f"The rows of the first 40 images are in {partial}; --resume goes on from there."
    assert stderr.strip().endswith(f"Interrupted. {kept}")
    assert partial.read_text().count("\n") == 41
    assert not (tmp_path / "out.csv").exists()


def test_summary_in_words() -> None:
    counts = {f"class {i}": 20 - i for i in range(12)}
    stages = [Stage("run", 800, 3.2), Stage("decode", 800, 2.0), Stage("write", 800, 0.5)]
    passed_over = {f".{i}": 9 - i for i in range(7)}
    ran = "CPUExecutionProvider", "auto: no GPU", "no cuDNN"
    text = describe(Summary(Path("o.csv"), 1000, 3, 200, 4.0, *ran, counts, stages, passed_over))
    assert text.split("\n")[:7] == [
        "800 images in 4.0 s (200 images/s) on CPUExecutionProvider (auto: no GPU)",
        "200 more rows from the interrupted run",
        "The GPU was not used: no cuDNN.",
        "Slowest: run (250 images/s); then decode (400 images/s), write (1600 images/s)",
        "3 without labels: the column error says why",
        "Passed over, as hidden or no image by the name: 42 files: .0 (9), .1 (8), .2 (7), .3 (6), .4 (5), ...",
        "       20  class 0",
    ]
    assert text.endswith("       11  class 9\n           and 2 more classes")

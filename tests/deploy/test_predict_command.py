from __future__ import annotations

import csv
import os
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
    assert "1 could not be read" in stderr


def test_standard_output_holds_the_table_alone(model: Any, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(model.path, photos, "-o", "-")
    table = csv.reader(capsys.readouterr().out.splitlines())
    assert [row[1] for row in table] == ["status", *["ok"] * 12]


def test_fails_if_every_image_failed_and_keeps_the_table(model: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(WorkError, match="None of the 1 images could be read"):
        run(model.path, tmp_path / "a.png", "-o", tmp_path / "out.csv")
    assert "a.png" in (tmp_path / "out.csv").read_text()


def test_bad_input_is_an_input_error(model: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        run(model.path, tmp_path / "nowhere", "-o", tmp_path / "out.csv")
    for arguments in (["m", "i"], ["m", "-o", "o.csv"], ["m", "i", "-o", "o.csv", "--batch-size", "0"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process there")
def test_ctrl_c_keeps_the_rows(model: Any, photos: Path, tmp_path: Path) -> None:
    """The list's last file is a pipe that nobody writes to: decoding hangs there until the signal comes."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "list.txt").write_text(f"{photos / 'a.png'}\n" * 40 + f"{tmp_path / 'pipe'}\n")
    # a shell's background job, as a test run may be, ignores the signal, and so do its children unless they ask for it
    program = (
        "import signal, typer; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from autodial.deploy.command import predict; typer.run(predict)"
    )
    command = [sys.executable, "-c", program, str(model.path), "list.txt", "-o", "out.csv", "--batch-size", "10"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    partial = tmp_path / "out.csv.partial"
    while process.poll() is None and not (partial.exists() and partial.read_text().count("\n") == 41):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    os.close(os.open(tmp_path / "pipe", os.O_RDWR))  # lets the thread that opens it for reading go on, and end
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.strip().endswith(f"Interrupted. The rows of the first 40 images are in {partial}.")
    assert partial.read_text().count("\n") == 41
    assert not (tmp_path / "out.csv").exists()


def test_summary_in_words() -> None:
    counts = {f"class {i}": 20 - i for i in range(12)}
    text = describe(Summary(1000, 3, 4.0, "CPUExecutionProvider", "no cuDNN", counts))
    assert text.split("\n")[:4] == [
        "1000 images in 4.0 s (250 images/s) on CPUExecutionProvider",
        "The GPU was not used: no cuDNN.",
        "3 could not be read: their rows have status error and the reason",
        "       20  class 0",
    ]
    assert text.endswith("       11  class 9\n           and 2 more classes")

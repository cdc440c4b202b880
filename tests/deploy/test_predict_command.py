from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import typer
from typer.testing import CliRunner

from autodial.commands.predict import describe, describe_passed_over, predict
from autodial.deploy import Summary
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
    with pytest.raises(WorkError, match=r"sub.x.png is not.* 1 failure, so the run stops; the rows of the first 8 im"):
        run(model.path, photos, "-o", out, "--max-failures", 1, "--batch-size", 4)
    (photos / "sub/x.png").write_bytes(whole["sub/x.png"])
    run(model.path, photos, "-o", out, "--max-failures", 1, "--batch-size", 4, "--resume")
    with pytest.raises(WorkError, match=r"b.JPG .*more than 0 failures, so the run stops$"):
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
from autodial.commands.predict import predict
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
    kept = f"the rows of the first 40 images are in {partial}, and --resume goes on from there"
    assert stderr.strip().endswith(f"Interrupted: {kept}")
    assert partial.read_text().count("\n") == 41
    assert not (tmp_path / "out.csv").exists()


def test_summary_in_words() -> None:
    counts = {f"class {i}": 20 - i for i in range(12)}
    stages = [Stage("run", 800, 3.2), Stage("decode", 800, 2.0), Stage("write", 800, 0.5)]
    passed_over = {f".{i}": 9 - i for i in range(7)}
    ran = "cpu", "CPUExecutionProvider", "auto: no GPU", "no cuDNN"
    text = describe(Summary(Path("o.csv"), 1000, 3, 200, 4.0, *ran, counts, stages, passed_over))
    assert text.split("\n")[:7] == [
        "800 images in 4.0 s (200 images/s) on CPUExecutionProvider (auto: no GPU)",
        "200 more rows from the interrupted run",
        "The GPU was not used: no cuDNN",
        "Slowest: run (250 images/s); then decode (400 images/s), write (1600 images/s)",
        "3 without labels: the column error says why",
        "Passed over, as hidden or no image by the name: 42 files: .0 (9), .1 (8), .2 (7), .3 (6), .4 (5), ...",
        "       20  class 0",
    ]
    assert text.endswith("       11  class 9\n           and 2 more classes")


def test_links_that_were_not_followed_in_words() -> None:
    one = "Not followed: 1 link that leads to a folder that is there anyway, or holds the link"
    assert describe_passed_over({"link": 1}) == [one]
    hidden, links = describe_passed_over({"link": 2, "hidden": 1})
    assert hidden == "Passed over, as hidden or no image by the name: 1 file: hidden (1)"
    assert links == "Not followed: 2 links that lead to folders that are there anyway, or hold the link"


def in_a_process(folder: Path, *arguments: object, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "autodial", "predict", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, timeout=120)


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_list_on_standard_input(model: Any, photos: Path, tmp_path: Path, name: str) -> None:
    """The list's relative paths mean the working directory, labels are dropped, and it can be given again to resume."""
    if name != "-" and not Path(name).exists():
        pytest.skip("no /dev/stdin here")
    listed = b"photos/sub/x.png 3\n\nphotos/a.png\nphotos/nowhere.png\n" + f"{photos / 'b.JPG'}\n".encode()
    done = in_a_process(tmp_path, model.path, name, "-o", "out.csv", stdin=listed)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [
        "photos/sub/x.png",
        "photos/a.png",
        "photos/nowhere.png",
        str(photos / "b.JPG"),
    ]
    labels = model.labels(photos / "sub" / "x.png", photos / "a.png", photos / "b.JPG")
    assert [row["label_1"] for row in rows if row["status"] == "ok"] == labels


def test_a_list_on_standard_input_is_resumed_and_shared_out(model: Any, photos: Path, tmp_path: Path) -> None:
    names = [str(path.relative_to(tmp_path)) for path in sorted(photos.rglob("*.png"))]
    listed = "\n".join(names).encode()
    options = ["-o", "out.csv", "--batch-size", 2, "--max-failures", 0, "--sort-into", "sorted"]
    broken = tmp_path / names[5]
    whole = broken.read_bytes()
    broken.write_bytes(b"broken")
    assert in_a_process(tmp_path, model.path, "-", *options, stdin=listed).returncode == 1
    assert (tmp_path / "out.csv.partial").exists()
    broken.write_bytes(whole)
    other = in_a_process(tmp_path, model.path, "-", *options, "--resume", stdin="\n".join(names[1:]).encode())
    assert other.returncode == 2 and b"no longer those of the interrupted run" in other.stderr
    assert in_a_process(tmp_path, model.path, "-", *options, "--resume", stdin=listed).returncode == 0
    assert in_a_process(tmp_path, model.path, "-", "-o", "all.csv", stdin=listed).returncode == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "all.csv").read_bytes()
    shard = in_a_process(tmp_path, model.path, "-", "-o", "all.csv", "--shard", "2/2", stdin=listed)
    assert shard.returncode == 0
    with (tmp_path / "all-2-of-2.csv").open(encoding="utf-8", newline="") as file:
        assert [row["path"] for row in csv.DictReader(file)] == names[1::2]


@pytest.mark.parametrize(
    ("inputs", "stdin", "message"),
    [
        (["-"], b"", "standard input names no images"),
        (["-", "/dev/stdin"], b"a.png", "standard input can be read once"),
        (["-"], b"a\0b\n", "standard input: this is not a list"),
    ],
)
def test_standard_input_that_is_no_list(
    model: Any, tmp_path: Path, inputs: list[str], stdin: bytes, message: str
) -> None:
    done = in_a_process(tmp_path, model.path, *inputs, "-o", "out.csv", stdin=stdin)
    assert done.returncode == 2 and message in done.stderr.decode() and done.stderr.count(b"\n") == 1
    assert not list(tmp_path.glob("out*"))


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes there")
def test_a_pipe_of_the_shell_is_a_list(model: Any, photos: Path, tmp_path: Path) -> None:
    """As <(...) makes it."""
    ours, theirs = os.pipe()
    os.write(theirs, f"{photos / 'a.png'}\n".encode())
    os.close(theirs)
    run(model.path, f"/dev/fd/{ours}", "-o", tmp_path / "out.csv")
    os.close(ours)
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").count(str(photos / "a.png")) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes there")
@pytest.mark.parametrize("name", ["pipe", "pipe.txt", "pipe.jpg"])
def test_a_named_pipe_is_not_waited_for(model: Any, photos: Path, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=r"pipe.* is a named pipe, which may never be written to"):
        run(model.path, tmp_path / name, "-o", tmp_path / "out.csv")
    with pytest.raises(InputError, match="no such file"):
        run(tmp_path / name, photos, "-o", tmp_path / "out.csv")


def test_the_summary_for_programs(model: Any, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "a.png").write_bytes(b"broken")
    out = tmp_path / "out.csv"
    run(model.path, photos, "-o", out, "--json", "--quiet", "--threads", 1, "--shard", "1/2")
    said, err = capsys.readouterr()
    record = json.loads(said)
    table = tmp_path / "out-1-of-2.csv"
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert err == ""
    assert (record["table"], record["rows"], record["statuses"]) == (str(table), 6, {"ok": 5, "damaged": 0, "error": 1})
    assert record["classes"] == Counter(row["label_1"] for row in rows if row["status"] == "ok")
    assert (record["device"], record["provider"], record["drift"]) == ("cpu", "CPUExecutionProvider", None)
    assert record["seconds"] > 0 and {stage["name"] for stage in record["stages"]} == {"decode", "run", "write"}
    (tmp_path / "broken.png").touch()
    with pytest.raises(WorkError, match="The only image can't be labelled"):
        run(model.path, tmp_path / "broken.png", "-o", out, "--json")
    assert json.loads(capsys.readouterr().out)["statuses"] == {"ok": 0, "damaged": 0, "error": 1}
    with pytest.raises(InputError, match="-o - and --json both take standard output"):
        run(model.path, photos, "-o", "-", "--json")


def test_quiet_says_nothing(model: Any, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(model.path, photos, "-o", tmp_path / "out.csv", "-q", "--shard", "1/2")
    assert capsys.readouterr() == ("", "")


def test_threads_are_onnx_runtimes(
    model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = []
    session = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, options, **more: (used.append(options.intra_op_num_threads), session(path, options, **more))[1],
    )
    run(model.path, photos, "-o", tmp_path / "out.csv", "--threads", 3)
    assert used == [3]


def test_cells_that_a_spreadsheet_would_run(
    model: Any, write_model: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["=cmd|' C calc'!A0.png", "+1.png", "-1.png", "@a.png", "\tb.png", "a=b.png", "＝c.png"]  # noqa: RUF001
    for name in names:
        (tmp_path / name).write_bytes((photos / "a.png").read_bytes())
    (tmp_path / "list.txt").write_text("".join(f"./{name}\n" for name in names))
    record = json.loads(onnx.load(model.path).metadata_props[0].value)
    path = write_model(record=record | {"classes": ["=1+1", "-x", "@y", "z"]})
    tables = {}
    for option in ([], ["--spreadsheet-safe"]):
        run(path, *(f"[{name[0]}]{name[1:]}" for name in names), "-o", "out.csv", "--logits", "--top-k", 4, *option)
        with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
            tables[bool(option)] = list(csv.reader(file))
    assert [row[0] for row in tables[False][1:]] == names
    assert [row[0] for row in tables[True][1:]] == [f"'{name}" if name != "a=b.png" else name for name in names]
    assert tables[True][0] == tables[False][0]  # no name of a column begins so
    assert tables[True][1][2:10:2] == ["'=1+1", "'-x", "'@y", "z"] and tables[False][1][2:10:2] == [
        "=1+1",
        "-x",
        "@y",
        "z",
    ]
    assert [row[10:] for row in tables[True]] == [row[10:] for row in tables[False]]  # numbers stay numbers
    with pytest.raises(InputError, match="--spreadsheet-safe is for CSV"):
        run(path, "a=b.png", "-o", "out.jsonl", "--spreadsheet-safe")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
def test_a_table_on_a_full_disk_under_standard_output(model: Any, photos: Path) -> None:
    command = [sys.executable, "-m", "autodial", "predict", str(model.path), str(photos), "-o", "-"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == "autodial: error: standard output can't be written: No space left on device\n"

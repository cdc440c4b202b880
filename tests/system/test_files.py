"""Files that come into a folder together, or not at all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from autodial.errors import WorkError
from autodial.system.files import entries, replacing, replacing_files, was_interrupted


def fill(folder: Path, text: str) -> None:
    with replacing_files(folder, last="b") as aside:
        for name in "abc":
            (aside / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_new_folder_and_an_old_one(tmp_path: Path) -> None:
    fill(tmp_path / "x", "1")
    assert contents(tmp_path / "x") == dict.fromkeys("abc", "1")
    (tmp_path / "x" / "d").write_text("mine")
    fill(tmp_path / "x", "2")
    assert contents(tmp_path / "x") == {**dict.fromkeys("abc", "2"), "d": "mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(Path(), "1")
    assert contents(tmp_path) == dict.fromkeys("abc", "1")


@pytest.mark.parametrize("exists", [False, True])
def test_after_an_exception_nothing_has_changed(tmp_path: Path, exists: bool) -> None:
    if exists:
        fill(tmp_path / "x", "1")
    with pytest.raises(KeyboardInterrupt), replacing_files(tmp_path / "x", last="b") as aside:
        (aside / "a").write_text("2")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == (["x"] if exists else [])
    assert not exists or contents(tmp_path / "x") == dict.fromkeys("abc", "1")


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_the_last_file_never_stands_beside_others_of_another_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    fill(tmp_path / "x", "1")
    move, left = Path.replace, moves

    def replace(path: Path, target: Path) -> Path:
        nonlocal left
        if not left:
            raise OSError(5, "Input/output error")
        left -= 1
        return move(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(WorkError, match=r"x can't be written: Input/output error"):
        fill(tmp_path / "x", "2")
    assert "b" not in contents(tmp_path / "x")


def test_two_processes_that_make_the_same_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(WorkError, match="x was made by another process"),
        replacing_files(tmp_path / "x", last="b") as aside,
    ):
        (aside / "a").write_text("2")
        fill(tmp_path / "x", "1")
    assert contents(tmp_path / "x") == dict.fromkeys("abc", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_errors_name_what_was_to_be(tmp_path: Path) -> None:
    message = rf"^{re.escape(str(tmp_path / 'x' / 'a'))} can't be written: No space left on device$"
    for _ in range(2):
        with (
            pytest.raises(WorkError, match=message),
            replacing_files(tmp_path / "x", last="b") as aside,
            replacing(aside / "a"),
        ):
            raise OSError(28, "No space left on device")
        (tmp_path / "x").mkdir(exist_ok=True)


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "a")
    (tmp_path / "dangling").symlink_to(tmp_path / "there" / "b")
    for name in ("link", "dangling"):
        with replacing(tmp_path / name) as file:
            file.write(b"new")
        assert (tmp_path / name).is_symlink()
    assert contents(tmp_path / "there") == dict.fromkeys("ab", "new")


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"no/x can't be written: No such file"):
        fill(tmp_path / "no" / "x", "1")


KILLED = """
import os, sys
from pathlib import Path
from autodial.system.files import replacing, replacing_files
folder, point = Path(sys.argv[1]), sys.argv[2]
move, moves = Path.replace, 0
def replace(path, target):
    global moves
    moves += 1
    if moves > int(point):
        os._exit(9)  # as kill -9: nothing is tidied up
    return move(path, target)
Path.replace = replace
with replacing_files(folder / "x", last="b") as aside:
    for name in "abc":
        (aside / name).write_text("2")
with replacing(folder / "y") as file:
    file.write(b"2")
"""


def kill(folder: Path, moves: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, folder, str(moves)], check=False)
    assert done.returncode == 9


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
@pytest.mark.parametrize("moves", [0, 1, 2, 3])
def test_the_next_process_removes_what_a_killed_one_left(tmp_path: Path, moves: int) -> None:
    (tmp_path / "x").mkdir()
    for name in "abc":
        (tmp_path / "x" / name).write_text("1")
    kill(tmp_path, moves)
    there = {path.name for path in entries(tmp_path / "x")}
    interrupted = moves < 3
    assert was_interrupted(tmp_path / "x") == interrupted
    if interrupted:
        assert there == {"a", "c"}  # b comes last
    left = list(tmp_path.rglob("*.tmp"))
    assert len(left) == 1
    assert not set(left) & {*entries(tmp_path), *entries(tmp_path / "x")}
    (tmp_path / ".z.123-0.tmp").write_text("another file's")
    fill(tmp_path / "x", "3")
    with replacing(tmp_path / "y") as file:
        file.write(b"3")
    assert contents(tmp_path / "x") == dict.fromkeys("abc", "3")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".z.123-0.tmp", "x", "y"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from autodial.system.files import replacing, replacing_files
folder = Path(sys.argv[1])
with replacing(folder / "y") as file, replacing_files(folder / "x", last="b") as aside:
    print("writing", flush=True)
    input()
    file.write(b"1")
    (aside / "b").write_text("1")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    with replacing(tmp_path / "y") as file:
        file.write(b"2")
    assert len(entries(tmp_path)) == 3
    process.communicate("\n")
    assert process.returncode == 0
    assert (tmp_path / "y").read_text() == "1"
    assert contents(tmp_path / "x") == {"b": "1"}

from __future__ import annotations

import csv
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autodial.deploy import PredictOptions, predict_folder
from autodial.deploy.sorting import Sorter
from autodial.errors import InputError, WorkError


@pytest.fixture(autouse=True)
def links(tmp_path: Path) -> None:
    try:
        (tmp_path / "link").symlink_to("nowhere")
    except OSError:
        pytest.skip("no symbolic links here")
    (tmp_path / "link").unlink()


def labels(table: Path) -> dict[str, str]:
    with table.open(encoding="utf-8", newline="") as file:
        return {row["path"]: row["label_1"] for row in csv.DictReader(file) if row["status"] == "ok"}


def content(folder: Path) -> dict[str, list[bytes]]:
    return {
        place.name: sorted(file.read_bytes() for file in place.iterdir())
        for place in folder.iterdir()
        if place.is_dir()
    }


FOLDERS = {"cat": "cat", "dog, big": "dog, big", 'the "other"': "the _other_", "Ødegård 猫": "Ødegård 猫"}


@pytest.mark.parametrize("copy", [False, True])
def test_every_image_is_in_its_labels_folder(model: Any, photos: Path, tmp_path: Path, copy: bool) -> None:
    (photos / "b.JPG").write_bytes(b"broken")
    (photos / "sub" / "a.png").write_bytes((photos / "a.png").read_bytes()[:-1] + b"\x82")  # same name, same label
    out, place = tmp_path / "out.csv", tmp_path / "sorted" / "here"
    predict_folder(model.path, [photos], out, PredictOptions(sort_into=place, copy=copy))
    expected: dict[str, list[bytes]] = {}
    for path, label in labels(out).items():
        expected.setdefault(FOLDERS[label], []).append(Path(path).read_bytes())
    if copy:  # one of two files with the same name and content is enough
        expected = {label: sorted(set(files)) for label, files in expected.items()}
    assert content(place) == {label: sorted(files) for label, files in expected.items()}
    found = [path for path in place.rglob("*") if not path.is_dir()]
    assert all(path.is_symlink() is not copy for path in found)
    before = sorted(found)
    predict_folder(model.path, [photos], out, PredictOptions(sort_into=place, copy=copy, resume=True))
    assert sorted(path for path in place.rglob("*") if not path.is_dir()) == before


def test_refuses_a_place_that_can_t_be_made(model: Any, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is not a folder: name another folder to write to"):
        predict_folder(
            model.path, [photos], tmp_path / "out.csv", PredictOptions(sort_into=tmp_path / "file" / "below")
        )
    assert not (tmp_path / "out.csv.partial").exists()


def test_refuses_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputError, match="dangling: can't make this folder: File exists"):
        Sorter(tmp_path / "dangling", ["x"], copy=False, inputs=[], resume=False)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that is closed to root, too: /proc")
def test_refuses_a_place_without_leave_to_write() -> None:
    with pytest.raises(InputError, match=r"s: can't write to the folder /proc \(.+\): choose another"):
        Sorter(Path("/proc/s"), ["x"], copy=False, inputs=[], resume=False)


@pytest.mark.parametrize(("number", "hint"), [(errno.EPERM, True), (errno.EACCES, False), (errno.ENOSPC, False)])
def test_copies_are_advised_where_links_are_the_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: bool
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    (tmp_path / "a.png").touch()
    with pytest.raises(WorkError) as failure:
        Sorter(tmp_path / "s", ["x"], copy=False, inputs=[], resume=False).place(tmp_path / "a.png", 0, 0)
    assert ("`copy`" in str(failure.value)) is hint


def test_names_that_meet_get_the_rows_number(tmp_path: Path) -> None:
    sorter = Sorter(tmp_path / "s", ["x"], copy=False, inputs=[], resume=False)
    for i, folder in enumerate(["a", "b", "c"], start=1):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.png").write_text(folder)
        for _ in range(2):  # a second time, as after a resume
            sorter.place(tmp_path / folder / "1.png", 0, i)
    assert {path.name: path.read_text() for path in (tmp_path / "s" / "x").iterdir()} == {
        "1.png": "a",
        "1-2.png": "b",
        "1-3.png": "c",
    }
    (tmp_path / "c" / "2.png").touch()
    for name in ("2.png", "2-7.png"):
        (tmp_path / "s" / "x" / name).touch()
    for _ in range(2):
        sorter.place(tmp_path / "c" / "2.png", 0, 7)
    assert (tmp_path / "s" / "x" / "2-7-2.png").readlink() == tmp_path / "c" / "2.png"
    assert len(list((tmp_path / "s" / "x").iterdir())) == 6


@pytest.mark.parametrize("copy", [False, True])
def test_names_as_long_as_they_can_be(tmp_path: Path, copy: bool) -> None:
    sorter = Sorter(tmp_path / "s", ["x"], copy=copy, inputs=[], resume=False)
    name = "é" * 125 + "a.png"  # of 255 bytes
    for i, folder in enumerate(["a", "b"], start=1):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(folder)
        for _ in range(2):
            sorter.place(tmp_path / folder / name, 0, i)
    assert {path.name: path.read_text() for path in (tmp_path / "s" / "x").iterdir()} == {
        name: "a",
        "é" * 124 + "-2.png": "b",
    }


def test_labels_that_are_no_folder_names(tmp_path: Path) -> None:
    classes = ["..", "a/b", "a_b", "A_B", "", ".", " x ", "x"]
    sorter = Sorter(tmp_path / "s", classes, copy=False, inputs=[], resume=False)
    for i, _ in enumerate(classes):
        (tmp_path / f"{i}.png").touch()
        sorter.place(tmp_path / f"{i}.png", i, i)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == sorted(
        ["__", "a_b", "a_b_", "A_B__", "_", "___", "x", "x_"]
    )


def test_an_image_that_is_gone_is_a_row(model: Any, photos: Path, tmp_path: Path, monkeypatch: Any) -> None:
    place = Sorter.place

    def late(self: Sorter, image: Path, index: int, row: int) -> None:
        if image.name == "a.png":
            image.unlink()
        place(self, image, index, row)

    monkeypatch.setattr(Sorter, "place", late)
    predict_folder(model.path, [photos], tmp_path / "out.csv", PredictOptions(sort_into=tmp_path / "s", copy=True))
    assert len(labels(tmp_path / "out.csv")) == 11
    assert "removed before it could be sorted" in (tmp_path / "out.csv").read_text(encoding="utf-8")


def test_shards_sort_into_one_folder(model: Any, photos: Path, tmp_path: Path) -> None:
    for i in (1, 2, 3):
        predict_folder(model.path, [photos], tmp_path / "o.csv", PredictOptions(sort_into=tmp_path / "s", shard=(i, 3)))
    names = {path.name for path in photos.rglob("*") if path.is_file()}
    assert {os.path.basename(os.readlink(path)) for path in (tmp_path / "s").rglob("*.*")} == names  # noqa: PTH115,PTH119


def test_labels_that_are_too_long_or_reserved_have_folders_of_their_own(tmp_path: Path) -> None:
    long = "é" * 127 + "x"  # of 255 bytes
    classes = [
        "n" * 300 + "a",
        "n" * 300 + "b",
        "n" * 253 + "_0",
        long,
        long + "y",
        long.upper(),
        "con",
        "NUL.txt",
        "U.S.",
        "e\u0301",
        "é",
    ]
    sorter = Sorter(tmp_path / "s", classes, copy=False, inputs=[], resume=False)
    for i, _ in enumerate(classes):
        (tmp_path / f"{i}.png").touch()
        sorter.place(tmp_path / f"{i}.png", i, i)
    found = {next(folder.iterdir()).stem: folder.name for folder in (tmp_path / "s").iterdir()}
    assert [found[str(i)] for i, _ in enumerate(classes)] == [
        "n" * 253 + "_0",
        "n" * 253 + "_1",
        "n" * 253 + "__",
        long,
        "é" * 126 + "_4",
        "É" * 127 + "_",
        "_con",
        "_NUL.txt",
        "U.S_",
        "e\u0301",
        "é_",
    ]
    assert len({name.casefold() for name in found.values()}) == len(classes)


def interrupted(model: Any, inputs: list[Any], out: Path, **options: Any) -> None:
    """A run that stops behind its third batch of two, so that five rows, or six, are done."""

    def stop(done: int) -> None:
        if done >= 4:
            raise WorkError("Stopped.")

    with pytest.raises(WorkError, match="Stopped"):
        predict_folder(model.path, inputs, out, PredictOptions(batch_size=2, **options), progress=stop)


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"shard": (2, 2), "drift": None}])
def test_what_was_sorted_before_is_sorted_again(
    model: Any, photos: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    (photos / "b.JPG").write_bytes(b"broken")
    (photos / "sub" / "a.png").write_bytes((photos / "c, d.bmp").read_bytes())  # meets a.png, maybe
    whole = tmp_path / "whole"
    predict_folder(
        model.path, [photos], tmp_path / "whole.csv", PredictOptions(batch_size=2, sort_into=whole, **options)
    )
    place = tmp_path / "s"
    interrupted(model, [photos], tmp_path / "o.csv", sort_into=place, **options)
    shutil.rmtree(place)
    predict_folder(
        model.path, [photos], tmp_path / "o.csv", PredictOptions(batch_size=2, sort_into=place, resume=True, **options)
    )

    def listing(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}

    assert listing(place) == listing(whole) and len(listing(place)) >= 5
    name = "-2-of-2" if "shard" in options else ""
    assert (tmp_path / f"o{name}.csv").read_bytes() == (tmp_path / f"whole{name}.csv").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_what_a_killed_copy_left_goes_with_the_next_run_but_not_what_is_being_copied(
    model: Any, photos: Path, tmp_path: Path
) -> None:
    code = """
import os, shutil, sys
from pathlib import Path
from autodial.deploy import PredictOptions, predict_folder
copy2 = shutil.copy2
def copy(source, place):
    copy2(source, place)
    if sys.argv[4] == "killed":
        os._exit(9)
    print("copying", flush=True)
    input()
shutil.copy2 = copy
model, photos, table, _ = sys.argv[1:]
predict_folder(model, [photos], table, PredictOptions(sort_into=Path(table).with_name("sorted"), copy=True))
"""

    def start(table: str, how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, model.path, photos, tmp_path / table, how]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    place = tmp_path / "sorted"
    assert start("killed.csv", "killed").wait() == 9
    assert len(list(place.rglob("*.tmp"))) == 1
    predict_folder(
        model.path, [photos], tmp_path / "killed.csv", PredictOptions(sort_into=place, copy=True, resume=True)
    )
    assert not list(place.rglob("*.tmp"))
    whole = content(place)

    shutil.rmtree(place)
    process = start("copying.csv", "copying")
    assert process.stdout is not None and process.stdout.readline() == "copying\n"
    (other,) = place.rglob("*.tmp")
    foreign = other.with_name(".another-host-x.tmp")  # of a shard on another machine
    foreign.touch()
    predict_folder(
        model.path, [photos], tmp_path / "other.csv", PredictOptions(sort_into=place, copy=True, resume=True)
    )
    assert other.exists() and foreign.exists()
    foreign.unlink()
    process.communicate("\n" * 100)
    assert process.returncode == 0
    assert content(place) == whole

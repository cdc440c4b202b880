"""LevelDB folders against the library that wrote them, and what is not one, or a damaged one."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from autodial.data.leveldb import LevelDb
from autodial.errors import InputError

plyvel = pytest.importorskip("plyvel")

ENTRIES = [(f"{i:08}_image.jpg".encode(), np.random.default_rng(i).bytes(100 + i % 7)) for i in range(100)]


def write(folder: Path, entries=ENTRIES, *, compact: bool = False) -> Path:
    """A database as Caffe's tools leave it, its entries in the log, or, compacted, in tables."""
    with plyvel.DB(str(folder), create_if_missing=True, write_buffer_size=4096, max_file_size=2**20) as database:
        for key, value in entries:
            database.put(key, value)
        if compact:
            database.compact_range()
    return folder


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.mark.parametrize("compact", [True, False])
def test_entries_by_position(tmp_path: Path, compact: bool) -> None:
    folder = write(tmp_path / "db", compact=compact)
    before = contents(folder)
    database = LevelDb(folder)
    assert len(database) == 100
    assert database.read(range(100)) == ENTRIES
    for positions in ([99], [0], [50, 51, 3, 97, 2], [17, 16, 15], [5, 5, 5]):
        assert database.read(positions) == [ENTRIES[i] for i in positions]
    assert contents(folder) == before


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "db")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert LevelDb(folder).read([42]) == [ENTRIES[42]]
    finally:
        folder.chmod(0o755)


def test_deleted_and_replaced_entries(tmp_path: Path) -> None:
    folder = write(tmp_path / "db", compact=True)
    with plyvel.DB(str(folder)) as database:
        database.delete(ENTRIES[3][0])
        database.put(ENTRIES[4][0], b"new")
    database = LevelDb(folder)
    assert len(database) == 99
    assert database.read([2, 3, 4]) == [ENTRIES[2], (ENTRIES[4][0], b"new"), ENTRIES[5]]


@pytest.mark.parametrize("method", sorted({"fork", "spawn"} & set(multiprocessing.get_all_start_methods())))
def test_several_processes_at_once(tmp_path: Path, method: str) -> None:
    database = LevelDb(write(tmp_path / "db"))
    database.read([7])
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        results = [pool.submit(database.read, [i, i + 50]) for i in range(0, 40, 8)]
        assert database.read([8]) == [ENTRIES[8]]
        for i, result in zip(range(0, 40, 8), results, strict=True):
            assert result.result() == [ENTRIES[i], ENTRIES[i + 50]]
    assert database.read([9]) == [ENTRIES[9]]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "db")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    code = (
        "import sys, pathlib; from autodial.data.leveldb import LevelDb; print(len(LevelDb(pathlib.Path(sys.argv[1]))))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert result.stdout == "100\n"
    assert not list((tmp_path / "temporary").iterdir())


def test_pickled(tmp_path: Path) -> None:
    database = LevelDb(write(tmp_path / "db"))
    assert pickle.loads(pickle.dumps(database)).read([11]) == [ENTRIES[11]]


def test_an_empty_one(tmp_path: Path) -> None:
    assert len(LevelDb(write(tmp_path / "db", []))) == 0


def test_what_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a LevelDB: it holds no CURRENT"):
        LevelDb(tmp_path)
    (tmp_path / "CURRENT").write_text("../../etc/passwd\n")
    with pytest.raises(InputError, match="CURRENT names no manifest"):
        LevelDb(tmp_path)


@pytest.mark.parametrize("suffix", [".log", ".ldb", ""])
def test_damage_is_named(tmp_path: Path, suffix: str) -> None:
    folder = write(tmp_path / "db", compact=suffix == ".ldb")
    (file,) = [f for f in folder.iterdir() if f.suffix == suffix and f.name.startswith(("MANIFEST", "0"))][-1:]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x55
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"can't be read as a LevelDB, it may be damaged: .*[Cc]orrupt") as error:
        LevelDb(folder).read(range(100))
    assert "\n" not in str(error.value)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "db", compact=True)
    next(folder.glob("*.ldb")).unlink()
    with pytest.raises(InputError, match=r"can't be read as a LevelDB, it may be damaged: .*missing"):
        LevelDb(folder)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "db")
    for name in ("plyvel", "plyvel_next"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"is a LevelDB, which needs the package plyvel: pip install '\.\[leveldb\]'"):
        LevelDb(folder)

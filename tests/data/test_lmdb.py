"""LMDB files against the LMDB library, and what is not one, or not a whole one."""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import signal
from collections.abc import Mapping
from pathlib import Path

import lmdb
import numpy as np
import pytest
from originals import shared_files

from autodial.data.lmdb import Lmdb
from autodial.errors import InputError

PAGE = mmap.PAGESIZE
"""The size in bytes of a page of a database that is written here."""
MANY = 300 * PAGE // 4096
"""Small entries that take several pages."""


def write(folder: Path, *transactions: Mapping[bytes, bytes | None]) -> Path:
    """A database after these transactions, in which None deletes a key; without the lock file."""
    environment = lmdb.open(str(folder), map_size=2**28)
    for transaction in transactions:
        with environment.begin(write=True) as txn:
            for key, value in transaction.items():
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
    environment.close()
    (folder / "lock.mdb").unlink()
    return folder


def as_the_library_reads(folder: Path) -> list[tuple[bytes, bytes]]:
    environment = lmdb.open(str(folder), readonly=True, lock=False)
    with environment.begin() as txn:
        entries = list(txn.cursor())
    environment.close()
    return entries


def numbered(count: int, size: int) -> dict[bytes, bytes]:
    """`count` entries with values of about `size` bytes."""
    rng = np.random.default_rng(0)
    return {f"{i:08}".encode(): rng.bytes(size + i % 5) for i in range(count)}


@pytest.mark.parametrize("size", [0, 1, 100, 2020, 2030, 4080, 4096, 10_000])
@pytest.mark.parametrize("count", [1, 2, 60, 700])
def test_values_of_every_size_are_read_in_order(tmp_path: Path, count: int, size: int) -> None:
    expected = sorted(numbered(count, size).items())
    database = Lmdb(write(tmp_path, dict(expected)))
    assert len(database) == count
    assert database.read(range(count)) == expected


@pytest.mark.parametrize("seed", range(8))
def test_databases_with_a_history_are_read_as_the_library_reads_them(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    transactions: list[dict[bytes, bytes | None]] = []
    for _ in range(rng.integers(1, 6)):
        keys = [rng.bytes(rng.integers(1, 500)) for _ in range(rng.choice([1, 40, 800]))]
        transactions.append({key: rng.bytes(rng.choice([0, 10, 500, 2030, 5000])) for key in keys})
        transactions.append({key: None for added in transactions for key in added if rng.random() < 0.3})
    write(tmp_path, *transactions)
    database = Lmdb(tmp_path)
    assert database.read(range(len(database))) == as_the_library_reads(tmp_path)


@pytest.mark.parametrize("folder", shared_files("data/*_lmdb"))
def test_the_originals_databases_are_read_as_the_library_reads_them(folder: Path) -> None:
    database = Lmdb(folder)
    assert database.read(range(len(database))) == as_the_library_reads(folder)
    assert [path.name for path in folder.iterdir()] == ["data.mdb"]


def test_positions_can_be_read_in_any_order(tmp_path: Path) -> None:
    entries = sorted(numbered(700, 300).items())
    database = Lmdb(write(tmp_path, dict(entries)))
    rng = np.random.default_rng(0)
    reads = [[699], [0, 350, 349, 699], [], range(100, 200), [5, 5, 6, 4], *rng.integers(0, 700, (50, 3)).tolist()]
    for positions in reads:
        assert database.read(positions) == [entries[i] for i in positions]
    for start in range(0, 1400, 90):  # batch after batch, round and round
        positions = [i % 700 for i in range(start, start + 90)]
        assert database.read(positions) == [entries[i] for i in positions]


def test_an_empty_database_has_no_entries(tmp_path: Path) -> None:
    assert len(Lmdb(write(tmp_path / "never", {}))) == 0
    assert len(Lmdb(write(tmp_path / "emptied", {b"a": b"1"}, {b"a": None}))) == 0


def test_nothing_is_written_beside_it(tmp_path: Path) -> None:
    write(tmp_path, numbered(3, 10))
    before = (tmp_path / "data.mdb").read_bytes()
    tmp_path.chmod(0o500)
    (tmp_path / "data.mdb").chmod(0o400)
    database = Lmdb(tmp_path)
    assert [key for key, _ in database.read(range(3))] == [b"00000000", b"00000001", b"00000002"]
    assert [path.name for path in tmp_path.iterdir()] == ["data.mdb"]
    assert (tmp_path / "data.mdb").read_bytes() == before


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")


@needs_fork
def test_several_readers_copies_and_forks_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = sorted(numbered(100, 300).items())
    write(tmp_path / "db", dict(entries))
    monkeypatch.chdir(tmp_path)
    first, second = Lmdb(Path("db")), Lmdb(Path("db"))
    monkeypatch.chdir("/")
    for reader in (first, second, pickle.loads(pickle.dumps(first))):
        assert reader.read([7]) == [entries[7]]
    child = os.fork()
    if not child:
        os._exit(0 if first.read(range(100)) == entries else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert first.read([8, 99]) == [entries[8], entries[99]]


@pytest.mark.skipif(lmdb.__version__ < "2", reason="old versions of lmdb open a database twice")
def test_a_database_that_the_program_has_open_is_named(tmp_path: Path) -> None:
    write(tmp_path, numbered(3, 10))
    with (
        lmdb.open(str(tmp_path), readonly=True, lock=False),
        pytest.raises(InputError, match=r"data\.mdb can't be opened: .*already open in this process"),
    ):
        Lmdb(tmp_path)
    assert len(Lmdb(tmp_path)) == 3


def test_a_database_cut_short_is_refused_whatever_its_length(tmp_path: Path) -> None:
    whole = (write(tmp_path / "whole", numbered(40, 3000)) / "data.mdb").read_bytes()
    cut = tmp_path / "cut"
    cut.mkdir()
    lengths = {
        *range(1, 40),
        *range(100, 300),
        *range(PAGE, PAGE + 304, 7),
        *range(300, len(whole), 1231),
        len(whole) - 1,
    }
    for length in sorted(lengths):
        (cut / "data.mdb").write_bytes(whole[:length])
        with pytest.raises(InputError, match=rf"data.mdb is cut short: it has (only )?{length} ") as error:
            Lmdb(cut)
        assert "\n" not in str(error.value)
    (cut / "data.mdb").write_bytes(whole)
    database = Lmdb(cut)
    assert len(database) == 40
    (cut / "data.mdb").write_bytes(whole[:-1])
    with pytest.raises(InputError, match="is cut short"):
        database.read([0])


def read_in_a_child(folder: Path) -> int:
    """How a process that reads a database ends: 0, 2 after an InputError, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        status = 1
        try:
            faulthandler.disable()
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(20)
            database = Lmdb(folder)
            database.read(range(min(len(database), 1000)))
            status = 0
        except InputError as error:
            status = 1 if "\n" in str(error) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@needs_fork
def test_flipped_bits_give_an_error_or_other_bytes(tmp_path: Path) -> None:
    data = bytearray((write(tmp_path, numbered(MANY, 20), numbered(40, 3000)) / "data.mdb").read_bytes())
    rng = np.random.default_rng(0)
    # where the format's own fields are, the heads of all pages, and anywhere
    positions = [page + int(i) for page in range(0, len(data), PAGE) for i in rng.integers(0, 160, 2)]
    positions += [int(i) for i in rng.integers(0, len(data), 20)]
    ends = []
    for position in positions:
        bit = 1 << int(rng.integers(8))
        data[position] ^= bit
        (tmp_path / "data.mdb").write_bytes(data)
        ends.append(read_in_a_child(tmp_path))
        data[position] ^= bit
    assert set(ends) == {0, 2}, ends  # and none by a signal, as the library ends when it follows them


def test_damage_that_the_library_notices_is_one_sentence(tmp_path: Path) -> None:
    file = write(tmp_path, numbered(MANY, 20)) / "data.mdb"
    data = bytearray(file.read_bytes())
    root = int.from_bytes(data[PAGE + 128 : PAGE + 136], "little")  # in the second meta page
    data[root * PAGE + 10] = 0x04  # says that it is an overflow page
    database = Lmdb(tmp_path)
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"data\.mdb is damaged: .*MDB_CORRUPTED.*; copy it again$"):
        database.read([0])
    with pytest.raises(InputError, match=rf"data\.mdb is damaged: the header of page {root} is no page's of its tree"):
        Lmdb(tmp_path)


def test_fewer_entries_than_the_meta_page_says(tmp_path: Path) -> None:
    file = write(tmp_path, {b"a": b"1", b"b": b"2"}) / "data.mdb"
    data = bytearray(file.read_bytes())
    assert data[PAGE + 120] == 2  # in the second meta page
    data[PAGE + 120] = 3
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"data\.mdb is damaged: its tree has 2 entries where 3 should be"):
        Lmdb(tmp_path)


def test_a_database_that_has_shrunk_since(tmp_path: Path) -> None:
    database = Lmdb(write(tmp_path, {b"a": b"1", b"b": b"2", b"c": b"3"}))
    (tmp_path / "data.mdb").unlink()
    write(tmp_path, {b"a": b"1", b"b": b"2"})
    with pytest.raises(InputError, match=r"data\.mdb is damaged: it has fewer than its 3 entries; copy it again"):
        database.read([2])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (10, b"\x04\0", "the header of page {0}"),  # mp_flags: an overflow page
        (12, b"\x12\0", "the header of page {0}"),  # mp_lower: one key, where a branch has two
        (14, b"\xff\xff", "the header of page {0}"),  # mp_upper
        (
            16,
            (PAGE - 2).to_bytes(2, "little"),
            "page {0} has an entry outside of itself",
        ),  # the place of the first entry
    ],
)
def test_pages_that_would_end_the_process_are_refused_at_the_door(
    place: int, value: bytes, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path, numbered(MANY, 20)) / "data.mdb"
    data = bytearray(file.read_bytes())
    root = int.from_bytes(data[PAGE + 128 : PAGE + 136], "little")
    assert data[root * PAGE + 10] == 0x01  # a branch
    data[root * PAGE + place : root * PAGE + place + 2] = value
    file.write_bytes(data)
    with pytest.raises(InputError, match=message.format(root)):
        Lmdb(tmp_path)


@pytest.mark.parametrize(("entries", "size"), [(0, 0), (1, 1), (1, 10_000), (5000, 1), (3000, 2000), (200, 30_000)])
def test_whole_databases_pass(entries: int, size: int, tmp_path: Path) -> None:
    database = Lmdb(write(tmp_path, numbered(entries, size)))
    assert len(database) == entries


def test_a_tree_that_leads_in_a_ring_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, numbered(MANY, 20)) / "data.mdb"
    data = bytearray(file.read_bytes())
    root = int.from_bytes(data[PAGE + 128 : PAGE + 136], "little")
    node = root * PAGE + int.from_bytes(data[root * PAGE + 16 : root * PAGE + 18], "little")
    data[node : node + 2] = root.to_bytes(2, "little")
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"leads to a page twice|no page's of its tree"):
        Lmdb(tmp_path)


def test_what_is_no_lmdb_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it holds no data\.mdb"):
        Lmdb(tmp_path)
    file = tmp_path / "data.mdb"
    file.write_bytes(b"")
    with pytest.raises(InputError, match=r"data\.mdb is empty"):
        Lmdb(tmp_path)
    with pytest.raises(InputError, match=r"data\.mdb is a file; an LMDB is named by the folder"):
        Lmdb(file)
    file.write_bytes(b"x" * 9000)
    with pytest.raises(InputError, match=r"data\.mdb is no LMDB"):
        Lmdb(tmp_path)
    file.unlink()
    write(tmp_path, {b"a": b"1"})
    data = bytearray(file.read_bytes())
    data[20] = 2
    file.write_bytes(data)
    with pytest.raises(InputError, match="an LMDB of data version 2; only 1 can be read"):
        Lmdb(tmp_path)

"""The HDF5Data layer: rows of HDF5 files as h5py gives them, and what is refused."""

from __future__ import annotations

import pickle
import random
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from autodial.data.hdf5_data import HDF5Data
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.proto import parse_net

ROWS = (5, 1, 4)


def layer(
    folder: Path, options: str = "batch_size: 3", tops: str = 'top: "data" top: "label"', seed: int = 1
) -> HDF5Data:
    text = f'layer {{ name: "h" type: "HDF5Data" {tops} hdf5_data_param {{ source: "list.txt" {options} }} }}'
    return HDF5Data(parse_net(text).layer[0], phase=pb.TRAIN, seed=seed, base_dir=folder)


def write(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three files with ROWS rows: `data` (n, 2, 3), `label` (n, 1) and `third` (n,), each row with its own numbers."""
    first = 0
    for i, rows in enumerate(ROWS):
        numbers = np.arange(first, first + rows)
        write(
            tmp_path / f"{i}.h5",
            data=(numbers[:, None, None] * 6 + np.arange(6).reshape(2, 3)).astype(np.float32),
            label=numbers[:, None].astype(np.uint8),
            third=numbers / 3,
        )
        first += rows
    (tmp_path / "list.txt").write_text("0.h5\n\n1.h5\r\n2.h5")
    return tmp_path


def labels(source: HDF5Data, batches: int) -> list[int]:
    return [int(label) for index in range(batches) for label in source.batch(index)[1].ravel()]


@pytest.mark.parametrize("shuffle", ["false", "true"])
@pytest.mark.parametrize("batch_size", [1, 3, 10, 23])
def test_every_top_has_the_rows_of_its_dataset(files: Path, batch_size: int, shuffle: str) -> None:
    source = layer(files, f"batch_size: {batch_size} shuffle: {shuffle}", 'top: "data" top: "label" top: "third"')
    assert len(source) == 10
    assert source.top_shapes == ((batch_size, 2, 3), (batch_size, 1), (batch_size,))
    seen = []
    for index in range(7):
        data, label, third = source.batch(index)
        assert (data.shape, label.shape, third.shape) == source.top_shapes
        assert data.dtype == label.dtype == third.dtype == np.float32
        np.testing.assert_array_equal(data, label[:, :, None] * 6 + np.arange(6).reshape(2, 3))
        np.testing.assert_array_equal(third, (label[:, 0].astype(np.float64) / 3).astype(np.float32))
        seen += label[:, 0].tolist()
    if shuffle == "false":
        assert seen == [i % 10 for i in range(7 * batch_size)]
    else:
        for epoch in range(len(seen) // 10):
            assert sorted(seen[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_shuffling_keeps_the_rows_of_a_file_together(files: Path) -> None:
    read = labels(layer(files, "batch_size: 10 shuffle: true"), 12)
    epochs = [read[10 * k : 10 * k + 10] for k in range(12)]
    for epoch in epochs:
        parts = [[i for i in epoch if i in rows] for rows in (range(5), range(5, 6), range(6, 10))]
        assert epoch in [[*chain(*order)] for order in permutations(parts)]
    assert len({tuple(epoch) for epoch in epochs}) == 12


def test_a_batch_depends_on_seed_and_index_alone(files: Path) -> None:
    source = layer(files, "batch_size: 4 shuffle: true")
    in_order = [source.batch(index)[0] for index in range(6)]
    for index in (5, 0, 3):
        for other in (source, layer(files, "batch_size: 4 shuffle: true"), pickle.loads(pickle.dumps(source))):
            np.testing.assert_array_equal(other.batch(index)[0], in_order[index])
    assert labels(layer(files, "batch_size: 10 shuffle: true", seed=2), 1) != labels(source, 3)[:10]


def test_rows_are_named_by_file(files: Path) -> None:
    names = layer(files, "batch_size: 4").names(1)
    assert names == [f"{files / '0.h5'}:4", f"{files / '1.h5'}:0", f"{files / '2.h5'}:0", f"{files / '2.h5'}:1"]


def test_labels_are_listed_where_a_top_has_one_per_row(files: Path) -> None:
    source = layer(files)
    assert list(source.labels(0)) == []
    listed = list(source.labels(1))
    assert [label for _, label in listed] == list(range(10))
    assert listed[6][0] == f'{files / "2.h5"}: dataset "label", row 0'


def test_relative_files_are_found_in_the_working_directory_and_later(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = files / "lists"
    lists.mkdir()
    (files / "list.txt").rename(lists / "list.txt")
    monkeypatch.chdir(files)
    source = layer(lists)
    monkeypatch.chdir(lists)
    assert labels(source, 1) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('transform_param { scale: 2 } hdf5_data_param { source: "list.txt" batch_size: 1 }', "remove transform_param"),
        ("hdf5_data_param { batch_size: 1 }", "hdf5_data_param.source, the list of HDF5 files, is missing"),
        ('hdf5_data_param { source: "list.txt" }', "hdf5_data_param.batch_size is missing or 0"),
        ('hdf5_data_param { source: "none" batch_size: 1 }', '"none" does not exist'),
        (
            'hdf5_data_param { source: "0.h5" batch_size: 1 }',
            "0.h5 is itself an HDF5 file; hdf5_data_param.source is a",
        ),
        ('hdf5_data_param { source: "empty.txt" batch_size: 1 }', "empty.txt lists no files"),
        ('hdf5_data_param { source: "gone.txt" batch_size: 1 }', 'gone.txt:2: "gone.h5" does not exist'),
    ],
)
def test_what_cannot_be_honoured_is_refused(files: Path, options: str, reason: str) -> None:
    (files / "empty.txt").write_text("\n")
    (files / "gone.txt").write_text("0.h5\ngone.h5\n")
    with pytest.raises(InputError) as error:
        HDF5Data(parse_net(f'layer {{ top: "data" {options} }}').layer[0], phase=pb.TEST, seed=0, base_dir=files)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("datasets", "reason"),
    [
        ({"data": np.zeros((2, 2, 3))}, 'no dataset "label", as a top is named; it holds data'),
        ({"data": np.zeros((2, 2, 3)), "label": np.zeros((3, 1))}, '"label" has 3 rows and "data" has 2'),
        ({"data": np.float32(1), "label": np.zeros((3, 1))}, '"data" has no axes'),
        (
            {"data": np.zeros((2, 2, 3)), "label": np.array([b"a", b"b"])},
            '"label" holds |S1, neither floats nor integers',
        ),
        ({"data": np.zeros((2, 2, 4)), "label": np.zeros((2, 1))}, "has shape (2, 2, 4), which does not fit (5, 2, 3)"),
    ],
)
def test_a_file_that_does_not_fit_is_named(files: Path, datasets: dict[str, Any], reason: str) -> None:
    write(files / "1.h5", **datasets)
    with pytest.raises(InputError) as error:
        layer(files)
    assert str(error.value).startswith(f'layer "h" (HDF5Data): {files / "1.h5"}')
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (h5py.ExternalLink("0.h5", "/label"), '"label" is a link to "/label" in the file "0.h5"'),
        (h5py.SoftLink("/data"), '"label" is a link to "/data"'),
    ],
)
def test_links_are_refused_by_name(files: Path, value: Any, reason: str) -> None:
    write(files / "1.h5", data=np.zeros((1, 2, 3)), label=value)
    with pytest.raises(InputError) as error:
        layer(files)
    assert f"{files / '1.h5'}: {reason}" in str(error.value)


@pytest.mark.parametrize("at_first", [True, False])
def test_values_in_other_files_are_refused_whenever_they_come(files: Path, at_first: bool) -> None:
    source = None if at_first else layer(write_whole(files))
    with h5py.File(files / "1.h5", "w") as file:
        file["data"] = np.zeros((1, 2, 3))
        file.create_dataset("label", (1, 1), "u1", external=[("list.txt", 0, 1)])
    with pytest.raises(InputError, match=r'dataset "label" has its values in another file, "list\.txt"'):
        _ = layer(files) if source is None else source.batch(1)


def test_what_was_never_written_is_refused(files: Path) -> None:
    with h5py.File(files / "1.h5", "w") as file:
        file["data"] = np.zeros((1, 2, 3))
        file.create_dataset("label", (1, 1), "u1")
    with pytest.raises(InputError, match=r'dataset "label" has the shape \(1, 1\), but its values were never written'):
        layer(files)


def test_files_without_rows_are_refused(files: Path) -> None:
    for i in range(3):
        write(files / f"{i}.h5", data=np.zeros((0, 2)), label=np.zeros(0))
    with pytest.raises(InputError, match="have no rows"):
        layer(files)


@pytest.mark.parametrize("length", [0, 7, 8, 100, 1000, -1])
def test_a_file_cut_short_is_refused(files: Path, length: int) -> None:
    path = files / "1.h5"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match=r"1\.h5 is cut short or damaged") as error:
        layer(files)
    assert "\n" not in str(error.value)
    source = layer(write_whole(files))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match=r"1\.h5 is cut short or damaged"):
        source.batch(1)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_flipped_bits_give_other_numbers_or_one_error(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "1.h5"
    with h5py.File(path, "w", libver=(libver, "v108" if libver == "earliest" else "latest")) as file:
        file["data"], file["label"] = np.arange(24.0).reshape(4, 6), np.arange(4)
    (tmp_path / "list.txt").write_text("1.h5")
    original = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(250):
        damaged = bytearray(original)
        # where the library keeps its own records
        damaged[rng.randrange(min(1600, len(original)))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            source = layer(tmp_path)
            for index in range(2):
                source.batch(index)
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 20


def test_ring_in_a_heap_is_refused_at_once(tmp_path: Path) -> None:
    # A flipped bit that makes the HDF5 library itself take memory until there is none.
    path = tmp_path / "1.h5"
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        file["data"], file["label"] = np.zeros((4, 6)), np.zeros(4)
    (tmp_path / "list.txt").write_text("1.h5")
    assert len(layer(tmp_path)) == 4
    data = bytearray(path.read_bytes())
    heap = data.index(b"HEAP")
    data[heap + 16] = 8  # the first free block lies where the first name does
    start = int.from_bytes(data[heap + 24 : heap + 32], "little")
    assert data[start + 8 : start + 12] == b"data"
    data[start + 8 : start + 16] = (8).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"1\.h5 is cut short or damaged"):
        layer(tmp_path)


@pytest.mark.parametrize("chunks", [None, (2, 6)])
def test_a_shape_that_can_t_be_true_takes_no_memory(tmp_path: Path, chunks: tuple[int, int] | None) -> None:
    path = tmp_path / "1.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=np.zeros((4, 6)), chunks=chunks)
        file["label"] = np.zeros(4)
    (tmp_path / "list.txt").write_text("1.h5")
    data = path.read_bytes()
    shape = (4).to_bytes(8, "little") + (6).to_bytes(8, "little")
    path.write_bytes(data.replace(shape, (4).to_bytes(8, "little") + (2**40).to_bytes(8, "little")))
    with pytest.raises(InputError, match=r"1\.h5 is cut short or damaged"):
        layer(tmp_path)


def write_whole(files: Path) -> Path:
    write(files / "1.h5", data=np.zeros((1, 2, 3)), label=np.zeros((1, 1)))
    return files


@pytest.mark.parametrize("shuffle", ["false", "true"])
def test_rows_are_the_same_without_the_others(files: Path, shuffle: str) -> None:
    source = layer(files, f"batch_size: 7 shuffle: {shuffle}")
    for index in range(3):
        for rows in (slice(0, 2), slice(2, 7)):
            for got, whole in zip(source.batch(index, rows), source.batch(index), strict=True):
                np.testing.assert_array_equal(got, whole[rows])

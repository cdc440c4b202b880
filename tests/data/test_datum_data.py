"""The Data layer: datums of every kind against what they were made of and OpenCV, and what it refuses."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
from originals import shared_files

from autodial.data.datum_data import DatumData
from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.proto import parse_net

RNG = np.random.default_rng(0)
PHOTO = cv2.resize(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8), (12, 10), interpolation=cv2.INTER_CUBIC)
"""10 x 12 pixels."""


def write(folder: Path, *values: bytes) -> Path:
    """A database `db` in `folder` of these values, with keys 000, 001, ..."""
    environment = lmdb.open(str(folder / "db"), map_size=2**26, lock=False)
    with environment.begin(write=True) as txn:
        for i, value in enumerate(values):
            txn.put(f"{i:03}".encode(), value)
    environment.close()
    return folder


def raw(planes: np.ndarray[Any, Any], label: int = 0) -> bytes:
    """A datum of (C, H, W) bytes or floats."""
    channels, height, width = planes.shape
    datum = pb.Datum(channels=channels, height=height, width=width, label=label)
    if planes.dtype == np.uint8:
        datum.data = planes.tobytes()
    else:
        datum.float_data.extend(planes.ravel())
    return bytes(datum.SerializeToString())


def encoded(suffix: str, image: np.ndarray[Any, Any], label: int = 0) -> bytes:
    return bytes(pb.Datum(data=cv2.imencode(suffix, image)[1].tobytes(), label=label, encoded=True).SerializeToString())


def data(
    folder: Path,
    options: str = "batch_size: 1",
    transform: str = "",
    *,
    phase: int = pb.TEST,
    seed: int = 1,
    tops: str = 'top: "data" top: "label"',
) -> DatumData:
    text = f"""layer {{ name: "data" type: "Data" {tops} transform_param {{ {transform} }}
      data_param {{ source: "db" backend: LMDB {options} }} }}"""
    return DatumData(parse_net(text).layer[0], phase=phase, seed=seed, base_dir=folder)


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Seven datums of 1 x 2 x 3 bytes: number k all k, labelled 10 * k."""
    return write(tmp_path, *(raw(np.full((1, 2, 3), k, dtype=np.uint8), 10 * k) for k in range(7)))


def test_batches_follow_the_keys_and_wrap_round(numbered: Path) -> None:
    layer = data(numbered, "batch_size: 3 prefetch: 9")
    assert layer.top_shapes == ((3, 1, 2, 3), (3,))
    assert len(layer) == 7
    for index in (2, 0, 1, 100):
        rows = [(3 * index + i) % 7 for i in range(3)]
        images, labels = layer.batch(index)
        assert (images.dtype, labels.dtype) == (np.float32, np.float32)
        np.testing.assert_array_equal(images, np.broadcast_to(np.reshape(rows, (3, 1, 1, 1)), (3, 1, 2, 3)))
        np.testing.assert_array_equal(labels, np.multiply(rows, 10))
        assert layer.names(index) == [f"{row:03}" for row in rows]


def test_a_batch_may_be_larger_than_the_database(numbered: Path) -> None:
    assert data(numbered, "batch_size: 16").batch(1)[1].tolist() == [10 * (i % 7) for i in range(16, 32)]


def test_one_top_has_no_labels(numbered: Path) -> None:
    layer = data(numbered, "batch_size: 2", tops='top: "data"')
    assert layer.top_shapes == ((2, 1, 2, 3),)
    (images,) = layer.batch(1)
    assert images[:, 0, 0, 0].tolist() == [2, 3]


def test_rand_skip_starts_at_one_of_the_first_datums(numbered: Path) -> None:
    starts = {int(data(numbered, "batch_size: 1 rand_skip: 4", seed=seed).batch(0)[1][0]) for seed in range(30)}
    assert starts == {0, 10, 20, 30}


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_raw_datums_are_channels_rows_columns(tmp_path: Path, channels: int, dtype: Any) -> None:
    planes = [(RNG.normal(size=(channels, 4, 5)) * 300).astype(dtype) for _ in range(2)]
    images, labels = data(write(tmp_path, *map(raw, planes)), "batch_size: 2").batch(0)
    np.testing.assert_array_equal(images, np.stack(planes).astype(np.float32))
    assert labels.tolist() == [0, 0]


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize(
    ("transform", "options", "flag"),
    [
        ("", "", cv2.IMREAD_UNCHANGED),
        ("force_color: true", "", cv2.IMREAD_COLOR),
        ("force_gray: true", "", cv2.IMREAD_GRAYSCALE),
        ("", "force_encoded_color: true", cv2.IMREAD_COLOR),
    ],
)
@pytest.mark.parametrize(
    "image", [PHOTO, PHOTO[:, :, 0], np.dstack([PHOTO, PHOTO[:, :, 0]])], ids=["bgr", "grey", "alpha"]
)
def test_encoded_datums_are_decoded_as_caffe_asks_opencv_to(
    tmp_path: Path, suffix: str, transform: str, options: str, flag: int, image: np.ndarray[Any, Any]
) -> None:
    if suffix == ".jpg" and image.shape[2:] == (4,):
        image = image[:, :, :3]
    value = encoded(suffix, image, 7)
    expected = cv2.imdecode(np.frombuffer(pb.Datum.FromString(value).data, dtype=np.uint8), flag)
    images, labels = data(write(tmp_path, value), f"batch_size: 1 {options}", transform).batch(0)
    np.testing.assert_array_equal(images, np.atleast_3d(expected).transpose(2, 0, 1)[np.newaxis])
    assert labels.tolist() == [7]


@pytest.mark.parametrize("kind", ["bytes", "floats", "png"])
def test_the_transform_is_caffes_for_every_kind(tmp_path: Path, kind: str) -> None:
    planes = np.ascontiguousarray(PHOTO.transpose(2, 0, 1))
    values = {"bytes": raw(planes), "floats": raw(planes.astype(np.float32)), "png": encoded(".png", PHOTO)}
    write(tmp_path, values[kind])
    mean = RNG.uniform(0, 255, planes.shape).astype(np.float32)
    blob = pb.BlobProto(shape=pb.BlobShape(dim=[1, *mean.shape]), data=mean.ravel())
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    scale = np.float32(0.5)
    with_mean_file = data(tmp_path, transform='crop_size: 7 scale: 0.5 mean_file: "mean.binaryproto"').batch(0)[0][0]
    np.testing.assert_array_equal(with_mean_file, (planes - mean)[:, 1:8, 2:9] * scale)
    with_values = data(tmp_path, transform="scale: 0.5 mean_value: 1 mean_value: 2 mean_value: 3").batch(0)[0][0]
    np.testing.assert_array_equal(with_values, (planes - np.float32([[[1]], [[2]], [[3]]])) * scale)
    crops = data(tmp_path, "batch_size: 300", "crop_size: 9 mirror: true", phase=pb.TRAIN).batch(0)[0]
    windows = [planes[:, y : y + 9, x : x + 9].astype(np.float32) for y in range(2) for x in range(4)]
    assert {crop.tobytes() for crop in crops} == {
        result.tobytes() for window in windows for result in (window, window[:, :, ::-1])
    }


def test_a_batch_depends_on_seed_and_index_alone(tmp_path: Path) -> None:
    write(tmp_path, *(encoded(".png", np.roll(PHOTO, k)) for k in range(5)))
    layer = data(tmp_path, "batch_size: 4 rand_skip: 3", "crop_size: 7 mirror: true", phase=pb.TRAIN)
    in_order = [layer.batch(index)[0] for index in range(6)]
    assert len({images.tobytes() for images in in_order}) == 6
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for index in (4, 0):
            np.testing.assert_array_equal(pool.submit(layer.batch, index).result()[0], in_order[index])
    other = data(tmp_path, "batch_size: 4", "crop_size: 7 mirror: true", phase=pb.TRAIN, seed=2)
    assert not np.array_equal(other.batch(0)[0], in_order[0])


@pytest.mark.parametrize(
    ("options", "transform", "reason"),
    [
        ("backend: LMDB", "", "data_param.batch_size is missing or 0"),
        ("batch_size: 1", "", "db is an LMDB and data_param.backend is LEVELDB, the default"),
        ("backend: LMDB scale: 1", "", "data_param.scale is out of date: move it to transform_param { scale }"),
        ("backend: LMDB mean_file: 'm'", "", "data_param.mean_file is out of date"),
        ("backend: LMDB crop_size: 1", "", "data_param.crop_size is out of date"),
        ("backend: LMDB mirror: true", "", "data_param.mirror is out of date"),
        ("backend: LMDB batch_size: 1", "crop_size: 3", "an image of 2 x 3 is smaller than crop_size 3"),
        ("backend: LMDB batch_size: 1", "mean_value: 1 mean_value: 2", "2 mean_values; state one, or 1"),
        ("backend: LMDB batch_size: 1", "force_color: true", "contradicts the images' number of channels, 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused(numbered: Path, options: str, transform: str, reason: str) -> None:
    text = f'layer {{ top: "d" transform_param {{ {transform} }} data_param {{ source: "db" {options} }} }}'
    with pytest.raises(InputError) as error:
        DatumData(parse_net(text).layer[0], phase=pb.TEST, seed=0, base_dir=numbered)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_leveldb_gives_what_an_lmdb_of_the_same_datums_gives(tmp_path: Path) -> None:
    plyvel = pytest.importorskip("plyvel")
    values = [encoded(".png", np.roll(PHOTO, k), k) for k in range(5)]
    write(tmp_path, *values)
    (tmp_path / "level").mkdir()
    with plyvel.DB(str(tmp_path / "level" / "db"), create_if_missing=True) as database:
        for i, value in reversed(list(enumerate(values))):
            database.put(f"{i:03}".encode(), value)
    options = ("batch_size: 4 rand_skip: 3", "crop_size: 7 mirror: true")
    lmdb_layer = data(tmp_path, *options, phase=pb.TRAIN)
    text = f"""layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ {options[1]} }}
      data_param {{ source: "db" {options[0]} }} }}"""  # LEVELDB is Caffe's default
    layer = DatumData(parse_net(text).layer[0], phase=pb.TRAIN, seed=1, base_dir=tmp_path / "level")
    assert len(layer) == 5
    for index in (0, 3, 1):
        for ours, wanted in zip(layer.batch(index), lmdb_layer.batch(index), strict=True):
            np.testing.assert_array_equal(ours, wanted)
        assert layer.names(index) == lmdb_layer.names(index)
    with pytest.raises(InputError, match=r"db is a LevelDB and data_param\.backend is LMDB: write backend: LEVELDB"):
        data(tmp_path / "level")


def test_a_missing_or_empty_database_is_refused(tmp_path: Path) -> None:
    layer = parse_net('layer { name: "d" type: "Data" data_param { batch_size: 1 backend: LMDB } }').layer[0]
    with pytest.raises(InputError, match=r"data_param.source, the folder of the database, is missing"):
        DatumData(layer, phase=pb.TEST, seed=0)
    with pytest.raises(InputError, match=r'"db" does not exist \(looked for '):
        data(tmp_path)
    with pytest.raises(InputError, match=r"data\.mdb is a database without entries"):
        data(write(tmp_path))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xff\xff", "is not a Datum message"),
        (raw(np.zeros((1, 2, 3), dtype=np.uint8))[:-1] + b"\x00\x00", "is not a Datum message"),
        (pb.Datum(channels=1, height=2, width=3, data=b"12345").SerializeToString(), "5 values for 1 x 2 x 3"),
        (pb.Datum(channels=-1, height=-2, width=3, data=b"123456").SerializeToString(), "6 values for -1 x -2 x 3"),
        (pb.Datum().SerializeToString(), "0 values for 0 x 0 x 0"),
        (pb.Datum(encoded=True).SerializeToString(), "the encoded image is empty"),
        (pb.Datum(encoded=True, data=b"no image").SerializeToString(), "the encoded image is not an image"),
        (encoded(".png", np.zeros((2, 3), dtype=np.uint16)), "the encoded image has pixels of uint16"),
        (raw(np.zeros((1, 3, 2), dtype=np.uint8)), "3 x 2 x 1, where the first datum has 2 x 3 x 1"),
        (raw(np.zeros((3, 2, 3), dtype=np.uint8)), "2 x 3 x 3, where the first datum has 2 x 3 x 1"),
    ],
)
def test_a_bad_datum_is_named_by_its_key(tmp_path: Path, value: bytes, reason: str) -> None:
    layer = data(write(tmp_path, raw(np.zeros((1, 2, 3), dtype=np.uint8)), value))
    layer.batch(0)
    with pytest.raises(InputError) as error:
        layer.batch(1)
    assert f'{tmp_path / "db" / "data.mdb"}, key "001": ' in str(error.value)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_check_finds_a_damaged_datum(numbered: Path) -> None:
    layer = data(numbered)
    layer.check()
    write(numbered, *[raw(np.zeros((1, 2, 3), dtype=np.uint8))] * 5, b"\xff")
    with pytest.raises(InputError, match=r'layer "data" \(Data\): .*data\.mdb, key "005": the value is not a Datum'):
        data(numbered).check()


def test_labels_are_listed_with_their_keys(numbered: Path) -> None:
    layer = data(numbered)
    assert list(layer.labels(0)) == []
    path = numbered / "db" / "data.mdb"
    assert list(layer.labels(1)) == [(f'{path}, key "{k:03}"', 10 * k) for k in range(7)]


@pytest.mark.parametrize("folder", shared_files("data/*_lmdb"))
def test_the_originals_databases(folder: Path) -> None:
    text = f'layer {{ top: "d" top: "l" data_param {{ source: "{folder.as_posix()}" batch_size: 50 backend: LMDB }} }}'
    layer = DatumData(parse_net(text).layer[0], phase=pb.TEST, seed=0)
    layer.check()
    environment = lmdb.open(str(folder), readonly=True, lock=False)
    with environment.begin() as txn:
        values = [pb.Datum.FromString(value) for _, value in txn.cursor()]
    environment.close()
    assert len(layer) == len(values)
    images, labels = layer.batch(len(values) // 50 - 1)
    for value, image, label in zip(values[len(values) // 50 * 50 - 50 :], images, labels, strict=False):
        pixels = np.frombuffer(value.data, dtype=np.uint8)
        expected = cv2.imdecode(pixels, cv2.IMREAD_GRAYSCALE) if value.encoded else pixels.reshape(28, 28)
        np.testing.assert_array_equal(image, expected[np.newaxis])
        assert label == value.label


def test_readers_import_neither_torch_nor_what_only_some_of_them_need() -> None:
    code = """
import sys
import autodial.data.datum_data, autodial.data.hdf5_data, autodial.data.memory_data
print(sorted({"torch", "onnx", "onnxruntime", "h5py", "lmdb"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("transform", ["crop_size: 4 mirror: true", "mirror: true", ""])
def test_rows_are_the_same_without_the_others(tmp_path: Path, transform: str) -> None:
    sizes = [(6 + i, 9 - i) for i in range(4)] if "crop" in transform else [(6, 7)] * 4
    images = [RNG.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    write(tmp_path, *(encoded(".png", image, i) for i, image in enumerate(images)))
    source = data(tmp_path, "batch_size: 5", transform, phase=pb.TRAIN)
    for index in range(3):
        for rows in (slice(0, 2), slice(2, 5)):
            for got, whole in zip(source.batch(index, rows), source.batch(index), strict=True):
                np.testing.assert_array_equal(got, whole[rows])

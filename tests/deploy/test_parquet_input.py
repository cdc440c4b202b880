"""`predict_folder` on Parquet tables, against the same images as files."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from autodial.deploy import PredictOptions, predict_folder
from autodial.errors import InputError, WorkError

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

VIEWS = pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 22, reason="older pyarrows write no views to Parquet")


@pytest.fixture
def files(photos: Path) -> list[Path]:
    (photos / "broken.png").write_bytes(b"broken")
    return sorted(path for path in photos.rglob("*") if path.is_file())


def labels(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def label(model: Any, *inputs: Path | str, **options: Any) -> list[dict[str, str]]:
    table = Path(inputs[0]).parent / "labels.csv" if options.get("output") is None else options.pop("output")
    predict_folder(model.path, list(inputs), table, PredictOptions(logits=True, **options))
    return labels(table)


def without_names(table: list[dict[str, str]]) -> list[list[str]]:
    return [[text for name, text in row.items() if name not in ("path", "error")] for row in table]


@pytest.mark.parametrize(
    ("of_bytes", "of_paths"),
    [
        (pa.binary(), pa.string()),
        (pa.large_binary(), pa.large_string()),
        (pa.binary(), pa.dictionary(pa.int32(), pa.string())),
        pytest.param(pa.binary_view(), pa.string_view(), marks=VIEWS),
    ],
)
def test_a_column_of_files(model: Any, files: list[Path], tmp_path: Path, of_bytes: Any, of_paths: Any) -> None:
    names = [path.name for path in files]
    columns = {
        "label": pa.array(range(len(files))),
        "path": pa.array(names).cast(of_paths),
        "bytes": pa.array([path.read_bytes() for path in files], of_bytes),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=5)
    found = label(model, tmp_path / "t.parquet")
    assert without_names(found) == without_names(label(model, *files, output=tmp_path / "files.csv"))
    assert [row["path"] for row in found] == names
    broken = found[names.index("broken.png")]
    assert broken["status"] == "error" and broken["error"].startswith("broken.png is not an image")


def test_rows_without_a_path_are_numbered(model: Any, files: list[Path], tmp_path: Path) -> None:
    values = [files[0].read_bytes(), None, b"", files[1].read_bytes()]
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"photo": values}), table)
    found = label(model, table, column="photo")
    assert [row["path"] for row in found] == [f"{table}[{i}]" for i in range(4)]
    assert [row["status"] for row in found] == ["ok", "error", "error", "ok"]
    assert found[1]["error"] == "there is no image in this row" and found[2]["error"] == f"{table}[2] is empty"
    assert [found[0]["label_1"], found[3]["label_1"]] == model.labels(*files[:2])


def test_images_as_hugging_face_s_datasets_have_them(model: Any, files: list[Path], tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    values = [
        {"bytes": files[0].read_bytes(), "path": "first.png"},
        {"bytes": None, "path": str(files[1])},
        {"bytes": files[3].read_bytes(), "path": None},
        None,
    ]
    table = tmp_path / "train-00000-of-00001.parquet"
    pq.write_table(pa.table({"image": pa.array(values, kind), "path": ["no"] * 4}), table)
    found = label(model, table)
    assert [row["path"] for row in found] == ["first.png", str(files[1]), f"{table}[2]", f"{table}[3]"]
    assert [row["status"] for row in found] == ["ok", "ok", "ok", "error"]
    assert [row["label_1"] for row in found[:3]] == model.labels(files[0], files[1], files[3])


def test_a_path_that_is_no_text_is_passed_over(model: Any, files: list[Path], tmp_path: Path) -> None:
    value, table = {"bytes": files[0].read_bytes(), "path": b"a.png"}, tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": [value, {**value, "bytes": None}]}), table)
    found = label(model, table)
    assert [(row["path"], row["status"]) for row in found] == [(f"{table}[0]", "ok"), (f"{table}[1]", "error")]


def test_a_column_of_paths(model: Any, files: list[Path], photos: Path, tmp_path: Path) -> None:
    names = [path.relative_to(photos).as_posix() for path in files]
    pq.write_table(pa.table({"path": [*names, None, f"file://{files[0]}"]}), photos / "t.parquet")
    found = label(model, photos / "t.parquet", output=tmp_path / "labels.csv")
    assert [row["path"] for row in found] == [*names, f"{photos / 't.parquet'}[{len(names)}]", str(files[0])]
    expected = without_names(label(model, *files, output=tmp_path / "files.csv"))
    assert without_names(found)[: len(files)] == expected and without_names(found)[-1] == expected[0]
    assert found[-2]["status"] == "error"


def test_many_tables(model: Any, files: list[Path], tmp_path: Path) -> None:
    parts = tmp_path / "all.parquet"
    parts.mkdir()
    for i, path in enumerate(files):
        pq.write_table(pa.table({"bytes": [path.read_bytes()], "path": [path.name]}), parts / f"part-{i:02}.parquet")
    (parts / "_SUCCESS").touch()
    (parts / ".part-00.parquet.crc").touch()
    names = [path.name for path in files]
    assert [row["path"] for row in label(model, parts)] == names
    assert [row["path"] for row in label(model, f"{parts}/part-0*.parquet", output=tmp_path / "o.csv")] == names[:10]
    with pytest.raises(InputError, match=r"no image in this folder or below it.*passed over are .*parquet"):
        (tmp_path / "folder").mkdir()
        parts.rename(tmp_path / "folder" / "all.parquet")
        label(model, tmp_path / "folder")


def test_tables_with_an_underscore_are_passed_over_in_folders_alone(
    model: Any, files: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("fsspec")
    parts = tmp_path / "all.parquet"
    parts.mkdir()
    for name in ("_common", "a"):
        pq.write_table(pa.table({"bytes": [files[0].read_bytes()], "path": [name]}), parts / f"{name}.parquet")
    for place in (parts, f"local://{parts}"):
        for given, names in ((place, ["a"]), (f"{place}/*.parquet", ["_common", "a"])):
            found = label(model, given, output=tmp_path / "labels.csv")
            assert [row["path"] for row in found] == names


def test_a_table_at_an_address(model: Any, files: list[Path], tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    pq.write_table(pa.table({"bytes": [path.read_bytes() for path in files]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"path": ["x.png", "memory://tables/y.png"]}), tmp_path / "p.parquet")
    memory = fsspec.filesystem("memory")
    for name in ("t.parquet", "p.parquet"):
        memory.pipe(f"/tables/{name}", (tmp_path / name).read_bytes())
    memory.pipe({"/tables/x.png": files[0].read_bytes(), "/tables/y.png": files[1].read_bytes()})
    here = label(model, tmp_path / "t.parquet")
    there = label(model, "memory://tables/t.parquet", output=tmp_path / "o.csv")
    assert without_names(there) == without_names(here)
    assert there[0]["path"] == "memory://tables/t.parquet[0]"
    found = label(model, "memory://tables/p.parquet", output=tmp_path / "o.csv")
    assert [(row["path"], row["label_1"]) for row in found] == list(
        zip(["x.png", "memory://tables/y.png"], model.labels(*files[:2]), strict=True)
    )


def test_an_address_that_can_not_be_used_is_an_error_of_its_row(
    model: Any, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    paths = [str(files[0]), "unknown-protocol://user:secret@host/a.png", str(files[0])]
    pq.write_table(pa.table({"path": paths}), tmp_path / "t.parquet")
    stream = io.TextIOWrapper(io.BytesIO("".join(f"{path}\n" for path in paths).encode()))
    monkeypatch.setattr("sys.stdin", stream)
    for given in (tmp_path / "t.parquet", "-"):
        found = label(model, given, output=tmp_path / "labels.csv")
        assert [row["status"] for row in found] == ["ok", "error", "ok"]
        assert found[1]["path"] == "unknown-protocol://***@host/a.png"
        assert "fsspec knows no protocol unknown-protocol" in found[1]["error"]
    assert "secret" not in (tmp_path / "labels.csv").read_text(encoding="utf-8")


def test_a_run_over_a_table_is_resumed(model: Any, files: list[Path], tmp_path: Path) -> None:
    table, out = tmp_path / "t.parquet", tmp_path / "labels.csv"
    values = [path.read_bytes() for path in files]
    pq.write_table(pa.table({"bytes": values}), table)

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_folder(model.path, [table], out, PredictOptions(batch_size=2), progress=stop)
    summary = predict_folder(model.path, [table], out, PredictOptions(batch_size=2, resume=True))
    assert 0 < summary.resumed < summary.images == len(files)
    whole = out.read_bytes()
    predict_folder(model.path, [table], out, PredictOptions(batch_size=2))
    assert out.read_bytes() == whole
    with pytest.raises(KeyboardInterrupt):
        predict_folder(model.path, [table], out, PredictOptions(batch_size=2), progress=stop)
    pq.write_table(pa.table({"bytes": [values[0][:-1] + b"x", *values[1:]]}), table)
    with pytest.raises(InputError, match=r"t.parquet\[0\] has changed"):
        predict_folder(model.path, [table], out, PredictOptions(batch_size=2, resume=True))


def test_what_can_not_be_used_is_said(model: Any, files: list[Path], tmp_path: Path) -> None:
    data = files[0].read_bytes()
    tables = {
        "none": {"photo": [data], "name": ["a"]},
        "numbers": {"bytes": [1, 2]},
        "lists": {"photo": [[data]]},
        "empty": {"bytes": pa.array([], pa.binary())},
        "good": {"bytes": [data]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    (tmp_path / "damaged.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:-20])
    (tmp_path / "nothing.parquet").touch()
    for name, options, words in [
        ("none", {}, "has no column bytes, image or path with .*name the column .*`column` .*there are photo, name"),
        ("none", {"column": "phot"}, "has no column phot: `column` is one of photo, name"),
        ("numbers", {}, "has no column bytes, image or path with image files or paths"),
        ("lists", {"column": "photo"}, "column photo has values of type list.*, not image files or paths"),
        ("empty", {}, "empty.parquet: this table has no rows"),
        ("damaged", {}, "damaged.parquet can't be read as a Parquet table"),
        ("nothing", {}, "nothing.parquet can't be read as a Parquet table"),
        ("gone", {}, "gone.parquet: no such file or folder"),
        ("good", {"sort_into": tmp_path / "sorted"}, "`sort_into` takes files of this machine, and .*good.parquet"),
    ]:
        with pytest.raises(InputError, match=words):
            predict_folder(model.path, [tmp_path / f"{name}.parquet"], tmp_path / "out.csv", PredictOptions(**options))
    with pytest.raises(InputError, match="`column` bytes is one of a Parquet table, and no input is such a table"):
        predict_folder(model.path, files, tmp_path / "out.csv", PredictOptions(column="bytes"))
    assert not list(tmp_path.glob("out*"))


def test_a_table_damaged_further_behind_ends_the_run(model: Any, files: list[Path], tmp_path: Path) -> None:
    table, out = tmp_path / "t.parquet", tmp_path / "out.csv"
    pixels = [path.read_bytes() for path in files for _ in range(20)]
    pq.write_table(pa.table({"bytes": pixels}), table, row_group_size=64, compression="gzip", use_dictionary=False)
    data = bytearray(table.read_bytes())
    middle = pq.read_metadata(table).row_group(3).column(0).data_page_offset
    data[middle : middle + 200] = b"\xff" * 200
    table.write_bytes(data)
    with pytest.raises(InputError, match=r"t.parquet can't be read as a Parquet table: .*the first \d+ images are in"):
        predict_folder(model.path, [table], out, PredictOptions(batch_size=8))


def test_without_pyarrow_a_sentence_says_so(
    model: Any, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WorkError, match=r"a .parquet table needs pyarrow, which is not installed"):
        predict_folder(model.path, [tmp_path / "t.parquet"], tmp_path / "out.csv")

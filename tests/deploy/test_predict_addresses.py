"""`predict_folder` with addresses: fsspec's files in memory, its local files, and files behind a password."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autodial.data import transforms
from autodial.deploy import PredictOptions, Predictor, predict_folder, sources
from autodial.errors import InputError, WorkError

fsspec = pytest.importorskip("fsspec")
from exported_model import save_apart  # noqa: E402
from guarded_files import PREFIX, GuardedFiles  # noqa: E402


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing in it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def memory(photos: Path) -> Iterator[Any]:
    """The photos, a hidden one, a damaged one and a text at memory://photos."""
    (photos / "broken.png").write_bytes(b"broken")
    files = fsspec.filesystem("memory")
    put(photos, files, "/photos")
    files.pipe({"/photos/.hidden.png": b"", "/photos/notes.doc": b"", "/photos/.cache/x.png": b""})
    yield files
    files.rm("/", recursive=True)


def put(folder: Path, files: Any, place: str) -> None:
    names = (path for path in folder.rglob("*") if path.is_file())
    files.pipe({f"{place}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in names})


def rows(data: bytes | str) -> list[dict[str, str]]:
    text = data.decode() if isinstance(data, bytes) else data
    return list(csv.DictReader(io.StringIO(text, newline="")))


def labels(path: Path, **changed: str) -> list[dict[str, str]]:
    return rows(path.read_text(encoding="utf-8"))


def at(table: list[dict[str, str]], place: str, instead: str) -> list[dict[str, str]]:
    """A table whose paths and errors start elsewhere."""
    return [{**row, **{name: row[name].replace(place, instead) for name in ("path", "error")}} for row in table]


def test_a_folder_is_labelled_as_on_disk(model: Any, photos: Path, memory: Any) -> None:
    predict_folder(model.path, [photos], "disk.csv", PredictOptions(top_k=2, logits=True))
    for place in ("memory://photos", "memory://photos/", f"local://{photos}", f"file://{photos}"):
        summary = predict_folder(model.path, [place], "out.csv", PredictOptions(top_k=2, logits=True))
        shown = str(photos) if place.startswith("file") else place.rstrip("/")
        assert labels(Path("out.csv")) == at(labels(Path("disk.csv")), str(photos), shown)
        if place.startswith("memory"):
            assert summary.passed_over == {".doc": 1, "hidden": 1}
    assert [row["status"] for row in labels(Path("out.csv"))].count("error") == 1


def test_files_patterns_lists_and_standard_input(
    model: Any, photos: Path, memory: Any, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict_folder(model.path, ["memory://photos/a.png", "memory://photos/**/[0-2].png"], "out.csv")
    expected = ["a.png", "sub/deep/0.png", "sub/deep/1.png", "sub/deep/2.png"]
    assert [row["path"] for row in labels(Path("out.csv"))] == [f"memory://photos/{name}" for name in expected]
    assert [row["label_1"] for row in labels(Path("out.csv"))] == model.labels(*(photos / name for name in expected))
    predict_folder(model.path, ["memory://photos/.*.png"], "out.csv")
    assert [row["path"] for row in labels(Path("out.csv"))] == ["memory://photos/.hidden.png"]

    Path("here.txt").write_text(f"memory://photos/a.png 3\nfile://{photos}/b.JPG\nmemory://photos/gone.png\n")
    predict_folder(model.path, ["here.txt"], "out.csv")
    found = labels(Path("out.csv"))
    assert [row["path"] for row in found] == ["memory://photos/a.png", f"{photos}/b.JPG", "memory://photos/gone.png"]
    assert [row["status"] for row in found] == ["ok", "ok", "error"]
    assert found[2]["error"] == '"memory://photos/gone.png" does not exist'

    memory.pipe("/photos/list.txt", f"sub/x.png 1\nmemory://photos/a.png\n{photos}/a.png\nsub/nowhere.png\n".encode())
    predict_folder(model.path, ["memory://photos/list.txt"], "out.csv")
    found = labels(Path("out.csv"))
    assert [row["path"] for row in found][:2] == ["sub/x.png", "memory://photos/a.png"]
    assert [row["status"] for row in found] == ["ok", "ok", "ok", "error"]

    memory.pipe("/photos/list.txt", b"one::two.png\na.png\n")  # :: has a meaning of its own in addresses
    predict_folder(model.path, ["memory://photos/list.txt"], "out.csv")
    found = labels(Path("out.csv"))
    assert [row["status"] for row in found] == ["error", "ok"] and "chained by ::" in found[0]["error"]

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"memory://photos/a.png\n")))
    predict_folder(model.path, ["-"], "out.csv")
    assert labels(Path("out.csv"))[0]["status"] == "ok"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_at_an_address(model: Any, photos: Path, memory: Any, work: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    (work / f"out.{suffix}").write_text("mine")
    predict_folder(model.path, [photos], f"disk.{suffix}", PredictOptions(shard=(1, 2)))
    memory.pipe(f"/tables/out-1-of-2.{suffix}", b"old")
    summary = predict_folder(model.path, [photos], f"memory://tables/out.{suffix}", PredictOptions(shard=(1, 2)))
    assert summary.table == f"memory://tables/out-1-of-2.{suffix}"
    assert summary.record()["table"] == summary.table
    expected = Path(f"disk-1-of-2.{suffix}").read_bytes()
    assert memory.cat_file(f"/tables/out-1-of-2.{suffix}") == expected
    assert (work / f"out.{suffix}").read_text() == "mine"
    assert sorted(path.name for path in work.iterdir()) == [f"disk-1-of-2.{suffix}", f"out.{suffix}"]
    predict_folder(model.path, [photos], f"file://{work}/out.{suffix}", PredictOptions(shard=(1, 2)))
    assert Path(f"out-1-of-2.{suffix}").read_bytes() == expected


def test_a_run_with_addresses_is_resumed(model: Any, photos: Path, memory: Any, work: Path) -> None:
    arguments: Any = (model.path, ["memory://photos"], "memory://tables/out.csv")

    def stop(done: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"the rows of the first \d+ images are in .*out.csv.partial"):
        predict_folder(*arguments, PredictOptions(batch_size=4), progress=stop)
    assert not memory.exists("/tables/out.csv")
    with pytest.raises(InputError, match=r"`output` was memory://tables/out.csv and is memory://other/out.csv"):
        predict_folder(*arguments[:2], "memory://other/out.csv", PredictOptions(batch_size=4, resume=True))
    assert predict_folder(*arguments, PredictOptions(batch_size=4, resume=True)).resumed >= 8
    whole = memory.cat_file("/tables/out.csv")
    predict_folder(*arguments, PredictOptions(batch_size=4))
    assert memory.cat_file("/tables/out.csv") == whole and not list(work.iterdir())

    with pytest.raises(KeyboardInterrupt):
        predict_folder(*arguments, PredictOptions(batch_size=4), progress=stop)
    memory.pipe("/photos/a.png", b"another one")
    with pytest.raises(InputError, match=r"memory://photos/a.png has changed.* since its row was written"):
        predict_folder(*arguments, PredictOptions(batch_size=4, resume=True))


def test_rows_outlive_an_upload_that_fails(model: Any, photos: Path, memory: Any, work: Path) -> None:
    with pytest.raises(
        WorkError, match=r"^guarded://\*\*\*@host/closed/out.csv: can't write: .*; the rows of the firs"
    ):
        predict_folder(model.path, [photos], f"{PREFIX}/closed/out.csv")
    assert "secret" not in "".join(path.read_text() for path in work.glob("*.json"))
    assert (work / "out.csv.partial").is_file()
    with pytest.raises(WorkError, match="can't write"):
        predict_folder(model.path, [photos], f"{PREFIX}/closed/out.csv", PredictOptions(resume=True))
    shutil.copytree(work, work.with_name("kept"))
    assert sorted(path.name for path in work.iterdir()) == [
        "out.csv.partial",
        "out.csv.partial.files",
        "out.csv.partial.json",
    ]


def test_credentials_appear_nowhere(model: Any, photos: Path, work: Path, memory: Any) -> None:
    put(photos / "sub", memory, "/guarded")
    memory.pipe("/guarded/closed.png", b"x")
    Path("list.txt").write_text(f"{PREFIX}/guarded/x.png\n{PREFIX}/guarded/gone.png\n")

    def stop(done: int) -> None:
        texts = [path.read_bytes() for path in work.glob("out.csv.*")]
        assert len(texts) == 3 and not any(b"secret" in text for text in texts)
        raise KeyboardInterrupt

    inputs = [f"{PREFIX}/guarded", "list.txt"]
    with pytest.raises(KeyboardInterrupt):
        predict_folder(model.path, inputs, "out.csv", PredictOptions(batch_size=1), progress=stop)
    predict_folder(model.path, inputs, "out.csv", PredictOptions(resume=True, batch_size=1))
    text = Path("out.csv").read_text(encoding="utf-8")
    assert "secret" not in text and "user" not in text
    found = {row["path"]: row for row in rows(text)}
    assert found["guarded://***@host/guarded/x.png"]["status"] == "ok"
    closed = found["guarded://***@host/guarded/closed.png"]
    assert closed["status"] == "error" and "403" in closed["error"]
    for wrong in (f"{PREFIX}/nowhere", f"{PREFIX}/guarded/*.nothing"):
        with pytest.raises(InputError) as refusal:
            predict_folder(model.path, [wrong], "out.csv")
        assert "guarded://***@host" in str(refusal.value) and "secret" not in str(refusal.value)


def test_a_huge_file_is_not_fetched(model: Any, photos: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GuardedFiles.sizes, "huge.png", 3 * 2**30)
    monkeypatch.setattr(GuardedFiles, "fetched", [])
    memory.pipe({"/large/huge.png": b"x", "/large/small.png": (photos / "a.png").read_bytes()})
    predict_folder(model.path, [f"{PREFIX}/large"], "out.csv")
    assert [(row["status"], row["error"]) for row in labels(Path("out.csv"))] == [
        ("error", "guarded://***@host/large/huge.png is larger than 2 GiB, OpenCV's limit"),
        ("ok", ""),
    ]
    assert GuardedFiles.fetched == ["/large/small.png"]


def test_a_file_of_unknown_size_is_not_fetched_without_end(
    model: Any, photos: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a web server that does not state the size: such a file may never end."""
    good = (photos / "a.png").read_bytes()
    read: list[int] = []

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            part = super().read(min(7, size or 0))  # as a stream gives what has arrived
            read.append(len(part))
            return part

    monkeypatch.setattr(GuardedFiles, "sizes", {"endless.png": 0, "small.png": 0})
    monkeypatch.setattr(GuardedFiles, "fetched", [])
    monkeypatch.setattr(GuardedFiles, "_open", lambda self, path, mode="rb", **_: Counted(self.store[path].getvalue()))
    for module in (sources, transforms):
        monkeypatch.setattr(module, "LARGEST", len(good))
    memory.pipe({"/odd/endless.png": good + b"x" * 10_000, "/odd/small.png": good})
    predict_folder(model.path, [f"{PREFIX}/odd"], "out.csv", PredictOptions(workers=1))
    assert [(row["status"], row["error"]) for row in labels(Path("out.csv"))] == [
        ("error", "guarded://***@host/odd/endless.png is larger than 2 GiB, OpenCV's limit"),
        ("ok", ""),
    ]
    assert GuardedFiles.fetched == [] and sum(read) == 2 * len(good) + 1


def test_a_model_at_an_address(model: Any, photos: Path, memory: Any) -> None:
    memory.put(str(model.path), "/models/m.onnx")
    memory.pipe("/models/bad.onnx", b"no model")
    predict_folder(model.path, [photos], "disk.csv")
    predict_folder("memory://models/m.onnx", [photos], "out.csv")
    assert Path("out.csv").read_bytes() == Path("disk.csv").read_bytes()
    with pytest.raises(InputError, match=r"^memory://models/bad.onnx is not an ONNX file"):
        predict_folder("memory://models/bad.onnx", [photos], "out.csv")
    with pytest.raises(InputError, match=r"^memory://models/none.onnx: no such file"):
        predict_folder("memory://models/none.onnx", [photos], "out.csv")


def test_a_model_comes_with_its_second_file(model: Any, photos: Path, memory: Any, tmp_path: Path) -> None:
    path = save_apart(model.path, tmp_path / "large.onnx")
    memory.pipe("/models/large.onnx", path.read_bytes())
    with pytest.raises(InputError, match=r"^memory://models/large\.onnx\.data: no such file$"):
        predict_folder("memory://models/large.onnx", [photos], "there.csv")
    memory.pipe("/models/large.onnx.data", Path(f"{path}.data").read_bytes())
    predict_folder("memory://models/large.onnx", [photos], "there.csv")
    predict_folder(model.path, [photos], "here.csv")
    assert labels(Path("there.csv")) == labels(Path("here.csv"))


def test_what_can_not_be_used_is_refused_at_once(model: Any, photos: Path, memory: Any, work: Path) -> None:
    memory.pipe({"/empty/notes.doc": b"", "/empty/list.txt": b"\n"})
    Path("list.txt").write_text("memory://photos/a.png\n")
    Path("unknown.txt").write_text(f"{photos}/a.png\nunknown-protocol://a.png\n")
    for inputs, output, options, words in [
        (["memory://nowhere"], "out.csv", {}, "memory://nowhere: no such file or folder"),
        (["memory://empty"], "out.csv", {}, r"memory://empty: no image is here .*passed over are .*\.doc"),
        (["memory://photos/*.gif"], "out.csv", {}, "no image is here"),
        (["memory://empty/list.txt"], "out.csv", {}, "this list names no images"),
        (["unknown.txt"], "out.csv", {}, "fsspec knows no protocol unknown-protocol"),
        (["memory://photos"], "memory://photos/sub", {}, "is a folder: name a file to write"),
        (["memory://photos"], "memory://photos/out.xlsx", {}, "the table is .csv, .jsonl, .parquet"),
        (["memory://photos"], "https://host/out.csv", {}, "https has no way to write files"),
        (["memory://photos/list.csv"], "memory://photos/list.csv", {}, "the same command reads this file"),
        (["memory://photos"], "out.csv", {"sort_into": "sorted"}, "memory://photos is none"),
        (["list.txt"], "out.csv", {"sort_into": "sorted"}, "memory://photos/a.png in list.txt is none"),
    ]:
        with pytest.raises(InputError, match=words):
            predict_folder(model.path, inputs, output, PredictOptions(**options))
    assert sorted(path.name for path in work.iterdir()) == ["list.txt", "unknown.txt"]


def test_a_predictor_fetches_nothing(model: Any, memory: Any) -> None:
    """So that a service, which is made of it, never fetches what a request names."""
    with pytest.raises(ValueError, match=r"memory://photos/a.png can't be read"):
        Predictor(model.path).predict(["memory://photos/a.png"])
